"""The C family once: the 25 hooks as source text, and the table of words in which languages differ.

A backend for OpenCL C, CUDA C, Metal or plain C subclasses :class:`CStyle`, gives it its
:class:`Words`, and brings a device that compiles and launches the text. Nothing here knows a
driver.
"""

from coregrad.cstyle.frame import Frame, Geometry, geometry
from coregrad.cstyle.hooks import CStyle
from coregrad.cstyle.routines import helper
from coregrad.cstyle.value import Value
from coregrad.cstyle.words import FUNCTIONS, SHORT_NAMES, SHORT_SUFFIXES, Words

__all__ = [
    "FUNCTIONS",
    "SHORT_NAMES",
    "SHORT_SUFFIXES",
    "CStyle",
    "Frame",
    "Geometry",
    "Value",
    "Words",
    "geometry",
    "helper",
]
