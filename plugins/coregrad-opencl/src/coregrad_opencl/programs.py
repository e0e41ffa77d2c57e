"""Texts to programs: built by the device's compiler, kept in memory and as binaries on disk.

A binary that the driver no longer takes is as good as none: the text is built again.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyopencl as cl

from coregrad.binaries import Binaries
from coregrad.cstyle import Geometry, geometry
from coregrad.errors import CompileError
from coregrad_opencl.driver import Found, errors_of

# Before it gives the binary of a kernel with barriers, PoCL compiles it once more, for groups of
# any size, which takes a second and more. It has a cache of its own that does without (30 ms a
# kernel, where ours takes 2).
SLOW_TO_GIVE = "Portable Computing Language"


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
        self._context = context
        self._platform = found.platform.name
        self._device = found.device
        self._options = options
        self._title = title
        about = (
            *options,
            found.platform.version,
            found.device.name,
            found.device.driver_version,
        )
        self._binaries = Binaries(folder, "\n".join(about))
        self.counts = self._binaries.counts
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
        key = self._binaries.key(text)
        binary = self._binaries.read(key)
        built = None if binary is None else self._from_binary(binary, shape.name)
        if built is None:
            built = self._from_source(text, shape.name)
            if not (shape.threads and self._platform == SLOW_TO_GIVE):
                self._keep(key, built)
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

    def _keep(self, key: str, program: Any) -> None:
        """Write a program's binary, which takes a driver some time to give."""
        if self._binaries.folder is not None:
            (binary,) = program.get_info(cl.program_info.BINARIES)
            self._binaries.write(key, bytes(binary))
