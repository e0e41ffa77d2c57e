"""Test support: places where distributions are installed, as metadata alone or by pip."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from coregrad import plugins

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "tests" / "zoo"
CPU = ROOT / "plugins" / "coregrad-cpu" / "src"


class Site:
    """A folder that is put on Python's path; plugins are "installed" there by their metadata."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, **points: str) -> None:
        """Write the metadata of a distribution whose entry points are ``points``."""
        info = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *lines]))

    def python(
        self, code: str, paths: tuple[Path, ...] = (ZOO, ROOT, CPU), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run code in a fresh process that sees this folder before all others."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("COREGRAD_")}
        found = os.pathsep.join(map(str, (self.folder, *paths)))
        return subprocess.run(
            [sys.executable, "-c", code],
            env=clean | {"PYTHONPATH": found} | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


class Environment:
    """A virtual environment that has NumPy, pluggy and tools from here, and nothing of ours."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.folder = folder
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.packages = Path(self.run("-c", ask).stdout.strip())
        # The .pth files there do not count: no editable install of ours is seen.
        self.add_path(Path(sysconfig.get_path("purelib")))

    def add_path(self, folder: Path) -> None:
        """Let the environment's Python find what is in a folder."""
        with open(self.packages / "added.pth", "a") as file:
            file.write(f"{folder}\n")

    def run(
        self, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("COREGRAD_", "PYTHON"))}
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd or self.folder,
            env=clean | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def pip(self, *arguments: str) -> None:
        """Run pip for the environment; it reaches no index."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def install(self, what: Path, *options: str) -> None:
        """Install a wheel or a project folder, whatever was there before."""
        alone = ["--no-index", "--no-deps", "--force-reinstall", "--no-build-isolation"]
        self.pip("install", *alone, *options, str(what))
