"""Two plugins that show in a list: one crashes when it is opened, one lacks two dtypes."""

import os

import zoo_healthy

from coregrad import dtypes
from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo, Limits


def crashing_info() -> BackendInfo:
    return BackendInfo("cuda", CONTRACT_VERSION, "zoo_listed:Crashing", "gpu")


def few_info() -> BackendInfo:
    return BackendInfo("few", CONTRACT_VERSION, "zoo_listed:Few", "gpu", "few numbers")


class Crashing(zoo_healthy.Backend):
    def device_count(self):
        os.abort()


class Few(zoo_healthy.Backend):
    def open_device(self, index):
        device = zoo_healthy.Device(f"few:{index}")
        device.title = "ACME 100"
        lacking = {dtypes.float64, dtypes.bfloat16}
        device.limits = Limits(dtypes=frozenset(dtypes.ALL) - lacking)
        return device
