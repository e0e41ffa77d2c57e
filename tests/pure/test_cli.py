"""The command line: `devices`, and `doctor` beside broken plugins and a stranger's package."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from installed import ROOT, ZOO, Environment, Site

from coregrad import cli, config, doctor, plugins
from coregrad.ir.contract import contract_table

HASTY = "from coregrad import cli, plugins; plugins.PROBE_SECONDS = 6.0; "
# entry point, function, distribution, status, words of the detail
BROKEN = [
    ("importerr", "zoo_import_error:info", "warn", "a_driver_that_is_not_installed"),
    ("raises", "zoo_infos:raises", "fail", "ZeroDivisionError"),
    ("newminor", "zoo_infos:newer_minor", "fail", "contract 1.1"),
    ("missinghook", "zoo_infos:missing_hook", "fail", "lower_mul is missing"),
    ("nohardware", "zoo_infos:no_hardware", "warn", "no chip is plugged in"),
    ("aborts", "zoo_infos:aborts", "fail", "SIGABRT"),
    ("hangs", "zoo_infos:hangs", "fail", "no answer within 6 s"),
    ("forgetful", "zoo_infos:forgetful", "fail", "have changed"),
    ("healthy", "zoo_healthy:healthy_info", "fail", "a sum"),  # its hooks compute nothing
]


@dataclass
class Answer:
    """What a command printed as JSON, and how it ended."""

    code: int
    data: dict[str, Any]

    def rows(self, subject: str) -> list[dict[str, str]]:
        """The doctor's rows about one thing."""
        return [row for row in self.data["checks"] if row["subject"] == subject]

    def row(self, subject: str) -> dict[str, str]:
        """The doctor's only row about one thing."""
        (row,) = self.rows(subject)
        return row


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder of distributions for fresh processes."""
    return Site(tmp_path)


def examined(site: Site, **environment: str) -> Answer:
    """What the doctor says in a process that sees the site's distributions."""
    code = HASTY + "import sys; sys.exit(cli.main(['doctor', '--json']))"
    done = site.python(code, **environment)
    assert done.stderr == ""
    return Answer(done.returncode, json.loads(done.stdout))


# --- the doctor ---


def test_a_healthy_installation_has_no_complaint(site: Site, tmp_path: Path) -> None:
    answer = examined(
        site,
        COREGRAD_CACHE=str(tmp_path / "kernels"),
        COREGRAD_NUM_THREADS="1",
        COREGRAD_PLUGINS="cpu,numpy",  # others of ours may be installed, without their drivers
    )
    assert [r for r in answer.data["checks"] if r["status"] not in ("ok", "skip")] == []
    assert (answer.code, answer.data["ok"], answer.data["exit"]) == (0, True, 0)
    assert sys.version.split()[0] in answer.row("python")["detail"]
    for name in ("numpy", "pluggy", "coregrad-core"):
        assert answer.row(name)["detail"][0].isdigit()
    assert contract_table()["sha256"] in answer.row("contract")["detail"]
    assert answer.row("import name")["detail"] == str(ROOT / "coregrad" / "__init__.py")
    assert answer.row("cache")["detail"] == str(tmp_path / "kernels")
    assert answer.row("threads")["detail"].startswith("1, as COREGRAD_NUM_THREADS says")
    for name in ("cpu", "numpy"):
        assert "computed a sum in" in answer.row(f"device {name}")["detail"]
        assert "contract 1.0" in answer.row(f"device {name}")["detail"]
    assert answer.row("default")["detail"].startswith("cpu ")


def test_every_broken_plugin_is_a_row_and_the_others_are_tried(site: Site) -> None:
    for name, function, _, _ in BROKEN:
        site.install(f"acme-{name}", **{name: function})
    site.install("acme-twin", twin="zoo_healthy:healthy_info")
    site.install("emca-twin", twin="zoo_healthy:healthy_info")
    site.install("aaa-evil", cuda="zoo_import_error:info")
    site.install("acme-kept-out", keptout="zoo_infos:aborts")
    answer = examined(site, COREGRAD_PLUGINS="-keptout")
    assert answer.code == 1
    for name, _, status, words in BROKEN:
        row = answer.row(f"device {name}")
        assert (name, row["status"]) == (name, status), row
        assert words in row["detail"]
        assert f"acme-{name} 1.0" in row["detail"]
        assert bool(row["fix"]) == (status == "fail")
    assert "COREGRAD_PLUGINS=-hangs" in answer.row("device hangs")["fix"]
    for row in answer.rows("device twin"):
        assert row["status"] == "warn"
        assert "acme-twin and emca-twin both offer" in row["detail"]
    assert len(answer.rows("device twin")) == 2
    evil = "belongs to coregrad-cuda, but aaa-evil offers it"
    assert any(evil in row["detail"] for row in answer.rows("device cuda"))
    assert answer.row("device keptout")["status"] == "skip"
    assert answer.row("device cpu")["status"] == "ok"
    assert answer.row("default")["status"] == "ok"


def test_a_device_that_is_asked_for_and_absent_has_an_exit_code_of_its_own(site: Site) -> None:
    site.install("acme-raises", raises="zoo_infos:raises")
    answer = examined(site, COREGRAD_DEVICE="elsewhere", COREGRAD_PLUGINS="numpy,raises")
    assert (answer.code, answer.data["exit"]) == (2, 2)
    assert "elsewhere" in answer.row("default")["detail"]
    assert examined(site, COREGRAD_PLUGINS="numpy,raises").code == 1
    assert examined(site, COREGRAD_PLUGINS="numpy").code == 0


def test_without_any_device_the_doctor_says_so(site: Site) -> None:
    answer = examined(site, COREGRAD_PLUGINS="none")
    assert answer.code == 1
    assert answer.row("default")["status"] == "fail"
    assert answer.row("device cpu")["status"] == "skip"


def test_odd_settings_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COREGRAD_DEVCIE", "cpu")
    monkeypatch.setenv("COREGRAD_SIMT_CACHE", "")  # the emulation's own
    monkeypatch.setenv("COREGRAD_NUM_THREADS", "many")
    monkeypatch.setenv("COREGRAD_CACHE", str(blocked / "kernels"))
    settings = list(doctor._environment())
    assert [(c.status, c.fix) for c in settings] == [("ok", ""), ("warn", "unset COREGRAD_DEVCIE")]
    assert doctor._threads().status == "fail"
    assert "'many'" in doctor._threads().detail
    assert doctor._cache().status == "warn"
    assert "compiles its kernels anew" in doctor._cache().detail
    monkeypatch.setenv("COREGRAD_CACHE", "0")
    assert doctor._cache().status == "ok"
    for chosen, status in (("0", "fail"), ("1", "ok"), ("100000", "warn")):
        monkeypatch.setenv("COREGRAD_NUM_THREADS", chosen)
        assert doctor._threads().status == status


def test_the_report_is_lines_with_what_to_do_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [doctor.Check("cpu", "ok", "fine"), doctor.Check("a gpu", "fail", "broken", "mend it")]
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report(checks, 1))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "[ok]   cpu    fine",
        "[fail] a gpu  broken",
        "              -> mend it",
    ]


# --- devices ---


def test_devices_says_which_one_is_the_default_and_why(site: Site) -> None:
    code = "import sys; from coregrad import cli; sys.exit(cli.main(['devices']))"
    done = site.python(code, COREGRAD_DEVICE="numpy:0")
    assert done.stdout.splitlines()[-1] == "default: numpy (COREGRAD_DEVICE=numpy:0)"
    done = site.python(code, COREGRAD_DEVICE="elsewhere")
    assert done.stdout.splitlines()[-1].startswith("default: none: device 'elsewhere'")
    done = site.python(code)
    assert done.stdout.splitlines()[-1] == "default: cpu (the best rank that works: cpu)"


def test_devices_as_json_marks_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [plugins.Row("cpu", "coregrad-cpu", "1", "found"), plugins.Row("x", "y", "1", "found")]
    monkeypatch.setattr(plugins, "describe", lambda probe: rows)
    monkeypatch.setattr(plugins, "probe_default", lambda: ("cpu:1", "why"))
    assert cli.main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["default"]) for row in found] == [("cpu", True), ("x", False)]


def test_a_default_that_crashes_is_only_a_line(site: Site) -> None:
    site.install("coregrad-cuda", cuda="zoo_listed:crashing_info")
    done = site.python("import sys; from coregrad import cli; sys.exit(cli.main(['devices']))")
    assert done.returncode == 0
    assert "default: none: its process ended with signal SIGABRT" in done.stdout


def test_a_probe_tells_how_many_devices_there_are_and_what_they_lack(site: Site) -> None:
    site.install("acme-few", few="zoo_listed:few_info")
    code = "import json; from coregrad import cli; cli.main(['devices', '--probe', '--json'])"
    rows = {row["name"]: row for row in json.loads(site.python(code).stdout)}
    assert (rows["few"]["state"], rows["few"]["devices"]) == ("active", 2)
    assert rows["few"]["lacks"] == "bfloat16, float64"
    assert rows["cpu"]["lacks"] == ""
    row = plugins.Row(**{k: v for k, v in rows["few"].items() if k != "default"})
    assert row.words == "few numbers; ACME 100; 2 devices; no bfloat16, float64"


# --- a stranger's package of our import name ---


def diagnosed(there: Environment) -> Answer:
    """What the installed console script's doctor says."""
    code = "import sys, _coregrad_boot; sys.argv = ['coregrad', 'doctor', '--json']; "
    done = there.run("-c", code + "sys.exit(_coregrad_boot.main())", COREGRAD_PLUGINS="none")
    return Answer(done.returncode, json.loads(done.stdout))


@pytest.fixture(scope="module")
def core_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def strangers_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of another project whose distribution and package are called ``coregrad``."""
    path = tmp_path_factory.mktemp("stranger") / "coregrad-0.1.0-py3-none-any.whl"
    info = "coregrad-0.1.0.dist-info"
    content = {
        "coregrad/__init__.py": "class Value: pass\n",
        "coregrad/engine.py": "class Engine: pass\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: coregrad\nVersion: 0.1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in (content | {f"{info}/RECORD": record}).items():
            wheel.writestr(name, text)
    return path


def test_a_strangers_package_over_ours_is_found_and_the_remedy_helps(
    core_wheel: Path, strangers_wheel: Path, tmp_path: Path
) -> None:
    there = Environment(tmp_path / "env")
    there.install(core_wheel)
    own = diagnosed(there).row("import name")
    assert own["status"] == "ok", own
    assert str(there.packages) in own["detail"]

    there.install(strangers_wheel)
    answer = diagnosed(there)
    assert (answer.code, answer.data["ok"]) == (1, False)
    assert answer.row("import name")["status"] == "fail"
    assert "2 distributions: coregrad, coregrad-core" in answer.row("import name")["detail"]
    assert "uninstall --yes coregrad coregrad-core" in answer.row("import name")["fix"]
    assert answer.row("python")["status"] == "ok"
    assert answer.row("devices")["status"] == "skip"

    there.pip("uninstall", "--yes", "coregrad")
    answer = diagnosed(there)
    assert answer.code == 1
    assert "has lost its __init__.py" in answer.row("import name")["detail"]

    there.pip("uninstall", "--yes", "coregrad-core")
    there.install(core_wheel)
    assert diagnosed(there).row("import name")["status"] == "ok"

    with open(there.packages / "coregrad" / "engine.py", "a") as file:
        file.write("# one more line\n")
    row = diagnosed(there).row("import name")
    assert (row["status"], row["detail"]) == (
        "fail",
        "changed since it was installed: coregrad/engine.py",
    )


def test_the_templates_of_new_backends_are_in_the_wheel(core_wheel: Path) -> None:
    names = set(zipfile.ZipFile(core_wheel).namelist())
    templates = {f"coregrad/scaffold/{p.name}" for p in (ROOT / "coregrad/scaffold").iterdir()}
    assert len(templates) > 8
    assert templates <= names


def test_an_installed_wheel_writes_a_new_backend(core_wheel: Path, tmp_path: Path) -> None:
    there = Environment(tmp_path / "env")
    there.install(core_wheel)
    done = there.run("-m", "coregrad", "new-backend", "mychip", "--into", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "coregrad-mychip" / "src" / "coregrad_mychip" / "backend.py").is_file()


def test_the_report_shows_a_strangers_package_as_lines_too(
    tmp_path: Path, strangers_wheel: Path
) -> None:
    with zipfile.ZipFile(strangers_wheel) as wheel:
        wheel.extractall(tmp_path)
    (tmp_path / "_coregrad_boot.py").write_text((ROOT / "_coregrad_boot.py").read_text())
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        "import _coregrad_boot; sys.argv = ['coregrad', 'doctor']; sys.exit(_coregrad_boot.main())"
    )
    done = Site(tmp_path).python(code, (ZOO,))
    assert done.returncode == 1
    assert "[fail] import name" in done.stdout
    assert "-> run: python -m pip uninstall --yes coregrad coregrad-core" in done.stdout
