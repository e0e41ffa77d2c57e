"""What the environment says. It is read when it is needed, so that a test can change it."""

from __future__ import annotations

import os
from pathlib import Path

from coregrad_simt.errors import SettingError

ORDERS = {"forward": 0, "reverse": 1, "random": 2}


def cache() -> Path:
    """Where compiled kernels are kept: COREGRAD_SIMT_CACHE."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coregrad_simt"
    return Path(os.environ.get("COREGRAD_SIMT_CACHE") or default)


def compiler() -> str:
    """The C++ compiler, g++ 12 or newer: COREGRAD_SIMT_CXX."""
    return os.environ.get("COREGRAD_SIMT_CXX") or "g++"


def orders() -> tuple[str, ...]:
    """The orders in which each launch is executed: COREGRAD_SIMT_ORDERS, all three by default."""
    names = tuple(os.environ.get("COREGRAD_SIMT_ORDERS", "forward,reverse,random").split(","))
    for name in names:
        if name not in ORDERS:
            raise SettingError(f"COREGRAD_SIMT_ORDERS: {name!r} is none of {', '.join(ORDERS)}")
    return names


def route() -> str:
    """How CUDA is executed: COREGRAD_SIMT_ROUTE, a (the text by g++) or b (NVRTC's PTX)."""
    name = os.environ.get("COREGRAD_SIMT_ROUTE", "a")
    if name not in ("a", "b"):
        raise SettingError(f"COREGRAD_SIMT_ROUTE: {name!r} is neither a nor b")
    return name


def fast_math() -> bool:
    """Whether Metal's text is compiled with -ffast-math, denormals flushed: COREGRAD_SIMT_FAST."""
    return number("COREGRAD_SIMT_FAST", 0) != 0


def spoilt(text: str) -> str:
    """A text made wrong, if COREGRAD_SIMT_SPOIL asks for it (``old=>new``): a run that passes all
    the same does not execute the text."""
    old, arrow, new = os.environ.get("COREGRAD_SIMT_SPOIL", "").partition("=>")
    return text.replace(old, new) if arrow and old else text


def seconds() -> int:
    """The CPU time that a launch may take, in seconds: COREGRAD_SIMT_SECONDS."""
    return number("COREGRAD_SIMT_SECONDS", 120)


def folder(name: str) -> Path | None:
    """A folder that a variable names, made if need be."""
    value = os.environ.get(name)
    if not value:
        return None
    path = Path(value)
    path.mkdir(parents=True, exist_ok=True)
    return path


def number(name: str, default: int) -> int:
    """An integer that a variable holds."""
    text = os.environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"{name}: {text!r} is not an integer") from None
