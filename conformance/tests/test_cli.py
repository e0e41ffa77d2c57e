"""The commands: what they print and how they exit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coregrad_conformance import cli
from coregrad_conformance.rows import all_rows


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "coregrad_conformance", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def here(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


# --- run ---


def test_a_run_writes_a_report_and_says_what_it_found(core_run: Path) -> None:
    found = json.loads((core_run / "report.json").read_text())
    assert found["verdict"]["passed"]
    assert found["verdict"]["levels"] == {"core": True}
    assert found["command"][:3] == ["coregrad-conformance", "run", "numpy"]
    assert {r["id"] for r in found["results"]} == {row.id for row in all_rows("core")}
    assert found["contract"]["version"] == "1.0"
    assert found["backend"]["entry_point"] == "coregrad_cpu:numpy_info"
    assert len((core_run / "report.json").read_bytes()) < 5_000_000


def test_a_filtered_run_passes_and_is_no_certificate(tmp_path: Path) -> None:
    done = run("run", "numpy", "--only", "add/int32/*", "--report", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "not a certificate" in done.stdout
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["REPORT.html", "REPORT.md", "badge.json", "report.json"]
    checked = run("verify", tmp_path / "out" / "report.json")
    assert checked.returncode == 1, checked.stdout
    total = len(all_rows("core"))
    few = sum(row.id.startswith("add/int32/") for row in all_rows("core"))
    assert f"filtered (--only add/int32/*): {few} of the {total} rows of core" in checked.stdout
    assert "no certificate" in checked.stdout
    assert "accounted for" not in checked.stdout


def test_a_run_without_a_report_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("run", "numpy", "--only", "add/int32/random").returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_find_what_one_finds(tmp_path: Path) -> None:
    only = ("--only", "mul/*")
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("run", "numpy", *only, "--report", one).returncode == 0
    assert run("run", "numpy", *only, "--jobs", 2, "--report", two).returncode == 0
    done = run("diff", one / "report.json", two / "report.json")
    assert (done.returncode, done.stdout) == (0, "")


def test_an_unknown_device_is_a_mistake_of_use(tmp_path: Path) -> None:
    (tmp_path / "CERTIFICATE.md").write_text("of an earlier run")
    done = run("run", "nosuchchip", "--report", tmp_path)
    assert done.returncode == 2
    assert "choose one of" in done.stderr
    assert list(tmp_path.iterdir()) == []  # nothing that could be taken for this run's result


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "numpy", "--level", "gold"),
        ("run", "numpy", "--jobs", "0"),
        ("run", "numpy", "--timeout", "-1"),
        ("run", "numpy", "--only", "no/such/*"),
        ("run", "numpy", "--fault", "add-off-by-one"),
        ("explain", "no/such/row"),
        ("repro", "no/such/row", "numpy"),
        ("repro", "add/int32/random", "nosuchchip"),
        ("verify", "no-such-file.json"),
        ("diff", "no-such-file.json", "no-such-file.json"),
        ("export", "x", "--only", "no/such/*"),
        (),
        ("dance",),
    ],
)
def test_a_mistake_of_use_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr
    assert "Traceback" not in done.stderr


# --- list, explain, repro ---


def test_list_names_every_row_of_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert here("list", "--level", "standard", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == [row.id for row in all_rows("standard")]
    assert here("list", "--only", "exp/float32/*") == 0
    assert all(line.startswith("exp/float32/") for line in capsys.readouterr().out.splitlines())


def test_rows_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    rows = all_rows("extended")
    for row in {row.group: row for row in rows}.values():
        assert here("explain", row.id) == 0
        text = capsys.readouterr().out
        assert row.summary in text
        assert "Tolerance: " in text


def test_explain_names_the_tolerance_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    here("explain", "exp/float32/random")
    text = capsys.readouterr().out
    assert "4.0 ulp of float32" in text
    assert "contract.json" in text
    assert "e to the x" in text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("programs/smooth/03", "0.0001 of the largest value"),
        ("programs/integers/03", "none: every value is equal"),
        ("gradients/mul", "0.0002 of the largest value"),
        ("training/adam", "1e-05 of the first loss, 0.001 of the later ones"),
        ("draws/normal/float64", "1e-12 of the largest number"),
        ("draws/uniform/float64", "none: every value is equal"),
        ("functions/exp2/float16", "1 ulp of float16"),
        ("tensors/float32/matmul-small", "any order of a float sum"),
        ("reduce/add/float32/random", "any order of a float sum"),
        ("tensors/copy", "none: every value is equal"),
    ],
)
def test_explain_names_the_tolerance_of_rows_about_no_op_too(
    row: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here("explain", row) == 0
    assert words in capsys.readouterr().out


def test_an_unknown_row_has_suggestions(capsys: pytest.CaptureFixture[str]) -> None:
    assert here("explain", "exp/float32/randon") == 2
    assert "did you mean exp/float32/random" in capsys.readouterr().err


def test_repro_prints_a_script_that_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert here("repro", "add/int32/random", "numpy") == 0
    text = capsys.readouterr().out
    script, _, end = text.rpartition("\npassed: ")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == end.strip()


def test_repro_of_a_failing_row_shows_the_whole_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fakes

    from coregrad_conformance import rows

    monkeypatch.setattr(rows, "all_rows", fakes.rows)
    assert here("repro", "fake/wrong", "numpy") == 1
    text = capsys.readouterr().out
    assert "in wrong" in text
    assert "got 2.0, expected 1.0" in text


# --- reports ---


def test_verify_and_diff_exit_with_1_for_what_does_not_hold(core_run: Path, tmp_path: Path) -> None:
    good = core_run / "report.json"
    bad = tmp_path / "report.json"
    bad.write_text(good.read_text().replace('"status": "pass"', '"status": "fail"', 1))
    assert run("verify", good).returncode == 0
    done = run("verify", bad)
    assert done.returncode == 1
    assert "do not hold" in done.stdout
    assert run("diff", good, bad).returncode == 1


def test_verify_can_run_the_rows_again(tmp_path: Path) -> None:
    only = ("--only", "xor/*")
    assert run("run", "numpy", *only, "--report", tmp_path).returncode == 0
    path = tmp_path / "report.json"
    again = run("verify", "--rerun", path)
    assert again.returncode == 1
    assert "consistent, but filtered" in again.stdout  # all of it holds, and it is not all
    text = path.read_text()
    path.write_text(text.replace('"status": "pass"', '"status": "fail"', 1))
    done = run("verify", "--rerun", path)
    assert done.returncode == 1
    assert "the report says fail, running it here gives pass" in done.stdout


# --- export ---


def test_exported_vectors_are_what_numpy_computes(tmp_path: Path) -> None:
    assert here("export", tmp_path, "--only", "add/*") == 0
    index = json.loads((tmp_path / "index.json").read_text())
    arrays = np.load(tmp_path / "add.npz")
    entries = [e for e in index["vectors"] if e["dtype"] in ("int32", "float32")]
    assert len(entries) >= 4
    for entry in entries:
        a, b, out = (arrays[entry["arrays"][name]] for name in ("in0", "in1", "out"))
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(a + b, out)
        assert entry["tolerance"] == 0.0
        assert "add" in entry["kernel"]


def test_vectors_in_json_hold_the_same_bits(tmp_path: Path) -> None:
    chosen = ("--only", "exp/float32/*")
    (tmp_path / "a").mkdir()
    assert here("export", tmp_path / "a", *chosen) == 0
    assert here("export", tmp_path / "b", "--format", "json", *chosen) == 0
    arrays = np.load(tmp_path / "a" / "exp.npz")
    words = json.loads((tmp_path / "b" / "exp.json").read_text())
    assert set(words) == set(arrays)
    for name, bits in words.items():
        assert arrays[name].view(f"u{arrays[name].itemsize}").tolist() == bits
    index = json.loads((tmp_path / "b" / "index.json").read_text())
    assert {entry["tolerance"] for entry in index["vectors"]} == {4.0}


def test_the_oracle_judges_again_after_an_export(tmp_path: Path) -> None:
    from coregrad_conformance import oracle

    before = oracle.compare
    here("export", tmp_path, "--only", "add/int32/*")
    assert oracle.compare is before
