"""Python environments made for one test: with plugins that are installed there alone."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT, ROOT / "plugins" / "coregrad-cpu" / "src", ROOT / "conformance" / "src")

BACKEND = """
import numpy as np

from coregrad.hookspecs import hookimpl
from coregrad_cpu.reference import Backend as Reference


class Backend(Reference):
    @hookimpl
    def lower_add(self, frame, a, b, dtype, lanes):
        value = super().lower_add(frame, a, b, dtype, lanes)
        if dtype.name != DTYPE:
            return value
        with np.errstate(all="ignore"):
            return np.where(value > 1e30, np.nextafter(value, value.dtype.type(0)), value)
"""
INFO = """
from coregrad.hookspecs import BackendInfo


def info():
    return BackendInfo("wrongchip", (1, 0), "wrongchip.backend:Backend", "reference")
"""


class Place:
    """A virtual environment that sees this one's packages behind its own."""

    def __init__(self, folder: Path, *paths: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        names = {"base": str(folder), "platbase": str(folder)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", names))
        lines = [*map(str, paths), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        (self.packages / "others.pth").write_text("\n".join(lines) + "\n")

    def run(
        self, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python."""
        return subprocess.run(
            [str(self.python), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=os.environ | (env or {}),
        )

    def conformance(
        self, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the suite's command there."""
        return self.run("-m", "coregrad_conformance", *arguments, cwd=cwd, env=env)

    def install_wrong_chip(self, dtype: str, waivers: str = "") -> None:
        """A plugin whose sums of one dtype are an ulp off above 1e30, installed as by a wheel."""
        package = self.packages / "wrongchip"
        package.mkdir()
        (package / "__init__.py").write_text(INFO)
        (package / "backend.py").write_text(BACKEND.replace("DTYPE", repr(dtype)))
        (package / "waivers.toml").write_text(waivers)
        info = self.packages / "wrong_chip-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-chip\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text("[coregrad.backends]\nwrongchip = wrongchip:info\n")
        lines = [f"wrongchip/{path.name},{hashed(path)}" for path in package.iterdir()]
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,", ""]))


def hashed(path: Path) -> str:
    """What RECORD says of a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256={digest.rstrip(b'=').decode()},{path.stat().st_size}"


def build(folder: Path) -> list[Path]:
    """The wheels of core, coregrad-cpu and the suite."""
    for source in (ROOT, ROOT / "plugins" / "coregrad-cpu", ROOT / "conformance"):
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
        done = subprocess.run(
            [*command, str(folder), str(source)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.glob("*.whl"))
