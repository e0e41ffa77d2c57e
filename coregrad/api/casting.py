"""Methods that change the dtype and nothing else.

They have a class of their own because they are named ``float``, ``int`` and ``bool``, which must
not hide Python's types from the annotations of other methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coregrad import dtypes
from coregrad.api import host
from coregrad.api.base import TensorBase
from coregrad.api.device import check_dtype
from coregrad.ir import build

if TYPE_CHECKING:
    from typing_extensions import Self


class Casting(TensorBase):
    """``cast`` and its short names."""

    def cast(self, dtype: Any) -> Self:
        """The values as another dtype: floats truncate to integers, anything but 0 is True.

        >>> Tensor([1.9, -1.9]).cast("int32").tolist()
        [1, -1]
        """
        wanted = host.as_dtype(dtype)
        check_dtype("cast", wanted, self.device)
        return self._make(build.cast(self.node, wanted))

    type = cast

    def type_as(self, other: TensorBase) -> Self:
        """The values with the dtype of ``other``.

        >>> Tensor([1]).type_as(Tensor([1.0])).dtype
        coregrad.float32
        """
        return self.cast(other.dtype)

    def bitcast(self, dtype: Any) -> Self:
        """The bits read as another dtype of the same width.

        >>> Tensor([1.0]).bitcast("int32").tolist()
        [1065353216]
        """
        wanted = host.as_dtype(dtype)
        check_dtype("bitcast", wanted, self.device)
        return self._make(build.bitcast(self.node, wanted))

    def float(self) -> Self:
        """As float32.

        >>> Tensor([1]).float().tolist()
        [1.0]
        """
        return self.cast(dtypes.float32)

    def double(self) -> Self:
        """As float64.

        >>> Tensor([1]).double().dtype
        coregrad.float64
        """
        return self.cast(dtypes.float64)

    def half(self) -> Self:
        """As float16.

        >>> Tensor([1]).half().dtype
        coregrad.float16
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """As bfloat16.

        >>> Tensor([1]).bfloat16().dtype
        coregrad.bfloat16
        """
        return self.cast(dtypes.bfloat16)

    def int(self) -> Self:
        """As int32, PyTorch's ``int``.

        >>> Tensor([1.5]).int().tolist()
        [1]
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """As int64.

        >>> Tensor([1.5]).long().dtype
        coregrad.int64
        """
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """As int16.

        >>> Tensor([1.5]).short().dtype
        coregrad.int16
        """
        return self.cast(dtypes.int16)

    def byte(self) -> Self:
        """As uint8.

        >>> Tensor([1.5]).byte().dtype
        coregrad.uint8
        """
        return self.cast(dtypes.uint8)

    def bool(self) -> Self:
        """True where an element is not 0.

        >>> Tensor([0.0, 0.5]).bool().tolist()
        [False, True]
        """
        return self.cast(dtypes.bool_)
