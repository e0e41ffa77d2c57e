"""Small public datasets as tensors: found on disk or downloaded, checked, never half-written.

A file counts only if its unpacked bytes have the SHA-256 that stands in the table below, so that a
damaged, truncated or exchanged file is an error with a name and never a badly trained network.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import urllib.request
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coregrad import config
from coregrad.api.tensor import Tensor
from coregrad.errors import DataError

# The mirror that PyTorch's torchvision uses too; the authors' own page no longer serves the files.
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT_S = 60
IDX_HEADER = {1: 0x0801, 3: 0x0803}  # "unsigned byte" (08) and the number of axes, big-endian


@dataclass(frozen=True)
class IdxFile:
    """One gzipped IDX file: its name, the shape it holds, and the hash of its unpacked bytes."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Unpacked size: the magic word, one word per axis, one byte per element."""
        return 4 + 4 * len(self.shape) + int(np.prod(self.shape))


MNIST = (
    IdxFile(
        "train-images-idx3-ubyte.gz",
        (60000, 28, 28),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    IdxFile(
        "train-labels-idx1-ubyte.gz",
        (60000,),
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    IdxFile(
        "t10k-images-idx3-ubyte.gz",
        (10000, 28, 28),
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte.gz",
        (10000,),
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def mnist(
    folder: str | os.PathLike[str] | None = None, device: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The MNIST digits: (X_train, Y_train, X_test, Y_test), all uint8.

    Images have shape (60000, 1, 28, 28) and (10000, 1, 28, 28) with values 0 to 255, labels have
    shape (60000,) and (10000,).

    The four gzipped files are taken from ``folder``, where they must then be. Without it they
    are looked for in ``$COREGRAD_DATA/mnist`` if that variable is set, else in the user's cache
    folder, and are downloaded to that place from ``$COREGRAD_MNIST_URL`` or a public mirror.

    Raises DataError, naming the file and the fix, if a file is missing, damaged, or cannot be had.

    Example::

        X_train, Y_train, X_test, Y_test = nn.datasets.mnist("examples/data/mnist")
    """
    place = Path(folder) if folder is not None else _default_folder() / "mnist"
    if folder is None:
        _fetch_missing(place)
    x_train, y_train, x_test, y_test = (
        Tensor(_with_channel(_read_idx(place, file)), device=device) for file in MNIST
    )
    return x_train, y_train, x_test, y_test


def _with_channel(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, 28, 28) images as (N, 1, 28, 28); labels as they are."""
    return data[:, None] if data.ndim == 3 else data


def _default_folder() -> Path:
    chosen = config.get("COREGRAD_DATA")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "coregrad" / "data"


# ---- reading -----------------------------------------------------------------------------------


def _read_idx(place: Path, file: IdxFile) -> NDArray[np.uint8]:
    path = place / file.name
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        raise DataError(
            f"mnist: {path} is missing; put the four files {', '.join(f.name for f in MNIST)} "
            "there, or call mnist() without a folder to download them"
        ) from None
    except OSError as error:
        raise DataError(f"mnist: {path} cannot be read ({error}); check the file") from error
    return _parse(_unpack(packed, file, str(path)), file)


def _unpack(packed: bytes, file: IdxFile, origin: str) -> bytes:
    """The unpacked bytes, verified. Never unpacks more than the file may hold."""
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # 16: the gzip container
    try:
        data = unpacker.decompress(packed, file.nbytes + 1)
    except zlib.error as error:
        raise _damaged(origin, f"is no intact gzip file ({error})") from error
    if len(data) < file.nbytes or not (unpacker.eof or unpacker.unconsumed_tail):
        raise _damaged(origin, f"ends early: {len(data)} of {file.nbytes} bytes could be unpacked")
    if len(data) > file.nbytes:
        raise _damaged(origin, f"unpacks to more than {file.nbytes} bytes")
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise _damaged(origin, f"has SHA-256 {found} when unpacked instead of {file.sha256}")
    return data


def _damaged(origin: str, how: str) -> DataError:
    return DataError(
        f"mnist: {origin} {how}; it is damaged or not the original: delete it and get it again"
    )


def _parse(data: bytes, file: IdxFile) -> NDArray[np.uint8]:
    axes = len(file.shape)
    header = np.frombuffer(data, ">u4", count=1 + axes)
    if header[0] != IDX_HEADER[axes] or tuple(header[1:]) != file.shape:
        raise DataError(f"mnist: {file.name} has the header {header.tolist()}, not {file.shape}")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(file.shape)


# ---- downloading -------------------------------------------------------------------------------


def _fetch_missing(place: Path) -> None:
    for file in MNIST:
        if not (place / file.name).exists():
            _download(place, file)


def _download(place: Path, file: IdxFile) -> None:
    """Fetch one file, verify it, and only then give it its name: atomic also for two processes."""
    base = config.get("COREGRAD_MNIST_URL") or MNIST_URL
    url = base.rstrip("/") + "/" + file.name
    try:
        packed = _fetch(url, limit=2 * file.nbytes)
    except (OSError, ValueError, HTTPException) as error:  # URLError, time-outs are OSErrors
        raise DataError(
            f"mnist: cannot download {url} ({error}); set COREGRAD_DATA to a folder whose "
            f"subfolder mnist holds {file.name}, or COREGRAD_MNIST_URL to a mirror"
        ) from error
    _unpack(packed, file, url)
    try:
        place.mkdir(parents=True, exist_ok=True)
        _write_atomically(place / file.name, packed)
    except OSError as error:
        raise DataError(
            f"mnist: cannot write {place / file.name} ({error}); set COREGRAD_DATA to a folder "
            "that may be written"
        ) from error


def _fetch(url: str, limit: int) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "coregrad"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        data: bytes = response.read(limit)
        length = response.headers.get("Content-Length")
    if length is not None and int(length) != len(data):
        raise OSError(f"{len(data)} of {length} bytes arrived")
    return data


def _write_atomically(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
