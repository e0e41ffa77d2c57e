"""Tensors made from nothing: constants, ranges, diagonals, and the values of an array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes, engine
from coregrad.api import host
from coregrad.api.base import Flag, TensorBase
from coregrad.api.base import expand as expand_node
from coregrad.api.device import Device, check_dtype, default_int
from coregrad.api.movement import sizes
from coregrad.api.network import Network
from coregrad.dtypes import DType
from coregrad.errors import DTypeError, ShapeError
from coregrad.ir import build
from coregrad.ir.graph import Shape

if TYPE_CHECKING:
    from typing_extensions import Self


def _number_dtype(value: Any, device: str) -> DType:
    """The dtype of a Python number."""
    if isinstance(value, (bool, np.bool_)):
        return dtypes.bool_
    return default_int(device) if isinstance(value, (int, np.integer)) else dtypes.float32


def _shape(name: str, given: tuple[Any, ...]) -> Shape:
    shape = sizes(name, given)
    if any(n < 0 for n in shape):
        raise ShapeError(f"{name}: shape {shape} has a negative size")
    return shape


class Creation(Network):
    """``Tensor.zeros(2, 3)`` and its relatives, each with a dtype, a device and requires_grad."""

    @classmethod
    def full(
        cls,
        shape: Any,
        fill_value: Any,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """One number in every element; its Python type decides the dtype unless one is given.

        Raises DTypeError for a number that does not fit the dtype.

        >>> Tensor.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
        """
        if isinstance(fill_value, TensorBase):
            fill_value = fill_value.item()
        if not isinstance(fill_value, (bool, int, float, np.generic)):
            raise TypeError(f"full: {fill_value!r} is no number; give a bool, int or float")
        where = Device.canonicalize(device)
        wanted = _number_dtype(fill_value, where) if dtype is None else host.as_dtype(dtype)
        value = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
        node = build.const(value, wanted, _shape("full", (shape,)))
        return cls._fresh(node, where, requires_grad)

    @classmethod
    def zeros(
        cls, *shape: Any, dtype: Any = None, device: Any = None, requires_grad: Flag = None
    ) -> Self:
        """Zeros, float32 unless a dtype is given.

        >>> Tensor.zeros(2, 2).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
        """
        return cls._constant("zeros", 0, shape, dtype, device, requires_grad)

    @classmethod
    def ones(
        cls, *shape: Any, dtype: Any = None, device: Any = None, requires_grad: Flag = None
    ) -> Self:
        """Ones, float32 unless a dtype is given.

        >>> Tensor.ones(2).tolist()
        [1.0, 1.0]
        """
        return cls._constant("ones", 1, shape, dtype, device, requires_grad)

    @classmethod
    def empty(
        cls, *shape: Any, dtype: Any = None, device: Any = None, requires_grad: Flag = None
    ) -> Self:
        """A tensor whose values do not matter: zeros, for there is no memory to leave undefined.

        >>> Tensor.empty(2, 0).shape
        (2, 0)
        """
        return cls._constant("empty", 0, shape, dtype, device, requires_grad)

    @classmethod
    def _constant(
        cls, name: str, value: float, shape: Any, dtype: Any, device: Any, requires_grad: Flag
    ) -> Self:
        wanted = dtypes.float32 if dtype is None else host.as_dtype(dtype)
        node = build.const(value, wanted, _shape(name, shape))
        return cls._fresh(node, Device.canonicalize(device), requires_grad)

    def full_like(self, fill_value: Any, **options: Any) -> Self:
        """:meth:`full` with the shape, dtype and device of this tensor.

        >>> Tensor([1.0, 2.0]).full_like(3).tolist()
        [3.0, 3.0]
        """
        options.setdefault("dtype", self.dtype)
        options.setdefault("device", self.device)
        made: Self = self._result.full(self.shape, fill_value, **options)  # type: ignore[attr-defined]
        return made

    def zeros_like(self, **options: Any) -> Self:
        """Zeros with the shape, dtype and device of this tensor.

        >>> Tensor([1, 2]).zeros_like().tolist()
        [0, 0]
        """
        return self.full_like(0, **options)

    def ones_like(self, **options: Any) -> Self:
        """Ones with the shape, dtype and device of this tensor.

        >>> Tensor([1, 2]).ones_like(dtype="float32").tolist()
        [1.0, 1.0]
        """
        return self.full_like(1, **options)

    def empty_like(self, **options: Any) -> Self:
        """:meth:`empty` with the shape, dtype and device of this tensor.

        >>> Tensor([1, 2]).empty_like().shape
        (2,)
        """
        return self.full_like(0, **options)

    @classmethod
    def arange(
        cls,
        start: float,
        end: float | None = None,
        step: float = 1,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """From ``start`` (0 if only one number is given) by ``step`` up to, without, ``end``.

        Integers make int64, floats float32. ValueError for a step of 0 or of the wrong sign.

        >>> Tensor.arange(2, 8, 2).tolist()
        [2, 4, 6]
        """
        low, high = (0, start) if end is None else (start, end)
        if step == 0 or (high - low) / step < 0:
            raise ValueError(f"arange: no step of {step} leads from {low} to {high}")
        where = Device.canonicalize(device)
        whole = all(isinstance(v, (int, np.integer)) for v in (low, high, step))
        wanted = host.as_dtype(dtype) if dtype is not None else None
        if not whole:
            count = math.ceil((high - low) / step)
            values = np.arange(count, dtype=np.float64) * step + low
            return cls(values, wanted or dtypes.float32, where, requires_grad)
        low, high, step = int(low), int(high), int(step)
        numbers = range(low, high, step)
        return cls._whole_range(numbers, wanted or default_int(where), where, requires_grad)

    @classmethod
    def _whole_range(cls, numbers: range, dtype: DType, device: str, requires_grad: Flag) -> Self:
        """Integers as a lazy node, computed in a dtype that holds them all."""
        ends = (numbers[0], numbers[-1]) if numbers else (0, 0)
        if dtype.is_int and not dtype.min <= min(ends) <= max(ends) <= dtype.max:
            raise DTypeError(
                f"arange: {ends[0]} .. {ends[1]} does not fit {dtype.name} "
                f"({dtype.min} .. {dtype.max}); choose a wider dtype"
            )
        inner = dtype if dtype.is_int and dtype.bits >= 32 else default_int(device)
        node = build.iota(len(numbers), inner)
        if numbers.step != 1:
            node = build.mul(node, build.const_like(node, _wrapped(numbers.step, inner)))
        if numbers.start:
            node = build.add(node, build.const_like(node, _wrapped(numbers.start, inner)))
        return cls._fresh(build.cast(node, dtype), device, requires_grad)

    @classmethod
    def linspace(
        cls,
        start: float,
        end: float,
        steps: int,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """``steps`` numbers at equal distances from ``start`` to ``end``, both included.

        >>> Tensor.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        if steps < 0:
            raise ShapeError(f"linspace: {steps} steps; give 0 or more")
        wanted = dtypes.float32 if dtype is None else host.as_dtype(dtype)
        values = np.linspace(start, end, steps, dtype=np.float64)
        if wanted.is_int:
            values = np.trunc(values)
        return cls(values, wanted, device, requires_grad)

    @classmethod
    def eye(
        cls,
        n: int,
        m: int | None = None,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """Ones on the diagonal of an n by m matrix (m is n unless given), zeros elsewhere.

        >>> Tensor.eye(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        shape = _shape("eye", (n, n if m is None else m))
        wanted = dtypes.float32 if dtype is None else host.as_dtype(dtype)
        rows = build.reshape(build.iota(shape[0], dtypes.int32), (shape[0], 1))
        columns = build.iota(shape[1], dtypes.int32)
        same = build.eq(expand_node(rows, shape), expand_node(columns, shape))
        return cls._fresh(build.cast(same, wanted), Device.canonicalize(device), requires_grad)

    @classmethod
    def from_numpy(cls, array: Any) -> Self:
        """A tensor with the values and dtype of an array, which is copied.

        >>> import numpy as np
        >>> Tensor.from_numpy(np.array([1, 2], np.int16)).dtype
        coregrad.int16
        """
        return cls(np.asarray(array))

    @classmethod
    def _from_bits(cls, array: host.Array, dtype: DType, device: Any = None) -> Self:
        """A tensor of stored elements: bfloat16 as uint16."""
        where = Device.canonicalize(device)
        check_dtype("Tensor", dtype, where)
        return cls._fresh(engine.from_host(array, dtype, where), where)


def _wrapped(value: int, dtype: DType) -> int:
    """An integer constant modulo the dtype's range: sums that fit come out right all the same."""
    span = 1 << dtype.bits
    value %= span
    return value - span if value > dtype.max else value
