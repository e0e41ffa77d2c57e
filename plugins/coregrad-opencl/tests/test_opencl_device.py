"""The device itself: memory, launches, errors, threads, forks."""

from __future__ import annotations

from typing import Any

import pytest
from accelerators import NEVER_LAUNCHED, DeviceTests, TensorTests, TimedTests

from coregrad import plugins
from coregrad.activation import check_device
from coregrad.dtypes import ALL
from coregrad.errors import DeviceError, OutOfMemory

pytest.importorskip("pyopencl")

import pyopencl as cl
from opencl_launching import launcher


def test_the_device_meets_the_contract(device: Any) -> None:
    assert check_device(device) == []
    assert device.limits.dtypes == frozenset(ALL)
    assert device.limits.threads == 256
    assert device.limits.local_bytes == 32768
    assert not device.limits.host_memory


class TestDevice(DeviceTests):
    launcher = launcher

    def test_an_error_names_the_driver_and_its_version(self, device: Any) -> None:
        assert "Portable Computing Language" in device.title
        assert device._found.device.driver_version in device.title


class TestClock(TimedTests):
    launcher = launcher


# ---- memory ------------------------------------------------------------------------------------


def test_a_freed_buffer_is_used_again_for_its_size(device: Any) -> None:
    first = device.allocate(5000)
    raw = first.raw
    device.free(first)
    assert device.allocate(5100).raw is raw
    assert device.allocate(5000).raw is not raw


def test_more_than_the_device_has_is_out_of_memory(device: Any) -> None:
    with pytest.raises(OutOfMemory, match=r"opencl \(Portable.* driver .*: allocating"):
        device.allocate(1 << 50)


# ---- kernels -----------------------------------------------------------------------------------


def test_an_error_of_the_driver_has_the_drivers_own_for_its_cause(device: Any) -> None:
    case = launcher.case(NEVER_LAUNCHED)
    compiled = device.compile(launcher.text_of(case.kernel, device))
    with pytest.raises(DeviceError) as caught:
        device.launch(compiled, [], 10)  # without its arguments
    assert isinstance(caught.value.__cause__, cl.Error)


# ---- tensors -----------------------------------------------------------------------------------


@pytest.fixture
def name(device: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of PoCL for tensors."""
    monkeypatch.setenv("COREGRAD_OPENCL_DEVICE", "Portable Computing Language")
    monkeypatch.setenv("COREGRAD_OPENCL_LIMITS", "gpu")
    monkeypatch.setattr(plugins, "_registry", plugins.Registry())
    return "opencl"


class TestTensors(TensorTests):
    pass
