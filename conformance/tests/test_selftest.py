"""The suite's test of itself: that it finds what is seeded, and says so when something survives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from coregrad.ir.ops import CONTRACT_OPS
from coregrad_conformance import runner
from coregrad_conformance.result import ended
from coregrad_conformance.row import Outcome, Row
from coregrad_conformance.rows import all_rows
from coregrad_conformance.selftest import (
    command,
    equivalents,
    makers,
    overlaps,
    pins,
    sensitivity,
    trial,
)
from coregrad_conformance.selftest.device import Ref, changed
from coregrad_conformance.selftest.fault import CLASSES, Fault
from coregrad_conformance.selftest.faults import all_faults
from coregrad_conformance.selftest.mutants import all_mutants, mutated

SUITE = all_rows("extended")
SMALL = (
    "exp/float32/special-values",
    "exp/float32/random",
    "add/int32/special-pairs",
    "reduce/add/float32/random",
    "loops/grid/31",
    "cast/float32-to-int32",
)


def fault(name: str) -> Fault:
    return next(f for f in all_faults() if f.id == name)


def small() -> list[Row]:
    return [row for row in SUITE if row.id in SMALL]


# ---- seeded faults -----------------------------------------------------------------------------


def test_there_are_faults_of_every_class_each_with_a_row_that_exists() -> None:
    faults = all_faults()
    known = {row.id for row in SUITE}
    assert len(faults) >= 120
    assert {f.kind for f in faults} == set(CLASSES)
    assert [f.id for f in faults if f.by not in known] == []
    assert len({f.says for f in faults}) > 0.9 * len(faults)


@pytest.mark.parametrize(
    "name",
    [
        "special/max-loses-second-nan",
        "sizes/tail-of-256",
        "barrier/ignored",
        "memory/given-out-twice",
        "conduct/division",
    ],
)
def test_a_seeded_fault_passes_most_rows_and_is_caught_by_the_row_that_it_names(name: str) -> None:
    verdict = trial.judge(fault(name), [row for row in SUITE if row.level == "core"])
    assert verdict.wrong == ""
    assert fault(name).by in verdict.killers
    assert verdict.passed >= 0.9 * verdict.rows


def judged(monkeypatch: pytest.MonkeyPatch, make: Callable[[], type[Ref]], kind: str) -> str:
    made = Fault("made/here", kind, "add", "int32", "", "add/int32/special-pairs", make)
    monkeypatch.setattr(makers, "all_faults", lambda: [made])
    return trial.judge(
        made, [row for row in SUITE if row.op == "add" and row.level == "core"]
    ).wrong


def test_a_backend_without_a_fault_counts_as_a_survivor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert judged(monkeypatch, lambda: Ref, "precision").startswith("SURVIVES")


def test_a_fault_that_ruins_the_backend_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    make = changed("add", "int32 int64 uint8 uint32", lambda right, a, b: right + right)
    assert "passes only" in judged(monkeypatch, make, "precision")


def test_a_fault_that_raises_does_not_count_as_caught_by_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def boom(right: Any, a: Any, b: Any) -> Any:
        raise FloatingPointError("no")

    assert "no value" in judged(monkeypatch, changed("add", "int32", boom), "precision")


@pytest.mark.parametrize(
    ("kinds", "counts"), [("exception value", False), ("value exception", True)]
)
def test_the_row_that_a_fault_names_is_the_one_that_has_to_see_a_value(
    kinds: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [ended(r, "fail", kind=k) for r, k in zip(small(), kinds.split(), strict=False)]
    run = runner.Run({}, [*ends, *(ended(row, "pass") for row in SUITE)], 0.0)
    monkeypatch.setattr(trial, "attempt", lambda *rest: run)
    made = replace(fault("sizes/tail-of-256"), by=ends[0].id)
    assert made.by_value
    wrong = trial.judge(made, SUITE).wrong
    assert wrong == ("" if counts else f"no value that {made.by} has compared differs")


@pytest.mark.parametrize(("level", "counts"), [("core", True), ("standard", False)])
def test_a_fault_has_to_pass_nine_in_ten_rows_of_the_level_that_is_run(
    level: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one that no row beyond level core passes."""

    def attempt(factory: str, name: str, rows: list[Row], *rest: Any) -> runner.Run:
        ends = [ended(r, "pass" if r.level == "core" else "fail", kind="value") for r in rows]
        return runner.Run({}, ends, 0.0)

    monkeypatch.setattr(trial, "attempt", attempt)
    made = replace(fault("sizes/tail-of-256"), by="loops/grid/4099")
    verdict = trial.judge(made, SUITE, level)
    assert (verdict.wrong == "") is counts
    assert counts or "of the rows it is run on" in verdict.wrong
    assert verdict.rows == len(all_rows(level)) + (level == "core")


@pytest.mark.parametrize("stage", [(), ("--stage", "faults"), ("--stage", "mutants")])
def test_a_pattern_that_nothing_matches_is_a_mistake_of_use(
    stage: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*stage, "--only", "nothing*", "--report", str(tmp_path)]) == 2
    assert "nothing*" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# ---- mutants -----------------------------------------------------------------------------------


def test_mutants_have_ids_of_their_own_and_change_the_source() -> None:
    mutants = all_mutants()
    assert len({m.id for m in mutants}) == len(mutants) > 300
    for mutant in mutants[::40]:
        compile(mutated(mutant), mutant.file, "exec")


def test_a_mutant_is_killed_by_a_row_and_the_first_one_is_named() -> None:
    mutant = next(m for m in all_mutants() if m.becomes.startswith("np.fmod -> np.remainder"))
    rows = [row for row in SUITE if row.op in ("mod", "idiv") and row.level == "core"]
    _, killer, _ = command.Work(rows, {}).mutant(rows, mutant.id)
    assert killer.startswith(("mod/", "idiv/"))


def test_the_reviewed_mutants_are_those_of_the_source() -> None:
    assert list(equivalents.stale(equivalents.load(), all_mutants())) == []


def test_an_entry_whose_line_has_changed_is_told_of() -> None:
    entries = equivalents.load()
    changed_entry = replace(entries[0], line="return 1")
    gone = replace(entries[0], id="formats/nothing/constant/1")
    told = list(equivalents.stale([changed_entry, gone, *entries[1:], entries[1]], all_mutants()))
    assert len(told) == 3
    assert "another mutant now" in told[0]
    assert "no mutant" in told[1]
    assert "twice" in told[2]


def test_an_entry_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="an entry has"):
        equivalents.load('[[equivalent]]\nid = "a"\nline = "b"\nbecomes = "c"\nreason = ""\n')


def test_a_listed_mutant_that_is_killed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = all_mutants()[0]
    entry = equivalents.Equivalent(mutant.id, mutant.text, mutant.becomes, "because")
    monkeypatch.setattr(equivalents, "load", lambda: [entry])
    found = command.Found([])
    found.mutants = [(mutant, "add/int32/random", "element 3")]
    assert [p for p in found.mutant_problems() if "listed as equivalent" in p]
    found.mutants = [(all_mutants()[1], "", "")]
    assert [p for p in found.mutant_problems() if "SURVIVES" in p]


# ---- rows and tolerances -----------------------------------------------------------------------


def test_every_row_has_a_fault_of_its_own_or_a_reason() -> None:
    pinned = pins.load()
    reasons = {overlap.row for overlap in overlaps.load()}
    seeded = {f.by for f in all_faults()}
    left = [row.id for row in SUITE if row.id not in pinned and row.id not in reasons | seeded]
    assert left == []
    assert [name for name in [*pinned, *reasons] if name not in {row.id for row in SUITE}] == []


def run_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Row]) -> dict[str, Any]:
    known = pins.load()
    monkeypatch.setattr(command.rows, "all_rows", lambda level: rows)
    monkeypatch.setattr(pins, "load", lambda: {name: known[name] for name in SMALL})
    monkeypatch.setattr(overlaps, "load", list)  # these rows are of the whole suite
    code = command.main(["--stage", "rows", "--jobs", "1", "--report", str(tmp_path)])
    text = (tmp_path / "selftest.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    assert code == (0 if data["ok"] else 1)
    return data


def test_the_rows_stage_passes_when_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_rows(monkeypatch, tmp_path, small())["problems"] == []


def test_an_overlap_that_is_none_is_told_of() -> None:
    names = [overlap.row for overlap in overlaps.load()]
    told = list(overlaps.stale(names[1:], names[1:2]))
    assert len(told) == 2
    assert "there is no row" in told[0]
    assert "a fault of its own" in told[1]


@pytest.mark.parametrize("name", SMALL[:3])
def test_a_row_that_is_deleted_makes_it_fail(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [row for row in small() if row.id != name]
    problems = run_rows(monkeypatch, tmp_path, rows)["problems"]
    assert any(f"the row {name} is gone" in problem for problem in problems)


def test_a_row_that_checks_nothing_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    idle = [
        replace(row, run=lambda target: Outcome(1)) if row.id == SMALL[2] else row
        for row in small()
    ]
    problems = run_rows(monkeypatch, tmp_path, idle)["problems"]
    assert any(problem.startswith(f"{SMALL[2]}: SURVIVES") for problem in problems)


def test_a_tolerance_ten_times_as_wide_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = CONTRACT_OPS["exp"].ulp
    monkeypatch.setitem(table, "float32", table["float32"] * 10)
    problems = run_rows(monkeypatch, tmp_path, small())["problems"]
    assert any(problem.startswith("exp/float32/") for problem in problems)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_tolerance_of_normal_numbers_is_unguarded(dtype: str) -> None:
    known = pins.load()
    made = sensitivity.widened(SUITE, known)
    (wider,) = (row for row in made if row.id == f"wider/normal numbers of {dtype}")
    run = trial.attempt("pinned", "", [wider, *sensitivity.own(named("draws/normal/*"), known)], 60)
    assert [(result.id, result.detail) for result in run.results if not result.ok] == []


def named(pattern: str) -> list[Row]:
    return [row for row in SUITE if fnmatchcase(row.id, pattern)]
