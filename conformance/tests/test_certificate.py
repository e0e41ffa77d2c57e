"""The pages: what they may say, that they are well-formed, and that they hide nothing."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from coregrad_conformance import certificate, page, publication, report

VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture
def passed(core_run: Path) -> dict[str, Any]:
    """The report of a passing run, as if everything came from wheels."""
    found: dict[str, Any] = json.loads((core_run / "report.json").read_text())
    for part in ("suite", "core", "backend"):
        found[part]["state"] = "wheel"
    return again(found)


def again(found: dict[str, Any]) -> dict[str, Any]:
    return found | report.derived(found)


def spoiled(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same with one row of exp that has another end."""
    results = [dict(data) for data in found["results"]]
    data = next(data for data in results if data.get("op") == "exp")
    data.update({"status": "fail", "kind": "value", "detail": "got <2> & more"} | changes)
    return again(found | {"results": results})


class Checker(HTMLParser):
    """Raises for tags that are not closed in order; collects tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_a_passing_run_from_wheels_is_certified(passed: dict[str, Any]) -> None:
    assert certificate.standing(passed) == "certified"
    assert certificate.headline(passed) == "coregrad-cpu 0.1.0 on numpy: core: certified"
    assert set(publication.pages(passed, "0")) == {
        "CERTIFICATE.md",
        "CERTIFICATE.html",
        "badge.json",
    }


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({"only": "exp/*"}, "filtered"),
        ({"problems": ["waiver x: there is no such row"]}, "failed"),
        ({"internal": True}, "provisional"),
    ],
)
def test_the_word_certified_is_for_nothing_else(
    passed: dict[str, Any], changes: dict[str, Any], standing: str
) -> None:
    found = again(passed | changes)
    assert certificate.standing(found) == standing
    for text in publication.pages(found, "0").values():
        without = text.replace(".seal.certified", "")  # of the style sheet
        assert "certified" not in without


def test_a_failing_run_makes_a_report_and_no_certificate(passed: dict[str, Any]) -> None:
    found = spoiled(passed)
    assert set(publication.pages(found, "0")) == {"REPORT.md", "REPORT.html", "badge.json"}
    text = certificate.markdown(found, "0")
    assert "Certificate" not in text
    assert "got <2> & more" in text
    assert "FAIL" in text


def test_the_matrix_shows_the_worst_of_each_cell(passed: dict[str, Any]) -> None:
    dtypes, rows = certificate.matrix(passed)
    table = {(op, d): text for op, cells in rows for d, text in zip(dtypes, cells, strict=True)}
    assert dtypes[0] == "float32"
    assert table["add", "int32"] == "exact"
    assert table["reduce", "float32"] == "bound"
    assert table["exp", "int32"] == ""
    for cell, changes in {
        "FAIL": {},
        "waived": {"status": "waived"},
        "3.14": {"status": "pass", "ulp": 3.14159},
    }.items():
        dtypes, rows = certificate.matrix(spoiled(passed, **changes))
        assert dict(rows)["exp"][0] == cell


def test_an_absent_dtype_is_told(passed: dict[str, Any]) -> None:
    results = [
        data | {"status": "unsupported"} if data.get("op") == "exp" else data
        for data in passed["results"]
    ]
    _, rows = certificate.matrix(passed | {"results": results})
    assert dict(rows)["exp"][0] == "absent"


@pytest.mark.parametrize("kind", ["certified", "failed"])
def test_the_page_is_well_formed_light_and_closed(passed: dict[str, Any], kind: str) -> None:
    text = page.page(passed if kind == "certified" else spoiled(passed), "abc123")
    found = checked(text)
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert found.links == []
    assert "url(" not in text
    assert "@import" not in text
    assert len(text) < 60_000
    assert 'name="viewport"' in text


def test_what_a_backend_says_cannot_become_markup(passed: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=y>"
    found = spoiled(passed, detail=evil)
    found["backend"] = found["backend"] | {"distribution": evil}
    found["device"] = found["device"] | {"title": evil, "driver": evil}
    found["environment"] = {"COREGRAD_X": evil}
    found["waivers"] = [
        {
            "id": evil,
            "kind": "never",
            "raises": "value",
            "reason": evil,
            "url": 'https://example.org/" onclick="x',
            "expires": "2026-01-01",
        }
    ]
    tags = checked(page.page(found, "0")).tags
    assert "script" not in tags
    assert "img" not in tags


def test_pages_end_in_the_hash_of_the_report(core_run: Path) -> None:
    digest = report.sha256((core_run / "report.json").read_text())
    for name in ("CERTIFICATE.md", "CERTIFICATE.html"):
        assert digest in (core_run / name).read_text().splitlines()[-1]


def test_everything_that_qualifies_the_verdict_is_on_both_pages(passed: dict[str, Any]) -> None:
    passed["backend"]["state"] = "editable install"
    passed["notes"] = ["the waiver of y expired on 2026-01-01 and is ignored"]
    found = spoiled(passed)
    for text in publication.pages(found, "0").values():
        if text.startswith("{"):
            continue
        for words in ("editable install", "waiver of y expired", "core: 1 fail"):
            assert words in text


def test_the_badge_is_in_the_endpoint_format(passed: dict[str, Any]) -> None:
    badge = certificate_badge(passed)
    assert badge == {
        "schemaVersion": 1,
        "label": "coregrad 1.0",
        "message": "core ✓",
        "color": "brightgreen",
    }
    assert certificate_badge(spoiled(passed))["message"] == "core ✗ failed"
    assert certificate_badge(spoiled(passed))["color"] == "red"


def certificate_badge(found: dict[str, Any]) -> dict[str, Any]:
    badge: dict[str, Any] = json.loads(publication.pages(found, "0")["badge.json"])
    return badge


def test_a_new_run_takes_back_the_pages_of_the_last_one(
    passed: dict[str, Any], tmp_path: Path
) -> None:
    publication.publish(tmp_path, passed)
    (tmp_path / "other.txt").write_text("kept")
    publication.retract(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["other.txt"]
