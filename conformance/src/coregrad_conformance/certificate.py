"""What a report says to people, and its page in Markdown; it adds no fact to the report.

A run that is no certificate (it failed, or ran a part of the rows) has the same page under another
title. Either ends in the hash of the report.json beside it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from coregrad.dtypes import ALL, FLOATS
from coregrad.ir.ops import CONTRACT_OPS
from coregrad_conformance import emulation
from coregrad_conformance import report as reports
from coregrad_conformance.result import STATUSES, Result

SHOWN = 40  # failing rows on a page; report.json has all
REMARK = (
    "A certificate states what one run found. It proves nothing that cannot be found again: "
    "run the command above, and compare with `coregrad-conformance diff`."
)
EMULATED = (
    f"{emulation.MARK.capitalize()}. The generated text was executed on a CPU; what the device's "
    "own compiler and hardware make of it was not tried."
)


# --- what is said ---


def standing(report: Mapping[str, Any]) -> str:
    """The verdict in a word or two."""
    verdict = report["verdict"]
    if verdict["certified"]:
        return "certified"
    if not verdict["passed"]:
        return "failed"
    return "filtered" if verdict["filtered"] else "provisional"


def is_certificate(report: Mapping[str, Any]) -> bool:
    """Whether pages of this report are called certificates."""
    return standing(report) in ("certified", "provisional")


def headline(report: Mapping[str, Any]) -> str:
    """One line: what was found, of what."""
    backend, device = report["backend"], report["device"]
    words = {
        "certified": f"{report['level']}: certified",
        "provisional": f"{report['level']}: passed, provisional",
        "failed": f"{report['level']}: failed",
        "filtered": f"{report['level']}: the chosen rows passed; not a certificate",
    }
    plugin = f"{backend['distribution']} {backend['version']}".strip()
    mark = f"; {emulation.MARK}" if is_emulated(report) else ""
    return f"{plugin} on {device['name']}: {words[standing(report)]}{mark}"


def is_emulated(report: Mapping[str, Any]) -> bool:
    """Whether kernels ran in an emulation of the device."""
    return report.get("emulated") is not None


def tallies(report: Mapping[str, Any]) -> list[tuple[str, str, int, int, str]]:
    """For each level: its name, pass or fail, rows that are well, rows in all, and the rest."""
    lines = []
    for level, total in report["expected"].items():
        count = report["counts"].get(level, {})
        rest = [f"{count[s]} {s}" for s in STATUSES if s != "pass" and s in count]
        well = "pass" if report["verdict"]["levels"][level] else "fail"
        lines.append((level, well, count.get("pass", 0), total, ", ".join(rest)))
    return lines


def summary(report: Mapping[str, Any]) -> str:
    """The end of a run, for a terminal."""
    lines = [headline(report)]
    for level, well, passed, total, rest in tallies(report):
        lines.append(f"  {level}: {well}, {passed} of {total} rows passed{rest and ', ' + rest}")
    verdict = report["verdict"]
    if is_emulated(report):
        lines.append(f"  emulation: {emulation.words(report['emulated'])}")
        lines += [f"  {reason}" for reason in emulation.reasons(report["emulated"])]
    lines += [f"  filtered by --only {report['only']}"] if verdict["filtered"] else []
    lines += [f"  provisional: {reason}" for reason in verdict["provisional"]]
    lines += [f"  note: {note}" for note in report["notes"]]
    lines += [f"  problem: {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was tested, with what, where and when."""
    backend, device, host = report["backend"], report["device"], report["host"]
    title = f" ({device['title']})" if device["title"] != device["name"] else ""
    driver = f", driver {device['driver']}" if device["driver"] else ""
    versions = ", ".join(f"{name} {host[name]}" for name in reports.LIBRARIES)
    environment = " ".join(f"{k}={shlex.quote(v)}" for k, v in report["environment"].items())
    return [
        ("Backend", f"{backend['distribution']} {backend['version']}, sha256 {backend['sha256']}"),
        ("Entry point", f"{backend['name']} = {backend['entry_point'] or '(none)'}"),
        ("Device", f"{device['name']}{title}{driver}"),
        *_emulation(report),
        ("Dtypes", ", ".join(device["limits"]["dtypes"])),
        ("Contract", f"{report['contract']['version']}, sha256 {report['contract']['sha256']}"),
        ("Suite", _origin(report["suite"])),
        ("Core", _origin(report["core"])),
        ("Host", f"{host['system']}, {host['cpus']} CPUs, {host['python']}, {versions}"),
        ("Environment", environment or "(nothing that the suite takes note of)"),
        ("Run", f"{report['started']}, {report['seconds']:.1f} s, seed {report['seed']}"),
    ]


def _emulation(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [("Emulation", emulation.words(report["emulated"]))] if is_emulated(report) else []


def _origin(part: Mapping[str, str]) -> str:
    return f"{part['distribution']} {part['version']}, sha256 {part['sha256']}"


def instructions(report: Mapping[str, Any]) -> str:
    """What to type to find the same."""
    parts = (report["suite"], report["backend"])
    requirements = [f"{part['distribution']}=={part['version']}" for part in parts]
    words = ["run", report["device"]["name"], "--level", report["level"]]
    words += ["--only", report["only"]] if report["only"] else []
    command = shlex.join(["coregrad-conformance", *words, "--report", "out"])
    return f"pip install {' '.join(requirements)}\n{command}"


# --- the matrix ---


def matrix(report: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Dtypes as columns, contract ops as rows; each cell is the worst ulp, or a word."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in reports.results_of(report):
        if result.op and result.dtype:
            found.setdefault((result.op, result.dtype), []).append(result)
    order = [dtype.name for dtype in (*FLOATS, *ALL)]  # what is not exact comes first
    dtypes = [name for name in dict.fromkeys(order) if any(name == dtype for _, dtype in found)]
    ops = [name for name in CONTRACT_OPS if any(name == op for op, _ in found)]
    return dtypes, [(op, [cell(found.get((op, name), [])) for name in dtypes]) for op in ops]


def cell(results: Sequence[Result]) -> str:
    """One op on one dtype: the worst that is true of it."""
    if not results:
        return ""
    if any(not result.ok for result in results):
        return "FAIL"
    if any(result.status == "waived" for result in results):
        return "waived"
    if all(result.status == "unsupported" for result in results):
        return "absent"
    if results[0].op == "reduce" and results[0].dtype in (dtype.name for dtype in FLOATS):
        return "bound"
    distances = [result.ulp for result in results if result.ulp is not None]
    if not distances or max(distances) == 0:
        return "exact"
    return f"{max(distances):.3g}"


LEGEND = (
    "Numbers are the worst distance from the correctly rounded result, in units in the last place "
    "(ulp); *exact* means that every value compared was equal; *bound* that sums kept "
    "to the bound that holds for any order of the additions; *absent* that the device declares "
    "it lacks the dtype and was seen to refuse it; an empty cell that the contract has no such op, "
    "or that the level does not test it."
)


# --- Markdown ---


def markdown(report: Mapping[str, Any], digest: str) -> str:
    """CERTIFICATE.md or REPORT.md."""
    kind = "Certificate of conformance" if is_certificate(report) else "Conformance report"
    parts = [
        f"# {kind}",
        f"**{headline(report)}**",
        *_emulated_mark(report),
        *_quoted(caveats(report)),
        _tally_table(report),
        "\n".join(f"- {name}: {value}" for name, value in facts(report)),
        "## Worst error by op and dtype",
        _matrix_table(report),
        LEGEND,
        *_failures(report),
        "## Waivers",
        _waivers(report),
        "## To find the same",
        f"```\n{instructions(report)}\n```",
        REMARK,
        f"sha256(report.json) = {digest}",
    ]
    return "\n\n".join(parts) + "\n"


def _emulated_mark(report: Mapping[str, Any]) -> list[str]:
    return [f"**{EMULATED}**"] if is_emulated(report) else []


def caveats(report: Mapping[str, Any]) -> list[str]:
    """What a reader must know before the numbers: what is missing, and what is not as it should."""
    verdict = report["verdict"]
    lines = [f"provisional, because {reason}" for reason in verdict["provisional"]]
    lines += [f"filtered: only rows like `{report['only']}`"] if verdict["filtered"] else []
    return [*lines, *verdict["reasons"], *report["problems"], *report["notes"]]


def _quoted(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"> {line}  " for line in lines)] if lines else []


def _tally_table(report: Mapping[str, Any]) -> str:
    lines = ["| level | result | rows passed | of | other |", "| --- | --- | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(map(str, line))} |" for line in tallies(report)]
    return "\n".join(lines)


def _matrix_table(report: Mapping[str, Any]) -> str:
    dtypes, rows = matrix(report)
    lines = [f"| op | {' | '.join(dtypes)} |", "| --- |" + " ---: |" * len(dtypes)]
    lines += [f"| `{op}` | {' | '.join(cells)} |" for op, cells in rows]
    return "\n".join(lines)


def _failures(report: Mapping[str, Any]) -> list[str]:
    bad = [result for result in reports.results_of(report) if not result.ok]
    if not bad:
        return []
    lines = [f"- `{r.id}` {r.status}: {first_line(r.detail)}" for r in bad[:SHOWN]]
    lines += [f"- and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    return ["## Rows that failed", "\n".join(lines)]


def first_line(detail: str) -> str:
    """What of a failure has room on a page."""
    return detail.partition("\n")[0]


def _waivers(report: Mapping[str, Any]) -> str:
    lines = [
        f"- `{w['id']}` ({w['kind']}, {w['raises']}): {w['reason']} {w['url']}; "
        f"until {w['expires']}"
        for w in report["waivers"]
    ]
    return "\n".join(lines) or "None."
