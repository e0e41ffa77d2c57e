"""Safetensors files, read and written; a file is hostile input until it has been checked."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coregrad import dtypes
from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import DataError

PathLike = str | os.PathLike[str]

# The format: 8 bytes little-endian length of the header, a JSON header, the tensors' bytes.
# https://github.com/huggingface/safetensors#format

_NAMES: dict[DType, str] = {
    dtypes.bool_: "BOOL", dtypes.uint8: "U8", dtypes.int8: "I8", dtypes.uint16: "U16",
    dtypes.int16: "I16", dtypes.uint32: "U32", dtypes.int32: "I32", dtypes.uint64: "U64",
    dtypes.int64: "I64", dtypes.float16: "F16", dtypes.bfloat16: "BF16",
    dtypes.float32: "F32", dtypes.float64: "F64",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
HEADER_LIMIT = 100_000_000  # bytes, the limit of the reference implementation
METADATA = "__metadata__"


def safe_save(
    tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file, whose old contents stay until the new ones are complete.

    Example::

        nn.state.safe_save(nn.state.get_state_dict(model), "model.safetensors")
    """
    if METADATA in tensors:
        raise DataError(f"safe_save: a tensor may not be called {METADATA}; rename it")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"safe_save: {name!r} is a {type(tensor).__name__}; give a tensor for every name"
            )
    if tensors:
        Tensor.realize(*tensors.values())
    # Wide elements first, so that each tensor starts at a multiple of its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    bodies = []
    start = 0
    for name in order:
        body = _stored(tensors[name])
        header[name] = {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, start + body.nbytes],
        }
        start += body.nbytes
        bodies.append(body)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    _write_atomically(Path(path), [len(text).to_bytes(8, "little"), text, *bodies])


def _stored(tensor: Tensor) -> NDArray[Any]:
    """The elements in row-major order, little-endian; bfloat16 as its bits."""
    if tensor.dtype is dtypes.bfloat16:
        tensor = tensor.detach().bitcast(dtypes.uint16)
    data = np.ascontiguousarray(tensor.detach().numpy())
    return data.astype(data.dtype.newbyteorder("<"), copy=False)


def _write_atomically(path: Path, pieces: list[Any]) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise DataError(f"safe_save: cannot write to {path} ({error}); choose another") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def safe_load(path: PathLike, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name.

    The whole header is checked before anything is made of it: its length, its JSON, every dtype
    and shape, and that the tensors' bytes cover the rest of the file exactly, without overlaps.

    Raises DataError, saying what is wrong with the file.

    Example::

        nn.state.load_state_dict(model, nn.state.safe_load("model.safetensors"))
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"safe_load: cannot read {path} ({error}); check the path") from error
    entries, body = _parse_header(data, path)
    return {name: _tensor(name, *entry, body, device, path) for name, entry in entries.items()}


Entry = tuple[DType, tuple[int, ...], int, int]


def _parse_header(data: bytes, path: PathLike) -> tuple[dict[str, Entry], memoryview]:
    if len(data) < 8:
        raise _bad(path, f"{len(data)} bytes are too few for a header")
    length = int.from_bytes(data[:8], "little")
    if length > min(HEADER_LIMIT, len(data) - 8):
        raise _bad(path, f"its header claims {length} bytes, the file has {len(data) - 8} more")
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError too
        raise _bad(path, f"its header is no valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise _bad(path, "its header is no JSON object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(path, f"its {METADATA} is not a mapping of strings")
    entries = {name: _parse_entry(name, fields, path) for name, fields in header.items()}
    body = memoryview(data)[8 + length :]
    _check_coverage(entries, len(body), path)
    return entries, body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _parse_entry(name: str, fields: object, path: PathLike) -> Entry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"{name!r} lacks one of dtype, shape and data_offsets")
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(code, str) or code not in _DTYPES:
        raise _bad(path, f"{name!r} has the unknown dtype {code!r}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _bad(path, f"{name!r} has the shape {shape!r} and the offsets {offsets!r}")
    dtype = _DTYPES[code]
    needed = prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise _bad(path, f"{name!r} needs {needed} bytes but has the offsets {offsets}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(value: object) -> bool:
    """A list of integers >= 0 (True and False are integers to Python, not here)."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_coverage(entries: Mapping[str, Entry], size: int, path: PathLike) -> None:
    """The tensors' bytes, sorted, follow each other without a gap, from first to last."""
    end = 0
    for start, stop, name in sorted((e[2], e[3], name) for name, e in entries.items()):
        if start != end:
            kind = "overlaps the tensor before it" if start < end else f"leaves a gap after {end}"
            raise _bad(path, f"{name!r} at {start} {kind}")
        end = stop
    if end != size:
        raise _bad(path, f"its tensors end at byte {end} of {size}")


def _tensor(
    name: str,
    dtype: DType,
    shape: tuple[int, ...],
    start: int,
    stop: int,
    body: memoryview,
    device: str | None,
    path: PathLike,
) -> Tensor:
    storage = "uint8" if dtype is dtypes.bool_ else dtype.storage
    raw = np.frombuffer(body[start:stop], np.dtype(storage).newbyteorder("<")).reshape(shape)
    if dtype is dtypes.bool_:
        if raw.size and raw.max() > 1:
            raise _bad(path, f"{name!r} is BOOL but holds bytes other than 0 and 1")
        raw = raw.astype(np.bool_)
    made = Tensor(raw.astype(raw.dtype.newbyteorder("="), copy=False), device=device)
    return made.bitcast(dtype) if dtype is dtypes.bfloat16 else made


def _bad(path: PathLike, how: str) -> DataError:
    return DataError(
        f"safe_load: {path} is no intact safetensors file: {how}; save or download it again"
    )
