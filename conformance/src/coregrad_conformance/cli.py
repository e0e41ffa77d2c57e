"""The command line: ``coregrad-conformance`` or ``python -m coregrad_conformance``.

``run`` and ``verify --rerun`` give the process up for an isolated Python before anything else (see
`isolation`); what judges there is `judging`, and this module's `main` has no way to run it. Exit
codes: 0 all is well, 1 the backend (or the report) failed, 2 it was not used as it should be.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coregrad_conformance import __version__, isolation

if TYPE_CHECKING:
    from coregrad_conformance.row import Row

MODULE = "coregrad_conformance.judging"
PASSED, FAILED, MISUSED = 0, 1, 2
FIELDS = ("id", "level", "group", "op", "dtype", "summary")


class Misuse(Exception):
    """The command cannot be carried out as it was given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    own = arguments[:1] == ["selftest"]  # which has a parser of its own
    options = parser().parse_args(arguments[:1] if own else arguments)
    if options.command == "run" or (options.command == "verify" and options.rerun):
        isolation.enter(MODULE, arguments)
    return carry_out(options, arguments)


def carry_out(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Call the function of a command; returns the exit code."""
    try:
        code: int = options.call(options, arguments)
        sys.stdout.flush()
    except Misuse as error:
        say(f"coregrad-conformance: {error}")
        return MISUSED
    except BrokenPipeError:  # whoever read our output has seen enough: `list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PASSED
    return code


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="coregrad-conformance", description=main_description())
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_list(commands)
    explain = commands.add_parser("explain", help="what a row checks, and how exactly")
    explain.add_argument("row")
    explain.set_defaults(call=explain_row)
    repro = commands.add_parser("repro", help="run one row here and say everything about it")
    repro.add_argument("row")
    repro.add_argument("name", help="the device, as NAME or NAME:INDEX")
    repro.set_defaults(call=repro_row)
    verify = commands.add_parser("verify", help="compute again what a report states")
    verify.add_argument("report", type=Path, help="report.json; pages beside it are checked too")
    verify.add_argument("--rerun", action="store_true", help="also run all its rows again here")
    verify.set_defaults(call=verify_report)
    diff = commands.add_parser("diff", help="what differs between two reports")
    diff.add_argument("old", type=Path)
    diff.add_argument("new", type=Path)
    diff.set_defaults(call=diff_reports)
    selftest = commands.add_parser("selftest", help="seed faults and see that each is found")
    selftest.set_defaults(call=self_test)
    export = commands.add_parser("export", help="write inputs and expected values as files")
    export.add_argument("folder", type=Path)
    export.add_argument("--level", choices=levels(), default="core")
    export.add_argument("--format", choices=("npz", "json"), default="npz")
    export.add_argument("--only", default="", metavar="GLOB", help="rows whose ids match")
    export.set_defaults(call=export_vectors)
    return top


def main_description() -> str:
    """The first line of the help."""
    return "Checks a coregrad backend against the contract, value by value."


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="check a backend and write a report")
    run.add_argument("name", help="the device, as NAME or NAME:INDEX")
    run.add_argument("--level", choices=levels(), default="core")
    run.add_argument("--report", type=Path, metavar="DIR", help="write report.json and pages here")
    run.add_argument("--only", default="", metavar="GLOB", help="rows whose ids match; no report "
                     "of such a run is a certificate")  # fmt: skip
    run.add_argument("--jobs", type=_positive, default=1, metavar="N", help="processes at a time")
    run.add_argument("--timeout", type=_seconds, default=120.0, metavar="S", help="for one row")


def _add_list(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    listing = commands.add_parser("list", help="the rows of a level")
    listing.add_argument("--level", choices=levels(), default="core")
    listing.add_argument("--only", default="", metavar="GLOB", help="rows whose ids match")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    listing.set_defaults(call=list_rows)


def levels() -> tuple[str, ...]:
    """The names of the levels, the smallest first."""
    from coregrad_conformance.row import LEVELS

    return LEVELS


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of processes; give 1 or more")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return number


def say(line: str) -> None:
    """Progress and complaints, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


# --- list, explain, repro ---


def list_rows(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """The ids of rows, with their level and what they check."""
    from coregrad_conformance import assessment

    for row in assessment.selected(options.level, options.only):
        if options.json:
            entry = {key: getattr(row, key) for key in FIELDS}
            print(json.dumps(entry))
        else:
            print(f"{row.id:48} {row.level:9} {row.summary}")
    return PASSED


def explain_row(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """What a row checks, the contract's words for its op, and where the tolerance comes from."""
    from coregrad.hookspecs import BackendSpec
    from coregrad.ir.ops import CONTRACT_OPS
    from coregrad_conformance import tolerance

    row = _row(options.row)
    print(f"{row.id}\n  level {row.level}, group {row.group}\n  {row.summary}")
    if row.op in CONTRACT_OPS:
        op = CONTRACT_OPS[row.op]
        words = inspect.getdoc(getattr(BackendSpec, f"lower_{op.name}")) or ""
        print(f"\nlower_{op.name} (coregrad/hookspecs.py):\n{textwrap.indent(words, '  ')}")
    print(f"\nTolerance: {tolerance.words(row)}")
    return PASSED


def repro_row(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run one row in this process, with the whole traceback, and print how to do that by hand."""
    from coregrad.errors import DeviceError
    from coregrad_conformance.row import Unsupported
    from coregrad_conformance.target import Target

    row = _row(options.row)
    print(f"# {row.id}: {row.summary}")
    print(SCRIPT.format(row=row.id, level=row.level, name=options.name))
    try:
        target = Target(options.name)
    except DeviceError as error:
        raise Misuse(f"{options.name}: {error}") from error
    try:
        outcome = row.run(target)
    except Unsupported as answer:
        print(f"unsupported: {answer}")
        return PASSED
    except Exception:
        print(traceback.format_exc().rstrip())
        return FAILED
    print(f"passed: {outcome}")
    return PASSED


SCRIPT = """\
from coregrad_conformance.rows import all_rows
from coregrad_conformance.target import Target

row = next(row for row in all_rows({level!r}) if row.id == {row!r})
print(row.run(Target({name!r})))
"""


def _row(name: str) -> Row:
    from coregrad_conformance import rows

    known = {row.id: row for row in rows.all_rows(levels()[-1])}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see: list --level extended"
        raise Misuse(f"there is no row {name!r}{hint}")
    return known[name]


# --- reports ---


def verify_report(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Compute again what a report states; a filtered run is no certificate, however true."""
    from coregrad_conformance import certificate, verify

    try:
        problems = verify.verify(options.report)
        report = verify.load(options.report)
    except verify.Unreadable as error:
        raise Misuse(str(error)) from error
    if options.rerun:
        problems += options.rerun(report)
    for problem in problems:
        print(problem)
    if problems:
        print(f"{options.report}: {len(problems)} statements do not hold")
        return FAILED
    if report["only"]:
        count, total = len(report["results"]), sum(report["expected"].values())
        print(
            f"{options.report}: consistent, but filtered (--only {report['only']}): {count} of the "
            f"{total} rows of {report['level']}; it is no certificate"
        )
        return FAILED
    print(f"{options.report}: consistent, every row of {report['level']} accounted for")
    print(certificate.headline(report))
    return PASSED


def diff_reports(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """What differs between two reports; the exit code is 1 if anything does."""
    from coregrad_conformance import verify

    try:
        lines = verify.differences(verify.load(options.old), verify.load(options.new))
    except (verify.Unreadable, KeyError, TypeError) as error:
        raise Misuse(f"cannot compare: {error}") from error
    for line in lines:
        print(line)
    return FAILED if lines else PASSED


# --- selftest and export ---


def self_test(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Hand over to the package ``selftest``."""
    try:
        module = importlib.import_module("coregrad_conformance.selftest")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "coregrad_cpu":
            raise
        raise Misuse("selftest puts faults into the reference: pip install coregrad-cpu") from error
    code: int = module.main(list(arguments[1:]))
    return code


def export_vectors(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Write the vectors of rows as files."""
    from coregrad_conformance import assessment, export

    chosen = assessment.selected(options.level, options.only)
    if not chosen:
        raise Misuse(f"no row of level {options.level} matches {options.only!r}")
    options.folder.mkdir(parents=True, exist_ok=True)
    count = export.write(options.folder, chosen, options.format)
    print(f"{count} vectors in {options.folder}")
    return PASSED
