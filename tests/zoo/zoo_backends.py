"""Backends that break the contract, or break down when their device is looked for."""

import os
import time

import pluggy
import zoo_healthy

from coregrad.errors import BackendUnavailable
from coregrad.hookspecs import hookimpl


def without(hook: str) -> type:
    """The healthy backend without one of its hooks."""
    members = vars(zoo_healthy.Backend).items()
    kept = {k: v for k, v in members if k != hook and not k.startswith("__")}
    return type("Backend", (), kept)


MissingHook = without("lower_mul")


class WrongArgument(zoo_healthy.Backend):
    """Calls an argument otherwise than the contract."""

    @hookimpl
    def lower_add(self, frame, x, y, dtype, lanes):
        return ("add", x, y)


class ForgottenDecorator(zoo_healthy.Backend):
    """Forgot @hookimpl on one hook."""

    def lower_add(self, frame, a, b, dtype, lanes):
        return ("add", a, b)


class EverythingWrong(zoo_healthy.Backend):
    """One of each mistake that pluggy alone lets pass."""

    style = "lazy"
    open_device = None
    lower_xor = 7

    @property
    def lower_or(self):
        raise RuntimeError("properties are not asked")

    @property
    def driver(self):
        raise RuntimeError("nor is this one")

    def device_count(self, among):
        return 1

    @hookimpl
    def lower_add(self, *args, **kwargs):
        return args

    @hookimpl
    def lower_mul(self, frame, b, a, dtype, lanes):
        return ("mul", a, b)

    @hookimpl
    def lower_div(self, frame, a, b, dtype, lanes=1):
        return ("div", a, b)

    @hookimpl
    async def lower_idiv(self, frame, a, b, dtype, lanes):
        return ("idiv", a, b)

    @hookimpl
    def lower_mod(self, frame, a, b, dtype, lanes):
        yield ("mod", a, b)

    @hookimpl
    def lower_lt(self, frame, a, b, dtype, *, lanes):
        return ("lt", a, b)

    @hookimpl
    def lower_exponent(self, frame, x, dtype, lanes):
        return ("exp", x)

    @hookimpl
    def render_add(self, frame, a, b, dtype, lanes):
        return ("add", a, b)

    @pluggy.HookimplMarker("coregrad")(trylast=True)
    def lower_max(self, frame, a, b, dtype, lanes):
        return ("max", a, b)


class InitRaises(zoo_healthy.Backend):
    """Cannot be made."""

    def __init__(self) -> None:
        raise KeyError("CHIP_HOME")


class NoHardware(zoo_healthy.Backend):
    """Finds nothing to run on."""

    def device_count(self):
        raise BackendUnavailable("the driver is there, but no chip is plugged in")


class HalfDevice(zoo_healthy.Backend):
    """Opens something that is no device."""

    def open_device(self, index):
        return object()


class Forgetful(zoo_healthy.Backend):
    """Has a device whose memory does not keep what it is given."""

    def open_device(self, index):
        return ForgetfulDevice("forgetful")


class ForgetfulDevice(zoo_healthy.Device):
    """Memory that reads as zeros."""

    def copy_out(self, buffer, into):
        into[:] = bytes(len(into))


class Aborts(zoo_healthy.Backend):
    """Takes the process with it, as a broken driver does."""

    def device_count(self):
        os.abort()


class Hangs(zoo_healthy.Backend):
    """Never answers."""

    def device_count(self):
        time.sleep(600)


class Chatty(zoo_healthy.Backend):
    """Prints while it is looked for, as drivers do."""

    def device_count(self):
        print("coregrad-probe:{} is what ACME's driver likes to print")
        print("no line end", end="")
        return 1
