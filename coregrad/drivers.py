"""What a backend needs of its surroundings before it calls a driver: its library, its own process.

It never calls a driver, nor knows what one can do.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from coregrad import config
from coregrad.errors import BackendUnavailable, DeviceError

EMULATOR = "coregrad_simt"  # the development tool that has fakes of drivers' libraries


def is_emulated(device: str) -> bool:
    """Whether COREGRAD_EMULATE asks for a fake of the device's library, whose kernels run on the
    CPU."""
    return device in config.names("COREGRAD_EMULATE")


def library(device: str, module: str, called: str) -> Any:
    """The Python library of a driver, or the fake of it for an emulated device.

    Raises BackendUnavailable, which names the library as it is ``called``, and says why it is not
    there.
    """
    try:
        if is_emulated(device):
            return importlib.import_module(EMULATOR).install_fakes(module)[0]
        return importlib.import_module(module)
    except Exception as error:  # a broken installation raises what it likes
        raise BackendUnavailable(f"{device}: {called} cannot be imported: {error}") from error


def require_own_process(pid: int, title: str, driver: str) -> None:
    """Raise DeviceError unless this is the process ``pid``, which opened the device: in a forked
    child most drivers fail, or hang for good."""
    if os.getpid() != pid:
        raise DeviceError(
            f"{title}: this process was forked from one that had opened the device, which {driver} "
            "does not survive; start processes with multiprocessing.get_context('spawn'), or open "
            "the device after forking"
        )
