"""Which devices are offered, in which order, and what is said when there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coregrad.errors import BackendUnavailable

pytest.importorskip("pyopencl")

import pyopencl as cl

from coregrad_opencl import driver, opencl_info
from coregrad_opencl.backend import Backend
from coregrad_opencl.device import limits, options

GPU, CPU, ACCELERATOR = cl.device_type.GPU, cl.device_type.CPU, cl.device_type.ACCELERATOR


def a_device(name: str, kind: Any, units: int = 1, clock: int = 1000, **more: Any) -> Any:
    known = {
        "double_fp_config": 0,
        "single_fp_config": 0,
        "half_fp_config": 0,
        "extensions": "",
        "host_unified_memory": 0,
        "local_mem_size": 49152,
        "local_mem_type": cl.device_local_mem_type.GLOBAL,
        "max_parameter_size": 4352,
        "max_work_group_size": 1024,
    }
    return SimpleNamespace(
        name=name, type=kind, max_compute_units=units, max_clock_frequency=clock, **known | more
    )


class Platform:
    def __init__(self, name: str, *devices: Any, broken: bool = False) -> None:
        self.name = name
        self.devices = devices
        self.broken = broken

    def get_devices(self) -> list[Any]:
        if self.broken:
            raise cl.LogicError("the driver's library cannot be loaded")
        return list(self.devices)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make these the platforms of the machine."""

    def install(*platforms: Platform) -> None:
        monkeypatch.delenv("COREGRAD_OPENCL_DEVICE", raising=False)
        monkeypatch.setattr(cl, "get_platforms", lambda: list(platforms))

    return install


@pytest.fixture
def workstation(machine: Any) -> None:
    machine(
        Platform("Oclgrind", a_device("Oclgrind Simulator", GPU | CPU | ACCELERATOR, 100)),
        Platform("Slow Inc", a_device("processor", CPU, 64, 4000), a_device("small", GPU, 8)),
        Platform("Broken Ltd", broken=True),
        Platform("Fast Inc", a_device("large", GPU, 100), a_device("board", ACCELERATOR, 900)),
    )


def titles() -> list[str]:
    return [found.device.name for found in driver.chosen()]


def test_gpus_come_first_then_accelerators_then_processors(workstation: None) -> None:
    assert titles() == ["large", "small", "board", "processor"]
    assert Backend().device_count() == 4
    assert Backend().rank() == "gpu"


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        ("1", ["small"]),
        ("3", ["processor"]),
        ("FAST", ["large", "board"]),
        ("slow inc: proc", ["processor"]),
        ("inc", ["large", "small", "board", "processor"]),
        ("oclgrind", ["Oclgrind Simulator"]),
        ("Oclgrind: Oclgrind Sim", ["Oclgrind Simulator"]),
    ],
)
def test_the_variable_chooses(
    workstation: None, monkeypatch: pytest.MonkeyPatch, wish: str, found: list[str]
) -> None:
    monkeypatch.setenv("COREGRAD_OPENCL_DEVICE", wish)
    assert titles() == found


@pytest.mark.parametrize("wish", ["4", "9", "nobody", "simulator", "grind"])
def test_a_choice_that_fits_nothing_lists_what_there_is(
    workstation: None, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setenv("COREGRAD_OPENCL_DEVICE", wish)
    with pytest.raises(BackendUnavailable) as caught:
        Backend().device_count()
    said = str(caught.value)
    assert f"COREGRAD_OPENCL_DEVICE={wish}" in said
    assert "0: Fast Inc: large" in said
    assert "by name only: Oclgrind" in said
    assert "4:" not in said
    assert "Broken Ltd" in said
    assert "cannot be loaded" in said


def test_a_processor_alone_ranks_as_software(machine: Any) -> None:
    machine(Platform("Slow Inc", a_device("processor", CPU)))
    assert Backend().rank() == "software"
    assert opencl_info().rank == "software"


def test_the_simulator_is_never_chosen_by_itself(machine: Any) -> None:
    machine(Platform("Oclgrind", a_device("Oclgrind Simulator", GPU)))
    with pytest.raises(BackendUnavailable, match="COREGRAD_OPENCL_DEVICE=oclgrind"):
        Backend().device_count()


@pytest.mark.parametrize("wish", ["0", "1", "sim", "o"])
def test_the_simulator_is_found_by_its_own_name_alone(
    machine: Any, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    """Not by a position, nor by letters that other names have as well."""
    machine(Platform("Oclgrind", a_device("Oclgrind Simulator", GPU)))
    monkeypatch.setenv("COREGRAD_OPENCL_DEVICE", wish)
    with pytest.raises(BackendUnavailable, match=f"COREGRAD_OPENCL_DEVICE={wish} fits none of"):
        Backend().device_count()


def test_a_machine_without_a_platform_says_so(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing() -> Any:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    machine()
    monkeypatch.setattr(cl, "get_platforms", nothing)
    with pytest.raises(BackendUnavailable, match="no OpenCL platform is installed"):
        Backend().device_count()


def found(device: Any, platform: str = "Fast Inc") -> driver.Found:
    return driver._found(Platform(platform), device)


def test_limits_are_what_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    small = a_device("small", GPU, max_work_group_size=64, max_parameter_size=256)
    monkeypatch.delenv("COREGRAD_OPENCL_LIMITS", raising=False)
    ours = limits(found(small))
    assert (ours.threads, ours.local_bytes, ours.max_buffers) == (64, 49152, 32)
    assert "float64" not in {dtype.name for dtype in ours.dtypes}
    assert not ours.fast_local
    monkeypatch.setenv("COREGRAD_OPENCL_LIMITS", "gpu")
    assert limits(found(small)).local_bytes == 32768
    assert limits(found(small)).fast_local


def test_options_ask_for_what_the_device_does_natively() -> None:
    flags = cl.device_fp_config
    ieee = flags.DENORM | flags.ROUND_TO_NEAREST
    plain = options(found(a_device("plain", GPU)))
    assert plain == ["-cl-std=CL1.2"]
    able = a_device("able", GPU, extensions="cl_khr_fp16", half_fp_config=ieee)
    able.single_fp_config = flags.CORRECTLY_ROUNDED_DIVIDE_SQRT
    assert "-DNATIVE_HALF" in options(found(able))
    assert "-cl-fp32-correctly-rounded-divide-sqrt" in options(found(able))
    flushing = a_device("flushing", GPU, extensions="cl_khr_fp16")
    assert "-DNATIVE_HALF" not in options(found(flushing))
    assert "-DOWN_FUNCTIONS" in options(found(a_device("processor", CPU)))
    assert "-cl-opt-disable" in options(found(a_device("any", GPU), "Oclgrind"))
