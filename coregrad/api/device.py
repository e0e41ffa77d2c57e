"""Which device new tensors live on; it knows names and never touches memory."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING

from coregrad import dtypes, plugins
from coregrad.dtypes import DType
from coregrad.errors import UnsupportedOp
from coregrad.plugins import Active

if TYPE_CHECKING:
    from typing_extensions import Self

_scoped: ContextVar[str | None] = ContextVar("coregrad device", default=None)


class _Registry(type):
    """The class attributes of :class:`Device`: ``Device.DEFAULT`` and ``Device["cpu"]``."""

    _chosen: str | None = None

    @property
    def DEFAULT(cls) -> str:  # noqa: N802 (the established spelling)
        """Where new tensors are made: the innermost ``with Device(...)``, else what was set, else
        ``COREGRAD_DEVICE``, else the best device there is."""
        return _scoped.get() or cls._chosen or plugins.default()

    @DEFAULT.setter
    def DEFAULT(cls, name: str | None) -> None:  # noqa: N802
        cls._chosen = None if name is None else plugins.canonical(str(name))

    def __getitem__(cls, name: str) -> Active:
        return plugins.open_device(plugins.canonical(str(name)))

    @staticmethod
    def canonicalize(name: object | None) -> str:
        """The one spelling of a device's name; None is the default device.

        >>> Device.canonicalize("CPU:0")
        'cpu'
        """
        return Device.DEFAULT if name is None else plugins.canonical(str(name))


class Device(metaclass=_Registry):
    """A device by name; ``with Device("cpu"):`` makes new tensors there.

    ``Device.DEFAULT`` may be set, ``Device["cpu"]`` opens a device and gives what is known of it.
    Raises :class:`~coregrad.errors.BackendUnavailable` for a device nobody offers.

    >>> with Device("cpu"):
    ...     Device.DEFAULT
    'cpu'
    """

    def __init__(self, name: str) -> None:
        self.name = plugins.canonical(name)
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> Self:
        plugins.open_device(self.name)
        self._tokens.append(_scoped.set(self.name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _scoped.reset(self._tokens.pop())

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Device, str)) and str(other) == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def supported(device: str) -> frozenset[DType]:
    """The dtypes a device has."""
    return plugins.open_device(device).device.limits.dtypes


def host_memory(device: str) -> bool:
    """Whether a device's buffers are host memory, so that looking at one costs little."""
    return plugins.open_device(device).device.limits.host_memory


def check_dtype(name: str, dtype: DType, device: str) -> None:
    """Raise where a tensor of ``dtype`` would be made on a device that lacks it."""
    if dtype not in supported(device):
        raise UnsupportedOp(
            f"{name}: device {device!r} has no {dtype.name}; choose another dtype, or make the "
            "tensor on another device (Tensor(..., device='cpu'))"
        )


def default_int(device: str) -> DType:
    """int64, or int32 on a device that has no int64."""
    return dtypes.int64 if dtypes.int64 in supported(device) else dtypes.int32
