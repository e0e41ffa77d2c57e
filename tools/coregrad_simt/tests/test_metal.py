"""Metal's text as C++ under the fake metalcompute: right results, its limits, planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coregrad_simt import __main__ as command
from coregrad_simt import report
from coregrad_simt.errors import CompileError, Fault, MissingTool
from coregrad_simt.fakes import metalcompute
from coregrad_simt.metal import spaces

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
PINNED = "[[max_total_threads_per_threadgroup(64)]] "
MAP = """kernel void k(device float *o [[buffer(0)]], device const float *x [[buffer(1)]],
  uint i [[thread_position_in_grid]]) {{ {} }}
"""
GROUP = """kernel void k(device float *o [[buffer(0)]], device const float *x [[buffer(1)]],
  uint g [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {{
  threadgroup float s[64];
  {}
}}
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
SUM = f"""s[t] = x[g * 64 + t];
  {BARRIER}
  for (uint n = 32; n > 0; n >>= 1) {{
    if (t < n) s[t] += s[t + n];
    {BARRIER}
  }}
  if (t == 0) o[g] = s[0];"""
FLOATS = np.arange(1, 129, dtype=np.float32)


@pytest.fixture(params=["strict", "fast"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """metalcompute always compiles with fast-math; without it the checks are sharper."""
    monkeypatch.setenv("COREGRAD_SIMT_FAST", str(int(request.param == "fast")))
    return metalcompute.Device()


def launch(device: Any, text: str, count: int = 128, size: int = 128, x: Any = FLOATS) -> Any:
    """Kernel k of a text; the result is returned when it is there. Raises what went wrong."""
    function = device.kernel(HEAD + text).function("k")
    out, source = device.buffer(4 * size), device.buffer(x)
    handle = function(count, out, source)
    assert np.isnan(np.frombuffer(out, np.float32)).all(), "it ran before the handle was dropped"
    del handle
    device.buffer(1)  # raises what the launch could not
    return np.frombuffer(out, np.float32).copy()


def test_a_map_computes_what_its_text_says(device: Any) -> None:
    body = "if (i < 100) o[i] = precise::exp(x[i] * 0.01f) + 1.0f;"
    got = launch(device, PINNED + MAP.format(body), count=100, size=100)
    want = np.exp(FLOATS[:100].astype("f8") * np.float32(0.01)) + 1
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_reduction_with_barriers(device: Any) -> None:
    got = launch(device, PINNED + GROUP.format(SUM), size=2)
    np.testing.assert_array_equal(got, FLOATS.reshape(2, 64).sum(1))


def test_a_reduction_over_a_simdgroup(device: Any) -> None:
    got = launch(device, PINNED + GROUP.format("float v = simd_sum(x[g * 64 + t]); if (t % 32 == 0) o[g * 2 + t / 32] = v;"), size=4)  # fmt: skip
    np.testing.assert_array_equal(got, FLOATS.reshape(4, 32).sum(1))


def test_sizes_in_a_small_buffer(device: Any) -> None:
    text = """kernel void k(device float *o [[buffer(0)]], constant int2 &n [[buffer(1)]],
  uint i [[thread_position_in_grid]]) { if ((int)i < n.x) o[i] = n.y; }"""
    got = launch(device, PINNED + text, count=8, size=8, x=np.array([8, 5], np.int32))
    assert (got == 5).all()


def test_half_and_integers(device: Any) -> None:
    body = "if (i < 128) o[i] = float(half(x[i] / 3.0f)) + (float)(as_type<uint>(x[i]) >> 24);"
    got = launch(device, PINNED + MAP.format(body))
    half = (FLOATS / np.float32(3)).astype("f2").astype("f4")
    np.testing.assert_array_equal(got, half + (FLOATS.view("u4") >> 24))


def test_an_earlier_launch_is_done_when_a_later_handle_is_dropped(device: Any) -> None:
    function = device.kernel(HEAD + PINNED + MAP.format("o[i] = x[i] + 1;")).function("k")
    first, second, x = device.buffer(512), device.buffer(512), device.buffer(FLOATS)
    kept = function(128, first, x)
    function(128, second, first)
    assert (np.frombuffer(second, np.float32) == FLOATS + 2).all()
    del kept


def test_an_array_argument_is_copied(device: Any) -> None:
    function = device.kernel(HEAD + PINNED + MAP.format("o[i] = x[i];")).function("k")
    out, x = device.buffer(512), FLOATS.copy()
    handle = function(128, out, x)
    x[:] = 0
    del handle
    assert (np.frombuffer(out, np.float32) == FLOATS).all()


def test_nan_is_found_by_its_bits_and_under_fast_math_not_by_comparison(device: Any) -> None:
    x = np.array([np.nan, 1, np.inf, -np.inf], np.float32)
    text = PINNED + MAP.format("if (i < 4) o[i] = TEST ? 7.0f : 3.0f;")
    bits = "(as_type<uint>(x[i]) & 0x7fffffffu) > 0x7f800000u"
    assert launch(device, text.replace("TEST", bits), 4, 4, x).tolist() == [7, 3, 3, 3]
    compared = launch(device, text.replace("TEST", "x[i] != x[i]"), 4, 4, x).tolist()
    fast = device.kernel(HEAD + text.replace("TEST", bits))._functions["k"].kernel.flush
    assert compared == ([3, 3, 3, 3] if fast else [7, 3, 3, 3])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no bounds check", PINNED + MAP.format("o[i] = 1;"), "beyond the end"),
        ("a group that is not pinned", GROUP.format(f"s[t] = x[t]; {BARRIER} o[g * 64 + t] = s[63 - t];"), "index outside|beyond the end"),
        ("a missing barrier", PINNED + GROUP.format("s[t] = t; if (g == 0) o[t] = s[63 - t];"), "a race"),
        ("a barrier in a branch", PINNED + GROUP.format(f"if (t < 9) {{ s[t] = 1; {BARRIER} }} o[t] = s[t];"), "divergent barrier"),
        ("a barrier that orders no memory", PINNED + GROUP.format("s[t] = 1; threadgroup_barrier(mem_flags::mem_none); if (t < 9) o[t] = s[t];"), "mem_none"),
        ("a group's array left", PINNED + GROUP.format(f"s[t + 1] = 1; {BARRIER} o[t] = s[t];"), "index outside an array"),
        ("an overflow", PINNED + MAP.format("if (i < 9) o[i] = (int)(0x7fffffff) + (int)i + 1;"), "signed overflow"),
    ],
)  # fmt: skip
def test_a_planted_bug_is_reported(device: Any, name: str, text: str, message: str) -> None:
    with pytest.raises(Fault, match=message):
        launch(device, text, count=100, size=100)
    assert report.faults


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("double", MAP.format("double d = 1; o[i] = d;"), "has no double"),
        ("long long", MAP.format("long long n = 1; o[i] = n;"), "has no long long"),
        ("goto", MAP.format("goto end; end: o[i] = 1;"), "has no goto"),
        ("isnan", MAP.format("o[i] = isnan(x[i]) ? 1 : 0;"), "isnan|deleted"),
        ("erf", MAP.format("o[i] = erf(x[i]);"), "erf"),
        ("a scalar parameter", "kernel void k(device float *o [[buffer(0)]], int n [[buffer(1)]]) {}", "neither in device"),
        ("a parameter without attribute", "kernel void k(device float *o) {}", "no attribute"),
        ("two buffers of one index", "kernel void k(device float *o [[buffer(0)]], device float *x [[buffer(0)]]) {}", "buffer index 0"),
        ("a number of a wrong type", "kernel void k(device float *o [[buffer(0)]], float i [[thread_position_in_grid]]) {}", "cannot be a float"),
        ("an unknown attribute", "kernel void k(device float *o [[buffer(0)]], uint i [[thread_id]]) {}", "thread_id"),
        ("a syntax error", MAP.format("o[i] = ;"), "error"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_metal_is_refused(
    device: Any, name: str, text: str, message: str
) -> None:
    with pytest.raises(metalcompute.error, match=message):
        device.kernel(HEAD + text)


def test_what_the_host_does_wrong_is_refused(device: Any) -> None:
    kernel = device.kernel(HEAD + PINNED + MAP.format("if (i < 128) o[i] = x[i];"))
    function, out, x = kernel.function("k"), device.buffer(512), device.buffer(FLOATS)
    with pytest.raises(metalcompute.error, match="Function not found"):
        kernel.function("other")
    with pytest.raises(metalcompute.error, match="Buffer not found"):
        function(128)
    with pytest.raises(metalcompute.error, match="integer kernel count"):
        function("many", out, x)
    with pytest.raises(metalcompute.error, match="buffer 1 is not given"):
        function(128, out)
    with pytest.raises(metalcompute.error, match="has none of this index"):
        function(128, out, x, x)
    with pytest.raises(metalcompute.error, match="scalar 3"):
        function(128, out, 3)
    with pytest.raises(metalcompute.error, match="what is written is lost"):
        function(128, np.zeros(128, np.float32), x)
    with pytest.raises(metalcompute.error, match="0 threads"):
        function(0, out, x)
    with pytest.raises(metalcompute.error, match="another device"):
        function(128, metalcompute.Device().buffer(512), x)
    with pytest.raises(metalcompute.error, match="Could not make buffer"):
        device.buffer(0)
    with pytest.raises(metalcompute.error, match="Could not make buffer"):
        device.buffer(np.zeros(0, np.float32))
    with pytest.raises(metalcompute.error, match="Unsupported input format"):
        device.buffer(2.5)
    with pytest.raises(TypeError, match="no len"):
        len(out)
    with pytest.raises(metalcompute.error, match="Cannot create device"):
        metalcompute.Device(5)


def test_limits_of_a_pipeline(device: Any) -> None:
    wide = "[[max_total_threads_per_threadgroup(2048)]] " + MAP.format("o[i] = 1;")
    large = PINNED + GROUP.format("threadgroup float q[8193]; q[t] = 1; o[t] = q[t];")
    for text in (wide, large):
        function = device.kernel(HEAD + text).function("k")
        with pytest.raises(metalcompute.error, match="Cannot create pipeline state"):
            function(64, device.buffer(256), device.buffer(256))


def test_denormals_are_flushed_under_fast_math_only(device: Any) -> None:
    x = np.array([1e-40, 1.0], np.float32)
    got = launch(device, PINNED + MAP.format("if (i < 2) o[i] = x[i] * 1.5f;"), 2, 2, x)
    assert got[0] in (0.0, x[0] * np.float32(1.5))
    fast = device.kernel(HEAD + MAP.format(""))._functions["k"].kernel.flush
    assert (got[0] == 0) == fast


# ---- address spaces ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clang() -> str:
    try:
        return spaces.clang()
    except MissingTool as error:
        pytest.skip(str(error))


def test_right_address_spaces_are_accepted(clang: str) -> None:
    spaces.check(HEAD + PINNED + GROUP.format(SUM))
    spaces.check(
        HEAD + MAP.format("o[i] = fma(x[i], 2.0f, precise::exp(x[i])) + as_type<float>(i);")
    )


@pytest.mark.parametrize(
    "text",
    [
        MAP.format("float *p = o; p[i] = 1;"),
        GROUP.format("device float *p = s; p[t] = 1;"),
        GROUP.format("threadgroup float *p = o; p[t] = 1;"),
        "kernel void k(float *o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = 1; }",
        MAP.format("double d = 1; o[i] = d;"),
    ],
)
def test_wrong_address_spaces_are_refused(clang: str, text: str) -> None:
    with pytest.raises(CompileError):
        spaces.check(HEAD + text)


def test_many_texts_are_looked_at_together_and_the_wrong_one_is_named(
    clang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though their kernels have one name."""
    right = HEAD + PINNED + MAP.format("o[i] = x[i];")
    for name in ("a", "b", "d"):
        (tmp_path / f"{name}.metal").write_text(right)
    assert command.main(["spaces", str(tmp_path)]) == 0
    (tmp_path / "c.metal").write_text(HEAD + MAP.format("float *p = o; p[i] = 1;"))
    assert command.main(["spaces", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.count(".metal: ") == 1
    assert "c.metal: " in said
    assert "of 4 texts" in said
