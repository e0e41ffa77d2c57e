"""The rows, one noun per file. A file has a function ``rows()``; the order here is the order run:
what others rest on comes first."""

from types import ModuleType

from coregrad_conformance.suite import (
    capabilities,
    captured,
    casts,
    constants,
    draws,
    elementwise,
    ends,
    errors,
    expressions,
    functions,
    gradients,
    indexing,
    loops,
    memory,
    optional,
    parts,
    programs,
    reductions,
    sorting,
    tensors,
    threads,
    training,
)

GROUPS: tuple[ModuleType, ...] = (
    capabilities,
    memory,
    optional,
    parts,
    loops,
    constants,
    indexing,
    elementwise,
    casts,
    expressions,
    reductions,
    tensors,
    ends,
    sorting,
    captured,
    programs,
    functions,
    draws,
    gradients,
    training,
    threads,
    errors,
)
