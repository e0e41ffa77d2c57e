"""The networks that are timed, written once with names that all libraries have.

Each file has a function of a :class:`libraries.Library` that returns a model of that library; where
libraries spell something differently, the difference is a line in ``spelling.py``.
"""
