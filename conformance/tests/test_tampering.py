"""Nothing around a failing backend makes a certificate of its run.

The tricks are tried all at once; that each of them works outside the isolated runner is asserted
too, or the test would show nothing.
"""

import json
import sysconfig
from pathlib import Path

import pytest
from places import SOURCES, Place

SITECUSTOMIZE = """
import os, pathlib
with open(os.environ["EVIL_LOG"], "a") as log:
    log.write("sitecustomize\\n")
import coregrad_conformance.worker, coregrad_conformance.report, coregrad_conformance.oracle
from coregrad_conformance import result
from coregrad_conformance.row import Outcome
coregrad_conformance.worker.measure = lambda row, target: result.ended(row, "pass", compared=1)
coregrad_conformance.report.verdict = lambda report, found: {"passed": True, "certified": True}
coregrad_conformance.oracle.compare = lambda got, *rest: Outcome(got.size, 0.0)
"""
# Makes the first process believe whatever it likes: that it is isolated, and what came out.
BELIEVER = """
import sys, types
import coregrad_conformance.isolation as isolation
import coregrad_conformance.runner as runner
import coregrad_conformance.report as report
from coregrad_conformance.result import ended

class Session(runner.Session):
    def __iter__(self):
        yield from (ended(row, "pass", compared=1) for row in self.rows)

runner.Session = Session
report.verdict = lambda *rest: {"passed": True, "certified": True, "levels": {}, "provisional": []}
isolation.is_isolated = lambda: True
isolation.demand = lambda: None
real = sys.flags
sys.flags = types.SimpleNamespace(
    **{name: getattr(real, name) for name in dir(real) if name[0] != "_"} | {
        "isolated": 1, "no_site": 1,
    }
)
print("believed")
"""
# Without `site` nobody has read the environment's paths.
READABLE = f"sys.path += {[sysconfig.get_path('purelib'), sysconfig.get_path('platlib')]}; "
SHADOW = """
import os
with open(os.environ["EVIL_LOG"], "a") as log:
    log.write("the shadow of mpmath\\n")
"""
CONFTEST = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""
INI = "[pytest]\naddopts = -k 'not special'\npython_functions = test_waivers\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An environment with a plugin whose float32 sums are wrong."""
    place = Place(tmp_path_factory.mktemp("place") / "venv", *SOURCES)
    place.install_wrong_chip("float32")
    return place


@pytest.fixture(scope="module")
def tricks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that make Python, pytest, Hypothesis and coregrad do something else."""
    folder = tmp_path_factory.mktemp("evil")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (folder / "usercustomize.py").write_text(SITECUSTOMIZE)
    (folder / "mpmath.py").write_text(SHADOW)
    (folder / "evilplugin.py").write_text(CONFTEST)
    return {
        "PYTHONPATH": str(folder),
        "PYTHONOPTIMIZE": "2",
        "PYTHONINSPECT": "",
        "PYTHONWARNINGS": "ignore",
        "PYTEST_ADDOPTS": "--deselect=x",
        "PYTEST_PLUGINS": "evilplugin",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder),
        "COREGRAD_DEVICE": "numpy",
        "COREGRAD_FUSION": "0",
        "COREGRAD_REQUIRE": "",
        "DEBUG": "1",
        "EVIL_LOG": str(folder / "log.txt"),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the author's own pytest configuration."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(INI)
    (folder / "coregrad_conformance.py").write_text("print('PASSED')")
    return folder


@pytest.fixture(scope="module")
def tricked(place: Place, tricks: dict[str, str], folder: Path) -> Path:
    """What a full run of level core leaves, with every trick in place."""
    (folder / "coregrad_conformance.py").unlink()  # `-m` would run it instead of us
    done = place.conformance("run", "wrongchip", "--report", "out", cwd=folder, env=tricks)
    assert done.returncode == 1, done.stdout + done.stderr
    return folder / "out"


def test_the_tricks_work_outside_the_runner(
    place: Place, tricks: dict[str, str], tricked: Path, folder: Path
) -> None:
    log = Path(tricks["EVIL_LOG"]).read_text()
    assert "the shadow of mpmath" in log
    assert "sitecustomize" in log  # both ran in the process that starts the isolated one
    arguments = ("--pyargs", "coregrad_conformance", "--coregrad-backend", "wrongchip")
    quick = ("-p", "no:cacheprovider", "-q", "-k", "add and float32 and special")
    plain = place.run(
        "-m", "pytest", "-c", folder / "none.ini", *quick, *arguments, cwd=folder.parent
    )
    assert plain.returncode != 0, plain.stdout
    fooled = place.run("-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments, cwd=folder)
    assert fooled.returncode in (0, 5), fooled.stdout  # a run of pytest can be talked into it


def test_a_failing_run_makes_no_certificate(tricked: Path) -> None:
    assert sorted(path.name for path in tricked.iterdir()) == [
        "REPORT.html",
        "REPORT.md",
        "badge.json",
        "report.json",
    ]
    found = json.loads((tricked / "report.json").read_text())
    assert not found["verdict"]["passed"]
    statuses = {result["id"]: result["status"] for result in found["results"]}
    assert statuses["add/float32/special-pairs"] == "fail"
    assert statuses["add/int32/special-pairs"] == "pass"
    assert json.loads((tricked / "badge.json").read_text())["color"] == "red"


@pytest.mark.parametrize("optimize", ["", "2"])
def test_a_first_process_that_believes_itself_isolated_judges_nothing(
    place: Place, tmp_path: Path, optimize: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BELIEVER)
    evil = {"PYTHONPATH": str(tmp_path), "PYTHONOPTIMIZE": optimize}
    rows = ("--only", "add/float32/special-pairs", "--report", "out")
    done = place.conformance("run", "wrongchip", *rows, cwd=tmp_path, env=evil)
    assert "believed" in done.stdout  # the trick was there
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [result["status"] for result in found["results"]] == ["fail"]


def test_what_judges_refuses_a_process_that_is_not_isolated(place: Place) -> None:
    code = "from coregrad_conformance import judging; judging.main(['run', 'wrongchip'])"
    for options in (("-c",), ("-I", "-c"), ("-I", "-S", "-O", "-c")):
        paths = f"import sys; sys.path += {[str(p) for p in (place.packages, *SOURCES)]}; "
        done = place.run(*options, paths + READABLE + code)
        assert done.returncode == 1
        assert "this Python is not isolated" in done.stderr


def test_variables_that_were_taken_away_are_not_in_the_report(tricked: Path) -> None:
    found = json.loads((tricked / "report.json").read_text())
    assert set(found["environment"]) & {"COREGRAD_FUSION", "COREGRAD_DEVICE"} == set()


def test_a_forged_report_is_found_by_running_its_rows_again(
    place: Place, tricks: dict[str, str], tmp_path: Path
) -> None:
    """A report of which everything fits is believed by `verify`, and not by `verify --rerun`."""
    only = ("--only", "add/float32/*")
    done = place.conformance("run", "wrongchip", *only, "--report", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    forge = (
        "import json, sys; from pathlib import Path\n"
        "from coregrad_conformance import publication, report\n"
        "folder = Path(sys.argv[1])\n"
        "data = json.loads((folder / 'report.json').read_text())\n"
        "for result in data['results']:\n"
        "    result.update(status='pass', compared=99)\n"
        "data |= report.derived(data)\n"
        "publication.retract(folder)\n"
        "publication.publish(folder, data)\n"
    )
    assert place.run("-c", forge, tmp_path).returncode == 0
    path = tmp_path / "report.json"
    done = place.conformance("verify", path)
    assert "consistent, but filtered (--only add/float32/*)" in done.stdout, done.stderr
    done = place.conformance("verify", "--rerun", path, env=tricks)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the report says pass, running it here gives fail" in done.stdout


def test_a_module_of_the_working_directory_does_not_shadow_the_suite(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "coregrad_conformance.py").write_text("raise SystemExit('a shadow')")
    (tmp_path / "numpy.py").write_text("raise SystemExit('a shadow')")
    command = ("-I", "-m", "coregrad_conformance", "run", "wrongchip", "--only", "xor/*")
    done = place.run(*command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
