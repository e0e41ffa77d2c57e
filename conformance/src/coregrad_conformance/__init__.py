"""The conformance suite of coregrad: it judges a backend and never helps one.

Importing this loads the standard library alone, as pytest imports it in every project of an
environment that has it installed.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["check"]


def check(name: str, level: str = "core", *, only: str = "", jobs: int = 1) -> list[dict[str, Any]]:
    """Run the rows of ``level`` on the backend ``name``; one dict per row, in the suite's order.

    Meant for a backend's own tests. The rows run in processes of their own: one that crashes or
    hangs is a row with that status. Waivers of the plugin are applied. ``only`` is a pattern that
    ids must match (``"exp/*"``). Raises `coregrad_conformance.runner.Lost` with the reason when
    the device cannot be opened, and ValueError for an unknown level::

        @pytest.mark.parametrize("row", check("mychip"), ids=lambda row: row["id"])
        def test_conformance(row):
            assert row["ok"], row["detail"]

    Keys: ``id``, ``ok``, ``status`` (pass, fail, crash, timeout, unsupported, waived, xpass,
    error), ``detail``, and what `coregrad_conformance.result.Result` has besides.
    """
    from coregrad_conformance import assessment

    return assessment.check(name, level, only=only, jobs=jobs)
