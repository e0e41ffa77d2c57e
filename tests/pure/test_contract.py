"""``coregrad/contract.json`` is the contract as the table of ops has it.

After a change of the table write the file anew, and raise ``CONTRACT_VERSION`` if a backend that
met the old contract may not meet the new one::

    python tests/pure/test_contract.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import coregrad
from coregrad.ir import contract

PATH = Path(coregrad.__file__).parent / "contract.json"


def text() -> str:
    return json.dumps(contract.contract_table(), indent=1) + "\n"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return table


def test_the_stored_contract_is_the_table_of_ops(stored: dict[str, Any]) -> None:
    assert stored == contract.contract_table(), "run: python tests/pure/test_contract.py"
    assert PATH.read_text(encoding="utf-8") == text()


def test_the_contract_has_25_hooks_each_named_for_its_op(stored: dict[str, Any]) -> None:
    names = [row["name"] for row in stored["ops"]]
    assert len(set(names)) == 25
    assert [row["hook"] for row in stored["ops"]] == [f"lower_{name}" for name in names]


def test_the_hash_is_that_of_the_rest(stored: dict[str, Any]) -> None:
    rest = {key: value for key, value in stored.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    assert digest == stored["sha256"]


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
