"""Every exception coregrad raises on purpose, drawn as a tree; it never decides when to raise one.

::

    CoregradError
    ├── ShapeError            (ValueError)    shapes, axes and sizes that do not fit
    ├── DTypeError            (TypeError)     dtypes that do not fit, numbers outside their dtype
    ├── IndexRangeError       (IndexError)    an index or label outside its axis
    ├── GradientError         (RuntimeError)  backward() that cannot be carried out
    ├── CaptureError          (RuntimeError)  a function that cannot be captured by @jit
    ├── DataError             (ValueError)    a damaged or missing file, senseless values
    ├── SettingError          (ValueError)    an environment variable that means nothing
    ├── DeviceError           (RuntimeError)  a device cannot do what was asked
    │   ├── BackendUnavailable                no plugin, or its driver or hardware is missing
    │   ├── ContractError                     a plugin breaks the contract; lists every problem
    │   ├── CompileError                      the device's compiler refused a kernel
    │   ├── UnsupportedOp                     an op or dtype the device declares it lacks
    │   └── OutOfMemory       (MemoryError)   the device has no room
    └── VerifyError           (AssertionError) coregrad built an illegal program: a bug of ours
"""

__all__ = [
    "BackendUnavailable",
    "CaptureError",
    "CompileError",
    "ContractError",
    "CoregradError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "GradientError",
    "IndexRangeError",
    "OutOfMemory",
    "SettingError",
    "ShapeError",
    "UnsupportedOp",
    "VerifyError",
]


class CoregradError(Exception):
    """The root of the tree: ``except CoregradError`` catches all of them."""


class ShapeError(CoregradError, ValueError):
    """Shapes, axes or sizes do not fit; the message names the operation and both shapes."""


class DTypeError(CoregradError, TypeError):
    """Dtypes do not fit, or a Python number does not fit its dtype."""


class IndexRangeError(CoregradError, IndexError):
    """An index or a label lies outside its axis."""


class GradientError(CoregradError, RuntimeError):
    """``backward`` was asked for something that has no gradient."""


class CaptureError(CoregradError, RuntimeError):
    """A function does something that a replay could not repeat; the message says what instead."""


class DataError(CoregradError, ValueError):
    """A file is damaged, truncated, missing, or not what its name says; or values make no sense
    together (negative probabilities)."""


class SettingError(CoregradError, ValueError):
    """An environment variable has a value that means nothing; no other device is taken for it."""


class DeviceError(CoregradError, RuntimeError):
    """A device cannot do what was asked of it."""


class BackendUnavailable(DeviceError):
    """No plugin offers the device, or its driver or hardware is missing."""


class ContractError(DeviceError):
    """A plugin does not meet the contract; the message lists every problem found."""


class CompileError(DeviceError):
    """The device's compiler refused a kernel."""


class UnsupportedOp(DeviceError):
    """The device declares that it lacks this op or dtype."""


class OutOfMemory(DeviceError, MemoryError):
    """The device has no room for a buffer, also after freeing what it kept for reuse."""


class VerifyError(CoregradError, AssertionError):
    """A graph or kernel breaks its level's rules: a bug in coregrad or in a backend."""
