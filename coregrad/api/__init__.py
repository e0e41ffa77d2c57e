"""What a user touches: the tensor, its gradients, and where it lives.

The class is one chain, a family of methods per file, lowest first: :mod:`base` (a name for a
value), :mod:`casting`, :mod:`elementwise`, :mod:`movement`, :mod:`indexing`, :mod:`reduction`,
:mod:`loss`, :mod:`network`, :mod:`creation`, :mod:`random`, :mod:`tensor`. On top of it stand
:mod:`functions` (the methods as functions), :mod:`gradient` and :mod:`function` (an operation with
its own gradient).
"""
