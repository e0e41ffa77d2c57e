"""Finding, refusing, opening and describing plugins, with a zoo of broken ones (tests/zoo)."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import ZOO, Site

from coregrad import activation, cli, config, plugins
from coregrad.errors import BackendUnavailable, ContractError, DeviceError
from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo, BackendSpec
from coregrad.ir.ops import CONTRACT_OPS

# entry point, function, state, words of its reason
BROKEN = [
    ("importerr", "zoo_import_error:info", "unavailable", ["a_driver_that_is_not_installed"]),
    ("raises", "zoo_infos:raises", "failed", ["ZeroDivisionError", "per driver"]),
    ("exits", "zoo_infos:exits", "failed", ["SystemExit", "thinks that it is a program"]),
    ("noinfo", "zoo_infos:no_info", "failed", ["must return a BackendInfo"]),
    ("nofunction", "zoo_infos:not_there", "failed", ["AttributeError", "not_there"]),
    ("othername", "zoo_infos:other_name", "failed", ["'othername'", "'somebody'"]),
    ("oddrank", "zoo_infos:odd_rank", "failed", ["'best of all'", "gpu, cpu, software"]),
    ("oddimpl", "zoo_infos:odd_impl", "failed", ["package.module:Class"]),
    ("oldmajor", "zoo_infos:older_major", "incompatible", ["contract 0.0", "upgrade the plugin"]),
    ("newminor", "zoo_infos:newer_minor", "incompatible", ["contract 1.1", "coregrad-core"]),
    ("nomodule", "zoo_infos:no_module", "failed", ["its own code", "zoo_not_there"]),
    ("halfmodule", "zoo_infos:half_module", "failed", ["its own code", "forgotten"]),
    ("noclass", "zoo_infos:no_class", "failed", ["zoo_healthy has no Bakend"]),
    ("nodriver", "zoo_infos:no_driver", "unavailable", ["acme_driver", "the driver of ACME"]),
    ("missinghook", "zoo_infos:missing_hook", "failed", ["lower_mul is missing"]),
    ("wrongarg", "zoo_infos:wrong_argument", "failed", ["lower_add", "frame, x, y", "frame, a, b"]),
    ("undecorated", "zoo_infos:forgotten_decorator", "failed", ["lower_add", "@hookimpl"]),
    ("initraises", "zoo_infos:init_raises", "failed", ["KeyError", "CHIP_HOME"]),
    ("nohardware", "zoo_infos:no_hardware", "unavailable", ["no chip is plugged in"]),
    ("halfdevice", "zoo_infos:half_device", "failed", ["copy_in(buffer, data) is missing"]),
]
# These only show when the device is opened, and would take a process with them.
DEADLY = [
    ("forgetful", "zoo_infos:forgetful", "failed", ["have changed"]),
    ("aborts", "zoo_infos:aborts", "failed", ["SIGABRT", "COREGRAD_PLUGINS=-aborts"]),
    ("hangs", "zoo_infos:hangs", "failed", ["no answer within"]),
    ("slow", "zoo_slow_import:info", "failed", ["no answer within"]),
]
REQUIRED = sorted(set(CONTRACT_OPS) - activation.OPTIONAL)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin_registry: None) -> Iterator[Site]:
    """An empty folder of distributions, first on this process's path; a fresh registry."""
    for variable in config.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(ZOO)
    monkeypatch.syspath_prepend(tmp_path)
    return Site(tmp_path)


@pytest.fixture
def only_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """As ``site``, and nothing else is installed."""
    found = plugins._distributions

    def of_site() -> Iterator[object]:
        return (d for d in found() if str(site.folder) in str(d.locate_file("")))

    monkeypatch.setattr(plugins, "_distributions", of_site)
    return site


def row_of(name: str, rows: list[plugins.Row]) -> plugins.Row:
    return next(row for row in rows if row.name == name)


# --- names ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("healthy", "healthy"),
        ("healthy:0", "healthy"),
        ("HEALTHY:0", "healthy"),
        ("Healthy:1", "healthy:1"),
        ("healthy:01", "healthy:1"),
    ],
)
def test_a_device_has_one_spelling(only_site: Site, name: str, expected: str) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    assert plugins.canonical(name) == expected
    assert plugins.canonical(name) == expected


@pytest.mark.parametrize(
    "name", ["", ":", "healthy:", "healthy:x", "healthy:-1", "he althy", 0, None]
)
def test_a_name_of_another_form_is_refused(only_site: Site, name: object) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    with pytest.raises(DeviceError, match="not a name; write it like 'cpu', 'cuda' or 'cuda:1'"):
        plugins.canonical(name)  # type: ignore[arg-type]


def test_an_unknown_name_lists_the_choices(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    only_site.install("coregrad-cpu", cpu="zoo_healthy:cpu_info")
    with pytest.raises(DeviceError, match="device 'cuba' is unknown; choose one of: cpu, healthy"):
        plugins.canonical("cuba")


@pytest.mark.parametrize("name", ["cpu", "numpy", "opencl", "cuda", "metal"])
def test_a_device_of_ours_that_is_not_installed_names_its_distribution(
    only_site: Site, name: str
) -> None:
    distribution = "coregrad-cpu" if name == "numpy" else f"coregrad-{name}"
    for ask in (plugins.canonical, plugins.open_device):
        with pytest.raises(BackendUnavailable, match=f"pip install {distribution}$"):
            ask(name)


def test_without_any_backend_the_error_says_what_to_install(only_site: Site) -> None:
    with pytest.raises(BackendUnavailable, match="pip install coregrad-cpu"):
        plugins.default()
    with pytest.raises(BackendUnavailable, match="pip install coregrad-cpu"):
        plugins.open_device("npu")
    assert plugins.describe() == []
    assert plugins.named_only() == []


def test_where_only_plugins_of_others_are_installed_the_error_says_how_to_name_one(
    only_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    wanted = "healthy is installed, but .* used only where it is named; set COREGRAD_DEVICE=healthy"
    with pytest.raises(BackendUnavailable, match=wanted):
        plugins.default()
    assert plugins.named_only() == ["healthy"]
    monkeypatch.setenv("COREGRAD_PLUGINS", "healthy")
    plugins._registry = plugins.Registry()
    assert plugins.default() == "healthy"
    assert plugins.named_only() == []


# --- opening ---


def test_an_opened_device_has_its_hooks_frozen_to_functions(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    active = plugins.open_device("healthy")
    assert active.name == "healthy"
    assert active.info.name == "healthy"
    assert active.hooks.style == "render"
    assert sorted(active.hooks.functions) == sorted({*REQUIRED, "sqrt"})
    assert active.hooks["add"](None, "x", "y", None, 1) == ("add", "x", "y")
    assert active.hooks["add"].__self__ is active.backend  # type: ignore[attr-defined]
    assert "exp" not in active.hooks


def test_a_device_is_opened_once(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    first = plugins.open_device("healthy")
    assert plugins.open_device("HEALTHY:0") is first
    second = plugins.open_device("healthy:1")
    assert second.device is not first.device
    assert second.backend is first.backend


def test_threads_that_open_one_device_get_one(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    start = threading.Barrier(8)
    opened = []

    def run() -> None:
        start.wait()
        opened.append(plugins.open_device("healthy"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 8
    assert len({id(active) for active in opened}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_opens_devices_while_a_thread_of_its_parent_does(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    code = (
        "import os, signal, threading, warnings; from coregrad import plugins\n"
        "warnings.simplefilter('ignore')\n"  # newer Pythons warn of forks beside threads
        "held, done = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with plugins._registry._lock: held.set(); done.wait()\n"
        "threading.Thread(target=hold).start(); held.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(20)\n"
        "    os._exit(plugins.open_device('healthy').name != 'healthy')\n"
        "done.set(); print(os.waitpid(child, 0)[1])\n"
    )
    done = only_site.python(code)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_index_beyond_the_last_device_is_no_news_of_the_others(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    plugins.open_device("healthy")
    with pytest.raises(BackendUnavailable, match=r"healthy:7 does not exist; .* 2 device"):
        plugins.open_device("healthy:7")
    assert row_of("healthy", plugins.describe()).state == "active"
    assert plugins.open_device("healthy:1").name == "healthy:1"


def test_a_backend_can_be_registered_without_packaging(only_site: Site) -> None:
    info = BackendInfo("mine", CONTRACT_VERSION, "zoo_healthy:Backend", "cpu")
    plugins.register(info)
    assert plugins.open_device("mine").info is info
    with pytest.raises(DeviceError, match="already offers 'mine'"):
        plugins.register(info)
    plugins.unregister("mine")
    with pytest.raises(DeviceError, match="'mine'"):
        plugins.open_device("mine")
    with pytest.raises(DeviceError, match="not registered"):
        plugins.unregister("mine")
    plugins.register(info)
    assert row_of("mine", plugins.describe(probe=True)).state == "active"


def test_an_installed_plugin_cannot_be_unregistered(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    with pytest.raises(DeviceError, match="not registered"):
        plugins.unregister("healthy")


# --- the zoo ---


@pytest.mark.parametrize(("name", "function", "state", "words"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_plugin_that_is_asked_for_says_why_every_time(
    only_site: Site, name: str, function: str, state: str, words: list[str]
) -> None:
    only_site.install(f"acme-{name}", **{name: function})
    for _ in range(2):
        with pytest.raises((BackendUnavailable, ContractError)) as caught:
            plugins.open_device(name)
        message = str(caught.value)
        assert message.startswith(f"{name} (plugin acme-{name} 1.0): ")
        assert [word for word in words if word not in message] == []
    row = row_of(name, plugins.describe())
    assert (row.distribution, row.version, row.state) == (f"acme-{name}", "1.0", state)
    assert [word for word in words if word not in row.reason] == []


def test_a_probe_shows_every_broken_plugin_and_survives_it(
    only_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [b for b in BROKEN if b[0] in ("importerr", "missinghook", "nohardware")]
    for name, function, _, _ in some + DEADLY:
        only_site.install(f"acme-{name}", **{name: function})
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    only_site.install("acme-chatty", chatty="zoo_infos:chatty")
    monkeypatch.setattr(plugins, "PROBE_SECONDS", 4.0)
    rows = plugins.describe(probe=True)
    assert len(rows) == len(some) + len(DEADLY) + 2
    for name, _, state, words in some + DEADLY:
        row = row_of(name, rows)
        assert (name, row.state) == (name, state)
        assert [word for word in words if word not in row.reason] == []
    assert row_of("healthy", rows).state == "active"
    assert row_of("chatty", rows).state == "active"
    assert "zoo_slow_import" not in sys.modules


def test_a_zoo_of_broken_plugins_leaves_a_cpu_user_alone(site: Site) -> None:
    for name, function, _, _ in BROKEN + DEADLY:
        site.install(f"acme-{name}", **{name: function})
    site.install("coregrad-cpu", cpu="zoo_healthy:cpu_info", numpy="zoo_healthy:numpy_info")
    code = (
        "import sys; from coregrad import plugins\n"
        "assert plugins.default() == 'cpu', plugins.default()\n"
        "assert plugins.open_device('cpu').info.summary == 'a stand-in'\n"
        "zoo = [m for m in sys.modules if m.startswith('zoo_')]\n"
        "assert zoo == ['zoo_healthy'], zoo\n"
        "print(len(plugins._registry.plugins))"
    )
    for wish in ("", "cpu"):
        start = time.perf_counter()
        done = site.python(code, COREGRAD_DEVICE=wish)
        assert (done.returncode, done.stderr) == (0, "")
        assert int(done.stdout) >= len(BROKEN + DEADLY) + 2
        assert time.perf_counter() - start < 30  # the slow one sleeps a minute


def test_unreadable_entry_points_of_one_distribution_hide_no_other(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    only_site.install("acme-broken")
    (only_site.folder / "acme_broken-1.0.dist-info" / "entry_points.txt").write_bytes(b"[\xff\xfe]")
    assert plugins.open_device("healthy").name == "healthy"
    row = row_of("-", plugins.describe())
    assert row.distribution == "acme-broken"
    assert "entry_points.txt cannot be read" in row.reason


def test_all_breaches_of_the_contract_are_listed_at_once(only_site: Site) -> None:
    only_site.install("acme-everything", everything="zoo_infos:everything_wrong")
    with pytest.raises(ContractError) as caught:
        plugins.open_device("everything")
    message = str(caught.value)
    for expected in (
        "style is 'lazy'; it must be 'render' or 'eager'",
        "open_device(index) is missing",
        "device_count(among) must accept ()",
        "lower_xor: is no method",
        "lower_or: is no method",
        "lower_add: takes *args, **kwargs; name the arguments: (frame, a, b, dtype, lanes)",
        "lower_mul: takes (frame, b, a, dtype, lanes); it must take (frame, a, b, dtype, lanes)",
        "lower_div: gives lanes a default",
        "lower_idiv: is async",
        "lower_mod: is a generator",
        "lower_lt: makes lanes keyword-only",
        "lower_exponent: the contract has no such hook",
        "render_add: has @hookimpl, but the contract has no such hook; did you mean lower_add?",
        "lower_max: uses pluggy's trylast",
    ):
        assert expected in message
    assert message.count("\n  - ") == 14


def test_a_good_backend_has_no_breaches(site: Site) -> None:
    import zoo_healthy

    assert activation.check_backend(zoo_healthy.Backend()) == []
    assert activation.check_device(zoo_healthy.Device("x")) == []
    assert activation.check_frame(zoo_healthy.Frame()) == []


@pytest.mark.parametrize("op", sorted(CONTRACT_OPS))
def test_every_required_hook_is_missed(site: Site, op: str) -> None:
    import zoo_backends

    problems = activation.check_backend(zoo_backends.without(f"lower_{op}")())
    optional = op in ("exp", "log", "sin", "sqrt", "trunc")
    assert problems == ([] if optional else [f"lower_{op} is missing, and it is required"])


def test_optional_hooks_are_hooks_of_the_contract() -> None:
    assert set(CONTRACT_OPS) > activation.OPTIONAL
    assert all(hasattr(BackendSpec, f"lower_{op}") for op in activation.OPTIONAL)


# --- refusing ---


def test_a_reserved_name_belongs_to_its_distribution(only_site: Site) -> None:
    only_site.install("aaa-evil", cpu="zoo_import_error:info", metal="zoo_import_error:info")
    only_site.install("coregrad-cpu", cpu="zoo_healthy:cpu_info")
    assert plugins.open_device("cpu").info.summary == "a stand-in"
    with pytest.raises(BackendUnavailable, match=r"aaa-evil 1.0.*coregrad-metal"):
        plugins.open_device("metal")
    rows = [row for row in plugins.describe() if row.distribution == "aaa-evil"]
    assert [row.state for row in rows] == ["conflict", "conflict"]
    assert "zoo_import_error" not in sys.modules


def test_two_distributions_with_one_name_are_both_refused(only_site: Site) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    only_site.install("emca-healthy", healthy="zoo_healthy:healthy_info")
    with pytest.raises(BackendUnavailable, match="acme-healthy and emca-healthy both offer"):
        plugins.open_device("healthy")
    assert [row.state for row in plugins.describe()] == ["conflict", "conflict"]


def test_a_conflict_is_settled_by_keeping_one_out(
    only_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    only_site.install("emca-healthy", healthy="zoo_healthy:healthy_info")
    monkeypatch.setenv("COREGRAD_PLUGINS", "-Emca_Healthy")
    assert plugins.open_device("healthy").name == "healthy"
    states = {row.distribution: row.state for row in plugins.describe()}
    assert states == {"acme-healthy": "active", "emca-healthy": "blocked"}


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("", {"cpu", "numpy", "importerr"}),
        ("cpu", {"cpu"}),
        ("coregrad-cpu", {"cpu", "numpy"}),
        ("cpu, importerr", {"cpu", "importerr"}),
        ("-importerr", {"cpu", "numpy"}),
        ("-acme-importerr", {"cpu", "numpy"}),
        ("coregrad-cpu,-numpy", {"cpu"}),
        ("none", set()),
    ],
)
def test_coregrad_plugins_decides_before_anything_is_imported(
    only_site: Site, monkeypatch: pytest.MonkeyPatch, value: str, allowed: set[str]
) -> None:
    only_site.install("coregrad-cpu", cpu="zoo_healthy:cpu_info", numpy="zoo_healthy:numpy_info")
    only_site.install("acme-importerr", importerr="zoo_import_error:info")
    for module in ("zoo_healthy", "zoo_import_error"):
        sys.modules.pop(module, None)
    monkeypatch.setenv("COREGRAD_PLUGINS", value)
    rows = plugins.describe()
    assert {row.name for row in rows if row.state != "blocked"} == allowed
    assert ("zoo_healthy" in sys.modules) == bool(allowed & {"cpu", "numpy"})
    for row in rows:
        if row.state == "blocked":
            with pytest.raises(BackendUnavailable, match="COREGRAD_PLUGINS=") as caught:
                plugins.open_device(row.name)
            assert value in str(caught.value)


# --- choosing ---


def rank(name: str, rank: str) -> None:
    """Register a working backend as one of ours."""
    info = BackendInfo(name, CONTRACT_VERSION, "zoo_healthy:Backend", rank)
    plugins.register(info, plugins.OFFICIAL[name])


def test_the_best_rank_that_works_is_the_default(only_site: Site) -> None:
    for name, order in (
        ("numpy", "reference"),
        ("opencl", "software"),
        ("cpu", "cpu"),
        ("cuda", "gpu"),
    ):
        rank(name, order)
        assert plugins.default() == name
        plugins._registry._default.clear()


def test_the_default_stays_once_it_was_chosen(only_site: Site) -> None:
    rank("cpu", "cpu")
    assert plugins.default() == "cpu"
    rank("cuda", "gpu")
    assert plugins.default() == "cpu"


def test_a_failing_gpu_is_named_in_one_line_once(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    only_site.install("coregrad-cuda", cuda="zoo_import_error:info")
    rank("cpu", "cpu")
    assert plugins.default() == "cpu"
    assert plugins.default() == "cpu"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "using cpu" in said
    assert "coregrad-cuda 1.0" in said
    assert "a_driver_that_is_not_installed" in said


def test_a_gpu_of_ours_that_is_not_installed_is_not_worth_a_word(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    rank("cpu", "cpu")
    rank("numpy", "reference")
    assert plugins.default() == "cpu"
    assert capsys.readouterr().err == ""


def test_a_stranger_is_the_default_only_where_it_is_named(
    only_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_site.install("acme-chatty", chatty="zoo_infos:chatty")  # says that it is a gpu
    rank("cpu", "cpu")
    assert plugins.default() == "cpu"
    monkeypatch.setenv("COREGRAD_PLUGINS", "cpu,chatty")
    monkeypatch.setattr(plugins, "_registry", plugins.Registry())
    assert plugins.default() == "chatty"


def test_an_explicit_device_fails_loudly(only_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    rank("cpu", "cpu")
    only_site.install("acme-nodriver", nodriver="zoo_infos:no_driver")
    for wish, words in (
        ("cuda", "pip install coregrad-cuda"),
        ("cqu", "unknown"),
        ("cpu:9", "2 dev"),
    ):
        monkeypatch.setenv("COREGRAD_DEVICE", wish)
        for _ in range(2):
            with pytest.raises(DeviceError, match=words):
                plugins.default()


def test_of_a_list_the_first_available_device_is_taken(
    only_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank("cpu", "cpu")
    rank("numpy", "reference")
    monkeypatch.setenv("COREGRAD_DEVICE", "cuda, numpy:1,cpu")
    assert plugins.default() == "numpy:1"
    monkeypatch.setenv("COREGRAD_DEVICE", "cuda,metal")
    with pytest.raises(BackendUnavailable, match="coregrad-cuda") as caught:
        plugins.default()
    assert "coregrad-metal" in str(caught.value)


def test_when_nothing_works_every_reason_is_given(only_site: Site) -> None:
    only_site.install("coregrad-cuda", cuda="zoo_import_error:info")
    only_site.install("coregrad-metal", metal="zoo_infos:raises")
    with pytest.raises(BackendUnavailable, match="a_driver_that_is_not_installed") as caught:
        plugins.default()
    assert "ZeroDivisionError" in str(caught.value)


# --- ranks that only the driver knows ---


def named(name: str, rank: str, backend: str) -> None:
    """Register one of ours whose backend is one of zoo_ranks."""
    info = BackendInfo(name, CONTRACT_VERSION, f"zoo_ranks:{backend}", rank, "", "the ACME driver")
    plugins.register(info, plugins.OFFICIAL[name])


def test_a_gpu_api_that_finds_only_a_cpu_stands_behind_the_cpu(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    named("opencl", "gpu", "Software")
    rank("cpu", "cpu")
    rank("numpy", "reference")
    assert plugins.default() == "cpu"
    assert capsys.readouterr().err == ""  # nothing failed: no reason for a word
    row = row_of("opencl", plugins.describe())
    assert (row.rank, row.state) == ("software", "found")


def test_a_gpu_api_that_finds_only_a_cpu_is_better_than_the_reference(only_site: Site) -> None:
    rank("numpy", "reference")
    named("opencl", "gpu", "Software")
    assert plugins.default() == "opencl"


def test_a_gpu_stays_first_and_is_asked_once(only_site: Site) -> None:
    import zoo_ranks

    zoo_ranks.Gpu.asked = zoo_ranks.Software.asked = 0
    named("cuda", "gpu", "Gpu")
    named("opencl", "gpu", "Software")
    rank("cpu", "cpu")
    for _ in range(3):
        assert plugins.default() == "cuda"
    assert (zoo_ranks.Gpu.asked, zoo_ranks.Software.asked) == (1, 0)


@pytest.mark.parametrize(
    ("backend", "words"),
    [("Wrong", "rank() answered 'best of all'"), ("Broken", "libacme.so.1")],
)
def test_a_gpu_that_cannot_say_its_rank_is_passed_over_with_a_line(
    only_site: Site, capsys: pytest.CaptureFixture[str], backend: str, words: str
) -> None:
    named("opencl", "gpu", backend)
    rank("cpu", "cpu")
    assert plugins.default() == "cpu"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words in said
    assert row_of("opencl", plugins.describe()).state in ("failed", "unavailable")


def test_the_line_about_a_fallback_names_the_remedy(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    named("opencl", "gpu", "Broken")
    rank("cpu", "cpu")
    plugins.default()
    said = capsys.readouterr().err
    assert "coregrad: using cpu, as opencl (plugin coregrad-opencl): " in said
    for remedy in ("needs the ACME driver", "python -m coregrad doctor", "COREGRAD_DEVICE=cpu"):
        assert remedy in said


def test_a_breach_of_many_lines_is_one_line_of_a_fallback(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    info = BackendInfo("metal", CONTRACT_VERSION, "zoo_backends:EverythingWrong", "gpu")
    plugins.register(info, "coregrad-metal")
    rank("cpu", "cpu")
    assert plugins.default() == "cpu"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "zoo_backends:EverythingWrong breaks the contract (more:" in said


CHOICES = {
    "the environment": "assert plugins.default() == 'cpu'",
    "code": "Device.DEFAULT = 'cpu'; Tensor([1.0]).numpy()",
    "a block": "with Device('cpu'): assert Tensor([1.0]).device == 'cpu'",
    "an argument": "Tensor([1.0], device='cpu').numpy()",
}


@pytest.mark.parametrize("by", CHOICES)
def test_a_device_that_is_chosen_keeps_every_driver_unloaded(site: Site, by: str) -> None:
    site.install("coregrad-cuda", cuda="zoo_ranks:cuda_info")
    site.install("coregrad-metal", metal="zoo_slow_import:info")
    code = (
        "import sys; from coregrad import Device, Tensor, plugins\n"
        f"{CHOICES[by]}\n"
        "print([m for m in sys.modules if m.startswith('zoo_')])"
    )
    done = site.python(code, COREGRAD_DEVICE="cpu" if by == "the environment" else "")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_what_a_light_module_knows_keeps_the_driver_unloaded(site: Site) -> None:
    site.install("coregrad-opencl", opencl="zoo_modest:info")
    code = (
        "import sys; from coregrad import plugins\n"
        "assert plugins.default() == 'cpu'\n"
        "print([m for m in sys.modules if m.startswith('zoo_')])"
    )
    done = site.python(code)
    assert (done.stdout, done.stderr) == ("['zoo_modest']\n", "")


# --- costs, and the command line ---


def test_importing_coregrad_loads_no_plugin_machinery(site: Site) -> None:
    done = site.python(
        "import sys, coregrad, coregrad.plugins\n"
        "heavy = {'pluggy', 'importlib.metadata', 'coregrad_cpu', 'coregrad.hookspecs'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_light_module_of_the_cpu_plugin_loads_no_driver(site: Site) -> None:
    done = site.python(
        "import sys, coregrad_cpu\n"
        "coregrad_cpu.cpu_info(), coregrad_cpu.numpy_info()\n"
        "loaded = {'llvmlite', 'coregrad_cpu.llvm', 'coregrad_cpu.reference'}\n"
        "print(sorted(loaded & set(sys.modules)))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_command_line_lists_the_devices(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    only_site.install("acme-healthy", healthy="zoo_healthy:healthy_info")
    only_site.install("acme-missinghook", missinghook="zoo_infos:missing_hook")
    assert cli.main(["devices", "--probe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[3].startswith("default: ")
    assert lines[0].split() == ["DEVICE", "PLUGIN", "CONTRACT", "RANK", "STATE", "DETAIL"]
    healthy = next(line for line in lines if line.startswith("healthy"))
    assert healthy.split()[:6] == ["healthy", "acme-healthy", "1.0", "1.0", "cpu", "active"]
    missing = next(line for line in lines if line.startswith("missinghook"))
    assert "lower_mul is missing" in missing
    assert cli.main(["devices", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {"healthy", "missinghook"}


def test_the_command_line_fails_where_nothing_works(
    only_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["devices"]) == 1
    assert "pip install coregrad-cpu" in capsys.readouterr().out
    only_site.install("acme-nohardware", nohardware="zoo_infos:no_hardware")
    plugins._registry = plugins.Registry()
    assert cli.main(["devices", "--probe"]) == 1
    assert "no chip is plugged in" in capsys.readouterr().out
