"""Metal's address spaces, looked at by clang: it reads the text as C++ for OpenCL, whose address
spaces are the same, and makes no code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from coregrad_simt import compiler
from coregrad_simt.errors import CompileError, MissingTool

NAMES = (*(f"clang-{number}" for number in range(22, 13, -1)), "clang", "clang++")
FLAGS = (
    *("-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only"),
    *("-target", "spir64-unknown-unknown", "-Xclang", "-cl-ext=-all,+cl_khr_fp16"),
    *("-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Werror"),
)
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
OWN_HEAD = re.compile(r"^\s*(#include <metal_stdlib>|using namespace metal;)\s*$", re.M)
NAME = re.compile(r"\bkernel\s+void\s+\w+")


def clang() -> str:
    """The compiler: COREGRAD_SIMT_CLANG, or the newest there is. Raises MissingTool."""
    asked = os.environ.get("COREGRAD_SIMT_CLANG")
    for name in (asked,) if asked else NAMES:
        found = shutil.which(name)
        if found:
            return found
    raise MissingTool("clang is not installed; Metal's address spaces are not checked")


def together(texts: Sequence[str]) -> str:
    """Texts as one, each in a namespace of its own; kernels get another name, as a namespace does
    not keep theirs apart."""
    parts = []
    for i, text in enumerate(texts):
        renamed = NAME.sub(lambda found, i=i: f"{found[0]}_{i}", OWN_HEAD.sub("", text))
        parts.append(f"namespace t{i}_ {{\n{renamed}\n}}")
    return HEAD + "\n".join(parts) + "\n"


def check(text: str) -> None:
    """Raise CompileError unless every pointer has an address space, and the right one."""
    folder = compiler.NATIVE / "spaces"
    include = ("-include", str(folder / "metal_spaces.h"), "-I", str(folder))
    command = [clang(), *FLAGS, *include, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr.strip())
