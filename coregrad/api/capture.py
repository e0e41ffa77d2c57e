"""The one place where tensors look whether a function is being captured; it knows no tensor.

``recorder`` is None but while ``@jit`` captures a function: then tensors report to it what is read,
written and drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from coregrad.ir.graph import Node


class Recorder(Protocol):
    """What is asked of a capture. Reports of other threads than its own are not for it."""

    def is_here(self) -> bool:
        """Whether this thread is the one that captures."""

    def read(self, tensor: Any) -> None:
        """Somebody is about to use, or to replace, the tensor's value."""

    def grad_read(self, tensor: Any) -> None:
        """Somebody is about to look at ``tensor.grad``."""

    def grad_written(self, tensor: Any) -> None:
        """Somebody is about to set ``tensor.grad``."""

    def draw(self) -> Node:
        """A stand-in for the key of a random draw."""

    def variable(self, variable: Any) -> Node:
        """A stand-in for the value of a variable that the function was given."""

    def host_data(self, operation: str, what: str) -> None:
        """Data from outside the graph is about to enter it: raises CaptureError."""


recorder: Recorder | None = None
