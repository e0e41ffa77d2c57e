"""A Python that its user's environment cannot lead astray; it never runs a row.

Every certificate comes from such a process: ``python -I -S``, with a folder of its own. Variables
of Python, pytest and Hypothesis are taken away, and PYTHONPATH and ``sitecustomize`` have no
effect. What is tested has to be *installed* (an editable install will do, and the certificate says
so). Code that the backend itself runs in the process is beyond any such protection.

The process that a user starts is not isolated: it gives itself up for one that is (`enter`), and
judges nothing, not even whether that is necessary.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

# -S keeps `site` from running before the two modules that anybody can place on the path are
# replaced by empty ones. A user's own site-packages count as installed, as they do for Python.
BOOT = """\
import os, sys, types
for name in ("sitecustomize", "usercustomize"):
    sys.modules[name] = types.ModuleType(name)
import site
site.main()
if sys.prefix == sys.base_prefix and os.path.isdir(site.getusersitepackages()):
    site.addsitedir(site.getusersitepackages())
from {module} import main
raise SystemExit(main(sys.argv[1:]))
"""
PLACED = ("sitecustomize", "usercustomize")
FOREIGN = ("PYTHON", "PYTEST", "HYPOTHESIS")  # beginnings of names of variables
# What the suite decides itself: which device, how much is fused, and which kernels are compiled
# (a cache may hold another version's).
DECIDED = ("DEBUG", "COREGRAD_DEVICE", "COREGRAD_FUSION", "COREGRAD_REQUIRE", "COREGRAD_CACHE")
# Kept, as devices may need them, and written into the report, as they may change results.
RECORDED = ("COREGRAD", "LD_", "DYLD_", "OCL", "POCL", "CUDA", "HSA", "ROC", "MTL", "OMP_", "LLVM")


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """What runs ``main(arguments)`` of a module in an isolated Python."""
    return [sys.executable, "-I", "-S", "-c", BOOT.format(module=module), *arguments]


def demand() -> None:
    """End a process that `command` has not started, or into which code of the path has come."""
    strangers = [name for name in PLACED if getattr(sys.modules.get(name), "__file__", None)]
    if not sys.flags.isolated or not sys.flags.no_site or sys.flags.optimize or strangers:
        raise SystemExit(
            "coregrad-conformance: this Python is not isolated"
            + (f" ({', '.join(strangers)} has run)" if strangers else "")
            + "; run: python -I -m coregrad_conformance"
        )


def environment(cache: Path | None = None) -> dict[str, str]:
    """The variables an isolated process gets; kernels are cached in a folder that is new."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in DECIDED
    }
    return kept if cache is None else {**kept, "COREGRAD_CACHE": str(cache)}


def recorded() -> dict[str, str]:
    """What of the environment may have changed a result."""
    return {
        name: value for name, value in sorted(environment().items()) if name.startswith(RECORDED)
    }


def removed() -> list[str]:
    """The variables of this environment that isolated processes do not get."""
    return sorted(set(os.environ) - set(environment()))


def enter(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become an isolated process that runs ``main(arguments)`` of a module.

    Nothing of this process is left to change the outcome: neither what was patched in it, nor what
    it would have run at its end.
    """
    line, variables = command(module, arguments), environment()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execve(line[0], line, variables)
    raise SystemExit(subprocess.call(line, env=variables))  # exec does not wait on Windows
