"""A light module that sees for itself that there is no GPU, and does not promise one."""

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo


def info() -> BackendInfo:
    return BackendInfo("opencl", CONTRACT_VERSION, "zoo_no_driver:Backend", "software")
