"""What a worker calls to get a backend to test the suite with, by the name in its argument."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from types import ModuleType

from coregrad.hookspecs import BackendInfo
from coregrad_conformance.selftest.device import LOCAL_BYTES, THREADS, Ref, info, sound
from coregrad_conformance.selftest.faults import all_faults
from coregrad_conformance.selftest.mutants import FILES, PACKAGE, all_mutants, mutated, source
from coregrad_conformance.selftest.pins import pinned

__all__ = ["mutant", "pinned", "seeded", "sound"]


def seeded(name: str) -> tuple[BackendInfo, type[Ref]]:
    """The backend with the seeded fault of this id."""
    fault = next(fault for fault in all_faults() if fault.id == name)
    return info(), fault.make()


def mutant(name: str) -> tuple[BackendInfo, object]:
    """The reference with one change in its source."""
    chosen = next(mutant for mutant in all_mutants() if mutant.id == name)
    for file in FILES:
        tree = mutated(chosen) if file == chosen.file else ast.parse(source(file))
        module = ModuleType(f"{PACKAGE}.{file}")
        sys.modules[module.__name__] = module
        exec(compile(tree, f"{file}.py", "exec"), module.__dict__)
    device = sys.modules[f"{PACKAGE}.memory"].ReferenceDevice
    device.limits = replace(device.limits, threads=THREADS, local_bytes=LOCAL_BYTES)
    return info(), sys.modules[f"{PACKAGE}.reference"].Backend
