"""Waivers: strict, dated, few, and none at level core."""

import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from coregrad_conformance import waivers
from coregrad_conformance.result import Result
from coregrad_conformance.row import Outcome, Row
from coregrad_conformance.rows import all_rows
from coregrad_conformance.waivers import Waived, Waiver

TODAY = datetime.date(2026, 6, 1)
DEVICE = {"name": "mychip:1", "title": "MyChip 9", "driver": "3.1", "contract": "1.0"}
ROWS = {
    f"sin/float64/{i}": Row(f"sin/float64/{i}", "standard", "elementwise", lambda t: Outcome(1))
    for i in range(200)
} | {"add/float32/a": Row("add/float32/a", "core", "elementwise", lambda t: Outcome(1))}
ENTRY = {
    "id": "sin/float64/7",
    "kind": "driver-bug",
    "raises": "value",
    "reason": "pi has too few bits",
    "url": "https://example.org/bugs/1",
    "expires": datetime.date(2026, 12, 31),
}


def waiver(**changes: Any) -> Waiver:
    return waivers.read(ENTRY | changes)


def result(status: str = "fail", name: str = "sin/float64/7", **found: Any) -> Result:
    level = ROWS[name].level if name in ROWS else "standard"
    return Result(
        name, level, "elementwise", status, "sin", "float64", **({"kind": "value"} | found)
    )


def applied(results: list[Result], *given: Waiver) -> Waived:
    return waivers.apply(results, given, DEVICE, ROWS, TODAY)


def statuses(waived: Waived) -> list[str]:
    return [result.status for result in waived.results]


def test_an_admitted_failure_is_waived_and_its_reason_is_told() -> None:
    found = applied([result()], waiver())
    assert statuses(found) == ["waived"]
    assert "pi has too few bits" in found.results[0].detail
    assert (found.used, found.problems, found.notes) == ([waiver()], [], [])


def test_other_rows_are_not_touched() -> None:
    others = [result(name="sin/float64/8"), result("pass", "add/float32/a")]
    assert applied(others, waiver()).results == others


def test_a_row_that_passes_must_not_be_waived() -> None:
    found = applied([result("pass")], waiver())
    assert statuses(found) == ["xpass"]
    assert "remove the waiver" in found.results[0].detail
    assert not found.results[0].ok


@pytest.mark.parametrize(
    ("raises", "found", "status"),
    [
        ("value", {"kind": "value"}, "waived"),
        ("value", {"kind": "leak"}, "fail"),
        ("leak", {"kind": "leak"}, "waived"),
        ("CompileError", {"kind": "exception", "exception": "CompileError"}, "waived"),
        ("CompileError", {"kind": "exception", "exception": "IndexError"}, "fail"),
        ("ulp<=12", {"ulp": 11.5}, "waived"),
        ("ulp<=12", {"ulp": 12.5}, "fail"),
        ("ulp<=12", {"ulp": None}, "fail"),
        ("ulp<=0.5", {"ulp": 0.5}, "waived"),
        ("", {}, "fail"),
    ],
)
def test_only_the_admitted_way_of_failing_is_excused(
    raises: str, found: dict[str, Any], status: str
) -> None:
    waived = applied([result(**found)], waiver(raises=raises))
    assert statuses(waived) == [status]


@pytest.mark.parametrize(("status", "raises"), [("crash", "crash"), ("timeout", "timeout")])
def test_crashes_and_hangs_can_be_waived(status: str, raises: str) -> None:
    assert statuses(applied([result(status, kind=status)], waiver(raises=raises))) == ["waived"]


@pytest.mark.parametrize("status", ["error", "unsupported"])
def test_errors_of_the_suite_and_absent_dtypes_are_no_matter_for_waivers(status: str) -> None:
    assert statuses(applied([result(status)], waiver())) == [status]


def test_an_expired_waiver_is_ignored_and_noted() -> None:
    found = applied([result()], waiver(expires=datetime.date(2026, 5, 31)))
    assert statuses(found) == ["fail"]
    assert "expired on 2026-05-31" in found.notes[0]
    assert statuses(applied([result()], waiver(expires=TODAY))) == ["waived"]


def test_a_waiver_may_not_last_longer_than_a_year() -> None:
    found = applied([result()], waiver(expires=datetime.date(2027, 6, 3)))
    assert "in more than a year" in found.problems[0]
    assert applied([result()], waiver(expires=datetime.date(2027, 6, 1))).problems == []


def test_nothing_of_level_core_can_be_waived() -> None:
    found = applied([result(name="add/float32/a")], waiver(id="add/float32/a"))
    assert statuses(found) == ["fail"]
    assert "nothing can be waived" in found.problems[0]


def test_a_waiver_of_no_row_is_a_problem_also_when_a_part_is_run() -> None:
    assert "no such row" in applied([], waiver(id="sin/float64/*")).problems[0]
    assert applied([], waiver()).problems == []  # the row exists, and was not chosen


def test_one_row_in_a_hundred_may_be_waived_and_no_more() -> None:
    names = [f"sin/float64/{i}" for i in range(3)]  # of 200
    two = applied([result(name=n) for n in names[:2]], *(waiver(id=n) for n in names[:2]))
    assert two.problems == []
    three = applied([result(name=n) for n in names], *(waiver(id=n) for n in names))
    assert "3 of the 200 rows" in three.problems[0]


def test_the_same_waiver_twice_is_a_problem() -> None:
    assert "twice" in applied([result()], waiver(), waiver()).problems[0]


@pytest.mark.parametrize(
    ("narrow", "status"),
    [
        ({"backend": "mychip"}, "waived"),
        ({"backend": "otherchip"}, "fail"),
        ({"devices": ["mychip:1"]}, "waived"),
        ({"devices": ["MyChip 9"]}, "waived"),
        ({"devices": ["MyChip"]}, "fail"),
        ({"driver": "3.1"}, "waived"),
        ({"driver": "3.2"}, "fail"),
        ({"contract": "1.1"}, "fail"),
    ],
)
def test_a_waiver_can_be_narrowed_to_devices(narrow: dict[str, Any], status: str) -> None:
    assert statuses(applied([result()], waiver(**narrow))) == [status]


# --- the file ---

FILE = """
[[waiver]]
id = "sin/float64/7"
kind = "driver-bug"
raises = "value"
reason = "pi has too few bits"
url = "https://example.org/bugs/1"
expires = 2026-12-31
"""


def load(tmp_path: Path, text: str) -> tuple[list[Waiver], list[str]]:
    path = tmp_path / "waivers.toml"
    path.write_text(text, encoding="utf-8")
    return waivers.load(path)


def test_a_file_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, FILE) == ([waiver()], [])
    assert waivers.load(tmp_path / "absent.toml") == ([], [])
    assert load(tmp_path, "") == ([], [])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[[waiver]]", "[waiver]", "array of tables"),
        ("[[waiver]]", "[[waivers]]", "'waivers' is unknown"),
        ("[[waiver]]", "waiver = 3\n[[x]]", "array of tables"),
        ("id =", "ids =", "'ids' is unknown"),
        ('reason = "pi has too few bits"', "", "'reason' is missing"),
        ('reason = "pi has too few bits"', 'reason = ""', "'reason' is missing"),
        ('"driver-bug"', '"whatever"', "choose one of: driver-bug"),
        ("2026-12-31", '"2026-12-31"', "must be a date"),
        ("2026-12-31", "2026-12-31T00:00:00", "must be a date"),
        ('"value"', "3", "'raises' must be text"),
        ("https:", "javascript:", "begin with https"),
        ("expires", "devices = 'x'\nexpires", "array of names"),
        ("[[waiver]]", "[[waiver", "waivers.toml:"),
    ],
)
def test_every_misfit_is_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    found, problems = load(tmp_path, FILE.replace(old, new))
    assert found == []
    assert any(problem in line for line in problems), problems


def test_a_file_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "waivers.toml").write_bytes(b"\xff\xfe\x00")
    found, problems = waivers.load(tmp_path / "waivers.toml")
    assert (found, len(problems)) == ([], 1)


def test_a_waiver_survives_json() -> None:
    data = waiver(devices=["a"]).data()
    assert data["expires"] == "2026-12-31"
    assert "driver" not in data


# --- the examples that authors copy ---


@pytest.mark.parametrize(
    "path",
    [
        "coregrad/scaffold/waivers.toml.txt",
        "docs/conformance.md",
        "conformance/src/coregrad_conformance/waivers.py",
    ],
)
def test_an_example_names_a_row_that_exists_and_could_be_waived(path: str) -> None:
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    lines = [line.strip().removeprefix("# ") for line in text.splitlines()]
    start = lines.index("[[waiver]]")
    table = takewhile(lambda line: " = " in line, lines[start + 1 :])
    (entry,) = waivers.tomllib.loads("\n".join(["[[waiver]]", *table]))["waiver"]
    assert list(waivers.misfits(entry)) == []
    row = {row.id: row for row in all_rows("extended")}[entry["id"]]
    assert row.level != "core"
