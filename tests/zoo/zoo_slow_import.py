"""A plugin whose light module takes a minute to import."""

import time

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

time.sleep(60)


def info() -> BackendInfo:
    return BackendInfo("slow", CONTRACT_VERSION, "zoo_healthy:Backend", "gpu")
