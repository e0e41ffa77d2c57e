"""The random generator: known answers of its authors, and the numbering of draws."""

import threading

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.api import random, threefry
from coregrad.api.threefry import Generator
from coregrad.ir import build

WORD = st.integers(0, 2**32 - 1)

# "threefry2x32 20" in kat_vectors of the Random123 distribution (D. E. Shaw Research):
# counter, key, and what must come out.
KNOWN_ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def host(counter, key):
    arrays = [tuple(np.array([w], np.uint32) for w in pair) for pair in (counter, key)]
    return tuple(int(w[0]) for w in threefry.threefry_host(*arrays))


def graph(counter, key):
    words = threefry.threefry(
        tuple(build.const(w, dtypes.uint32, (1,)) for w in counter),
        tuple(build.const(w, dtypes.uint32) for w in key),
    )
    return tuple(int(w[0]) for w in oracle.evaluate(words))


def keyed(key):
    """A node that stands for a key buffer, and what the oracle needs to read it."""
    node = build.buffer("key", dtypes.uint32, (2,))
    return node, {"key": np.array(key, np.uint32)}


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_the_authors_known_answers_come_out_on_host_and_in_the_graph(counter, key, answer):
    assert host(counter, key) == answer
    assert graph(counter, key) == answer


@given(st.tuples(WORD, WORD), st.tuples(WORD, WORD))
def test_host_and_graph_agree_for_any_counter_and_key(counter, key):
    assert host(counter, key) == graph(counter, key)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 5), (0, 4)])
def test_words_of_a_shape_count_its_elements_in_row_major_order(shape):
    node, values = keyed((11, 22))
    got = oracle.evaluate(threefry.words(shape, node), values)
    want = threefry.words_host(int(np.prod(shape)), np.array([11, 22], np.uint32))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b.reshape(shape))


def test_the_second_stream_shares_no_word_with_the_first():
    node, values = keyed((1, 2))
    one, two = (
        oracle.evaluate(threefry.words((1000,), node, stream), values)[0] for stream in (0, 1)
    )
    assert not set(one.tolist()) & set(two.tolist())


@given(WORD, st.integers(1, 2**32))
def test_below_is_the_upper_part_of_a_product_of_128_bits(seed, count):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 2**32, 20, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    bits = tuple(build.buffer(name, dtypes.uint32, (20,)) for name in "ab")
    got = oracle.evaluate([random.below(bits, count, dtypes.int64)], {"a": a, "b": b})[0]
    want = [((int(x) << 32 | int(y)) * count) >> 64 for x, y in zip(a, b, strict=True)]
    if count == 2**32:
        want = a.tolist()
    assert got.tolist() == want


@given(st.integers(2**32 + 1, 2**64))
def test_below_a_bound_beyond_32_bits_uses_all_64(count):
    words = [(0, 0), (1, 2), (2**32 - 1, 2**32 - 1), (123456789, 987654321)]
    bits = tuple(build.buffer(i, dtypes.uint32, (4,)) for i in range(2))
    values = {i: np.array([w[i] for w in words], np.uint32) for i in range(2)}
    got = oracle.evaluate([random.below(bits, count, dtypes.uint64)], values)[0]
    assert got.tolist() == [(a << 32 | b) % count for a, b in words]


def test_the_open_uniform_numbers_never_reach_0_or_1():
    word = build.buffer("w", dtypes.uint32, (3,))
    values = {"w": np.array([0, 2**31, 2**32 - 1], np.uint32)}
    got = oracle.evaluate([random.open_uniform(word)], values)[0]
    assert got.tolist() == [2.0**-24, 0.5 + 2.0**-24, 1 - 2.0**-24]


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_uniform_numbers_lie_in_0_to_1_without_1(dtype):
    bits = tuple(build.buffer(i, dtypes.uint32, (2,)) for i in range(2))
    ends = np.array([0, 2**32 - 1], np.uint32)
    low, high = oracle.evaluate([random.uniform(bits, dtype)], {0: ends, 1: ends})[0].tolist()
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name]
    assert low == 0.0
    assert high == 1.0 - 2.0**-digits


def test_a_seed_fixes_the_keys_and_another_seed_gives_others():
    one, two, other = Generator(5), Generator(5), Generator(6)
    keys = [one.key().tolist() for _ in range(4)]
    assert keys == [two.key().tolist() for _ in range(4)]
    assert other.key().tolist() not in keys
    assert len({tuple(k) for k in keys}) == 4


def test_seeds_beyond_64_bits_and_below_0_are_taken_modulo():
    assert Generator(-1).state == (2**64 - 1, 0)
    assert Generator(2**64 + 3).state == (3, 0)


def test_the_state_can_be_put_back():
    generator = Generator(1)
    generator.key()
    saved = generator.state
    after = generator.key().tolist()
    generator.state = saved
    assert generator.key().tolist() == after


def test_threads_never_draw_the_same_key():
    generator = Generator(3)
    drawn = [[] for _ in range(4)]

    def draw(into):
        into.extend(tuple(generator.key().tolist()) for _ in range(200))

    threads = [threading.Thread(target=draw, args=(into,)) for into in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({key for into in drawn for key in into}) == 800
    assert generator.state == (3, 800)
