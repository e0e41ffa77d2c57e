"""The rows of coregrad's conformance suite as tests. `pytest -k exp` runs those of exp alone."""

import coregrad_conformance


def pytest_generate_tests(metafunc):
    word = metafunc.config.getoption("keyword")
    only = f"*{word}*" if word.isidentifier() else ""
    rows = coregrad_conformance.check("webgpu", level="core", only=only)
    metafunc.parametrize("row", rows, ids=[row["id"] for row in rows])


def test_conformance(row):
    assert row["ok"], row["detail"]
