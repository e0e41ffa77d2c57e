"""Texts to functions: compiled by NVRTC, kept in memory and as machine code on disk.

The disk cache is an optimisation only: whatever is wrong with a file, the folder or code that the
driver does not take, the text is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from coregrad import config
from coregrad.cstyle import Geometry, geometry
from coregrad.errors import CompileError
from coregrad_cuda.driver import IEEE, Driver

MAGIC = b"coregrad-cuda 1\n"  # raise the number when the form of a file changes
DIGEST = 16


def cache_folder() -> Path | None:
    """Where machine code is kept, if anywhere."""
    folder = config.cache_folder()
    return None if folder is None else folder / "cuda"


class Program:
    """A kernel ready to be launched."""

    def __init__(self, function: Any, shape: Geometry) -> None:
        self.function = function
        self.name = shape.name
        self.shape = shape
        self.sizes: dict[int, tuple[int, int]] = {}  # by grid: groups, and threads of each


class Programs:
    """The programs of one GPU, whose lock is held by the caller.

    ``counts`` tells how often: memory, disk, built; damaged, refused, unwritable.
    """

    def __init__(self, driver: Driver, title: str, folder: Path | None) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.options = (*IEEE, f"--gpu-architecture={driver.architecture}")
        self._driver = driver
        self._title = title
        self._version = "\n".join((*self.options, driver.versions))
        self._programs: dict[str, Program] = {}

    def program(self, text: str) -> Program:
        """The text's program."""
        found = self._programs.get(text)
        if found is not None:
            self.counts["memory"] += 1
            return found
        found = self._programs[text] = self._load(text)
        return found

    def _load(self, text: str) -> Program:
        shape = geometry(text)
        key = hashlib.blake2b(f"{self._version}\n{text}".encode(), digest_size=DIGEST).hexdigest()
        code = self._read(key)
        function = None if code is None else self._kept(code, shape.name)
        if function is None:
            code = self._compiled(text, shape.name)
            with self._driver.errors(self._title, f"loading kernel {shape.name}"):
                function = self._driver.function(code, shape.name)
            self._write(key, code)
        return Program(function, shape)

    def _compiled(self, text: str, name: str) -> bytes:
        try:
            code = self._driver.compiled(text, self.options)
        except ValueError as error:
            raise CompileError(f"{self._title}: kernel {name}: {error}\n{text}") from error
        self.counts["built"] += 1
        return code

    def _kept(self, code: bytes, name: str) -> Any:
        """Code may be whole and yet not be taken, by another driver for one."""
        try:
            function = self._driver.function(code, name)
        except RuntimeError:
            self.counts["refused"] += 1
            return None
        self.counts["disk"] += 1
        return function

    def _read(self, key: str) -> bytes | None:
        """The kept code, if it is there and whole."""
        if self.folder is None:
            return None
        try:
            data = (self.folder / f"{key}.bin").read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + DIGEST
        code = data[start:]
        if data[:start] == MAGIC + hashlib.blake2b(code, digest_size=DIGEST).digest():
            return code
        self.counts["damaged"] += 1
        return None

    def _write(self, key: str, code: bytes) -> None:
        """Keep code on disk: whole or not at all, whoever else writes the same file."""
        if self.folder is None:
            return
        data = MAGIC + hashlib.blake2b(code, digest_size=DIGEST).digest() + code
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=key, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self.folder / f"{key}.bin")
        except OSError:  # a full disk or a read-only folder: compiling again is all it costs
            self.counts["unwritable"] += 1
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)
