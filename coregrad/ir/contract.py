"""The contract as plain data, for whatever is no Python: ``coregrad/contract.json`` holds this."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from coregrad.ir.ops import CONTRACT_OPS, CONTRACT_VERSION, REDUCE_KINDS


def contract_table() -> dict[str, Any]:
    """Version, op rows, and the SHA-256 of both."""
    rows = [
        {
            "name": op.name,
            "hook": f"lower_{op.name}",
            "arguments": [*op.args, *op.attrs],
            "domain": op.domain,
            "result": op.result,
            "ulp": op.ulp,
            "summary": op.summary,
        }
        for op in CONTRACT_OPS.values()
    ]
    table = {"version": list(CONTRACT_VERSION), "reduce_kinds": list(REDUCE_KINDS), "ops": rows}
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    return table | {"sha256": digest}
