"""The rows as a whole: named once, counted, run on the two devices that this repository has."""

from __future__ import annotations

import re
from collections import Counter

import poor as poor_device
import pytest

from coregrad.dtypes import ALL
from coregrad.ir.ops import CONTRACT_OPS
from coregrad_conformance import tables
from coregrad_conformance.row import LEVELS, Unsupported
from coregrad_conformance.rows import all_rows
from coregrad_conformance.suite import GROUPS, elementwise
from coregrad_conformance.target import Target

NO_VALUES = ("errors", "threads", "capabilities")  # may be about something else than a value


@pytest.fixture
def poor():
    with poor_device.registered() as name:
        yield name


def test_each_level_contains_those_below_it():
    core, standard, extended = ([r.id for r in all_rows(level)] for level in LEVELS)
    assert set(core) < set(standard) < set(extended)
    assert 300 <= len(core) <= 500
    assert 900 <= len(standard) <= 1500


def test_ids_are_unique_and_made_of_plain_words():
    ids = [row.id for row in all_rows("extended")]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
    assert [i for i in ids if not re.fullmatch(r"[a-z0-9_.-]+(/[a-z0-9_.-]+)*", i)] == []


def test_a_level_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="choose one of: core, standard, extended"):
        all_rows("expert")


def test_every_row_says_what_it_is_about():
    names = {dtype.name for dtype in ALL}
    for row in all_rows("extended"):
        assert row.summary.endswith("."), row.id
        assert row.op == "" or row.op in CONTRACT_OPS
        assert row.dtype == "" or row.dtype in names


def test_every_op_has_rows_for_every_dtype_of_its_domain():
    found = {(row.op, row.dtype) for row in all_rows("standard")}
    for op in CONTRACT_OPS.values():
        for dtype in elementwise.DOMAINS[op.domain]:
            assert (op.name, dtype.name) in found, (op.name, dtype.name)


def test_core_asks_for_no_dtype_that_may_be_absent():
    required = {dtype.name for dtype in tables.CORE}
    assert {row.dtype for row in all_rows("core")} <= required | {""}


def test_rows_are_grouped_by_the_file_they_stand_in():
    for group in GROUPS:
        assert {row.group for row in group.rows()} == {group.GROUP}
        assert group.__name__.endswith(group.GROUP)


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_core_rows_pass_and_compare_values(name):
    target = Target(name)
    for row in all_rows("core"):
        outcome = row.run(target)
        assert outcome.compared > 0 or row.group in NO_VALUES, row.id


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_standard_rows_pass(name):
    target = Target(name)
    core = {row.id for row in all_rows("core")}
    for row in all_rows("standard"):
        if row.id not in core:
            outcome = row.run(target)
            assert outcome.compared > 0 or row.group in NO_VALUES, row.id


def test_a_device_of_fewer_dtypes_is_believed_where_it_refuses(poor):
    target = Target(poor)
    unsupported = 0
    for row in all_rows("standard"):
        if row.dtype not in ("float64", "int8"):
            continue
        try:
            row.run(target)
        except Unsupported:
            unsupported += 1
        else:
            pytest.fail(f"{row.id} ran without its dtype")
    assert unsupported > 100


def test_work_groups_are_checked_on_a_device_that_has_them(poor):
    target = Target(poor)
    rows = [r for r in all_rows("core") if r.id.startswith(("loops/work-group", "capabilities/"))]
    assert sum(row.run(target).compared for row in rows) > 5000
