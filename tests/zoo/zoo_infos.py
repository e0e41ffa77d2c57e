"""Plugins that fail before their backend is imported: one info function each."""

import sys
from typing import NoReturn

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

MAJOR, MINOR = CONTRACT_VERSION


def raises() -> NoReturn:
    raise ZeroDivisionError("counted the devices per driver")


def exits() -> NoReturn:
    sys.exit("this plugin thinks that it is a program")


def no_info() -> dict[str, str]:
    return {"name": "noinfo"}


def other_name() -> BackendInfo:
    return BackendInfo("somebody", CONTRACT_VERSION, "zoo_healthy:Backend", "cpu")


def odd_rank() -> BackendInfo:
    return BackendInfo("oddrank", CONTRACT_VERSION, "zoo_healthy:Backend", "best of all")


def odd_impl() -> BackendInfo:
    return BackendInfo("oddimpl", CONTRACT_VERSION, "zoo_healthy.Backend", "cpu")


def older_major() -> BackendInfo:
    return BackendInfo("oldmajor", (MAJOR - 1, MINOR), "zoo_healthy:Backend", "cpu")


def newer_minor() -> BackendInfo:
    return BackendInfo("newminor", (MAJOR, MINOR + 1), "zoo_healthy:Backend", "cpu")


def no_module() -> BackendInfo:
    return BackendInfo("nomodule", CONTRACT_VERSION, "zoo_not_there:Backend", "cpu")


def half_module() -> BackendInfo:
    return BackendInfo("halfmodule", CONTRACT_VERSION, "zoo_half:Backend", "cpu")


def no_class() -> BackendInfo:
    return BackendInfo("noclass", CONTRACT_VERSION, "zoo_healthy:Bakend", "cpu")


def no_driver() -> BackendInfo:
    impl = "zoo_no_driver:Backend"
    return BackendInfo("nodriver", CONTRACT_VERSION, impl, "gpu", needs="the driver of ACME")


def in_backends(name: str, backend: str) -> BackendInfo:
    return BackendInfo(name, CONTRACT_VERSION, f"zoo_backends:{backend}", "gpu")


def missing_hook() -> BackendInfo:
    return in_backends("missinghook", "MissingHook")


def wrong_argument() -> BackendInfo:
    return in_backends("wrongarg", "WrongArgument")


def forgotten_decorator() -> BackendInfo:
    return in_backends("undecorated", "ForgottenDecorator")


def everything_wrong() -> BackendInfo:
    return in_backends("everything", "EverythingWrong")


def init_raises() -> BackendInfo:
    return in_backends("initraises", "InitRaises")


def no_hardware() -> BackendInfo:
    return in_backends("nohardware", "NoHardware")


def half_device() -> BackendInfo:
    return in_backends("halfdevice", "HalfDevice")


def forgetful() -> BackendInfo:
    return in_backends("forgetful", "Forgetful")


def aborts() -> BackendInfo:
    return in_backends("aborts", "Aborts")


def hangs() -> BackendInfo:
    return in_backends("hangs", "Hangs")


def chatty() -> BackendInfo:
    return in_backends("chatty", "Chatty")
