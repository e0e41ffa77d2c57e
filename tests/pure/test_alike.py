"""Which kernels become one, and what their tables say."""

from __future__ import annotations

from programs import matmul, source

from coregrad import dtypes
from coregrad.ir import build
from coregrad.ir.alike import FEW, Table, alike
from coregrad.ir.graph import Node
from coregrad.ir.kernel import Kernel
from coregrad.ir.schedule import schedule
from coregrad.ir.target import Limits
from coregrad.ir.verify import verify_kernel

LIMITS = Limits(frozenset(dtypes.ALL), vector_bytes=64)
MOST = 8


def kernel(root: Node) -> Kernel:
    (task,) = schedule([root], LIMITS, {})
    return task.kernel


def part(start: int, length: int = 8, of: int = 64) -> Node:
    return build.shrink(source("x", of, 16), ((start, start + length), (0, 16)))


def total(start: int, length: int = 8, of: int = 64) -> Kernel:
    return kernel(build.reduce("add", build.exp(part(start, length, of)), (1,)))


def test_kernels_at_several_places_become_one_with_a_table_each() -> None:
    made = alike([total(start) for start in (24, 0, 8, 40)], MOST)
    (shared,) = {one for one, _ in made}
    verify_kernel(shared, LIMITS)
    assert [table for _, table in made] == [
        Table((16 * start,), dtypes.int32) for start in (24, 0, 8, 40)
    ]
    assert [p.role for p in shared.params] == ["out", "in", "in"]
    assert shared.params[-1].dtype is dtypes.int32


def test_a_few_kernels_keep_their_constants() -> None:
    kernels = [total(start) for start in range(FEW - 1)]
    assert alike(kernels, MOST) == [(one, None) for one in kernels]


def test_a_kernel_with_all_parameters_that_a_device_takes_gets_no_table() -> None:
    kernels = [total(start) for start in range(FEW)]
    assert alike(kernels, 2) == [(one, None) for one in kernels]
    assert alike(kernels, 3) != [(one, None) for one in kernels]


def test_equal_kernels_are_one_from_two_on() -> None:
    first, second = total(5), total(5)
    assert alike([first, second], MOST) == [(first, None), (first, None)]


def test_kernels_that_differ_in_more_than_their_places_stay_apart() -> None:
    kernels = [total(1), total(2), total(3, 9), total(4, 9), total(5, of=65), total(6, of=65)]
    assert alike(kernels, MOST) == [(one, None) for one in kernels]


def test_places_that_move_together_share_a_number() -> None:
    def both(start: int) -> Kernel:
        return kernel(build.mul(part(start), build.add(part(start + 2), part(7))))

    made = alike([both(start) for start in (0, 10, 20, 30)], MOST)
    assert [table.numbers for _, table in made if table] == [(0,), (160,), (320,), (480,)]


def test_places_that_move_apart_have_numbers_of_their_own() -> None:
    def both(start: int, other: int) -> Kernel:
        return kernel(build.mul(part(start), part(other)))

    made = alike([both(0, 9), both(10, 9), both(20, 8), both(30, 40)], MOST)
    tables = [table.numbers for _, table in made if table]
    assert tables == [(0, 16), (160, 16), (320, 0), (480, 512)]


def test_a_contraction_stays_one() -> None:
    weights = source("w", 16, 12)
    made = alike([kernel(matmul(part(start), weights)) for start in (0, 8, 16, 24)], MOST)
    (shared,) = {one for one, _ in made}
    assert shared.contraction is not None
    verify_kernel(shared, LIMITS)


def test_a_place_beyond_32_bits_has_a_table_of_64() -> None:
    long = 1 << 29
    made = alike([total(start, of=long) for start in (0, 1, 2, long - 8)], MOST)
    assert {table.dtype for _, table in made if table} == {dtypes.int64}
