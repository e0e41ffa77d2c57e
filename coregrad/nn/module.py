"""Module, the base class of layers and models; it finds tensors and never computes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import CoregradError
from coregrad.nn import state
from coregrad.nn.parameter import Parameter, is_parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

M = TypeVar("M", bound="Module")


class Module:
    """A part of a network: tensors and other modules in attributes, and a ``forward``.

    Attributes are found wherever they stand, also in lists, tuples and dicts, without being
    registered. A parameter is a floating tensor whose ``requires_grad`` is not False; other
    tensors (running statistics) are state that is saved but not trained.

    >>> class Net(Module):
    ...     def __init__(self):
    ...         self.weights = [Tensor.zeros(3, 2, requires_grad=True)]
    ...     def forward(self, x):
    ...         return x @ self.weights[0]
    >>> net = Net()
    >>> net(Tensor.ones(4, 3)).shape, [name for name, _ in net.named_parameters()]
    ((4, 2), ['weights.0'])
    """

    training: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``."""
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it (or ``__call__``)."""
        name = type(self).__name__
        raise CoregradError(f"{name}: has no forward; define {name}.forward or {name}.__call__")

    # ---- walking -------------------------------------------------------------------------------

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and every module inside it, each once, with its name."""
        seen: set[int] = set()
        stack: list[tuple[str, object]] = [(prefix, self)]
        while stack:
            name, thing = stack.pop()
            if isinstance(thing, Tensor) or id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, Module):
                yield name, thing
            inner = [(f"{name}.{k}" if name else k, child) for k, child in state.children(thing)]
            stack.extend(reversed(inner))

    def modules(self) -> Iterator[Module]:
        """This module and every module inside it, each once."""
        return (module for _, module in self.named_modules())

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """The tensors to train with their names, each once."""
        seen: set[int] = set()
        for name, tensor in state.named_tensors(self, prefix):
            if is_parameter(tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def parameters(self) -> Iterator[Tensor]:
        """The tensors to train, each once."""
        return (tensor for _, tensor in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor by name: parameters and other state."""
        return {name: tensor.detach() for name, tensor in state.get_state_dict(self).items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor | NDArray[Any]], strict: bool = True
    ) -> None:
        """Take over the values of ``state_dict``; see :func:`coregrad.nn.state.load_state_dict`."""
        state.load_state_dict(self, state_dict, strict)

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """Move all tensors to a device, and the floating ones to a dtype; arguments as Tensor.to.

        The attributes get new tensors: make the optimiser afterwards. Returns the module.

        >>> Module().to("cpu").state_dict()
        {}
        """
        goal = Tensor(0.0).to(*args, **kwargs)
        changes_dtype = goal.dtype is not Tensor(0.0).dtype
        made: dict[int, Tensor] = {}

        def moved(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                dtype = goal.dtype if tensor.dtype.is_float and changes_dtype else tensor.dtype
                made[id(tensor)] = _renewed(tensor, goal.device, dtype)
            return made[id(tensor)]

        state.replace_tensors(self, moved)
        return self

    # ---- modes ---------------------------------------------------------------------------------

    def train(self: M, mode: bool = True) -> M:
        """Put this module and those inside it into training mode; returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Put this module and those inside it into evaluation mode; returns the module."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for tensor in self.parameters():
            tensor.grad = None

    def requires_grad_(self: M, mode: bool = True) -> M:
        """Freeze (False) or thaw every parameter; returns the module."""
        for tensor in self.parameters():
            tensor.requires_grad_(mode)
        return self

    def __repr__(self) -> str:
        lines = [f"{name}: {module!r}" for name, module in _parts(self, "")]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        text = "\n".join(lines).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {text}\n)"

    def extra_repr(self) -> str:
        """What stands in the brackets of ``repr``; a layer puts its sizes there."""
        return ""


def _parts(holder: object, prefix: str) -> Iterator[tuple[str, Module]]:
    """The modules directly inside one, also those in its lists, tuples and dicts."""
    for key, child in state.children(holder):
        if isinstance(child, Module):
            yield prefix + key, child
        elif isinstance(child, list | tuple | dict):
            yield from _parts(child, f"{prefix}{key}.")


def _renewed(tensor: Tensor, device: str, dtype: DType) -> Tensor:
    """A tensor of the same kind and flag with this device and dtype."""
    value = tensor.detach().to(device).cast(dtype)
    flag = tensor.requires_grad
    if isinstance(tensor, Parameter):
        return Parameter(value, bool(flag))
    return value.requires_grad_(flag)
