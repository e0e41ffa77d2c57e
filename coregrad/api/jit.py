"""``@jit``: capture a function of tensors once, then replay its kernels.

A capture runs the function on stand-ins. Tensors report what is read, written and drawn (see
:mod:`coregrad.api.capture`), so that nothing has to be listed: what the function reads besides its
arguments is state, what it assigns is written by every replay. A capture is used again only while
everything it reads from its surroundings is as it was; otherwise the function is captured anew.
Python's and NumPy's random numbers and iterators, which change by being used, may not be used: the
capture raises. What shows no state (clocks, files, the network) cannot be noticed, and is frozen.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from coregrad import dtypes, engine, holders
from coregrad.api import capture, generators
from coregrad.api.base import Flag, TensorBase
from coregrad.api.grad_mode import enabled_flag
from coregrad.api.reach import Reach
from coregrad.api.threefry import GENERATOR
from coregrad.api.variable import BoundVariable, Variable
from coregrad.dtypes import DType
from coregrad.engine import Storage
from coregrad.errors import CaptureError, GradientError, UnsupportedOp
from coregrad.ir import build, ops
from coregrad.ir.formula import Hole
from coregrad.ir.graph import Node
from coregrad.program import Program

P = ParamSpec("P")
R = TypeVar("R")

CAPTURES = 64  # kept for one function; the one that was not used longest goes first


# ---- what users see ----------------------------------------------------------------------------


class Jit(Generic[P, R]):
    """A function with its captures: what :func:`jit` returns."""

    def __init__(self, function: Callable[P, R], roots: dict[str, Any] | None = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._roots = {"": function} if roots is None else roots
        self._captures: dict[Any, list[_Capture]] = {}
        self._bound: weakref.WeakKeyDictionary[Any, Jit[..., R]] = weakref.WeakKeyDictionary()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result, from a replay where there is a capture that fits."""
        if capture.recorder is not None and capture.recorder.is_here():
            return self._function(*args, **kwargs)  # part of another capture
        call = _Arguments(self._name, args, kwargs)
        with engine.lock:  # while another thread captures, tensors hold no values
            fitting, tensors = self._fitting(call)
            return fitting.replay(tensors, call.variables)  # type: ignore[no-any-return]

    def _fitting(self, call: _Arguments) -> tuple[_Capture, list[TensorBase]]:
        """A capture that serves this call, made now if there is none, and what it reads."""
        captures = self._captures.setdefault(call.key, [])
        for i, found in enumerate(captures):
            tensors = found.fits(call)
            if tensors is not None:
                if i:
                    captures.insert(0, captures.pop(i))
                return found, tensors
        made = _captured(self._name, self._function, self._roots, call)
        captures.insert(0, made)
        del captures[CAPTURES:]
        return made, made.tensors(call)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method's captures belong to its instance."""
        if instance is None:
            return self
        bound = self._bound.get(instance)
        if bound is None:
            method = self._function.__get__(instance, owner)
            bound = self._bound[instance] = Jit(_weakly(method))
            bound._roots = {"": self._function, "self": weakref.proxy(instance)}
        return bound

    @property
    def captures(self) -> int:
        """How many captures are kept."""
        return sum(map(len, self._captures.values()))

    @property
    def kernels(self) -> int:
        """Kernels that the last used capture launches."""
        used = [found[0] for found in self._captures.values() if found]
        return used[-1].kernels if used else 0


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Capture ``function`` on its first call, then replay its kernels, with memory planned.

    Arguments and results may be tensors in lists, tuples and dicts; other arguments are part of
    the capture: another number, shape, dtype or structure is captured separately. (A number that is
    another one in every call is a :class:`coregrad.Variable`, bound to it.) Tensors that the
    function reads from its surroundings are read anew in every call; those it changes with
    in-place methods (an optimiser's step) or gives a ``.grad`` are changed by every call.

    Python code runs only while capturing, so a captured function must not print, count, append to
    lists, or look at values: what can be noticed raises CaptureError, which says what to do
    instead. So does drawing from ``random``, ``numpy.random`` or an iterator, which stays where the
    function left it (``Tensor.rand`` draws anew in every call). Clocks and files show no state:
    what is read from them is frozen unnoticed, so pass it as an argument.

    A result does not remember how it was made: call ``backward()`` inside the function.

    >>> @jit
    ... def scaled(x, factor):
    ...     return x * factor + 1
    >>> scaled(Tensor([1.0, 2.0]), 3).tolist(), scaled(Tensor([5.0, 6.0]), 3).tolist()
    ([4.0, 7.0], [16.0, 19.0])
    >>> scaled.captures
    1
    """
    return Jit(function)


# ---- arguments ---------------------------------------------------------------------------------


class _Arguments:
    """The tensors of one call, each once, and a key for everything else about it."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.tensors: list[TensorBase] = []
        self.objects: dict[str, Any] = {}
        self.variables: dict[Variable, int] = {}
        self._numbers: dict[int, int] = {}
        parts: list[Any] = [enabled_flag.get()]
        path = f"{name}("
        parts.append(len(args))
        for i, value in enumerate(args):
            if isinstance(value, TensorBase):
                parts.append(self._tensor(value))
            else:
                self._describe(f"{path}[{i}]", value, parts)
        if kwargs:
            self._describe(path, kwargs, parts)
        self.key = tuple(parts)

    def _describe(self, path: str, value: Any, parts: list[Any]) -> None:
        if isinstance(value, TensorBase):
            parts.append(self._tensor(value))
        elif isinstance(value, (list, tuple)):
            parts += (type(value), len(value))
            for i, item in enumerate(value):
                self._describe(f"{path}[{i}]", item, parts)
        elif isinstance(value, dict):
            parts += (dict, *value)
            for key, item in value.items():
                self._describe(f"{path}[{key!r}]", item, parts)
        elif isinstance(value, BoundVariable):
            if self.variables.setdefault(value.variable, value.given) != value.given:
                raise CaptureError(
                    f"jit: {self.name} is given two values of {value.variable.name}; bind it once"
                )
            parts += (BoundVariable, value.variable, value.shift)
        elif isinstance(value, float):
            parts += (float, value.hex())
        elif isinstance(value, (bool, int, str, bytes, type(None), DType)):
            parts += (type(value), value)
        elif isinstance(value, np.generic):
            parts += (type(value), value.tobytes())
        elif isinstance(value, np.ndarray):
            raise CaptureError(
                f"jit: {self.name} got a NumPy array, whose values a capture would freeze; pass "
                "Tensor(array)"
            )
        else:
            self.objects[f"{path})"] = value
            parts += (type(value), id(value))

    def _tensor(self, tensor: TensorBase) -> Any:
        number = self._numbers.get(id(tensor))
        if number is not None:
            return number
        self._numbers[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        own = tensor._tag is not None and tensor._history is None
        return (tensor._node.dtype, tensor._node.shape, tensor.device, tensor._requires_grad, own)


# ---- capturing ---------------------------------------------------------------------------------


@dataclass(eq=False)
class _Source:
    """A tensor that a capture reads: argument ``number``, the gradient of another source's
    tensor, or a tensor of the surroundings."""

    tensor: TensorBase | None  # None for an argument, once captured
    number: int | None
    parent: _Source | None
    hole: Hole
    stand_in: Node
    before: tuple[Any, ...]  # what the tensor's fields were
    place: int = -1  # among the capture's

    def now(self, call: _Arguments) -> TensorBase:
        """The tensor in this call."""
        if self.number is not None:
            return call.tensors[self.number]
        if self.parent is not None:
            gradient = self.parent.now(call)._grad
            assert gradient is not None
            return gradient
        assert self.tensor is not None
        return self.tensor


class _Recorder:
    """Sees what a function does to tensors while it is captured. Other threads wait meanwhile:
    a tensor that they share with the function may hold a stand-in."""

    def __init__(self, call: _Arguments) -> None:
        self.thread = threading.get_ident()
        self.holes = 0
        self.sources: dict[int, _Source] = {}
        self.keys: list[Hole] = []
        self.variables: dict[Variable, Hole] = {}
        self.grads: dict[int, tuple[_Source, bool]] = {}  # whether the first look found None
        self.written: dict[int, tuple[_Source, TensorBase | None]] = {}
        self._seen: dict[int, TensorBase] = {}
        self._mixed: dict[Node, tuple[bool, bool]] = {}
        self._busy = False
        self._call = call

    def begin(self) -> None:
        """Let every argument have a stand-in. Other threads must know of the capture already."""
        for number, tensor in enumerate(self._call.tensors):
            self._stand_in(tensor, number=number)

    def is_here(self) -> bool:
        return threading.get_ident() == self.thread

    def _is_elsewhere(self) -> bool:
        """Whether another thread reports; it goes on when the capture has ended."""
        if self.is_here():
            return False
        with engine.lock:
            return True

    def host_data(self, operation: str, what: str) -> None:
        if self.is_here():
            raise CaptureError(
                f"jit: {self._call.name} uses {what} ({operation}), which every replay would "
                "repeat; make the tensor outside and pass it as an argument"
            )

    def draw(self) -> Node:
        hole = self._hole()
        self.keys.append(hole)
        return build.buffer(hole, dtypes.uint32, (2,))

    def variable(self, variable: Variable) -> Node:
        if variable not in self._call.variables:
            raise CaptureError(
                f"jit: {self._call.name} uses {variable.name}, which it has not been given; pass "
                "the bound variable as an argument"
            )
        if variable not in self.variables:
            self.variables[variable] = self._hole()
        return build.buffer(self.variables[variable], dtypes.int32, ())

    def read(self, tensor: TensorBase) -> None:
        if self._is_elsewhere() or self._busy or id(tensor) in self._seen:
            return
        self._seen[id(tensor)] = tensor
        captured, known = self._contents(tensor._node)
        if known and not captured:
            self._stand_in(tensor)

    def grad_read(self, tensor: TensorBase) -> None:
        if self._is_elsewhere() or id(tensor) in self.grads or id(tensor) in self.written:
            return
        source = self._source(tensor)
        if source is None:
            return
        gradient = tensor._grad
        self.grads[id(tensor)] = source, gradient is None
        if gradient is not None and id(gradient) not in self._seen:
            self._seen[id(gradient)] = gradient
            self._stand_in(gradient, parent=source)

    def grad_written(self, tensor: TensorBase) -> None:
        if self._is_elsewhere() or id(tensor) in self.written:
            return
        source = self._source(tensor)
        if source is not None:
            self.written[id(tensor)] = source, tensor._grad

    def _source(self, tensor: TensorBase) -> _Source | None:
        """What the capture knows of a tensor that was there before it; None for one made inside."""
        self.read(tensor)
        return self.sources.get(id(tensor))

    def _hole(self) -> Hole:
        self.holes += 1
        return Hole(self.holes - 1)

    def _contents(self, root: Node) -> tuple[bool, bool]:
        """Whether an expression contains stand-ins, and whether it contains known values."""
        stack = [engine.resolve(root)]
        while stack:
            node = stack[-1]
            if node in self._mixed:
                stack.pop()
                continue
            if node.op is ops.BUFFER:
                captured = isinstance(node.arg, Hole)
                self._mixed[node] = captured, not captured
                continue
            below = [engine.resolve(s) for s in node.src]
            missing = [s for s in below if s not in self._mixed]
            if missing:
                stack += missing
                continue
            found = [self._mixed[s] for s in below]
            self._mixed[node] = any(c for c, _ in found), any(k for _, k in found)
        return self._mixed[engine.resolve(root)]

    def _stand_in(
        self, tensor: TensorBase, number: int | None = None, parent: _Source | None = None
    ) -> None:
        """Let the tensor have a value that nobody knows until the capture ends."""
        self._seen[id(tensor)] = tensor
        self._busy = True  # the engine looks at other tensors
        try:
            engine.realize([tensor._node], tensor.device)
        finally:
            self._busy = False
        before = (tensor._node, tensor._tag, tensor._history, tensor._links)
        hole = self._hole()
        node = build.buffer(hole, tensor._node.dtype, tensor._node.shape)
        is_own = tensor._tag is not None and tensor._history is None
        if is_own:
            node = tensor._as_leaf(node)
        elif tensor._requires_grad is True and enabled_flag.get():
            raise CaptureError(
                f"jit: {self._call.name} uses a tensor that is the result of tensors with "
                "requires_grad=True; no gradient passes into a captured function: pass .detach(), "
                "or make it inside"
            )
        tensor._node, tensor._history = node, None
        self.sources[id(tensor)] = _Source(tensor, number, parent, hole, node, before)

    def restore(self) -> None:
        """Give every tensor that was there before its value back."""
        for source in self.sources.values():
            assert source.tensor is not None
            tensor = source.tensor
            tensor._node, tensor._tag, tensor._history, tensor._links = source.before
        for source, gradient in self.written.values():
            assert source.tensor is not None
            source.tensor._grad = gradient


def _captured(
    name: str, function: Callable[..., Any], roots: dict[str, Any], call: _Arguments
) -> _Capture:
    """Run the function on stand-ins and plan what it built; no tensor has changed afterwards."""
    reach = Reach(
        roots | call.objects, lambda value: isinstance(value, TensorBase), generators.is_drawn
    )
    watch = generators.Watch(reach.drawn)
    with engine.lock:  # one capture at a time: tensors look for it in one place
        recorder = _Recorder(call)
        outer, capture.recorder = capture.recorder, recorder
        try:
            recorder.begin()
            result = function(*call.args, **call.kwargs)
            _check_unchanged(name, reach)
            _check_not_drawn(name, watch)
            made = _Capture(name, call, reach, recorder, result)
        finally:
            recorder.restore()
            capture.recorder = outer
    made.let_go()
    return made


def _check_unchanged(name: str, reach: Reach) -> None:
    for path, now in reach.changes():
        if isinstance(now, TensorBase):
            raise CaptureError(
                f"jit: {name} gives {path} another tensor, which no replay would do; change the "
                f"tensor in place: {path}.assign(...)"
            )
        raise CaptureError(
            f"jit: {name} changes {path}, which no replay would do; keep what varies in a 0-d "
            "tensor and change it with assign, or leave it to the caller"
        )


def _check_not_drawn(name: str, watch: generators.Watch) -> None:
    for path, shared in watch.drawn():
        others = " (or another thread did)" if shared and threading.active_count() > 1 else ""
        raise CaptureError(
            f"jit: {name} draws from {path}{others}, which no replay would do; draw "
            "with Tensor.rand and its like, or draw outside and pass what was drawn as an argument"
        )


# ---- replaying ---------------------------------------------------------------------------------


@dataclass(eq=False)
class _Result:
    """A tensor that a capture makes: a root of its program, or a tensor it was given."""

    root: int = -1
    source: _Source | None = None
    flag: Flag = False


@dataclass(eq=False)
class _Plan:
    """What a replay does with the program's results."""

    written: list[tuple[_Source, int]] = field(default_factory=list)
    gradients: list[tuple[_Source, _Result | None]] = field(default_factory=list)
    result: Any = None  # the function's, with a _Result for every tensor


class _Capture:
    """One capture of a function: a program, where its leaves come from, where its results go."""

    def __init__(
        self, name: str, call: _Arguments, reach: Reach, recorder: _Recorder, result: Any
    ) -> None:
        self._reach = reach
        self._name = name
        self._grads = list(recorder.grads.values())
        self._keys = recorder.keys
        self._variables = recorder.variables
        self._roots: list[Node] = []
        self._shapes: list[tuple[DType, tuple[int, ...]]] = []
        self._recorder: Any = recorder  # until the results are described
        devices: set[str] = set()
        plan = self._plan = _Plan()
        plan.result = self._described(result, devices)
        for source in list(recorder.sources.values()):
            tensor = source.tensor
            assert tensor is not None
            if tensor._node is not source.stand_in:
                if tensor._tag is None and tensor._requires_grad is True:
                    raise CaptureError(
                        f"jit: {name} changes a tensor in place by a value that requires a "
                        "gradient; do it inside `with no_grad():`"
                    )
                plan.written.append((source, self._root(tensor._node)))
        for source, _ in recorder.written.values():
            assert source.tensor is not None
            gradient = source.tensor._grad
            made = None if gradient is None else self._described(gradient, devices)
            plan.gradients.append((source, made))
        self._sources = list(recorder.sources.values())
        for place, source in enumerate(self._sources):
            source.place = place
        self._guards = {flag: self._guard(flag) for flag in (True, None)}
        self._no_gradient = _NoGradient(name)
        devices |= {s.tensor.device for s in self._sources if s.tensor is not None}
        if len(devices) > 1:
            raise CaptureError(f"jit: {name} works on {', '.join(sorted(devices))}; use one device")
        self.device = devices.pop() if devices else ""
        self._program = self._compiled() if self._roots else None
        self._recorder = None
        self._flags = [s.tensor._requires_grad for s in self._sources if s.tensor is not None]
        state = {id(s.tensor) for s in self._sources if s.number is None}
        self._state = state | {id(t) for t in reach.leaves}
        self._aliases = [id(t) if id(t) in self._state else None for t in call.tensors]

    def _compiled(self) -> Program:
        try:
            program = Program(self._roots, self.device)
        except UnsupportedOp as error:
            raise CaptureError(f"jit: {self._name} cannot be captured: {error}") from error
        number = {resolved: i for i, resolved in enumerate(program.roots)}
        self._order = [number[engine.resolve(root)] for root in self._roots]
        holes: dict[Any, Any] = {s.hole: s for s in self._sources}
        holes |= {hole: i for i, hole in enumerate(self._keys)}
        holes |= {hole: variable for variable, hole in self._variables.items()}
        self._leaves = [holes.get(leaf, leaf) for leaf in program.leaves]
        written = {source for source, _ in self._plan.written}
        self._replaced = {i: s for i in program.donors if (s := self._leaves[i]) in written}
        self._roots = []
        return program

    def _root(self, node: Node) -> int:
        self._roots.append(node)
        self._shapes.append((node.dtype, node.shape))
        return len(self._roots) - 1

    def _described(self, value: Any, devices: set[str]) -> Any:
        """The function's result with a :class:`_Result` for every tensor."""
        if isinstance(value, TensorBase):
            self._recorder.read(value)
            source = self._recorder.sources.get(id(value))
            if source is not None:
                return _Result(source=source)
            devices.add(value.device)
            return _Result(self._root(value._node), None, value._requires_grad)
        if isinstance(value, (list, tuple)):
            items = [self._described(item, devices) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self._described(item, devices) for key, item in value.items()}
        return value

    def let_go(self) -> None:
        """Forget the arguments: they are the caller's."""
        for source in self._sources:
            source.before = ()
            if source.number is not None or source.parent is not None:
                source.tensor = None

    @property
    def kernels(self) -> int:
        """Launches of one replay."""
        return 0 if self._program is None else self._program.kernels

    def fits(self, call: _Arguments) -> list[TensorBase] | None:
        """What the capture reads in this call, if all that could have steered the function is as
        it was."""
        for tensor, alias in zip(call.tensors, self._aliases, strict=True):
            if (id(tensor) if id(tensor) in self._state else None) != alias:
                return None  # an argument that is, or was, state as well
        for source, was_none in self._grads:
            if (source.now(call)._grad is None) is not was_none:
                return None
        tensors = self.tensors(call)
        for tensor, flag in zip(tensors, self._flags, strict=True):
            if tensor._requires_grad is not flag:
                return None
        return tensors if self._reach.is_same() else None

    def tensors(self, call: _Arguments) -> list[TensorBase]:
        """What the capture reads in this call, in the order of its sources."""
        return [s.now(call) if s.tensor is None else s.tensor for s in self._sources]

    def replay(self, tensors: list[TensorBase], variables: dict[Variable, int]) -> Any:
        """Launch the kernels for these tensors, write the state, make the results."""
        buffers = self._computed(tensors, variables)
        plan = self._plan
        for source, root in plan.written:
            tensor = tensors[source.place]
            tensor._history = None
            tensor._node = tensor._as_leaf(buffers[root])
        for source, made in plan.gradients:
            gradient = None if made is None else self._tensor(made, tensors, buffers)
            tensors[source.place]._grad = gradient
        return self._rebuilt(plan.result, tensors, buffers)

    def _computed(self, tensors: list[TensorBase], variables: dict[Variable, int]) -> list[Node]:
        """The program's results, as buffer nodes, one per root."""
        keys = [
            engine.from_host(GENERATOR.key(), dtypes.uint32, self.device).arg for _ in self._keys
        ]
        if self._program is None:
            return []
        storages: list[Storage] = []
        for leaf in self._leaves:
            if isinstance(leaf, _Source):
                storages.append(_memory(tensors[leaf.place]))
            elif isinstance(leaf, Variable):
                value = np.array(variables[leaf], np.int32)
                storages.append(engine.from_host(value, dtypes.int32, self.device).arg)
            else:
                storages.append(keys[leaf] if isinstance(leaf, int) else leaf)
        spare = [
            i
            for i, source in self._replaced.items()
            if storages[i].device == self.device
            and holders.only_holder(tensors[source.place], others=storages.count(storages[i]))
        ]
        made = self._program.run(storages, frozenset(spare))
        return [
            build.buffer(made[place], dtype, shape)
            for place, (dtype, shape) in zip(self._order, self._shapes, strict=True)
        ]

    def _rebuilt(self, value: Any, tensors: Sequence[TensorBase], buffers: Sequence[Node]) -> Any:
        if isinstance(value, _Result):
            return self._tensor(value, tensors, buffers)
        if isinstance(value, (list, tuple)):
            items = [self._rebuilt(item, tensors, buffers) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self._rebuilt(item, tensors, buffers) for key, item in value.items()}
        return value

    def _tensor(
        self, made: _Result, tensors: Sequence[TensorBase], buffers: Sequence[Node]
    ) -> TensorBase:
        if made.source is not None:
            return tensors[made.source.place]
        node, flag = buffers[made.root], made.flag
        result = object.__new__(TensorBase._result)
        result._node = node
        result.device = self.device
        result._requires_grad = flag
        guard = self._guards.get(flag)
        if guard is not None:
            result._node = build.custom(node, [tensors[guard.place].node], self._no_gradient)
        return result

    def _guard(self, flag: Flag) -> _Source | None:
        """The smallest tensor that could ask for a gradient as results with this flag do. They
        hang on it, and say that there is no gradient instead of giving none."""
        alike = [
            s
            for s in self._sources
            if s.tensor is not None
            and s.tensor._requires_grad is flag
            and s.stand_in.op is ops.LEAF
        ]
        return min(alike, key=lambda s: math.prod(s.stand_in.shape), default=None)


def _memory(tensor: TensorBase) -> Storage:
    """Where a tensor's value is, computed now if need be."""
    node = engine.resolve(tensor._node)
    if node.op is not ops.BUFFER:
        engine.realize([tensor.node], tensor.device)
        node = engine.resolve(tensor._node)
    return node.arg  # type: ignore[no-any-return]


class _NoGradient:
    """The gradient rule of a captured function's results."""

    def __init__(self, name: str) -> None:
        self.name = name

    def vjp(self, gradient: Node) -> Sequence[Node | None]:
        raise GradientError(
            f"backward: a result of {self.name}, which is captured by @jit, does not remember how "
            "it was made; call backward() inside the function, or use the function without @jit"
        )


def _weakly(method: Any) -> Any:
    """A method that does not keep its instance alive."""
    function, instance = method.__func__, weakref.ref(method.__self__)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(instance(), *args, **kwargs)

    return call
