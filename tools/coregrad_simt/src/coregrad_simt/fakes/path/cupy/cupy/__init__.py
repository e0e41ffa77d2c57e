"""Turns into the fake cupy when it is imported."""

from coregrad_simt.fakes import become

become("cupy")
