"""Which installed files were at work, and whether they are those of a wheel; it imports none."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

GROUP = "coregrad.backends"
WHEEL = "wheel"


@dataclass(frozen=True)
class Origin:
    """A distribution's package as it lies on the disk.

    ``state`` is "wheel" (every file is what the wheel's RECORD says), "editable", or what is wrong.
    """

    distribution: str
    version: str
    package: str
    state: str
    sha256: str

    def data(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)

    @property
    def blemish(self) -> str:
        """Why results of these files are provisional; empty for an intact wheel."""
        if self.state == WHEEL:
            return ""
        return f"{self.distribution} {self.version}: {self.state}"


def origin(distribution: str, package: str) -> Origin:
    """Look at the top-level ``package`` that ``distribution`` should have installed."""
    folder = folder_of(package)
    digest = tree_sha256(folder) if folder is not None else ""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return Origin(distribution, "", package, "is not installed", digest)
    state = "its package is not importable" if folder is None else _state(found, package, folder)
    return Origin(distribution, found.version, package, state, digest)


def entry_point(distribution: str, name: str) -> str:
    """The entry point by which the backend ``name`` is found; empty if there is none."""
    try:
        points = metadata.distribution(distribution).entry_points
    except metadata.PackageNotFoundError:
        return ""
    return next((p.value for p in points if p.group == GROUP and p.name == name), "")


def folder_of(package: str) -> Path | None:
    """Where Python would import a top-level package from, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def tree_sha256(folder: Path) -> str:
    """One hash of all files of a package (or of a single module), compiled ones aside."""
    digest = hashlib.sha256()
    for name, path in _files(folder):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    if folder.is_file():
        yield folder.name, folder
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), path


def _state(found: metadata.Distribution, package: str, folder: Path) -> str:
    if _is_editable(found):
        return "editable install"
    recorded = {
        PurePosixPath(str(file)).as_posix(): file.hash
        for file in found.files or ()
        if PurePosixPath(str(file)).parts[0] in (package, f"{package}.py")
    }
    if not recorded:
        return f"it records no files of {package}"
    root = Path(str(found.locate_file("")))
    if folder.resolve().parent != root.resolve():
        return f"another {package} is imported than the one it installed"
    return _difference(recorded, folder, root)


def _difference(recorded: dict[str, metadata.FileHash | None], folder: Path, root: Path) -> str:
    present = {path.relative_to(root).as_posix(): path for _, path in _files(folder)}
    sources = {name for name in recorded if "__pycache__" not in name}
    for name in sorted(sources | set(present)):
        if name not in present:
            return f"{name} is missing"
        if name not in sources:
            return f"{name} is not of its wheel"
        if not _matches(present[name], recorded[name]):
            return f"{name} was changed after its installation"
    return WHEEL


def _matches(path: Path, recorded: metadata.FileHash | None) -> bool:
    if recorded is None:
        return False
    digest = hashlib.new(recorded.mode, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == recorded.value


def _is_editable(found: metadata.Distribution) -> bool:
    text = found.read_text("direct_url.json")
    return bool(text and json.loads(text).get("dir_info", {}).get("editable"))
