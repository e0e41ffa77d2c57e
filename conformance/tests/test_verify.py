"""Verification: a true report is consistent, and whatever is changed in one is seen."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coregrad_conformance import publication, report, verify

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def folder(core_run: Path, tmp_path: Path) -> Path:
    """A copy of a real run, to be changed."""
    return Path(shutil.copytree(core_run, tmp_path / "run"))


def first(data: dict[str, Any], **wanted: str) -> dict[str, Any]:
    return next(r for r in data["results"] if all(r.get(k) == v for k, v in wanted.items()))


def changed(folder: Path, change: Change, *, again: bool) -> list[str]:
    """The problems of a changed report; with ``again`` all that follows from it is made anew."""
    path = folder / "report.json"
    data = json.loads(path.read_text())
    change(data)
    if again:
        data |= report.derived(data)
        publication.publish(folder, data)
    else:
        path.write_text(report.text(data))
    return verify.verify(path)


def test_a_true_report_is_consistent(folder: Path) -> None:
    assert verify.verify(folder / "report.json") == []


def test_it_does_not_matter_who_writes_it_again(folder: Path) -> None:
    assert changed(folder, lambda data: None, again=False) == []


def test_pages_may_be_missing(folder: Path) -> None:
    (folder / "CERTIFICATE.md").unlink()
    assert verify.verify(folder / "report.json") == []


# What does not follow from the rows, although nothing else was changed.


def count(data: dict[str, Any]) -> None:
    data["counts"]["core"]["pass"] += 1


def certified(data: dict[str, Any]) -> None:
    data["verdict"]["certified"] = not data["verdict"]["certified"]


def wheels(data: dict[str, Any]) -> None:
    data["verdict"]["provisional"] = []


def worst(data: dict[str, Any]) -> None:
    data["max_ulp"]["exp"]["float32"]["ulp"] = 0.25


def failing(data: dict[str, Any]) -> None:
    first(data, status="pass")["status"] = "fail"


def time(data: dict[str, Any]) -> None:
    data["started"] = "2020-01-01T00:00:00+00:00"  # of the pages' text


@pytest.mark.parametrize("change", [count, certified, wheels, worst, failing, time])
def test_a_change_alone_is_seen(folder: Path, change: Change) -> None:
    assert changed(folder, change, again=False) != []


# What is wrong in itself, although all that follows was made to fit.


def removed(data: dict[str, Any]) -> None:
    del data["results"][3]


def removed_and_expected(data: dict[str, Any]) -> None:
    del data["results"][3]
    data["expected"]["core"] -= 1


def twice(data: dict[str, Any]) -> None:
    data["results"][3] = data["results"][4]


def unknown(data: dict[str, Any]) -> None:
    data["results"][3]["id"] = "add/float32/easy"


def other_dtype(data: dict[str, Any]) -> None:
    first(data, op="exp", dtype="float32")["dtype"] = "float64"


def moved(data: dict[str, Any]) -> None:
    data["results"][3]["level"] = "standard"
    data["expected"] = {"core": data["expected"]["core"] - 1, "standard": 1}


def no_values(data: dict[str, Any]) -> None:
    del first(data, op="exp", group="elementwise")["compared"]


def too_far(data: dict[str, Any]) -> None:
    first(data, op="exp")["ulp"] = 4.5


def status(data: dict[str, Any]) -> None:
    data["results"][3]["status"] = "fine"


def contract(data: dict[str, Any]) -> None:
    data["contract"]["sha256"] = "0" * 64


def suite(data: dict[str, Any]) -> None:
    data["suite"]["sha256"] = "0" * 64


def suite_version(data: dict[str, Any]) -> None:
    data["suite"]["version"] = "0.0.9"


def level(data: dict[str, Any]) -> None:
    data["level"] = "standard"


def waived(data: dict[str, Any]) -> None:
    first(data, op="exp")["status"] = "waived"


def waiver(data: dict[str, Any]) -> None:
    data["waivers"].append(WAIVER | {"id": data["results"][3]["id"]})


def hidden_emulation(data: dict[str, Any]) -> None:
    data["environment"]["COREGRAD_EMULATE"] = "metal, numpy"


def made_up_emulation(data: dict[str, Any]) -> None:
    data["emulated"] = {"numbers": {"numpy: kernels launched": 9}, "faults": []}


def bad_waiver(data: dict[str, Any]) -> None:
    data["waivers"].append(WAIVER | {"kind": "because"})


WAIVER = {
    "id": "exp/float16/dense",
    "kind": "never",
    "raises": "value",
    "reason": "so it is",
    "url": "https://example.org",
    "expires": "2026-12-31",
}


@pytest.mark.parametrize(
    "change",
    [
        removed,
        removed_and_expected,
        twice,
        unknown,
        other_dtype,
        moved,
        no_values,
        too_far,
        status,
        contract,
        suite,
        suite_version,
        level,
        waived,
        waiver,
        bad_waiver,
        hidden_emulation,
        made_up_emulation,
    ],
)
def test_a_change_that_fits_is_seen(folder: Path, change: Change) -> None:
    assert changed(folder, change, again=True) != []


def test_a_failing_report_is_consistent_too(folder: Path) -> None:
    """Verification says whether the report is coherent, not whether the backend is good."""
    data = json.loads((folder / "report.json").read_text())
    publication.retract(folder)
    failing(data)
    data |= report.derived(data)
    publication.publish(folder, data)
    assert verify.verify(folder / "report.json") == []


def test_a_page_of_another_report_is_seen(folder: Path) -> None:
    page = folder / "CERTIFICATE.html"
    page.write_text(page.read_text().replace("provisional", "certified"))
    assert verify.verify(folder / "report.json") == [
        "CERTIFICATE.html: it is not the page of this report"
    ]
    page.unlink()
    (folder / "REPORT.md").write_text("# failed")
    assert verify.verify(folder / "report.json") == ["REPORT.md: this report has no such page"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": "coregrad-conformance-report/0"}', "\0", '{"schema"'],
)
def test_what_is_no_report_is_unreadable(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(verify.Unreadable, match="report"):
        verify.verify(path)


def test_a_report_with_parts_missing_is_unreadable(folder: Path) -> None:
    path = folder / "report.json"
    for key in ("results", "verdict", "contract", "expected", "waivers", "suite"):
        data = json.loads(path.read_text())
        del data[key]
        copy = folder / "copy.json"
        copy.write_text(json.dumps(data))
        with pytest.raises(verify.Unreadable):
            verify.verify(copy)


# --- differences ---


def test_a_report_does_not_differ_from_itself(folder: Path) -> None:
    data = verify.load(folder / "report.json")
    assert verify.differences(data, data) == []


def test_differences_are_named_row_by_row(folder: Path) -> None:
    old, new = (verify.load(folder / "report.json") for _ in range(2))
    gone = new["results"].pop(0)["id"]
    row = first(new, op="exp", dtype="float32", status="pass")
    row["status"] = "fail"
    new["max_ulp"]["exp"]["float32"]["ulp"] = 3.5
    lines = verify.differences(old, new)
    assert f"- {gone}: pass" in lines
    assert f"! {row['id']}: pass -> fail" in lines
    assert lines[-1].startswith("~ exp float32: ")
    assert lines[-1].endswith(" -> 3.5 ulp")
    assert f"+ {gone}: pass" in verify.differences(new, old)
