"""The suite's test of itself: what it would let pass. It never judges a backend of anybody's."""

from coregrad_conformance.selftest.command import main

__all__ = ["main"]
