"""The report: what follows from the rows, provenance of the files, and how it is written."""

import base64
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad_conformance import emulation, provenance, report
from coregrad_conformance.result import DETAIL, STATUSES, Result, ended, loaded, short
from coregrad_conformance.row import Outcome, Row

WHEEL = {"distribution": "d", "version": "1", "package": "p", "state": "wheel", "sha256": "0"}


def result(status: str = "pass", level: str = "core", **found: Any) -> Result:
    name = found.pop("name", f"add/float32/{status}-{level}")
    return Result(name, level, "elementwise", status, "add", "float32", compared=1, **found)


def made(*results: Result, **changes: Any) -> dict[str, Any]:
    """A report with what `derived` needs."""
    expected: dict[str, int] = {}
    for r in results:
        expected[r.level] = expected.get(r.level, 0) + 1
    parts = {
        "expected": expected,
        "only": "",
        "internal": False,
        "problems": [],
        "suite": WHEEL,
        "core": WHEEL,
        "backend": WHEEL,
        "results": [r.data() for r in results],
    }
    return parts | changes


def verdict(*results: Result, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = report.derived(made(*results, **changes))["verdict"]
    return found


def test_rows_that_pass_in_wheels_are_certified() -> None:
    found = verdict(result(), result("unsupported", "standard"), result("waived", "standard"))
    assert found["passed"]
    assert found["certified"]
    assert found["levels"] == {"core": True, "standard": True}


@pytest.mark.parametrize("status", ["fail", "crash", "timeout", "xpass", "error"])
def test_one_row_that_is_not_well_fails_its_level(status: str) -> None:
    found = verdict(result(), result(status, "standard"))
    assert not found["passed"]
    assert not found["certified"]
    assert found["levels"] == {"core": True, "standard": False}
    assert found["reasons"] == [f"standard: 1 {status}"]


def test_level_core_allows_nothing_to_be_unsupported() -> None:
    assert not verdict(result("unsupported"))["passed"]


def test_a_missing_row_fails() -> None:
    found = verdict(result(), expected={"core": 2})
    assert not found["passed"]
    assert "1 of 2 rows have no result" in found["reasons"][0]


def test_no_row_at_all_fails() -> None:
    assert not verdict(expected={"core": 0})["passed"]
    assert not verdict(expected={"core": 0}, only="x")["passed"]


def test_a_filtered_run_is_never_certified() -> None:
    found = verdict(result(), only="add/*", expected={"core": 9})
    assert found["passed"]
    assert found["filtered"]
    assert not found["certified"]


def test_problems_with_waivers_fail() -> None:
    assert not verdict(result(), problems=["waiver x: there is no such row"])["passed"]


@pytest.mark.parametrize("part", ["suite", "core", "backend"])
@pytest.mark.parametrize("state", ["editable install", "p/x.py was changed after installation"])
def test_files_that_are_not_of_a_wheel_make_it_provisional(part: str, state: str) -> None:
    found = verdict(result(), **{part: WHEEL | {"state": state}})
    assert found["passed"]
    assert not found["certified"]
    assert state in found["provisional"][0]


def test_an_emulated_device_is_never_certified() -> None:
    found = verdict(result(), emulated={"numbers": {"metal: kernels launched": 1}, "faults": []})
    assert found["passed"]
    assert not found["certified"]
    assert found["provisional"] == [emulation.MARK]


@pytest.mark.parametrize(
    ("numbers", "faults", "reason"),
    [
        ({}, [], "no kernel was launched"),
        ({"cuda-a: programs made ready": 3}, [], "no kernel was launched"),
        ({"cuda-a: kernels launched": 3}, ["add: a race"], "add: a race"),
    ],
)
def test_an_emulation_that_launches_nothing_or_sees_a_fault_fails(
    numbers: dict[str, int], faults: list[str], reason: str
) -> None:
    found = verdict(result(), emulated={"numbers": numbers, "faults": faults})
    assert not found["passed"]
    assert reason in found["reasons"][0]


def test_what_processes_of_an_emulation_wrote_is_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, asked = tmp_path / "journal", tmp_path / "asked"
    assert emulation.tally(journal).data() == {"numbers": {}, "faults": []}
    journal.write_text('{"b: kernels launched": 1, "b: executions": 3}\n' * 2 + '{"fault": "k"}\n')
    found = emulation.tally(journal)
    assert found.data() == {
        "numbers": {"b: executions": 6, "b: kernels launched": 2},
        "faults": ["k"],
    }
    assert emulation.launches(found.data()) == 2
    monkeypatch.setenv(emulation.JOURNAL, str(asked))
    asked.write_text('{"b: kernels launched": 5}\n')
    emulation.hand_on(journal)
    assert emulation.launches(emulation.tally(asked).data()) == 7


def test_a_test_of_the_suite_itself_is_never_certified() -> None:
    assert not verdict(result(), internal=True)["certified"]


@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.sampled_from(("core", "standard")))))
def test_counts_add_up(drawn: list[tuple[str, str]]) -> None:
    results = [result(s, level, name=str(i)) for i, (s, level) in enumerate(drawn)]
    counts = report.counts(results)
    assert sum(sum(table.values()) for table in counts.values()) == len(drawn)
    for level, table in counts.items():
        assert all(drawn.count((status, level)) == count for status, count in table.items())


@given(st.lists(st.floats(0, 100), min_size=1))
def test_the_worst_distance_is_the_largest(distances: list[float]) -> None:
    results = [result(name=str(i), ulp=x, worst=f"in{i}") for i, x in enumerate(distances)]
    worst = report.max_ulp(results)["add"]["float32"]
    assert worst["ulp"] == max(distances)
    assert worst["row"] == str(distances.index(max(distances)))
    assert worst["input"] == f"in{distances.index(max(distances))}"


# --- results as data ---


@given(st.builds(result, st.sampled_from(STATUSES), detail=st.text(max_size=50), ulp=st.none()))
def test_a_result_survives_json(given_result: Result) -> None:
    assert loaded(json.loads(json.dumps(given_result.data()))) == given_result


def test_a_zero_ulp_survives_json() -> None:
    assert loaded(result(ulp=0.0).data()).ulp == 0.0


@given(st.text(max_size=4 * DETAIL))
def test_long_texts_keep_both_ends(text: str) -> None:
    cut = short(text)
    assert len(cut) <= DETAIL + 10
    assert cut[:100] == text[:100]
    assert cut[-100:] == text[-100:]


def test_an_infinite_distance_is_left_out() -> None:
    row = Row("a", "core", "g", lambda t: Outcome(1))
    assert ended(row, "pass", ulp=float("inf")).ulp is None
    assert ended(row, "pass", ulp=float("nan")).ulp is None


# --- as a file ---


def test_the_text_is_json_with_a_result_a_line() -> None:
    first = made(result(), result("fail", detail='a "quoted" word\nand \0results\0 in it'))
    content = report.text(first)
    assert json.loads(content) == first
    assert sum(line.startswith('{"id"') for line in content.splitlines()) == 2


def test_a_file_is_written_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    report.write(path, "first")

    def fails(*args: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no room"):
        report.write(path, "second")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


# --- provenance ---


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution `leaf-chip` with a package `leafchip`, installed by hand from its RECORD."""
    package = tmp_path / "leafchip"
    package.mkdir()
    (package / "__init__.py").write_text("answer = 42\n")
    (package / "waivers.toml").write_text("")
    info = tmp_path / "leaf_chip-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaf-chip\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[coregrad.backends]\nleaf = leafchip:info\n")
    lines = [f"{p.relative_to(tmp_path).as_posix()},{record(p)}" for p in package.iterdir()]
    (info / "RECORD").write_text("\n".join([*lines, "leaf_chip-1.2.dist-info/RECORD,,"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def record(path: Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256={digest.rstrip(b'=').decode()},{path.stat().st_size}"


def state(package: Path) -> str:
    return provenance.origin("leaf-chip", "leafchip").state


def test_files_as_their_record_says_are_of_a_wheel(installed: Path) -> None:
    found = provenance.origin("leaf-chip", "leafchip")
    assert (found.state, found.version, found.blemish) == ("wheel", "1.2", "")
    assert provenance.entry_point("leaf-chip", "leaf") == "leafchip:info"
    assert "leafchip" not in sys.modules


def test_compiled_files_are_no_difference(installed: Path) -> None:
    before = provenance.origin("leaf-chip", "leafchip")
    (installed / "__pycache__").mkdir()
    (installed / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert provenance.origin("leaf-chip", "leafchip") == before


def test_a_changed_file_is_named(installed: Path) -> None:
    before = provenance.origin("leaf-chip", "leafchip").sha256
    (installed / "__init__.py").write_text("answer = 43\n")
    after = provenance.origin("leaf-chip", "leafchip")
    assert after.state == "leafchip/__init__.py was changed after its installation"
    assert after.sha256 != before


def test_an_added_file_is_named(installed: Path) -> None:
    (installed / "extra.py").write_text("")
    assert state(installed) == "leafchip/extra.py is not of its wheel"


def test_a_removed_file_is_named(installed: Path) -> None:
    (installed / "waivers.toml").unlink()
    assert state(installed) == "leafchip/waivers.toml is missing"


def test_another_package_in_front_is_seen(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    (shadow / "leafchip").mkdir(parents=True)
    (shadow / "leafchip" / "__init__.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(shadow))
    assert "another leafchip is imported" in state(installed)


def test_an_editable_install_is_seen(installed: Path) -> None:
    info = installed.parent / "leaf_chip-1.2.dist-info"
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    assert state(installed) == "editable install"
    (info / "direct_url.json").write_text('{"url": "file:///x.whl", "archive_info": {}}')
    assert state(installed) == "wheel"


def test_what_is_not_installed_is_said() -> None:
    assert provenance.origin("no-such-dist", "coregrad").state == "is not installed"
    assert provenance.origin("coregrad-core", "nosuchpackage").state.endswith("importable")
    assert provenance.entry_point("no-such-dist", "x") == ""
