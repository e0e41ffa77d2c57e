"""Programs that Hypothesis draws: data only. The same seed (and Hypothesis) gives the same ones.

Hypothesis only makes the programs here; they are run outside, so that a failure is a row's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, configuration
from hypothesis import strategies as st

T = TypeVar("T")

SHAPES = ((1,), (5,), (33,), (4, 3), (1, 7), (2, 3, 4), (5, 1, 3), (16, 16), (2, 1, 65))


@dataclass(frozen=True)
class Step:
    """One call: what, on which of the values so far, and a number that settles the details."""

    name: str
    left: int
    right: int
    detail: int


@dataclass(frozen=True)
class Program:
    """``inputs`` values of ``shape``, then the steps; every value of the last three is a result."""

    shape: tuple[int, ...]
    inputs: int
    seed: int
    steps: tuple[Step, ...]


def programs(names: tuple[str, ...], longest: int) -> st.SearchStrategy[Program]:
    """Programs of up to ``longest`` steps with these names."""
    number = st.integers(0, 10**6)
    step = st.builds(Step, st.sampled_from(names), number, number, number)
    return st.builds(
        Program,
        st.sampled_from(SHAPES),
        st.integers(1, 3),
        number,
        st.lists(step, min_size=3, max_size=longest).map(tuple),
    )


def draw(strategy: st.SearchStrategy[T], seed: int, count: int) -> list[T]:
    """``count`` examples, the same ones every time."""
    drawn: list[T] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(example: T) -> None:
        drawn.append(example)

    with _nothing_left_behind():
        collect()
    return drawn[:count]


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Without this Hypothesis makes a folder in whatever directory the user stands in."""
    before = configuration.storage_directory(intent_to_write=False).home_directory
    with tempfile.TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)
