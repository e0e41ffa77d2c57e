"""cupy.cuda.compiler: the exception of a text that is not accepted."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CompileException"]


class CompileException(Exception):
    """The compiler's message."""

    def __init__(
        self, msg: str, source: str, name: str, options: Sequence[str], backend: str = "nvrtc"
    ) -> None:
        super().__init__(msg)
        self._msg, self.source, self.name = msg, source, name
        self.options, self.backend = options, backend

    def get_message(self) -> str:
        return self._msg
