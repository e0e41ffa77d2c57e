"""Texts to programs: built by the device's compiler, kept in memory and as binaries on disk.

The disk cache is an optimisation only: whatever is wrong with a file, the folder or a binary that
the driver no longer takes, the text is built again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pyopencl as cl

from coregrad import config
from coregrad.cstyle import Geometry, geometry
from coregrad.errors import CompileError
from coregrad_opencl.driver import Found, errors_of

MAGIC = b"coregrad-opencl 1\n"  # raise the number when the form of a file changes
DIGEST = 16
# Before it gives the binary of a kernel with barriers, PoCL compiles it once more, for groups of
# any size, which takes a second and more. It has a cache of its own that does without (30 ms a
# kernel, where ours takes 2).
SLOW_TO_GIVE = "Portable Computing Language"


def cache_folder() -> Path | None:
    """Where binaries are kept, if anywhere."""
    folder = config.cache_folder()
    return None if folder is None else folder / "opencl"


class Program:
    """A kernel ready to be launched; its arguments are state of the driver's object."""

    def __init__(self, kernel: cl.Kernel, shape: Geometry, most: int) -> None:
        self.kernel = kernel
        self.name = shape.name
        self.shape = shape
        self.most = most  # threads of a group
        self.sizes: dict[int, tuple[int, int]] = {}  # by grid: threads in all, and of a group


class Programs:
    """The programs of one device, whose lock is held by the caller.

    ``counts`` tells how often: memory, disk, built; damaged, refused, unwritable.
    """

    def __init__(
        self, context: cl.Context, found: Found, options: list[str], title: str, folder: Path | None
    ) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self._context = context
        self._platform = found.platform.name
        self._device = found.device
        self._options = options
        self._title = title
        self._version = "\n".join(
            (*options, found.platform.version, found.device.name, found.device.driver_version)
        )
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
        binary = self._read(key)
        built = None if binary is None else self._from_binary(binary, shape.name)
        if built is None:
            built = self._from_source(text, shape.name)
            if not (shape.threads and self._platform == SLOW_TO_GIVE):
                self._write(key, built)
        with errors_of(self._title, f"kernel {shape.name}"):
            kernel = cl.Kernel(built, shape.name)
            most = kernel.get_work_group_info(
                cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device
            )
        if shape.threads > most:
            raise CompileError(
                f"{self._title}: kernel {shape.name} needs groups of {shape.threads} threads; this "
                f"device can run it with {most}"
            )
        return Program(kernel, shape, most)

    def _from_source(self, text: str, name: str) -> cl.Program:
        try:
            built = self._built(cl.Program(self._context, text))
        except cl.Error as error:
            raise CompileError(f"{self._title}: kernel {name}: {error}\n{text}") from error
        self.counts["built"] += 1
        return built

    def _from_binary(self, binary: bytes, name: str) -> cl.Program | None:
        """A binary may be whole and yet not be taken, after an update of the driver for one."""
        try:
            built = self._built(cl.Program(self._context, [self._device], [binary]))
            cl.Kernel(built, name)
        except cl.Error:
            self.counts["refused"] += 1
            return None
        self.counts["disk"] += 1
        return built

    def _built(self, program: cl.Program) -> cl.Program:
        """Without pyopencl's own cache and its warning that the compiler had something to say."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.get_info(cl.program_info.REFERENCE_COUNT)  # from here on it is not cached
            built: cl.Program = program.build(self._options, devices=[self._device])
            return built

    def _read(self, key: str) -> bytes | None:
        """The kept binary, if it is there and whole."""
        if self.folder is None:
            return None
        try:
            data = (self.folder / f"{key}.bin").read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + DIGEST
        binary = data[start:]
        if data[:start] == MAGIC + hashlib.blake2b(binary, digest_size=DIGEST).digest():
            return binary
        self.counts["damaged"] += 1
        return None

    def _write(self, key: str, program: cl.Program) -> None:
        """Keep a binary on disk: whole or not at all, whoever else writes the same file."""
        if self.folder is None:
            return
        binary = _binary(program)
        data = MAGIC + hashlib.blake2b(binary, digest_size=DIGEST).digest() + binary
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=key, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self.folder / f"{key}.bin")
        except OSError:  # a full disk or a read-only folder: building again is all it costs
            self.counts["unwritable"] += 1
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)


def _binary(program: Any) -> bytes:
    (binary,) = program.get_info(cl.program_info.BINARIES)
    return bytes(binary)
