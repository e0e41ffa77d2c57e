"""Plugins and the suite as installed: waivers in a wheel, and what only wheels are called."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from places import SOURCES, Place, build

ROW = "add/float64/special-pairs"
WAIVER = f"""
[[waiver]]
id = "{ROW}"
kind = "driver-bug"
raises = "value"
reason = "sums of large numbers are rounded towards zero"
url = "https://example.org/bugs/1"
expires = 2099-01-01
"""


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def waived_run(folder: Path, waivers: str, row: str, dtype: str = "float64") -> Any:
    place = Place(folder / "venv", *SOURCES)
    place.install_wrong_chip(dtype, waivers)
    arguments = ("run", "wrongchip", "--level", "standard", "--only", row)
    return place.conformance(*arguments, "--report", folder / "out")


def in_a_month() -> str:
    import datetime

    return (datetime.date.today() + datetime.timedelta(days=30)).isoformat()


def test_a_waiver_in_the_plugin_excuses_its_row(tmp_path: Path) -> None:
    done = waived_run(tmp_path, WAIVER.replace("2099-01-01", in_a_month()), ROW)
    assert done.returncode == 0, done.stdout + done.stderr
    found = report(tmp_path / "out")
    assert [r["status"] for r in found["results"]] == ["waived"]
    assert found["waivers"][0]["id"] == ROW
    assert "rounded towards zero" in (tmp_path / "out" / "REPORT.md").read_text()
    assert found["backend"]["state"] == "wheel"


def test_a_waiver_of_a_passing_row_fails_the_run(tmp_path: Path) -> None:
    done = waived_run(tmp_path, WAIVER.replace("2099-01-01", in_a_month()), ROW, "float16")
    assert done.returncode == 1
    assert [r["status"] for r in report(tmp_path / "out")["results"]] == ["xpass"]


def test_a_waiver_that_lasts_too_long_is_a_problem(tmp_path: Path) -> None:
    done = waived_run(tmp_path, WAIVER, ROW)
    assert done.returncode == 2
    assert "in more than a year" in done.stdout
    assert not report(tmp_path / "out")["verdict"]["passed"]


def test_core_cannot_be_waived(tmp_path: Path) -> None:
    row = "add/float32/special-pairs"
    text = WAIVER.replace("2099-01-01", in_a_month()).replace(ROW, row)
    done = waived_run(tmp_path, text, row, "float32")
    assert done.returncode == 2
    assert [r["status"] for r in report(tmp_path / "out")["results"]] == ["fail"]


@pytest.mark.slow
def test_wheels_are_certified_until_one_of_their_files_is_changed(tmp_path: Path) -> None:
    place = Place(tmp_path / "venv")
    (tmp_path / "wheels").mkdir()
    for wheel in build(tmp_path / "wheels"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place.packages)
    out = tmp_path / "out"
    done = place.conformance("run", "numpy", "--report", out, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "core: certified" in done.stdout
    assert report(out)["verdict"]["certified"]
    assert "provisional" not in (out / "CERTIFICATE.md").read_text()
    assert place.conformance("verify", out / "report.json").returncode == 0

    ulp = place.packages / "coregrad_conformance" / "ulp.py"
    ulp.write_text(ulp.read_text() + "\n# a tolerance could have been changed here\n")
    done = place.conformance("run", "numpy", "--only", "xor/*", "--report", out, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert report(out)["verdict"]["provisional"] == [
        "coregrad-conformance 0.1.0: coregrad_conformance/ulp.py was changed after its installation"
    ]
