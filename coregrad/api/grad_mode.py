"""Whether results remember how they were made: one flag per thread and task, and nothing else."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

enabled_flag: ContextVar[bool] = ContextVar("coregrad gradients", default=True)


def is_grad_enabled() -> bool:
    """Whether results remember how they were made.

    >>> is_grad_enabled()
    True
    """
    return enabled_flag.get()


class _GradMode(ContextDecorator):
    """A context manager and decorator that sets the flag and puts the old value back."""

    enabled = True

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> Self:
        self._tokens.append(enabled_flag.set(self.enabled))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        enabled_flag.reset(self._tokens.pop())

    def _recreate_cm(self) -> Self:
        """What :class:`ContextDecorator` enters on every call: a fresh one, so that threads
        and recursive calls do not share tokens."""
        return type(self)()


class no_grad(_GradMode):  # noqa: N801 (PyTorch's name)
    """Within it, results are detached: ``with no_grad():`` or ``@no_grad()``.

    Results remember how they were made: a long loop that needs no gradients belongs in here.

    >>> from coregrad import Tensor
    >>> w = Tensor([1.0, 2.0], requires_grad=True)
    >>> with no_grad():
    ...     y = w * 2
    >>> y.requires_grad
    False
    """

    enabled = False


class enable_grad(_GradMode):  # noqa: N801 (PyTorch's name)
    """Undoes an outer :class:`no_grad`.

    >>> with no_grad(), enable_grad():
    ...     is_grad_enabled()
    True
    """


class set_grad_enabled(_GradMode):  # noqa: N801 (PyTorch's name)
    """``with set_grad_enabled(training):`` is :class:`enable_grad` or :class:`no_grad`.

    >>> with set_grad_enabled(False):
    ...     is_grad_enabled()
    False
    """

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.enabled = bool(enabled)

    def _recreate_cm(self) -> Self:
        return type(self)(self.enabled)


inference_mode = no_grad
