"""The console script's door: checks that ``coregrad`` is ours, then hands over to its command line.

On PyPI the name ``coregrad`` belongs to an unrelated package. Installed over coregrad-core it
overwrites files of ours, and uninstalling it deletes them; pip notices neither. Therefore this
module lies outside the package, and looks before it imports. ``coregrad doctor`` answers even then.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import sys
from importlib import metadata, util
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

REPAIR = (
    "run: python -m pip uninstall --yes coregrad coregrad-core, "
    "then: python -m pip install --force-reinstall coregrad-core"
)
DISTRIBUTION = "coregrad-core"
OURS = ("coregrad.cli", "coregrad.hookspecs")  # modules that a stranger's package does not have
NEEDED = ("numpy", "pluggy")
OLDEST = (3, 10)


def problem() -> str:
    """What is wrong with the installed package; empty when it is ours and whole."""
    version = _version("coregrad")
    if version:
        return (
            f"the distribution 'coregrad' {version}, which is not this project, is installed and "
            "overwrites the import package of coregrad-core"
        )
    origin = _origin()
    if not origin:
        return "the import package 'coregrad' is missing or has lost its __init__.py"
    if any(util.find_spec(name) is None for name in OURS):
        return f"the import package 'coregrad' at {origin} is not coregrad-core's"
    return ""


def installation() -> list[dict[str, str]]:
    """The first rows of ``coregrad doctor``: Python, what coregrad needs, and whose it is."""
    return [
        _python(),
        *(_package(name) for name in (DISTRIBUTION, *NEEDED)),
        _row("import name", *_whose()),
    ]


def main() -> int:
    """Run ``coregrad ...``; returns the exit code."""
    wrong = problem()
    if wrong and sys.argv[1:2] == ["doctor"]:
        return _doctor("--json" in sys.argv)
    if wrong:
        print(f"coregrad: {wrong}; {REPAIR}", file=sys.stderr)
        return 2
    from coregrad import cli

    return cli.main()


def show(rows: list[dict[str, str]]) -> str:
    """The rows of a doctor's report as text: a line each, and one more for what to do."""
    width = max(len(row["subject"]) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{'[' + row['status'] + ']':7}{row['subject']:{width}}  {row['detail']}")
        if row["fix"]:
            lines.append(f"{'':7}{'':{width}}  -> {row['fix']}")
    return "\n".join(lines)


def _doctor(as_json: bool) -> int:
    """The report on an installation that cannot be imported."""
    rows = [*installation(), _row("devices", "skip", "not looked for until coregrad is repaired")]
    report = {"ok": False, "exit": 1, "checks": rows}
    print(json.dumps(report, indent=2) if as_json else show(rows))
    return 1


def _row(subject: str, status: str, detail: str, fix: str = "") -> dict[str, str]:
    return {"subject": subject, "status": status, "detail": detail, "fix": fix}


def _python() -> dict[str, str]:
    words = f"{platform.python_implementation()} {platform.python_version()}, {platform.platform()}"
    if sys.version_info < OLDEST:
        return _row("python", "fail", words, "coregrad needs Python 3.10 or newer")
    return _row("python", "ok", words)


def _package(name: str) -> dict[str, str]:
    version = _version(name)
    if not version:
        return _row(name, "fail", "is not installed", f"run: python -m pip install {name}")
    return _row(name, "ok", version)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _origin() -> str:
    """The file that ``import coregrad`` would run."""
    spec = util.find_spec("coregrad")
    return spec.origin or "" if spec is not None else ""


def _whose() -> tuple[str, str, str]:
    """Whether the package is coregrad-core's alone and as it was installed: status, words, fix."""
    owners = set(metadata.packages_distributions().get("coregrad", [])) | {DISTRIBUTION}
    if len(owners) > 1:
        names = ", ".join(sorted(owners))
        words = f"'coregrad' is provided by {len(owners)} distributions: {names}"
        return "fail", words, REPAIR
    wrong = problem()
    if wrong:
        return "fail", wrong, REPAIR
    origin = Path(_origin())
    if not _version(DISTRIBUTION):
        return "warn", f"{origin} belongs to no installed distribution", ""
    expected = _expected()
    if expected is not None and not _same(expected, origin):
        words = f"{origin} is imported, but coregrad-core is installed at {expected}"
        return "warn", words, "uninstall one of them, or look at PYTHONPATH"
    changed = _changed()
    if changed:
        return "fail", f"changed since it was installed: {', '.join(changed)}", REPAIR
    return "ok", str(origin), ""


def _expected() -> Path | None:
    """Where coregrad-core says that its package is; None if it does not say."""
    distribution = metadata.distribution(DISTRIBUTION)
    for file in distribution.files or ():
        if str(file) == "coregrad/__init__.py":
            return Path(str(file.locate()))
    source = json.loads(distribution.read_text("direct_url.json") or "{}")  # an editable install
    if not source.get("dir_info", {}).get("editable"):
        return None
    folder = url2pathname(unquote(urlsplit(source["url"]).path))
    return Path(folder, "coregrad", "__init__.py")


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _changed() -> list[str]:
    """The files whose hash is not the one that was written down when they were installed."""
    changed = []
    for file in metadata.distribution(DISTRIBUTION).files or ():
        if file.hash is None or file.suffix != ".py" or file.hash.mode != "sha256":
            continue
        path = Path(str(file.locate()))
        digest = hashlib.sha256(path.read_bytes()).digest() if path.exists() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    return changed
