"""The contract's two halves fit: one documented hook per row of the op table, and no other."""

import inspect
import typing

import pytest

from coregrad.hookspecs import PROJECT, Backend, BackendSpec, Device, Frame, Hooks, hookimpl
from coregrad.ir.contract import contract_table
from coregrad.ir.ops import CONTRACT_OPS, GRAPH_OPS

OPS = sorted(CONTRACT_OPS)
SPECS = sorted(name for name in vars(BackendSpec) if not name.startswith("_"))


def arguments(op: str) -> list[str]:
    """The spec's argument names, self left out."""
    return list(inspect.signature(getattr(BackendSpec, f"lower_{op}")).parameters)[1:]


def test_the_contract_has_25_ops() -> None:
    assert len(CONTRACT_OPS) == 25
    assert not set(CONTRACT_OPS) & set(GRAPH_OPS)


@pytest.mark.parametrize("op", OPS)
def test_every_contract_op_has_one_hookspec_with_its_arguments(op: str) -> None:
    row = CONTRACT_OPS[op]
    given = arguments(op)
    assert given[0] == "frame"
    assert given[-2:] == ["dtype", "lanes"]
    assert sorted(given[1:]) == sorted([*row.args, *row.attrs])
    assert [name for name in given if name in row.args] == list(row.args)
    assert [name for name in given if name in row.attrs] == list(row.attrs)


@pytest.mark.parametrize("op", OPS)
def test_every_hookspec_is_documented_and_annotated(op: str) -> None:
    spec = getattr(BackendSpec, f"lower_{op}")
    assert len(inspect.getdoc(spec) or "") > 20
    assert set(typing.get_type_hints(spec)) == {*arguments(op), "return"}


@pytest.mark.parametrize("name", SPECS)
def test_no_hookspec_without_an_op(name: str) -> None:
    assert name.startswith("lower_")
    assert name.removeprefix("lower_") in CONTRACT_OPS
    options = getattr(getattr(BackendSpec, name), f"{PROJECT}_spec")
    assert options["firstresult"]
    assert not options["historic"]


@pytest.mark.parametrize("op", OPS)
def test_the_contract_as_data_names_the_hook_and_its_arguments(op: str) -> None:
    row = next(row for row in contract_table()["ops"] if row["name"] == op)
    assert row["hook"] == f"lower_{op}"
    assert sorted(row["arguments"]) == sorted(arguments(op)[1:])
    assert row["summary"]


@pytest.mark.parametrize("protocol", [Backend, Device, Frame], ids=lambda p: p.__name__)
def test_every_method_of_a_protocol_is_documented(protocol: type) -> None:
    methods = [m for name, m in vars(protocol).items() if inspect.isfunction(m) and name[0] != "_"]
    assert methods
    assert [m.__name__ for m in methods if not inspect.getdoc(m)] == []


def test_a_hookimpl_is_the_function_it_decorates() -> None:
    def lower_add(frame: object, a: int, b: int, dtype: object, lanes: int) -> int:
        return a + b

    marked = hookimpl(lower_add)
    assert marked is lower_add
    hooks = Hooks("eager", {"add": marked})
    assert "add" in hooks
    assert "exp" not in hooks
    assert hooks["add"](None, 2, 3, None, 1) == 5
    with pytest.raises(KeyError):
        hooks["exp"]
