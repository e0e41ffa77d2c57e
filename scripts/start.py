"""The README's two commands, with the standard library alone.

    python3 scripts/start.py mnist    train a network on MNIST
    python3 scripts/start.py test     run every check and test

Each makes a virtual environment in .venv if there is none, installs what it needs into it, and
runs. Nothing outside the repository's folder is changed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
OLDEST = (3, 10)
# These redirect Python or pip to somewhere else than .venv.
UNWANTED = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_USER",
    "__PYVENV_LAUNCHER__",
)
# What the tests need beside the CPU's backends.
TESTED = [
    "conformance",
    "plugins/coregrad-opencl",
    "plugins/coregrad-cuda",
    "plugins/coregrad-metal",
    "tools/coregrad_simt",
]
CHECKS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "lint-imports": [
        "-c",
        "import sys; from importlinter import cli; sys.exit(cli.lint_imports())",
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["mnist", "test"])
    options, extra = parser.parse_known_args()  # the rest goes to the program, or to pytest
    if sys.version_info < OLDEST:
        stop(
            f"this is Python {sys.version.split()[0]}; coregrad needs 3.10 or newer.",
            "Run this file with a newer one, for example: python3.12 scripts/start.py",
        )
    make_environment()
    if options.command == "mnist":
        install("mnist", ROOT / "examples" / "requirements.txt")
        return run_python(str(ROOT / "examples" / "beautiful_mnist.py"), *extra)
    install("test", ROOT / "tests" / "requirements.txt")
    return run_tests(extra)


def run_tests(extra: list[str]) -> int:
    """All checks, then pytest, whose closing line comes last when all is well."""
    failed = [name for name, arguments in CHECKS.items() if checked(name, arguments) != 0]
    parallel = ["-n", "auto", "--maxprocesses", "8", "--dist", "loadfile"]
    code = run_python("-m", "pytest", *parallel, *extra)
    if failed:
        say(f"failed before the tests: {', '.join(failed)}")
    return code or len(failed)


def checked(name: str, arguments: list[str]) -> int:
    say(f"--- {name}")
    return run_python(*arguments)


# --- the environment ---


def environment_python() -> Path:
    """The environment's own interpreter."""
    if os.name == "nt":
        return VENV / "Scripts" / "python.exe"
    return VENV / "bin" / "python"


def make_environment() -> None:
    """Make .venv, unless it is there and works."""
    if environment_works():
        return
    say(f"making a virtual environment in {VENV}")
    if importlib.util.find_spec("venv") is None:
        stop("this Python has no module venv.", WITHOUT_VENV)
    if importlib.util.find_spec("ensurepip") is not None:
        run([sys.executable, "-m", "venv", "--clear", str(VENV)], "making .venv", WITHOUT_VENV)
    else:
        make_environment_with_our_pip()
    if not environment_works():
        stop(f"{VENV} was made, but it has no working pip.", WITHOUT_VENV)


def make_environment_with_our_pip() -> None:
    """Debian and Ubuntu leave ensurepip out of their Python: pip installs pip there."""
    if importlib.util.find_spec("pip") is None:
        stop("this Python has neither ensurepip nor pip.", WITHOUT_VENV)
    run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)], "making .venv", "")
    ask = [
        str(environment_python()),
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
    ]
    packages = subprocess.run(ask, stdout=subprocess.PIPE, check=True, env=environment())
    target = packages.stdout.decode().strip()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", target, "pip"]
    run(pip, "installing pip into .venv", WITHOUT_VENV)


WITHOUT_VENV = (
    "On Debian or Ubuntu run: sudo apt install python3-venv "
    "(on Fedora: sudo dnf install python3-pip). Then run this command again."
)


def environment_works() -> bool:
    """Whether .venv has a Python that is new enough, and pip; the folder may have been moved."""
    python = environment_python()
    if not python.exists():
        return False
    code = (
        "import sys, pip; from pathlib import Path; "
        f"assert sys.version_info >= {OLDEST}; "
        f"assert Path(sys.prefix).resolve() == Path({str(VENV)!r}).resolve()"
    )
    done = subprocess.run(
        [str(python), "-c", code],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def environment() -> dict[str, str]:
    """This process's environment without what would lead Python or pip out of .venv."""
    kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


# --- what is installed ---


def install(purpose: str, requirements: Path) -> None:
    """Install coregrad from this folder, and the requirements; once, until they change."""
    stamp = VENV / f"coregrad-{purpose}.stamp"
    state = fingerprint(requirements)
    if stamp.exists() and stamp.read_text() == state:
        return
    say("installing coregrad and what it needs")
    extra = TESTED if purpose == "test" else []
    if on_musl():  # no wheels of LLVM or OpenCL there: the NumPy device alone
        pip_install("-e", str(ROOT), *editable(p for p in extra if "plugins" not in p))
        pip_install("--no-deps", *editable(["plugins/coregrad-cpu"]))
    else:
        pip_install("-e", str(ROOT), *editable(["plugins/coregrad-cpu", *extra]))
    pip_install("-r", str(requirements))
    stamp.write_text(state)


def editable(projects: Iterable[str]) -> list[str]:
    """What tells pip to install these folders of the repository as they stand."""
    return [word for project in projects for word in ("-e", str(ROOT / project))]


def fingerprint(requirements: Path) -> str:
    """What decides the installation: the project files, the requirements, and where they are."""
    digest = hashlib.sha256(str(ROOT).encode())
    for path in (
        ROOT / "pyproject.toml",
        *sorted(ROOT.glob("plugins/*/pyproject.toml")),
        ROOT / "conformance/pyproject.toml",
        requirements,
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def on_musl() -> bool:
    """Whether this Python uses the C library musl, as on Alpine Linux."""
    return "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "")


def pip_install(*arguments: str) -> None:
    command = [str(environment_python()), "-m", "pip", "install", "--quiet", *arguments]
    run(command, "pip", "See pip's own words above. It needs a connection to PyPI, or to a mirror.")


# --- running ---


def run(command: list[str], what: str, advice: str) -> None:
    """Run a command, or stop with what it was for and what to do."""
    done = subprocess.run(command, cwd=str(ROOT), env=environment(), check=False)
    if done.returncode != 0:
        stop(f"{what} failed: {shlex.join(command)}", advice)


def run_python(*arguments: str) -> int:
    """Run the environment's Python in the repository's folder; returns its exit code."""
    command = [str(environment_python()), *arguments]
    return subprocess.run(command, cwd=str(ROOT), env=environment(), check=False).returncode


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def stop(problem: str, advice: str) -> None:
    say(f"start.py: {problem}\n{advice}".rstrip())
    raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main())
