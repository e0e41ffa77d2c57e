"""The runner: every row has an end, whatever the backend does to the process."""

import os
import signal
import time
from pathlib import Path

import fakes
import pytest

from coregrad_conformance import isolation, runner
from coregrad_conformance.result import Result
from coregrad_conformance.runner import Lost, Options, Spec

LAUNCHES = [
    "process",
    pytest.param("fork", marks=pytest.mark.skipif(os.name != "posix", reason="no fork")),
]
FAKE = Spec("numpy", rows="fakes:rows", path=(fakes.HERE,))
QUICK = Spec("numpy", rows="fakes:quick", path=(fakes.HERE,))


def options(launch: str = "process", **more: object) -> Options:
    return Options(launch=launch, sync=False, **{"timeout": 3.0, **more})


@pytest.fixture(scope="module", params=LAUNCHES)
def finished(request: pytest.FixtureRequest) -> runner.Run:
    """All fake rows, run once each way."""
    return runner.run(fakes.rows(), FAKE, options(request.param))


def by_id(run: runner.Run) -> dict[str, Result]:
    return {result.id: result for result in run.results}


def test_every_row_ends_as_it_should(finished: runner.Run) -> None:
    assert {result.id: result.status for result in finished.results} == fakes.ENDS


def test_results_come_in_the_order_of_the_rows(finished: runner.Run) -> None:
    assert [result.id for result in finished.results] == list(fakes.ENDS)


def test_a_result_says_what_happened(finished: runner.Run) -> None:
    found = by_id(finished)
    good = found["fake/good"]
    assert (good.compared, good.ulp, good.worst) == (3, 0.25, "x=1.5")
    assert found["fake/leaking"].kind == "leak"
    assert found["fake/raising"].exception == "IndexError"
    assert "fakes.py" in found["fake/raising"].detail
    assert found["fake/leaving"].exception == "SystemExit"
    assert "SIGSEGV" in found["fake/crashing"].detail
    assert "in crashing" in found["fake/crashing"].detail  # the Python stack of the crash
    assert "exit code 0" in found["fake/exiting"].detail
    assert "3 s" in found["fake/hanging"].detail
    assert found["fake/infinite"].ulp is None  # JSON has no infinity


@pytest.mark.skipif(os.name != "posix", reason="no fork")
def test_a_crash_is_one_where_a_library_handles_the_signal() -> None:
    """Compilers install handlers that swallow it, and a forked worker inherits them."""
    before = signal.signal(signal.SIGSEGV, signal.SIG_IGN)
    try:
        run = runner.run(
            [r for r in fakes.rows() if r.id == "fake/crashing"], FAKE, options("fork")
        )
    finally:
        signal.signal(signal.SIGSEGV, before)
    assert [result.status for result in run.results] == ["crash"]


def test_no_machine_path_is_in_a_detail(finished: runner.Run) -> None:
    raised = [r for r in finished.results if r.kind == "exception"]
    assert raised
    assert [r.id for r in raised if str(Path(__file__).parent) in r.detail] == []


def test_the_device_is_described(finished: runner.Run) -> None:
    device = finished.device
    assert device["name"] == "numpy"
    assert device["distribution"] == "coregrad-cpu"
    assert "float32" in device["limits"]["dtypes"]


def test_two_workers_find_the_same() -> None:
    one = runner.run(fakes.quick(), QUICK, options())
    two = runner.run(fakes.quick(), QUICK, options(jobs=2))
    assert [(r.id, r.status, r.detail) for r in one.results if r.id != "fake/last"] == [
        (r.id, r.status, r.detail) for r in two.results if r.id != "fake/last"
    ]


def test_a_run_can_end_early() -> None:
    run = runner.run(fakes.quick(), QUICK, options(until=lambda r: r.status == "fail"))
    assert [r.status for r in run.results] == ["pass", "pass", "fail"]


def test_each_result_is_told_when_its_row_ends() -> None:
    seen: list[str] = []
    run = runner.run(fakes.quick(), QUICK, options(seen=lambda r: seen.append(r.id)))
    assert seen == [r.id for r in run.results]


def test_no_rows_give_no_results() -> None:
    assert runner.run([], QUICK, options()).results == []


# --- the environment of a worker ---


def test_a_worker_sees_no_variable_that_could_change_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = ("PYTHONPATH", "PYTEST_ADDOPTS", "HYPOTHESIS_X", "COREGRAD_FUSION", "COREGRAD_DEVICE")
    for name in foreign:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("COREGRAD_NUM_THREADS", "1")
    rows = [row for row in fakes.quick() if row.id == "fake/last"]
    for launch in ("process", "fork"):
        (result,) = runner.run(rows, QUICK, options(launch)).results
        names = result.detail.splitlines()
        assert [name for name in foreign if name in names] == []
        assert "COREGRAD_NUM_THREADS" in names
        assert "COREGRAD_CACHE" in names  # a new one, with no kernel in it
        assert "cwd []" in names


def test_variables_that_may_matter_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_NUM_THREADS", "1")
    monkeypatch.setenv("COREGRAD_FUSION", "0")
    assert isolation.recorded()["COREGRAD_NUM_THREADS"] == "1"
    assert "COREGRAD_FUSION" not in isolation.recorded()
    assert "COREGRAD_FUSION" in isolation.removed()


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_what_a_hung_row_has_started_is_ended_with_it() -> None:
    rows = [row for row in fakes.rows() if row.id == "fake/hanging"]
    runner.run(rows, FAKE, options(timeout=1.0))
    time.sleep(0.1)
    assert not any(_sleeps(folder) for folder in Path("/proc").glob("[0-9]*"))


def _sleeps(folder: Path) -> bool:
    try:
        words = (folder / "cmdline").read_bytes()
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return b"time.sleep(300)" in words and state != "Z"


# --- devices that do not open ---


@pytest.mark.parametrize("launch", LAUNCHES)
def test_an_unknown_device_is_absent(launch: str) -> None:
    with pytest.raises(Lost, match="choose one of") as caught:
        runner.run(
            fakes.quick(),
            Spec("nosuchchip", rows="fakes:quick", path=(fakes.HERE,)),
            options(launch),
        )
    assert caught.value.absent


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_backend_that_breaks_the_contract_is_not_absent_but_wrong(launch: str) -> None:
    with pytest.raises(Lost, match="lower_add is missing") as caught:
        runner.run(fakes.quick(), handed("broken"), options(launch))
    assert not caught.value.absent


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_device_that_crashes_when_it_is_opened_is_lost(launch: str) -> None:
    with pytest.raises(Lost, match=r"could not be opened.*SIGKILL"):
        runner.run(fakes.quick(), handed("dying"), options(launch))


def test_a_device_that_does_not_open_again_ends_the_run(tmp_path: Path) -> None:
    rows = [row for row in fakes.rows() if row.id in ("fake/exiting", "fake/good", "fake/last")]
    spec = handed("fragile", str(tmp_path / "opened"), rows="fakes:rows")
    run = runner.run(rows, spec, options())
    assert [(r.id, r.status) for r in run.results] == [
        ("fake/good", "pass"),
        ("fake/exiting", "crash"),
        ("fake/last", "crash"),
    ]
    assert "not run" not in by_id(run)["fake/exiting"].detail


def test_after_many_deaths_the_rest_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GIVE_UP", 3)
    run = runner.run(fakes.crashes(), Spec("numpy"), options("fork"))
    assert [r.status for r in run.results] == ["crash"] * 6
    assert ["not run" in r.detail for r in run.results] == [False] * 3 + [True] * 3


# --- backends without packaging ---


def handed(factory: str, argument: str = "", rows: str = "fakes:quick") -> Spec:
    return Spec("ref", f"fakes:{factory}", argument, rows, (fakes.HERE,))


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_backend_made_in_the_worker_is_tested_under_its_name(launch: str) -> None:
    run = runner.run(fakes.quick(), handed("reference"), options(launch))
    assert run.device["name"] == "ref"
    assert by_id(run)["fake/good"].status == "pass"


@pytest.mark.parametrize("launch", LAUNCHES)
def test_rows_of_the_suite_find_a_wrong_sum(launch: str) -> None:
    rows = [row for row in runner_rows() if row.id == "add/float32/special-pairs"]
    spec = Spec("ref", "fakes:off_by_one", "1e30", path=(fakes.HERE,))
    (result,) = runner.run(rows, spec, options(launch)).results
    assert (result.status, result.kind) == ("fail", "value")
    right = Spec("ref", "fakes:reference", path=(fakes.HERE,))
    (result,) = runner.run(rows, right, options(launch)).results
    assert result.status == "pass"


def runner_rows() -> list[object]:
    from coregrad_conformance.rows import all_rows

    return all_rows("core")


def test_only_an_installed_backend_against_all_rows_is_not_internal() -> None:
    assert not Spec("cpu").internal
    assert Spec("cpu", rows="fakes:rows").internal
    assert Spec("cpu", factory="fakes:reference").internal
    assert Spec("cpu", path=("x",)).internal
