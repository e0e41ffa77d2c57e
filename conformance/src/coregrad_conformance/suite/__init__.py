"""The rows, one noun per file. A file has a function ``rows()``; the order here is the order run:
what others rest on comes first."""

from types import ModuleType

from coregrad_conformance.suite import (
    capabilities,
    casts,
    constants,
    draws,
    elementwise,
    errors,
    expressions,
    functions,
    gradients,
    indexing,
    loops,
    memory,
    programs,
    reductions,
    tensors,
    threads,
    training,
)

GROUPS: tuple[ModuleType, ...] = (
    capabilities,
    memory,
    loops,
    constants,
    indexing,
    elementwise,
    casts,
    expressions,
    reductions,
    tensors,
    programs,
    functions,
    draws,
    gradients,
    training,
    threads,
    errors,
)
