"""A GPU's plugin whose driver knows better than its light module what there is to run on."""

from typing import NoReturn

import zoo_healthy

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo


def cuda_info() -> BackendInfo:
    return BackendInfo("cuda", CONTRACT_VERSION, "zoo_ranks:Gpu", "gpu", "a stand-in")


class Gpu(zoo_healthy.Backend):
    """Has what its light module promised."""

    asked = 0

    def rank(self) -> str:
        type(self).asked += 1
        return "gpu"


class Software(Gpu):
    """Finds a CPU alone."""

    def rank(self) -> str:
        super().rank()
        return "software"


class Wrong(zoo_healthy.Backend):
    """Thinks highly of itself."""

    def rank(self) -> str:
        return "best of all"


class Broken(zoo_healthy.Backend):
    """Cannot say."""

    def rank(self) -> NoReturn:
        raise OSError("libacme.so.1: cannot open shared object file")
