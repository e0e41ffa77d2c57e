"""What can go wrong.

::

    SimtError
    |-- SettingError      an environment variable says nonsense
    |-- MissingTool       a compiler is not installed, or too old
    |-- CompileError      the text is not accepted
    |-- UnsupportedPTX    an instruction that the translation does not know
    `-- Fault             a kernel did what it must not do
        |-- MemoryFault   an access outside, or next to, the buffers
        `-- RaceFault     the result depends on the order of threads or blocks
"""

from __future__ import annotations


class SimtError(RuntimeError):
    """The root of this package's errors."""


class SettingError(SimtError):
    """An environment variable says nonsense."""


class MissingTool(SimtError):
    """A compiler is not installed, or too old."""


class CompileError(SimtError):
    """A compiler did not accept a text. The message is the compiler's."""


class UnsupportedPTX(SimtError):
    """PTX with an instruction that the translation does not know; it never guesses."""


class Fault(SimtError):
    """A kernel did what it must not do."""


class MemoryFault(Fault):
    """An access outside the buffers, or a write next to one."""


class RaceFault(Fault):
    """The result depends on the order in which threads or blocks run."""
