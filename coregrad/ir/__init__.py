"""The two levels of intermediate representation and the passes between them.

Tensors are :mod:`graph` nodes, made by the checked constructors of :mod:`build` and differentiated
by :mod:`autodiff`. To compute some, the engine runs, in this order: :mod:`simplify` (graph to
graph), :mod:`schedule` (graph to groups, one per kernel), :mod:`lower` (group to kernel),
:mod:`loops` (which loop is the grid, which one is vectorised), :mod:`groups` (what work-groups
share, on devices of many threads), :mod:`legalize` (ops the backend lacks), :mod:`verify`, and
:mod:`emit` (kernel to the backend's code, through its hooks).
"""
