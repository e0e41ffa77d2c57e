"""Compiled kernels on disk, kept from one process to the next and never trusted.

They save time and nothing else: a file that cannot be read, written or believed is one that is not
there, and its kernel is compiled again. What the bytes mean only their compiler knows.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from pathlib import Path

MAGIC = b"coregrad-binary 1\n"  # raise the number when the form of a file changes
DIGEST = 16  # bytes of a hash: too many for two texts ever to have the same


class Binaries:
    """The binaries of one compiler, in a folder of its own; without a folder there are none.

    ``version`` says everything but its text that a binary depends on: compiler, driver, processor,
    options. ``counts`` tells how often a file was damaged, or the folder unwritable.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     binaries = Binaries(Path(folder), "compiler 1.0")
    ...     key = binaries.key("a text")
    ...     print(binaries.read(key))
    ...     binaries.write(key, b"its code")
    ...     print(binaries.read(key))
    None
    b'its code'
    """

    def __init__(self, folder: Path | None, version: str) -> None:
        self.folder = folder
        self.version = version
        self.counts: Counter[str] = Counter()

    def key(self, text: str) -> str:
        """What names a text's binary: the hash of the text and of the version."""
        return _digest(f"{self.version}\n{text}".encode()).hex()

    def has(self, key: str) -> bool:
        """Whether there is a file for it, good or not."""
        return self.folder is not None and self._file(self.folder, key).exists()

    def read(self, key: str) -> bytes | None:
        """The binary, if it is there and whole."""
        if self.folder is None:
            return None
        try:
            data = self._file(self.folder, key).read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + DIGEST
        binary = data[start:]
        if data[:start] == MAGIC + _digest(binary):
            return binary
        self.counts["damaged"] += 1
        return None

    def write(self, key: str, binary: bytes) -> None:
        """Keep a binary: whole or not at all, whoever else writes the same file."""
        if self.folder is None:
            return
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=key, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + _digest(binary) + binary)
            os.replace(temporary, self._file(self.folder, key))
        except OSError:  # a full disk or a read-only folder: compiling again is all it costs
            self.counts["unwritable"] += 1
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / f"{key}.bin"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()
