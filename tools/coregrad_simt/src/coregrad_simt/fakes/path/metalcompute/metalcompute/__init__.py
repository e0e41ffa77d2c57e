"""Turns into the fake metalcompute when it is imported."""

from coregrad_simt.fakes import become

become("metalcompute")
