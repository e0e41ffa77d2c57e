"""The C family's text: exact literals, true bounds, tidy lines; and right results as plain C."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hook_cases import Case, cases, problems, rounded
from hypothesis import given
from hypothesis import strategies as st
from kernels import Builder, hooks_of
from programs import source, spread

from coregrad import dtypes
from coregrad.activation import check_backend, check_frame
from coregrad.cstyle import CStyle, Value, Words, geometry
from coregrad.cstyle.frame import splits
from coregrad.cstyle.value import RULES, computed
from coregrad.dtypes import ALL, float32, float64, int32, int64, to_bits, uint8
from coregrad.errors import CompileError, VerifyError
from coregrad.hookspecs import Header, Limits
from coregrad.ir import build
from coregrad.ir.emit import emit
from coregrad.ir.kernel import Kernel, Loop, walk
from coregrad.ir.schedule import schedule

# Plain C: one item of the grid per call. Local memory and barriers it has none of.
C = Words(
    types={
        **{d: f"{d.name}_t" for d in dtypes.INTS},
        dtypes.bool_: "_Bool",
        dtypes.float16: "float",
        dtypes.bfloat16: "float",
        float32: "float",
        float64: "double",
    },
    suffixes={float32: "f", dtypes.uint32: "u", int64: "LL", dtypes.uint64: "ULL"},
    kernel="void {name}({params}, int64_t item)",
    item="item",
    param="{const}{type} *restrict {name}",
    function="static",
    bitcast="((union {{ {source} a; {type} b; }}){{ {x} }}).b",
    functions={f: f"{f}f" for f in ("exp", "log", "sin", "cos", "sqrt", "trunc", "fmod")},
    doubles={f: f for f in ("exp", "log", "sin", "cos", "sqrt", "trunc", "fmod")},
    preamble="#include <stdint.h>\n#include <math.h>",
)
# A language that lacks functions, and whose compiler assumes that there is no NaN.
POOR = Words(
    types=C.types,
    kernel=C.kernel,
    item=C.item,
    bitcast=C.bitcast,
    suffixes=C.suffixes,
    function="static",
    functions={"sqrt": "sqrtf", "fmod": "fmodf"},
    doubles={"sqrt": "sqrt", "fmod": "fmod"},
    preamble=C.preamble,
    ieee=False,
)
LIMITS = Limits(dtypes=frozenset(ALL))
OPTIONAL = ("exp", "log", "sin", "trunc")  # what POOR lacks


class NoDevice:
    def device_count(self) -> int:
        return 0

    def open_device(self, index: int) -> Any:
        raise NotImplementedError


class PlainC(NoDevice, CStyle):
    words = C


class PoorC(NoDevice, CStyle):
    words = POOR


def text_of(kernel: Kernel, backend: Any = None) -> str:
    backend = backend or PlainC()
    text: str = emit(kernel, backend, hooks_of(backend), LIMITS)
    return text


# ---- the contract ------------------------------------------------------------------------------


def test_the_hooks_and_the_frame_meet_the_contract() -> None:
    backend = PlainC()
    assert check_backend(backend) == []
    assert check_frame(backend.begin_kernel(Header("k", (), 1), None)) == []


def test_a_function_that_a_language_lacks_is_a_hook_that_the_backend_lacks() -> None:
    assert check_backend(PoorC()) == []
    assert set(hooks_of(PlainC()).functions) - set(hooks_of(PoorC()).functions) == set(OPTIONAL)


# ---- literals ----------------------------------------------------------------------------------


def number_of(text: str) -> float:
    """A C literal, read by Python."""
    plain = text.removesuffix("f")
    return float.fromhex(plain) if "0x" in plain else float(plain)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_literals_are_exact(value: float) -> None:
    for dtype in (float32, float64):
        found = number_of(C.literal(value, dtype))
        assert found == value
        assert math.copysign(1, found) == math.copysign(1, value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_literals_are_exact(value: float) -> None:
    assert number_of(C.literal(value, float64)) == value


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_written_by_its_bits(value: float) -> None:
    assert f"{to_bits(value, float32):#x}" in C.literal(value, float32)


def test_the_least_integers_are_written_as_c_can_read_them() -> None:
    assert C.literal(int32.min, int32) == "(-2147483647 - 1)"
    assert C.literal(int64.min, int64) == "(-9223372036854775807LL - 1)"
    assert C.literal(-128, dtypes.int8) == "-128"


# ---- bounds ------------------------------------------------------------------------------------

EVALUATE = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "idiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "mod": lambda a, b: math.fmod(a, b),
    "shr": lambda a, b: a >> b,
    "and": lambda a, b: a & b,
    "max": max,
    "where": lambda a, b: a,
}
small = st.integers(-(1 << 20), 1 << 20)


@given(st.sampled_from(sorted(RULES)), small, small, small, small, st.data())
def test_a_result_is_within_its_bounds(
    op: str, a0: int, a1: int, b0: int, b1: int, data: st.DataObject
) -> None:
    a = Value("a", (min(a0, a1), max(a0, a1)))
    b = Value("b", (min(b0, b1), max(b0, b1)))
    if op in ("idiv", "mod", "and") or data.draw(st.booleans()):
        b = Value("b", (abs(b0) or 1, abs(b0) or 1))
    if op == "shr":
        b = Value("b", (abs(b0) % 31, abs(b0) % 31))
    bounds = computed(op, a, b, int64)
    assert a.bounds is not None
    assert b.bounds is not None
    x, y = (data.draw(st.integers(*v)) for v in (a.bounds, b.bounds))
    assert bounds is None or bounds[0] <= EVALUATE[op](x, y) <= bounds[1]
    if op != "shr":
        assert bounds is not None


def test_bounds_that_do_not_fit_the_dtype_are_unknown() -> None:
    large = Value("a", (0, 1 << 40))
    assert computed("mul", large, large, int64) is None
    assert computed("add", large, large, int32) is None
    assert computed("add", Value("a"), large, int64) is None
    assert computed("add", large, large, dtypes.uint64) is None


# ---- the text ----------------------------------------------------------------------------------

SOFTMAX = """\
// coregrad kernel rows: grid 1009, threads 0
#include <stdint.h>
#include <math.h>

static _Bool is_nan(float x) {
  return (((union { float a; uint32_t b; }){ x }).b & 0x7fffffffu) > 0x7f800000u;
}

void rows(const float *restrict x, float *restrict out, int64_t item) {
  const int32_t i1 = (int32_t)item;
  if (i1 < 1009) {
    float a2 = ((union { uint32_t a; float b; }){ 0xff800000u }).b;
    const int32_t v1 = i1 * 8;
    for (int32_t i3 = 0; i3 < 8; i3++) {
      const float v3 = x[v1 + i3];
      a2 = a2 > v3 || is_nan(a2) ? a2 : v3;
    }
    float a4 = 0.0f;
    for (int32_t i5 = 0; i5 < 8; i5++) {
      a4 = a4 + expf(x[v1 + i5] + a2 * -1.0f);
    }
    out[i1] = a4;
  }
}
"""


def softmax_sums() -> Kernel:
    b = Builder("rows")
    x, out = b.param("x", float32, 1009 * 8), b.param("out", float32, 1009, "out")
    with b.loop(1009, "grid") as i:
        most = b.acc("max", float32)
        with b.loop(8) as j:
            b.update(most, b.load(x, i * 8 + j))
        total = b.acc("add", float32)
        with b.loop(8) as j:
            less = b.op("mul", b.result(most, used=[i]), b.const(-1.0, float32))
            b.update(total, b.op("exp", b.op("add", b.load(x, i * 8 + j), less)))
        b.store(out, i, b.result(total, used=[i]))
    return b.kernel()


def test_a_kernel_reads_like_a_program() -> None:
    assert text_of(softmax_sums()) == SOFTMAX


def test_equal_kernels_have_equal_texts() -> None:
    assert text_of(softmax_sums()) == text_of(softmax_sums())


def test_a_value_keeps_what_it_was_when_its_variable_changes() -> None:
    """An exclusive running sum: the sum before is stored after the sum has grown."""
    b = Builder("exclusive")
    x, out = b.param("x", float32, 8), b.param("out", float32, 8, "out")
    acc = b.acc("add", float32)
    with b.loop(8) as i:
        before = b.result(acc, used=[i])
        b.update(acc, b.load(x, i))
        b.store(out, i, before)
    text = text_of(b.kernel())
    assert text.index("= a1;") < text.index("a1 = a1 +") < text.index("out[i2] = v1")


def test_an_index_with_bounds_is_computed_in_as_few_bits_as_it_needs() -> None:
    b = Builder("wide")
    out = b.param("out", int64, 1 << 33, "out")
    with b.loop(1 << 20, "grid") as i:
        b.store(out, i * (1 << 13), b.index(i * (1 << 13) % 3))
    text = text_of(b.kernel())
    assert "const int32_t i1" in text
    assert "(int64_t)i1 * 8192" in text


def test_a_grid_that_no_group_size_divides_is_asked_about() -> None:
    def grid(extent: int) -> str:
        b = Builder("k")
        out = b.param("out", float32, extent, "out")
        with b.loop(extent, "grid") as i:
            b.store(out, i, b.const(1.0, float32))
        return text_of(b.kernel())

    assert "if (" not in grid(1000)
    assert "if (i1 < 1009) {" in grid(1009)
    assert geometry(grid(1000)).sizes(256)[-1] == 250
    assert geometry(grid(1009)).sizes(256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]


@given(st.integers(1, 1 << 20))
def test_an_exact_grid_has_a_good_group_size(extent: int) -> None:
    sizes = [n for n in range(1, 257) if extent % n == 0]
    assert splits(extent) == (extent <= 256 or sizes[-1] >= 64)


def gradient_of_a_convolution() -> Kernel:
    """The gradient by the input, whose taps meet an element or none, in blocks of registers."""
    whole = (2, 32, 8, 12, 12, 3, 3)
    grad, weights = source("g", 2, 32, 12, 12), source("w", 32, 8, 3, 3)
    taps = build.mul(spread(grad, whole, (2, 5, 6)), spread(weights, whole, (0, 3, 4)))
    summed = build.reduce("add", taps, (1,))
    root = build.fold(build.fold(summed, 3, 14), 2, 14)
    (task,) = schedule([root], replace(LIMITS, threads=64, fast_local=False), {})
    return task.kernel


def test_no_gate_stands_in_a_loop_that_it_keeps_from_beginning() -> None:
    kernel = gradient_of_a_convolution()
    assert any(s.limit is not None for s in walk(kernel.body) if isinstance(s, Loop))
    assert " if %" in str(kernel)  # its loads have gates, for frames that run loops to their end
    assert "? in" not in text_of(kernel)


def test_names_that_c_keeps_for_itself_are_changed() -> None:
    b = Builder("float")
    x, out = b.param("v1", uint8, 4), b.param("int", uint8, 4, "out")
    with b.loop(4, "grid") as i:
        b.store(out, i, b.load(x, i))
    text = text_of(b.kernel())
    assert "void float_(const uint8_t *restrict v1_, uint8_t *restrict int_" in text
    assert "int_[i1] = v1_[i1];" in text


def test_a_text_that_does_not_say_how_it_is_launched_is_refused() -> None:
    with pytest.raises(CompileError, match="first line"):
        geometry("void k() {}")


def test_a_frame_refuses_what_the_c_family_has_not() -> None:
    frame = PlainC().begin_kernel(Header("k", (), 1), None)
    with pytest.raises(VerifyError, match="one lane"):
        next(frame.loop("i", 8, "serial", 4, False))
    with pytest.raises(VerifyError, match="no grid loop"):
        next(frame.loop("t", 8, "local", 1, False))


# ---- executed as plain C -----------------------------------------------------------------------

TRAP = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-ffp-contract=off"]


class Library:
    """Kernels compiled into one shared library, with traps at whatever C leaves undefined."""

    def __init__(self, texts: dict[str, str], folder: Path, flags: list[str]) -> None:
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("no gcc on this machine to compile the texts as plain C")
        parts = dict.fromkeys(part for text in texts.values() for part in text.split("\n\n"))
        source = folder / "kernels.c"
        source.write_text("\n\n".join(parts), encoding="utf-8")
        target = folder / "kernels.so"
        command = [compiler, "-std=c11", "-O1", "-w", "-shared", "-fPIC", *flags, str(source)]
        subprocess.run([*command, "-o", str(target), "-lm"], check=True)
        self.functions = ctypes.CDLL(str(target))
        self.texts = texts

    def run(self, case: Case) -> dict[str, Any]:
        shape = geometry(self.texts[case.name])
        buffers = []
        for param in case.kernel.params:
            data = case.inputs.get(param.name)
            if data is None:
                data = np.full(param.size * param.dtype.itemsize, 0xCD, np.uint8)
            buffers.append(np.array(data).view(np.uint8).copy())
        pointers = [ctypes.c_void_p(raw.ctypes.data) for raw in buffers]
        call = getattr(self.functions, shape.name)
        for item in range(shape.grid):
            call(*pointers, ctypes.c_int64(item))
        return {
            param.name: raw.view(param.dtype.storage)
            for param, raw in zip(case.kernel.params, buffers, strict=True)
            if param.role != "in"
        }


def plain_cases(lacking: tuple[str, ...] = ()) -> list[Case]:
    return [c for c in cases(ALL, lacking) if not c.name.startswith("group_")]


@pytest.mark.parametrize(
    ("backend", "lacking"), [(PlainC(), ()), (PoorC(), OPTIONAL)], ids=["plain", "poor"]
)
def test_as_plain_c_every_hook_computes_what_the_contract_says(
    backend: Any, lacking: tuple[str, ...], tmp_path: Path
) -> None:
    tried = plain_cases(lacking)
    texts = {case.name: text_of(case.kernel, backend) for case in tried}
    library = Library(texts, tmp_path, TRAP)
    wrong = [problem for case in tried for problem in problems(case, library.run(case))]
    assert not wrong, "\n".join(wrong)
    assert len(tried) > 100


class OwnC(NoDevice, CStyle):
    words = replace(C, functions={**C.functions, "trunc": "truncation"})


def test_a_truncation_by_bits_serves_a_language_without_one(tmp_path: Path) -> None:
    backend = OwnC()
    tried = [c for c in plain_cases() if c.name.startswith("functions_")]
    texts = {case.name: text_of(case.kernel, backend) for case in tried}
    assert sum("float truncation(float x)" in text for text in texts.values()) == 3
    library = Library(texts, tmp_path, TRAP)
    wrong = [problem for case in tried for problem in problems(case, library.run(case))]
    assert not wrong, "\n".join(wrong)


def test_nan_survives_a_compiler_that_assumes_there_is_none(tmp_path: Path) -> None:
    """Arithmetic with NaN may then be wrong; comparisons, max and conversions must not be."""
    names = ("compare_", "cast_", "argmax_")
    backend = PoorC()
    tried = [c for c in plain_cases(OPTIONAL) if c.name.startswith(names)]
    texts = {case.name: text_of(case.kernel, backend) for case in tried}
    library = Library(texts, tmp_path, ["-ffinite-math-only", "-ffp-contract=off"])
    wrong = [problem for case in tried for problem in problems(case, library.run(case))]
    assert not wrong, "\n".join(wrong)


def test_the_cases_notice_a_wrong_result() -> None:
    """What they compare can fail, in every output of every case."""
    for case in plain_cases():
        with np.errstate(all="ignore"):
            right = {
                name: np.array(w.values)
                if w.bound is None and not w.ulp
                else rounded(w.values, w.dtype)
                for name, w in case.wants.items()
            }
        assert problems(case, right) == []
        for name, values in right.items():
            wrong = values.copy().view(np.uint8)
            wrong[values.itemsize - 1 :: values.itemsize] ^= 0x40 if values.dtype != bool else 1
            found = problems(case, {**right, name: wrong.view(values.dtype)})
            assert any(f" {name}[" in p for p in found), (case.name, name)
