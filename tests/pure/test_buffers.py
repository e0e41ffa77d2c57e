"""Buffers kept for reuse: never two owners, never more than asked to keep, never lost."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad.buffers import SMALLEST, Buffer, Pool, size_class
from coregrad.errors import OutOfMemory


class Driver:
    """Memory of some size, which is free again once its block is forgotten."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.blocks: weakref.WeakSet[Any] = weakref.WeakSet()
        self.made = 0
        self.waits = 0

    def make(self, size: int) -> Any:
        if sum(block.size for block in self.blocks) + size > self.room:
            raise OutOfMemory("full")
        self.made += 1
        block = Block(size)
        self.blocks.add(block)
        return block

    def wait(self) -> None:
        self.waits += 1


class Block:
    def __init__(self, size: int) -> None:
        self.size = size


def pool_of(driver: Driver, most: int = 1 << 20, **more: Any) -> Pool:
    return Pool(driver.make, driver.wait, most, **more)


@given(nbytes=st.integers(1, 1 << 45), step=st.sampled_from([1, 64, SMALLEST]))
def test_a_size_class_holds_the_size_and_wastes_little(nbytes: int, step: int) -> None:
    size = size_class(nbytes, step)
    assert nbytes <= size < max(nbytes + step, 1.126 * nbytes)
    assert size % step == 0
    assert size_class(size, step) == size


def test_there_are_few_sizes() -> None:
    """Eight to sixteen for each doubling."""
    assert len({size_class(nbytes) for nbytes in range(1 << 15, 1 << 16)}) <= 10


def test_a_freed_buffer_comes_again_for_its_size() -> None:
    pool = pool_of(Driver(1 << 20))
    first = pool.take(5000)
    block = first.raw
    assert not first.busy
    pool.give(first)
    assert first.raw is None
    again = pool.take(5100)  # of the same class
    assert again.raw is block
    assert again.busy  # nobody has waited for what the first owner launched
    assert pool.take(5000).raw is not block


@pytest.mark.parametrize("oldest_first", [False, True])
def test_the_order_of_reuse_is_the_devices_choice(oldest_first: bool) -> None:
    pool = pool_of(Driver(1 << 20), oldest_first=oldest_first)
    buffers = [pool.take(300) for _ in range(3)]
    freed = [buffer.raw for buffer in buffers]
    for buffer in buffers:
        pool.give(buffer)
    again = [pool.take(300).raw for _ in range(3)]
    assert again == (freed if oldest_first else freed[::-1])


def test_a_buffer_that_is_freed_twice_has_one_next_owner() -> None:
    pool = pool_of(Driver(1 << 20))
    buffer = pool.take(300)
    pool.give(buffer)
    pool.give(buffer)
    assert pool.take(300).raw is not pool.take(300).raw


def test_what_is_kept_is_given_back_when_there_is_no_room() -> None:
    driver = Driver(1000)
    pool = pool_of(driver)
    pool.give(pool.take(512))
    second = pool.take(768)  # does not fit beside the kept one
    assert driver.waits == 1
    assert pool.kept == 0
    with pytest.raises(OutOfMemory):
        pool.take(512)
    assert driver.waits == 1  # nothing was kept
    assert second.raw in driver.blocks


def test_too_much_freed_memory_is_given_back() -> None:
    driver = Driver(1 << 20)
    pool = pool_of(driver, most=1024)
    for buffer in [pool.take(512) for _ in range(2)]:
        pool.give(buffer)
    last = pool.take(256)
    assert (pool.kept, driver.waits) == (1024, 0)
    pool.give(last)
    del buffer, last
    pool.take(300)
    assert (pool.kept, driver.waits) == (0, 1)  # waited for before it was let go of
    assert len(driver.blocks) == 0


def test_sizes_may_be_exact() -> None:
    pool = pool_of(Driver(1 << 20), sizes=int)
    assert pool.take(3).size == 3


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60),
    oldest_first=st.booleans(),
)
def test_no_block_has_two_owners_and_none_is_lost(
    steps: list[tuple[bool, int]], oldest_first: bool
) -> None:
    driver = Driver(1 << 14)
    pool = pool_of(driver, most=1 << 12, oldest_first=oldest_first)
    held: list[Buffer] = []
    for takes, number in steps:
        if takes:
            nbytes = 200 * (number + 1)
            try:
                held.append(pool.take(nbytes))
            except OutOfMemory:
                assert sum(b.size for b in held) + size_class(nbytes) > driver.room
                continue
            assert held[-1].size >= nbytes
            assert held[-1].raw.size == held[-1].size
        elif held:
            pool.give(held.pop(number % len(held)))
        assert pool.kept <= 1 << 12
        assert len({id(buffer.raw) for buffer in held}) == len(held)
    for buffer in held:
        pool.give(buffer)
    held.clear()
    pool.release()
    assert len(driver.blocks) == 0
    assert pool.kept == 0
