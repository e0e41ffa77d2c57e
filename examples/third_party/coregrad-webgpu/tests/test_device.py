"""What the conformance suite cannot see: limits asked for, batches, reuse, large launches."""

import os

import numpy as np
import pytest
from coregrad import Tensor
from coregrad.errors import CompileError, DeviceError, OutOfMemory

from coregrad_webgpu import device as module

ADD_ONE = """// add_one: 1 per group
@group(0) @binding(0) var<storage, read_write> out_: array<i32>;
@compute @workgroup_size(1)
fn main() { out_[0] += 1; }
"""


def buffer(device, *values):
    data = np.array(values, np.int32)
    made = device.allocate(data.nbytes)
    device.copy_in(made, memoryview(data))
    return made


def values(device, made, count=1):
    out = np.zeros(count, np.int32)
    device.copy_out(made, memoryview(out))
    return out.tolist()


@pytest.fixture
def submits(device, monkeypatch):
    """A list that grows with every submit of launches."""
    seen = []
    submit = device._submit

    def counted():
        seen.append(device._launches)
        submit()

    monkeypatch.setattr(device, "_submit", counted)
    return seen


def test_the_driver_grants_no_more_than_what_is_portable(device):
    granted = device._gpu.limits
    assert {name: granted[name] for name in module.PORTABLE} == module.PORTABLE
    assert device.limits.max_buffers == 8
    assert device.limits.threads == 256
    assert device.limits.local_bytes == 16384


def test_launches_wait_for_each_other_and_go_to_the_driver_in_batches(device, submits):
    kernel, made = device.compile(ADD_ONE), buffer(device, 5)
    for _ in range(2 * module.BATCH + 3):
        device.launch(kernel, [made], 1)
    assert submits == [module.BATCH, module.BATCH]
    assert values(device, made) == [5 + 2 * module.BATCH + 3]
    assert submits[2] == 3


def test_a_copy_in_does_not_overtake_the_launches_before_it(device):
    kernel, made, other = device.compile(ADD_ONE), buffer(device, 5), buffer(device, 0)
    device.launch(kernel, [made], 1)
    device.launch(kernel, [other], 1)
    device.copy_in(made, memoryview(np.array([40], np.int32)))
    device.launch(kernel, [made], 1)
    assert values(device, made) == [41]
    assert values(device, other) == [1]


def test_a_buffer_freed_under_a_pending_launch_is_reused_after_it(device):
    kernel, made = device.compile(ADD_ONE), buffer(device, 5)
    device.launch(kernel, [made], 1)
    device.free(made)
    again = device.allocate(4)
    assert again.raw is made.raw
    device.copy_in(again, memoryview(np.array([70], np.int32)))
    assert values(device, again) == [70]


def test_bind_groups_are_made_once_for_the_same_buffers(device):
    kernel, made = device.compile(ADD_ONE), buffer(device, 0)
    device.launch(kernel, [made], 1)
    count = len(device._groups)
    for _ in range(5):
        device.launch(kernel, [made], 1)
    assert len(device._groups) == count


def test_bytes_behind_a_short_copy_in_stay(device):
    made = buffer(device, 0x11111111, 0x22222222)
    device.copy_in(made, memoryview(b"\x01\x02\x03\x04\x05"))
    assert values(device, made, 2) == [0x04030201, 0x22222205]


def test_more_groups_than_one_dimension_has_are_launched(device):
    n = module.GROUPS * 64 + 1000
    x = Tensor(np.arange(n, dtype=np.int32), device="webgpu")
    assert ((x * 2 + 1).numpy() == np.arange(n, dtype=np.int32) * 2 + 1).all()


def test_what_wgsl_would_reassociate_is_computed_as_written(device):
    x = np.linspace(-3, 3, 101).astype(np.float32)
    magic = np.float32(12582912.0)
    got = ((Tensor(x, device="webgpu") + float(magic)) + -float(magic)).numpy()
    assert (got == (x + magic) - magic).all()


def test_nan_and_zeros_are_those_of_ieee(device):
    x = np.array([np.nan, np.inf, -0.0, 0.0, -1.0], np.float32)
    t, same = Tensor(x, device="webgpu"), Tensor(x, device="webgpu")
    with np.errstate(invalid="ignore"):
        assert np.array_equal((t * 0.0).numpy(), x * np.float32(0), equal_nan=True)
    assert np.signbit((t + 0.0).numpy()).tolist()[2:] == [False, False, True]
    assert (t != same).numpy().tolist() == [True, False, False, False, False]


def test_a_text_that_is_no_wgsl_is_a_compile_error_with_the_compilers_words(device):
    with pytest.raises(CompileError, match="undefined_thing"):
        device.compile(ADD_ONE.replace("+= 1", "+= undefined_thing"))


def test_a_buffer_larger_than_the_adapter_allows_is_out_of_memory(device):
    with pytest.raises(OutOfMemory, match="one buffer of"):
        device.allocate(1 << 50)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_another_process_is_told_to_start_with_spawn(device, monkeypatch):
    monkeypatch.setattr(device, "_process", os.getpid() + 1)
    with pytest.raises(DeviceError, match="spawn"):
        device.allocate(4)
