"""How far a row's values may be from the oracle's, in words; it decides no number.

The numbers are read where the rows use them, so that the words cannot differ from what is done.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from coregrad.ir.ops import CONTRACT_OPS
from coregrad_conformance.row import Row
from coregrad_conformance.suite import draws, functions, gradients, programs, training

EXACT = "none: every value is equal to the oracle's"
BOUND = (
    "the bound that holds for any order of a float sum: (n-1) u sum|x| (Higham, Accuracy "
    "and Stability of Numerical Algorithms, section 4.2); all else is exact"
)
# Of rows about no op of the contract, by patterns of their ids; the first that fits.
OTHERS = (
    ("programs/smooth/*", f"{programs.NEAR:g} of the largest value, from float64"),
    ("gradients/*", f"{gradients.NEAR:g} of the largest value, and of the largest slope"),
    ("training/same-seed", EXACT),
    (
        "training/*",
        f"{training.FIRST:g} of the first loss, {training.DRIFT:g} of the later ones, and of the "
        "largest trained weight",
    ),
    ("draws/normal/float32", f"{draws.SINGLE:g} of the largest number"),
    ("draws/normal/float64", f"{draws.DOUBLE:g} of the largest number"),
    ("tensors/*/matmul-*", BOUND),
)


def words(row: Row) -> str:
    """The tolerance of a row, and where it comes from."""
    if row.op in CONTRACT_OPS:
        return _of_op(row.op, row.dtype)
    if row.group == functions.GROUP:
        return _of_function(row)
    found = (text for pattern, text in OTHERS if fnmatchcase(row.id, pattern))
    text = next(found, EXACT)
    return f"{text} (coregrad_conformance/suite/{row.group}.py)"


def _of_op(op: str, dtype: str) -> str:
    if op == "reduce":
        return BOUND
    limit = CONTRACT_OPS[op].ulp.get(dtype)
    if limit is None:
        return EXACT
    return (
        f"{limit} ulp of {dtype} from the correctly rounded result (coregrad/contract.json, "
        f"op {op}); NaN and infinities where the oracle has them"
    )


def _of_function(row: Row) -> str:
    function = next(f for f in functions.FUNCTIONS if f.name == row.id.split("/")[1])
    limit = functions.NARROW if row.dtype in ("float16", "bfloat16") else function.ulp
    return f"{limit:g} ulp of {row.dtype} (coregrad_conformance/suite/functions.py)"
