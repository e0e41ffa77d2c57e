"""What an emulated device says of itself: how many kernels it made ready and launched.

COREGRAD_EMULATE names the devices whose kernels a development tool runs on the CPU. Its processes
append a JSON object a line to the file that COREGRAD_SIMT_REPORT names, for each thing they do:
numbers by name, or a fault. This module only adds that up; it emulates nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ASKED = "COREGRAD_EMULATE"
JOURNAL = "COREGRAD_SIMT_REPORT"
LAUNCHED = "kernels launched"  # how the names of what counts as a launch end
MARK = "emulated: not run on the hardware"


@dataclass
class Tally:
    """The numbers of a run, and the faults seen, whoever swallowed their exceptions."""

    numbers: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def is_asked(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the device ``name`` (it may have an index) is emulated in an environment.

    >>> is_asked("cuda:1", {"COREGRAD_EMULATE": "metal, cuda"})
    True
    """
    devices = [part.strip() for part in environment.get(ASKED, "").split(",")]
    return name.partition(":")[0].lower() in devices


def tally(journal: Path) -> Tally:
    """The sum of a file; empty where nobody wrote one."""
    numbers: Counter[str] = Counter()
    faults: list[str] = []
    for line in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else ():
        entry = json.loads(line)
        if "fault" in entry:
            faults.append(str(entry["fault"]))
        else:
            numbers.update({str(name): int(number) for name, number in entry.items()})
    return Tally(dict(sorted(numbers.items())), faults)


def hand_on(journal: Path) -> None:
    """Append the file to the one that this process's own environment names, if it names one."""
    asked = os.environ.get(JOURNAL)
    if asked and journal.exists():
        with open(asked, "ab") as file:
            file.write(journal.read_bytes())


def reasons(emulated: Mapping[str, Any] | None) -> list[str]:
    """Why a run of an emulated device has failed, beside its rows."""
    if emulated is None:
        return []
    found = [f"emulation: {fault}" for fault in emulated["faults"]]
    if launches(emulated) == 0:
        found.append("emulation: no kernel was launched, so the rows have proven nothing")
    return found


def launches(emulated: Mapping[str, Any]) -> int:
    """How many kernels were launched."""
    return sum(number for name, number in emulated["numbers"].items() if name.endswith(LAUNCHED))


def words(emulated: Mapping[str, Any]) -> str:
    """The numbers in a line.

    >>> words({"numbers": {"cuda-b: kernels launched": 3}, "faults": []})
    'cuda-b: kernels launched 3'
    """
    return ", ".join(f"{name} {number}" for name, number in emulated["numbers"].items()) or "none"
