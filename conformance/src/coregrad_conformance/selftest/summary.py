"""The selftest's outcome as a table and as JSON; it judges nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad_conformance import __version__
from coregrad_conformance.selftest.fault import CLASSES

if TYPE_CHECKING:
    from coregrad_conformance.selftest.command import Found

SCHEMA = 1
SHOWN = 40  # problems in the table; the report has all


def report(found: Found, problems: list[str], seconds: float) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA,
        "suite": __version__,
        "numpy": np.__version__,
        "seconds": round(seconds, 1),
        "ok": not problems,
        "level": found.level,  # that the seeded faults were run on
        "problems": problems,
        "faults": [v.data() for v in sorted(found.verdicts, key=lambda v: v.id)],
        "mutants": [
            {"id": mutant.id, "line": mutant.text, "becomes": mutant.becomes, "killed_by": killer,
             "equivalent": found.listed.get(mutant.id, "")}
            for mutant, killer, _ in sorted(found.mutants, key=lambda m: m[0].id)
        ],
        "rows": {
            "all": len(found.suite),
            "pinned": len(found.pins),
            "held": found.held,
            "checks": {stage: _counts(checks) for stage, checks in found.checks.items()},
        },
    }  # fmt: skip


def _counts(checks: list[tuple[str, bool, str]]) -> dict[str, int]:
    fine = sum(ok for _, ok, _ in checks)
    return {"fine": fine, "not": len(checks) - fine}


def table(data: dict[str, Any]) -> str:
    """For people."""
    lines = [*_faults(data["faults"]), *_mutants(data["mutants"]), *_rows(data["rows"])]
    problems = data["problems"]
    lines += [*problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"... and {len(problems) - SHOWN} more")
    verdict = f"{len(problems)} problems" if problems else "nothing survives"
    return "\n".join([*lines, f"selftest: {verdict}, in {data['seconds']:.0f} s"])


def _faults(verdicts: list[dict[str, Any]]) -> list[str]:
    if not verdicts:
        return []
    every = Counter(v["class"] for v in verdicts)
    caught = Counter(v["class"] for v in verdicts if not v["wrong"])
    lines = [f"{'seeded faults':24}  caught", f"{'':24}  ------"]
    for kind in CLASSES:
        if every[kind]:
            killers = sorted({v["killed_by"][0] for v in verdicts
                              if v["class"] == kind and v["killed_by"]})  # fmt: skip
            lines.append(f"{kind:24}  {caught[kind]:3}/{every[kind]:<3} {', '.join(killers[:2])}")
    total = f"{sum(caught.values())}/{len(verdicts)}"
    lowest = min((v["passed"] / v["of"] for v in verdicts if v["of"]), default=0.0)
    lines += [f"{'all':24}  {total}; each passes {lowest:.0%} of its rows or more", ""]
    return lines


def _mutants(mutants: list[dict[str, Any]]) -> list[str]:
    if not mutants:
        return []
    lines = []
    for file in dict.fromkeys(m["id"].partition("/")[0] for m in mutants):
        mine = [m for m in mutants if m["id"].startswith(f"{file}/")]
        killed = sum(bool(m["killed_by"]) for m in mine)
        same = sum(bool(m["equivalent"]) for m in mine)
        words = f"{killed}/{len(mine)} killed, {same} equivalent"
        lines.append(f"{'mutants of ' + file:24}  {words}")
    return [*lines, ""]


def _rows(rows: dict[str, Any]) -> list[str]:
    checks = rows["checks"]
    lines = []
    if "own" in checks:
        seen = checks["own"]["fine"]
        lines.append(f"{seen} of {rows['all']} rows see a fault of their own")
        lines.append(f"{len(rows['held'])} others are held by a seeded fault, or by a reason")
    if "group" in checks:
        lines.append(f"{checks['group']['fine']} trials with half of these faults at a time")
    if "wider" in checks:
        lines.append(f"{checks['wider']['fine']} tolerances cannot be ten times as wide")
    return [*lines, ""] if lines else []
