"""Write the package of a new backend that works from the first day; it never changes one.

The templates in `coregrad/scaffold` are those of a device called ``mychip``: a name is all that
has to be put in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from coregrad import plugins
from coregrad.errors import CoregradError

__all__ = ["STYLES", "write"]

NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
LONGEST = 16  # as in the contract, `activation.NAME`
# Names whose distribution would be one of ours, or that mean something in COREGRAD_PLUGINS.
RESERVED = (*plugins.OFFICIAL, "core", "conformance", "none")
STYLES = ("render", "eager")
AUTHOR = re.compile(r"([^<>\n]+?)(?:\s*<([^<>\s]+@[^<>\s]+)>)?")
# A path in the new package: its template.
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/conformance.yml": "workflow.yml",
    "src/coregrad_mychip/__init__.py": "init.py",
    "src/coregrad_mychip/backend.py": "backend_{style}.py",
    "src/coregrad_mychip/arithmetic.py": "arithmetic.py",
    "src/coregrad_mychip/waivers.toml": "waivers.toml",
    "tests/test_conformance.py": "conformance_test.py",
    "tests/test_light_import.py": "light_import_test.py",
}


def write(name: str, into: Path, author: str = "", style: str = "render") -> Path:
    """Make the folder ``coregrad-NAME`` in ``into``, and return it.

    Raises CoregradError for a name that is taken or no name, and for a folder that is there.
    Either the whole package is written or nothing.
    """
    _check_name(name)
    if style not in STYLES:
        raise CoregradError(f"new-backend: style {style!r}; choose one of: {', '.join(STYLES)}")
    written = AUTHOR.fullmatch(author.strip())
    if author.strip() and written is None:
        raise CoregradError(f"new-backend: author {author!r}; write it like 'Ada L. <ada@x.org>'")
    target = into / distribution(name)
    if target.exists() or target.is_symlink():
        raise CoregradError(f"new-backend: {target} exists; remove it, or choose another --into")
    if not into.is_dir():
        raise CoregradError(f"new-backend: {into} is no folder; make it first")
    authors = _authors(*written.groups()) if written is not None else ""
    texts = {_named(path, name): _template(t, style) for path, t in FILES.items()}
    _write_all(target, {path: _named(t, name, authors) for path, t in texts.items()})
    return target


def distribution(name: str) -> str:
    """The distribution of a device."""
    return f"coregrad-{name.replace('_', '-')}"


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        raise CoregradError(
            f"new-backend: {name!r} is no name for a device; take up to {LONGEST} lower-case "
            "letters, digits and single underscores, beginning with a letter"
        )
    if name in RESERVED:
        raise CoregradError(f"new-backend: the name {name!r} is coregrad's own; choose another")
    rivals = [o for o in plugins.offers(name) if o != distribution(name)]
    if rivals:
        raise CoregradError(
            f"new-backend: {rivals[0]}, which is installed, offers the device {name!r}; "
            "choose another name, or uninstall it"
        )


def _authors(person: str, address: str | None) -> str:
    """The line of pyproject.toml. (A JSON string is a TOML string as well.)"""
    email = f", email = {json.dumps(address)}" if address else ""
    return f"authors = [{{ name = {json.dumps(person, ensure_ascii=False)}{email} }}]\n"


def _template(name: str, style: str) -> str:
    file = resources.files("coregrad") / "scaffold" / f"{name.format(style=style)}.txt"
    return file.read_text(encoding="utf-8")


def _named(text: str, name: str, authors: str = "") -> str:
    text = text.replace('authors = [{ name = "AUTHOR" }]\n', authors)
    text = text.replace("coregrad-mychip", distribution(name))
    return text.replace("mychip", name)


def _write_all(target: Path, texts: dict[str, str]) -> None:
    """Written beside the target under another name, which takes its own when it is whole."""
    try:
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    except OSError as error:
        raise CoregradError(f"new-backend: cannot write in {target.parent}: {error}") from error
    try:
        for path, text in texts.items():
            file = scratch / target.name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        os.rename(scratch / target.name, target)
    except OSError as error:
        raise CoregradError(f"new-backend: cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
