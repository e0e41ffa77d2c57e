"""The console script's door: checks that ``coregrad`` is ours, then hands over to its command line.

On PyPI the name ``coregrad`` belongs to an unrelated package. Installed over coregrad-core it
overwrites files of ours, and uninstalling it deletes them; pip notices neither. Therefore this
module lies outside the package, and looks before it imports.
"""

from __future__ import annotations

import sys
from importlib import metadata, util

REPAIR = (
    "run: python -m pip uninstall --yes coregrad coregrad-core, "
    "then: python -m pip install --force-reinstall coregrad-core"
)
OURS = ("coregrad.cli", "coregrad.hookspecs")  # modules that a stranger's package does not have


def problem() -> str:
    """What is wrong with the installed package; empty when it is ours and whole."""
    try:
        version = metadata.version("coregrad")
    except metadata.PackageNotFoundError:
        version = ""
    if version:
        return (
            f"the distribution 'coregrad' {version}, which is not this project, is installed and "
            "overwrites the import package of coregrad-core"
        )
    spec = util.find_spec("coregrad")
    if spec is None or spec.origin is None:
        return "the import package 'coregrad' is missing or has lost its __init__.py"
    if any(util.find_spec(name) is None for name in OURS):
        return f"the import package 'coregrad' at {spec.origin} is not coregrad-core's"
    return ""


def main() -> int:
    """Run ``coregrad ...``; returns the exit code."""
    wrong = problem()
    if wrong:
        print(f"coregrad: {wrong}; {REPAIR}", file=sys.stderr)
        return 2
    from coregrad import cli

    return cli.main()
