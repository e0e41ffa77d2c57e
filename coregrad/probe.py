"""Ask a question in another process, which may crash or hang; it never knows what a plugin is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

__all__ = ["answer", "ask"]

MARK = "coregrad-probe:"  # a driver may print as well: the answer's line has this prefix


def ask(call: str, arguments: list[str], seconds: float) -> dict[str, Any] | str:
    """What ``call`` (as ``"module:function"``) answers to ``arguments`` in a fresh process.

    A str says why there is no answer.
    """
    module, _, function = call.partition(":")
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        f"from {module} import {function}; {function}(*sys.argv[2:])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(sys.path), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds:g} s"
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode != 0 or not answers:
        return f"its process ended with {_ending(done.returncode)} while it was probed"
    found: dict[str, Any] = json.loads(answers[-1].removeprefix(MARK))
    return found


def answer(data: dict[str, Any]) -> None:
    """Give the answer and end this process, at once: drivers also crash while Python shuts down."""
    sys.stdout.write(f"\n{MARK}{json.dumps(data)}\n")
    sys.stdout.flush()
    os._exit(0)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
