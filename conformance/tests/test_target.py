"""Kernels on a device: what is handed over, what is handed back, and what is noticed."""

from __future__ import annotations

import numpy as np
import poor as poor_device
import pytest

from coregrad import dtypes
from coregrad_conformance.builder import Builder, mapped
from coregrad_conformance.drawing import draw, programs
from coregrad_conformance.row import Failure, Unsupported
from coregrad_conformance.target import Target
from coregrad_cpu import reference

INT = dtypes.int32


@pytest.fixture(params=["numpy", "cpu"])
def target(request):
    return Target(request.param)


@pytest.fixture
def poor():
    with poor_device.registered() as name:
        yield name


def test_a_kernel_runs_on_arrays(target):
    kernel = mapped("sum", "add", [INT, INT], INT, 5)
    (got,) = target.run_kernel(kernel, [np.arange(5, dtype=np.int32)] * 2)
    assert got.tolist() == [0, 2, 4, 6, 8]


def test_what_is_not_stored_stays_poisoned(target):
    build = Builder("half")
    out = build.out(INT, 4)
    with build.loop(2, "grid") as i:
        build.store(out, i * 2, build.index(i, INT))
    assert target.run_kernel(build.kernel(), [])[0].tolist() == [0, -1, 1, -1]


def test_wrong_inputs_are_named(target):
    kernel = mapped("sum", "add", [INT, INT], INT, 5)
    with pytest.raises(ValueError, match="in1: 5 elements of int64; it takes 5 of int32"):
        target.run_kernel(kernel, [np.arange(5)] * 2)


class _Stray(reference.Backend):
    """Stores into what lies behind an output, or into an input."""

    def __init__(self, place):
        self.place = place

    def begin_kernel(self, header, buffers):
        at, offset = self.place
        raw = buffers[at]
        raw[offset if offset >= 0 else raw.size + offset] ^= 0xFF
        return super().begin_kernel(header, buffers)


@pytest.mark.parametrize(("place", "word"), [((0, -3), "behind its end"), ((1, 2), "of an input")])
def test_stray_stores_are_noticed(place, word):
    target = Target("numpy")
    kernel = mapped("sum", "add", [INT, INT], INT, 5)
    target.active = type(target.active)(
        "numpy", target.active.info, _Stray(place), target.active.hooks, target.active.device
    )
    with pytest.raises(Failure, match=word) as caught:
        target.run_kernel(kernel, [np.arange(5, dtype=np.int32)] * 2)
    assert caught.value.kind == "memory"


def test_a_missing_dtype_is_unsupported_unless_it_is_required(poor):
    target = Target(poor)
    target.require(dtypes.float32)
    with pytest.raises(Unsupported, match="float64"):
        target.require(dtypes.float64)


def test_the_same_seed_draws_the_same_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = (draw(programs(("add", "mul"), 9), 5, 6) for _ in range(2))
    assert one == two
    assert len(one) == 6
    assert one != draw(programs(("add", "mul"), 9), 6, 6)
    assert list(tmp_path.iterdir()) == []
