"""A tensor as a value with a name: what every family of methods builds on. No arithmetic here.

A :class:`TensorBase` holds a graph node and a device. Operations make new tensors with
:meth:`TensorBase._make`; in-place methods give the name another node with
:meth:`TensorBase._update`, so nothing that was built earlier changes and no two tensors share
memory.

``requires_grad`` has three values. True and False mean what they mean in PyTorch. None, the
default of floating tensors, takes a gradient when no tensor under ``backward()`` says True.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

import numpy as np

from coregrad import dtypes, engine
from coregrad.api import capture, host
from coregrad.api.device import Device, check_dtype, default_int
from coregrad.api.grad_mode import enabled_flag
from coregrad.dtypes import DType
from coregrad.errors import DeviceError, DTypeError, GradientError, ShapeError
from coregrad.expression import shared
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

Flag = bool | None
OTHER_NAMES = {"axis": "dim", "axes": "dims", "keepdims": "keepdim"}
LINKS = 64  # in-place updates of one name that may pile up before they are computed
SHOWN = 1000  # elements up to which repr shows all of them, as NumPy's printing does


def dim_or_axis(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, ...], R]:
    """Let callers write NumPy's words (axis, axes, keepdims) for PyTorch's (dim, dims, keepdim)."""
    code = method.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    taken = code.co_varnames[:count]
    names = {other: name for other, name in OTHER_NAMES.items() if name in taken}
    spread = code.co_varnames[count : count + bool(code.co_flags & inspect.CO_VARARGS)]
    if "dims" in (*taken, *spread):
        names |= dict.fromkeys(("axis", "axes", "dim"), "dims")

    @functools.wraps(method)
    def renamed(self: S, /, *args: Any, **kwargs: Any) -> R:
        for other in names.keys() & kwargs.keys():
            if names[other] in kwargs:
                raise TypeError(f"{method.__name__}: give {names[other]} or {other}, not both")
            kwargs[names[other]] = kwargs.pop(other)
        if "dims" in spread and "dims" in kwargs:
            args = (*args, kwargs.pop("dims"))
        return method(self, *args, **kwargs)

    return renamed


def join(flags: Sequence[Flag]) -> Flag:
    """The flag of a result: True beats None beats False."""
    if True in flags:
        return True
    return None if None in flags else False


def require_tensor(name: str, given: object, instead: str) -> None:
    """DTypeError for what is no tensor: called on the class, as in ``Tensor.cat([a, b])``, a method
    has a list for its tensor. ``instead`` is what to write."""
    if not isinstance(given, TensorBase):
        raise DTypeError(f"{name}: {type(given).__name__} is no tensor; write {instead}")


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape that ``shapes`` broadcast to, NumPy's way."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise ShapeError(
                f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast; counted from "
                "the last, axes must be equal or 1"
            )
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def expand(node: Node, shape: Shape) -> Node:
    """``node`` broadcast to ``shape``, which it fits."""
    if node.shape == shape:
        return node
    padded = (1,) * (len(shape) - len(node.shape)) + node.shape
    return build.expand(build.reshape(node, padded), shape)


def broadcast(name: str, *nodes: Node) -> list[Node]:
    """The nodes expanded to their common shape."""
    first, last = nodes[0], nodes[-1]
    if len(nodes) == 2 and first.shape[len(first.shape) - len(last.shape) :] == last.shape:
        return [first, expand(last, first.shape)]  # the common case: a bias, a number
    shape = broadcast_shapes(name, *(n.shape for n in nodes))
    return [expand(n, shape) for n in nodes]


def result_type(*nodes: Node) -> DType:
    """PyTorch's promotion: among tensors of one kind (bool, int, float) a 0-d one is weaker."""
    strong = [n.dtype for n in nodes if n.shape]
    weak = [n.dtype for n in nodes if not n.shape]
    dtype = functools.reduce(dtypes.promote, strong or weak)
    if not (strong and weak):
        return dtype
    other = functools.reduce(dtypes.promote, weak)
    if dtype.is_float or (dtype.is_int and not other.is_float):
        return dtype
    return dtypes.promote(dtype, other)


def promote(*nodes: Node) -> list[Node]:
    """The nodes cast to one dtype."""
    dtype = result_type(*nodes)
    return [build.cast(n, dtype) for n in nodes]


class LeafTag:
    """What a LEAF node points to: the tensor that may receive the gradient, while it lives."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: TensorBase) -> None:
        self.tensor = weakref.ref(tensor)

    def __repr__(self) -> str:
        return "leaf"

    def owner(self) -> TensorBase | None:
        """The tensor, unless it is gone or has become the result of an operation."""
        tensor = self.tensor()
        return tensor if tensor is not None and tensor._tag is self else None

    def history(self) -> Node | None:
        """What the tensor's value was computed from, as long as the tensor lives."""
        owner = self.owner()
        return None if owner is None else owner._history


class TensorBase:
    """The name: a node, a device, a flag and a gradient."""

    __array_priority__ = 1000
    __array_ufunc__ = None  # NumPy's operators leave mixed arithmetic to ours
    __hash__ = object.__hash__

    _result: ClassVar[type[TensorBase]]  # the class of results; tensor.py sets it
    _partial: ClassVar[Callable[..., Any]]  # makes tensors of varying lengths; partial.py sets it
    _node: Node
    device: str
    _requires_grad: Flag
    _tag: LeafTag | None = None
    _links: int = 0
    _history: Node | None = None
    _hooks: tuple[Callable[[Any], Any], ...] = ()
    _grad: Self | None = None
    _is_data: bool = False  # what .data gave, and nothing else since

    def __init__(
        self,
        data: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> None:
        wanted = None if dtype is None else host.as_dtype(dtype)
        if isinstance(data, TensorBase):
            where = data.device if device is None else Device.canonicalize(device)
            node = _moved(build.detach(data.node), data.device, where)
            node = build.cast(node, wanted or node.dtype)
        else:
            where = Device.canonicalize(device)
            if capture.recorder is not None and isinstance(data, np.ndarray):
                capture.recorder.host_data("Tensor", "a NumPy array")
            array, found = host.to_array(data, wanted, default_int(where))
            check_dtype("Tensor", found, where)
            node = engine.from_host(array, found, where)
        self._become(node, where, requires_grad)

    # ---- making and renaming -------------------------------------------------------------------

    def _become(self, node: Node, device: str, requires_grad: Flag) -> None:
        """Take a first value, which has no history."""
        if requires_grad is True and not node.dtype.is_float:
            raise DTypeError(
                f"requires_grad: only floating tensors take gradients, not {node.dtype.name}; "
                "cast it first"
            )
        self.device = device
        self._requires_grad = requires_grad if node.dtype.is_float else False
        self._history = None
        self._node = self._as_leaf(node)

    @classmethod
    def _fresh(cls, node: Node, device: str, requires_grad: Flag = None) -> Self:
        """A tensor of its own with this value."""
        check_dtype("Tensor", node.dtype, device)
        made = cls.__new__(cls)
        made._become(node, device, requires_grad)
        return made

    def _as_leaf(self, node: Node) -> Node:
        """``node`` without history, marked as this tensor's where a gradient may come."""
        if node.op is not ops.BUFFER and node.op is not ops.CONST:
            node = build.detach(node)
        if self._requires_grad is False:
            return node
        if self._tag is None:
            self._tag = LeafTag(self)
        return build.leaf(node, self._tag)

    def _make(self, node: Node, *others: TensorBase) -> Self:
        """The result of an operation on this tensor and ``others``."""
        flag = self._requires_grad
        for other in others:
            if other._requires_grad is not flag:
                flag = join((flag, other._requires_grad))
        return self._with(node, flag)

    def _with(self, node: Node, flag: Flag) -> Self:
        """A result with this flag, detached where gradients are off."""
        if flag is not False:
            if not node.dtype.is_float:
                flag = False
            elif not enabled_flag.get():
                flag = False
                node = build.detach(node)
        made: Self = object.__new__(self._result)  # type: ignore[assignment]
        made._node = node
        made.device = self.device
        made._requires_grad = flag
        engine.watch(made)
        return made

    def _update(self, name: str, node: Node, *others: TensorBase) -> Self:
        """Give this name another value, made from its old one and ``others``.

        The new value is differentiable where one of them has requires_grad=True; otherwise it is
        a value without history, like that of a new tensor.
        """
        self._check_name(name)
        self._check_value(name, node)
        flags = [self._requires_grad]
        for other in others:
            self._check_device(name, other)
            flags.append(other._requires_grad)
        tracked = True in flags and node.dtype.is_float and enabled_flag.get()
        if tracked and self._requires_grad is True and self._tag is not None:
            raise GradientError(
                f"{name}: this tensor requires a gradient, which in-place methods would lose; "
                "update it inside `with no_grad():`, or use its result as a new tensor"
            )
        if engine.resolve(self.node).op is ops.BUFFER:  # computed since the last update
            self._links = 0
        self._history = None
        if tracked:
            self._node = node
            self._requires_grad = True
            self._tag = None
        else:
            self._node = self._as_leaf(node)
        self._count_link()
        return self

    def _check_name(self, name: str) -> None:
        """An in-place method on ``w.data`` would change a value that nobody has a name for."""
        if self._is_data:
            raise GradientError(
                f"{name}: .data is a value of its own here, so this would leave the tensor it was "
                "taken from as it is; write `with no_grad(): w.method_(...)`, or `w.data = ...`; "
                "for a copy to change, take w.detach().clone()"
            )

    def _check_value(self, name: str, node: Node) -> None:
        """In-place methods keep dtype and shape."""
        own = self._node
        if node.shape == own.shape and node.dtype is own.dtype:
            return
        raise (ShapeError if node.shape != self.shape else DTypeError)(
            f"{name}: the new value is {node.dtype.name}{list(node.shape)}, the tensor "
            f"{self.dtype.name}{list(self.shape)}; in-place methods keep dtype and shape"
        )

    def _count_link(self) -> None:
        """Long chains of updates compute themselves, so that no graph grows without end. Before
        that, what shares work with another result is computed along with it."""
        engine.watch(self)
        self._links += 1
        if self._links >= LINKS and capture.recorder is None:
            self._links = 0
            engine.realize([self._node], self.device)

    @property
    def node(self) -> Node:
        """The graph node that is this tensor's value now."""
        if capture.recorder is not None:
            capture.recorder.read(self)
        node = self._node
        return node if node.buffer is None else self._settled(node, node.buffer)

    @property
    def unreported(self) -> Node:
        """:attr:`node`, without telling a capture of a use."""
        node = self._node
        if node.buffer is None or capture.recorder is not None:
            return node
        return self._settled(node, node.buffer)

    def _settled(self, node: Node, buffer: Node) -> Node:
        """A computed value that has no history lets go of the graph that computed it."""
        if shared(node) is not None:
            return node
        if self._requires_grad is False:
            self._node = buffer
        elif node.op is ops.LEAF:
            if node.src[0].op is ops.DETACH:
                self._node = build.leaf(buffer, node.arg)
        elif self._requires_grad is None:  # later results need the value only: loops stay short
            self._history = node
            self._tag = LeafTag(self)
            self._node = build.leaf(buffer, self._tag)
        return self._node

    def _check_device(self, name: str, other: TensorBase) -> None:
        if not isinstance(other, TensorBase):
            raise TypeError(f"{name}: {other!r} is no tensor; make one of it with Tensor(...)")
        if other.device != self.device:
            raise DeviceError(
                f"{name}: tensors on {self.device!r} and {other.device!r}; move one with "
                f".to({self.device!r})"
            )

    def _dim(self, name: str, dim: int, extra: int = 0) -> int:
        """An axis counted from 0; ``extra`` more axes than there are may be named."""
        rank = len(self._node.shape) + extra
        if not isinstance(dim, (int, np.integer)):
            raise TypeError(f"{name}: dim must be an int, not {dim!r}")
        if not -max(rank, 1) <= dim < max(rank, 1):
            raise ShapeError(
                f"{name}: axis {dim} of a tensor of shape {self.shape}; "
                f"choose one from {-rank} to {rank - 1}"
            )
        return int(dim) % max(rank, 1)

    # ---- operands ------------------------------------------------------------------------------

    def _binary(
        self, name: str, make: Callable[[Node, Node], Node], other: Any, swapped: bool = False
    ) -> Self:
        """``make`` on this tensor and ``other`` (a tensor, array or number), promoted and
        broadcast; ``swapped`` puts ``other`` first."""
        a = self.node
        flag = self._requires_grad
        if isinstance(other, TensorBase):
            b = other.node
            if other.device != self.device:
                self._check_device(name, other)
            if other._requires_grad is not flag:
                flag = join((flag, other._requires_grad))
            if a.dtype is not b.dtype:
                a, b = promote(a, b)
        else:
            b = self._operand(name, other)
            if b.dtype is not a.dtype:
                a, b = promote(a, b) if isinstance(other, np.ndarray) else (
                    build.cast(a, b.dtype), b
                )  # fmt: skip
        if a.shape != b.shape:
            a, b = broadcast(name, a, b)
        return self._with(make(b, a) if swapped else make(a, b), flag)

    def _operand(self, name: str, other: Any) -> Node:
        """A number (or array) as a node: PyTorch's rules for what dtype a Python number has."""
        node = self._node
        dtype = node.dtype
        if isinstance(other, float):
            return build.const(other, dtype if dtype.is_float else dtypes.float32, node.shape)
        if isinstance(other, np.generic):
            return self._operand(name, other.item())
        if isinstance(other, int):
            if dtype is dtypes.bool_ and not isinstance(other, bool):
                dtype = default_int(self.device)
            return build.const(other, dtype, node.shape)
        if isinstance(other, np.ndarray):
            return TensorBase(other, device=self.device, requires_grad=False).node
        raise TypeError(f"{name}: {type(other).__name__} is neither a tensor nor a number")

    def _like(self, name: str, value: Any) -> TensorBase:
        """``value`` as a tensor on this device; a number gets the dtype that it would have here."""
        if isinstance(value, TensorBase):
            self._check_device(name, value)
            return value
        if isinstance(value, (list, tuple)):
            return TensorBase(value, device=self.device, requires_grad=False)
        node = self._operand(name, value)
        if node.op is ops.CONST:
            node = build.const(dtypes.from_bits(node.arg, node.dtype), node.dtype, ())
        return self._with(node, False)

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The size of each axis.

        >>> Tensor([[1, 2, 3]]).shape
        (1, 3)
        """
        return self._node.shape

    @property
    def dtype(self) -> DType:
        """The number format of every element.

        >>> Tensor([1.5]).dtype
        coregrad.float32
        """
        return self._node.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are.

        >>> Tensor([[1, 2, 3]]).ndim
        2
        """
        return len(self._node.shape)

    def dim(self) -> int:
        """PyTorch's other name for :attr:`ndim`.

        >>> Tensor(1.0).dim()
        0
        """
        return len(self._node.shape)

    @dim_or_axis
    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis. ShapeError for an axis it does not have.

        >>> Tensor([[1, 2, 3]]).size(-1)
        3
        """
        return self.shape if dim is None else self.shape[self._dim("size", dim)]

    def numel(self) -> int:
        """How many elements there are.

        >>> Tensor([[1, 2, 3]]).numel()
        3
        """
        total = 1
        for n in self._node.shape:
            total *= n
        return total

    def element_size(self) -> int:
        """Bytes per element.

        >>> Tensor([1.0]).element_size()
        4
        """
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements.

        >>> Tensor([1.0, 2.0]).nbytes
        8
        """
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float.

        >>> Tensor([1]).is_floating_point()
        False
        """
        return self.dtype.is_float

    # ---- gradients -----------------------------------------------------------------------------

    @property
    def grad(self) -> Self | None:
        """The gradient that ``backward()`` left here, or None.

        >>> w = Tensor([1.0, 2.0])
        >>> (w * w).sum().backward()
        >>> w.grad.tolist()
        [2.0, 4.0]
        """
        if capture.recorder is not None:
            capture.recorder.grad_read(self)
        return self._grad

    @grad.setter
    def grad(self, gradient: Self | None) -> None:
        if capture.recorder is not None:
            capture.recorder.grad_written(self)
        self._grad = gradient

    @property
    def requires_grad(self) -> Flag:
        """True, False, or None: only if no other tensor under ``backward()`` says True.

        >>> Tensor([1.0], requires_grad=True).requires_grad
        True
        """
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, flag: Flag) -> None:
        self.requires_grad_(flag)

    def requires_grad_(self, requires_grad: Flag = True) -> Self:
        """Set :attr:`requires_grad`, for what is built from now on. Returns the tensor itself.

        Raises DTypeError for True on a tensor that is not floating, GradientError for False on
        the result of an operation on tensors with True.

        >>> Tensor([1.0]).requires_grad_().requires_grad
        True
        """
        if requires_grad is self._requires_grad:
            return self
        if requires_grad is not True and self._requires_grad is True and self._tag is None:
            raise GradientError(
                "requires_grad: this tensor is the result of tensors that require a gradient; "
                "use .detach() for its value alone"
            )
        node = self.node
        if node.op is ops.LEAF and node.arg is self._tag:
            node = node.src[0]
        self._tag = None
        self._become(node, self.device, requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether this is a tensor of its own rather than the result of differentiable operations.

        >>> w = Tensor([1.0], requires_grad=True)
        >>> w.is_leaf, (w * 2).is_leaf
        (True, False)
        """
        return self._tag is not None or self._requires_grad is not True

    def detach(self) -> Self:
        """The same value, through which no gradient passes.

        >>> w = Tensor([3.0], requires_grad=True)
        >>> (w * w.detach()).backward(Tensor([1.0]))
        >>> w.grad.tolist()
        [3.0]
        """
        node = self.node
        return self._with(build.detach(node) if node.dtype.is_float else node, False)

    def clone(self) -> Self:
        """The same value under a name of its own, through which gradients pass.

        >>> a = Tensor([1.0, 2.0])
        >>> b = a.clone()
        >>> b[0] = 5.0
        >>> a.tolist(), b.tolist()
        ([1.0, 2.0], [5.0, 2.0])
        """
        made = self._make(self.node)
        if made._requires_grad is None:
            made._tag = LeafTag(made)
            made._node = build.leaf(made._node, made._tag)
        return made

    def zero_grad(self) -> None:
        """Forget the gradient.

        >>> w = Tensor([1.0])
        >>> w.zero_grad()
        >>> w.grad is None
        True
        """
        self.grad = None

    def register_hook(self, hook: Callable[[Any], Any]) -> Callable[[], None]:
        """Call ``hook(gradient)`` when ``backward()`` gives this tensor one; unless it returns
        None, what it returns is taken instead. Only for tensors of their own.

        Returns a function that removes the hook.

        >>> w = Tensor([1.0], requires_grad=True)
        >>> remove = w.register_hook(lambda g: g * 10)
        >>> (w * 2).backward(Tensor([1.0]))
        >>> w.grad.tolist()
        [20.0]
        """
        if self._tag is None:
            raise GradientError(
                "register_hook: this tensor takes no gradient of its own; register the hook on a "
                "tensor made with requires_grad=True"
            )
        self._hooks = (*self._hooks, hook)

        def remove() -> None:
            self._hooks = tuple(h for h in self._hooks if h is not hook)

        return remove

    # ---- computing and reading -----------------------------------------------------------------

    def realize(self, *others: TensorBase) -> Self:
        """Compute this tensor (and others) now, and return it. Reading a tensor does so too.

        >>> (Tensor([1.0]) + 1).realize().tolist()
        [2.0]
        """
        for tensor in (self, *others):
            require_tensor("realize", tensor, "coregrad.realize(a, b)")
        if capture.recorder is not None and capture.recorder.is_here():
            return self  # all that is captured is computed in one go
        if not others:
            engine.realize([self.node], self.device)
            return self
        groups: dict[str, list[Node]] = {}
        tensors: tuple[TensorBase, ...] = (self, *others)
        for tensor in tensors:
            groups.setdefault(tensor.device, []).append(tensor.node)
        for device, nodes in groups.items():
            engine.realize(nodes, device)
        return self

    def contiguous(self) -> Self:
        """The value in a buffer of its own: what is computed from it does not compute it again.

        >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
        [[1, 3], [2, 4]]
        """
        return self._make(build.contiguous(self.node))

    def is_contiguous(self) -> bool:
        """Always True: views are values, and no tensor has strides.

        >>> Tensor([[1, 2], [3, 4]]).T.is_contiguous()
        True
        """
        return True

    def numpy(self) -> host.Array:
        """A NumPy array with these elements, which is the caller's own. bfloat16 comes as float32.

        >>> Tensor([[1, 2], [3, 4]]).numpy().sum(axis=0)
        array([4, 6])
        """
        return host.load(engine.read(self.node, self.device), self.dtype)

    def tolist(self) -> Any:
        """Nested lists of Python numbers; one number for a 0-d tensor.

        >>> Tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return self.numpy().tolist()

    def item(self) -> Any:
        """The only element as a Python number. ShapeError if there is not exactly one.

        >>> Tensor([2.5]).item()
        2.5
        """
        if self.numel() != 1:
            raise ShapeError(
                f"item: a tensor of shape {self.shape} has {self.numel()} elements, not one; "
                "use tolist() or numpy()"
            )
        return self.numpy().item()

    @property
    def data(self) -> Self:
        """The value alone, computed: ``total += loss.data`` keeps no graph.

        Assigning to it (also ``w.data -= step``) gives this tensor the value. An in-place method on
        it raises GradientError: in PyTorch it changes the tensor, where views alias.

        >>> w = Tensor([1.0], requires_grad=True)
        >>> w.data -= 0.5
        >>> w.data.tolist(), w.data.requires_grad
        ([0.5], False)
        """
        value = self.detach().realize()
        value._is_data = True
        return value

    @data.setter
    def data(self, value: TensorBase) -> None:
        self.assign(value)

    def assign(self, value: Any) -> Self:
        """Give this name the value of another tensor of its shape and dtype; no gradient passes.

        Nothing built earlier from the old value changes. Raises ShapeError, DTypeError or
        DeviceError where the two differ. Returns the tensor itself.

        >>> w = Tensor([1.0, 2.0])
        >>> old = w * 1
        >>> w.assign(w * 10).tolist(), old.tolist()
        ([10.0, 20.0], [1.0, 2.0])
        """
        other = value if isinstance(value, TensorBase) else self._given("assign", value)
        self._check_name("assign")
        self._check_device("assign", other)
        node, own = other.node, self.node
        self._check_value("assign", node)
        if engine.resolve(own).op is ops.BUFFER:  # computed since the last update
            self._links = 0
        self._node = self._as_leaf(node)
        self._count_link()
        return self

    def _given(self, name: str, value: Any) -> TensorBase:
        """Host data with this tensor's dtype, on its device."""
        return TensorBase(value, dtype=self.dtype, device=self.device, requires_grad=False)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """On another device and/or with another dtype; also ``to(tensor)``, like that one.

        Raises DeviceError for a device nobody offers.

        >>> Tensor([1.5]).to("float16").dtype
        coregrad.float16
        """
        device, dtype = kwargs.get("device"), kwargs.get("dtype")
        for arg in args:
            if isinstance(arg, TensorBase):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, Device) or (isinstance(arg, str) and not _names_dtype(arg)):
                device = arg
            elif not isinstance(arg, bool) and arg is not None:
                dtype = arg
        node = self.node
        where = self.device if device is None else Device.canonicalize(device)
        wanted = node.dtype if dtype is None else host.as_dtype(dtype)
        check_dtype("to", wanted, where)
        node = _moved(build.cast(node, wanted), self.device, where)
        if node is self.node and where == self.device:
            return self
        made = self._make(node)
        made.device = where
        return made

    def cpu(self) -> Self:
        """On the CPU.

        >>> Tensor([1.0], device="cpu").cpu().device
        'cpu'
        """
        return self.to("cpu")

    def cuda(self, index: int = 0) -> Self:
        """On a CUDA device. Raises BackendUnavailable, naming what to install, where there is none.

        >>> Tensor([1.0]).cuda()  # doctest: +SKIP
        """
        return self.to(f"cuda:{index}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> host.Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        return bool(self._one("bool", "use .any() or .all()"))

    def __int__(self) -> int:
        return int(self._one("int", "read it with tolist()"))

    def __float__(self) -> float:
        return float(self._one("float", "read it with tolist()"))

    def __index__(self) -> int:
        if self.dtype.is_float:
            raise TypeError(f"index: {self.dtype.name} is no integer dtype; cast the tensor first")
        return int(self._one("index", "read it with tolist()"))

    def _one(self, name: str, advice: str) -> Any:
        if self.numel() != 1:
            raise ShapeError(
                f"{name}: a tensor of shape {self.shape} has no single truth or value; {advice}"
            )
        return self.item()

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len: a 0-d tensor has no length; read it with item()")
        return self._node.shape[0]

    def __repr__(self) -> str:
        text = np.array2string(self.numpy(), separator=", ", prefix="Tensor(", threshold=SHOWN)
        extra = ", requires_grad=True" if self._requires_grad is True else ""
        if 0 in self.shape and self.shape != (0,):
            text += f", shape={self.shape}"
        return f"Tensor({text}, dtype={self.dtype.name}, device={self.device}{extra})"

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(self.item(), spec)

    # ---- copying -------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self._twin(self.node)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if not self.is_leaf:
            raise GradientError(
                "deepcopy: this tensor is the result of differentiable operations; copy "
                "its value with .detach().clone()"
            )
        made = self._twin(self.node)
        memo[id(self)] = made
        if self.grad is not None:
            made.grad = self.grad._twin(self.grad.node)
        return made

    def _twin(self, node: Node) -> Self:
        """A tensor of the same class, flag and own attributes, with a name of its own."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self._own_attributes())
        made._become(node, self.device, self._requires_grad)
        return made

    def _own_attributes(self) -> dict[str, Any]:
        ours = (
            "_node",
            "device",
            "_requires_grad",
            "_tag",
            "_links",
            "_history",
            "_hooks",
            "_grad",
        )
        return {k: v for k, v in self.__dict__.items() if k not in ours}

    def __reduce__(self) -> tuple[Any, ...]:
        stored = engine.read(self.node, self.device)
        place = (self.dtype, self.device, self._requires_grad)
        return _rebuilt, (type(self), stored, *place, self.grad, self._own_attributes())


def _moved(node: Node, source: str, device: str) -> Node:
    return node if source == device else build.copy(node, source, device)


def _names_dtype(text: str) -> bool:
    try:
        dtypes.by_name(text)
    except DTypeError:
        return False
    return True


def _rebuilt(
    cls: type[TensorBase],
    stored: host.Array,
    dtype: DType,
    device: str,
    requires_grad: Flag,
    grad: Any,
    attributes: dict[str, Any],
) -> TensorBase:
    """What unpickling calls."""
    made = cls.__new__(cls)
    made.__dict__.update(attributes)
    where = Device.canonicalize(device)
    check_dtype("Tensor", dtype, where)
    made._become(engine.from_host(stored, dtype, where), where, requires_grad)
    made.grad = grad
    return made
