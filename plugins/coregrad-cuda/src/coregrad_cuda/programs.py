"""Texts to functions: compiled by NVRTC, kept in memory and as machine code on disk.

Code that the driver does not take is as good as none: the text is compiled again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coregrad.binaries import Binaries
from coregrad.cstyle import Geometry, geometry
from coregrad.errors import CompileError
from coregrad_cuda.driver import IEEE, Driver


class Program:
    """A kernel ready to be launched."""

    def __init__(self, function: Any, shape: Geometry) -> None:
        self.function = function
        self.name = shape.name
        self.shape = shape
        self.sizes: dict[int, tuple[int, int]] = {}  # by grid: groups, and threads of each


class Programs:
    """The programs of one GPU, whose lock is held by the caller.

    ``counts`` tells how often: memory, disk, built; damaged, refused, unwritable.
    """

    def __init__(self, driver: Driver, title: str, folder: Path | None) -> None:
        self.options = (*IEEE, f"--gpu-architecture={driver.architecture}")
        self._driver = driver
        self._title = title
        self._binaries = Binaries(folder, "\n".join((*self.options, driver.versions)))
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
        code = self._binaries.read(key)
        function = None if code is None else self._kept(code, shape.name)
        if function is None:
            code = self._compiled(text, shape.name)
            with self._driver.errors(self._title, f"loading kernel {shape.name}"):
                function = self._driver.function(code, shape.name)
            self._binaries.write(key, code)
        return Program(function, shape)

    def _compiled(self, text: str, name: str) -> bytes:
        try:
            code = self._driver.compiled(text, self.options)
        except ValueError as error:
            raise CompileError(f"{self._title}: kernel {name}: {error}\n{text}") from error
        self.counts["built"] += 1
        return code

    def _kept(self, code: bytes, name: str) -> Any:
        """Code may be whole and yet not be taken, by another driver for one."""
        try:
            function = self._driver.function(code, name)
        except RuntimeError:
            self.counts["refused"] += 1
            return None
        self.counts["disk"] += 1
        return function
