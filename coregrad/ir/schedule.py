"""Which nodes get a buffer, which share a kernel, and in what order the kernels run.

Everything is fused until something speaks against it. A group of outputs is evaluated (see
:mod:`lower`) as if it were one kernel; :func:`objections` looks at what that kernel would do (what
is summed inside what, how often a value would be computed again) and names nodes that had better
have a buffer of their own; then the group is evaluated again. What is left becomes a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from coregrad.errors import VerifyError
from coregrad.ir import loops, lower, ops, place, split
from coregrad.ir.graph import Node, toposort
from coregrad.ir.groups import keeps_rows, layout, row_limits
from coregrad.ir.index import Var
from coregrad.ir.kernel import INDEX, RESULT, Instr, Kernel, Sort
from coregrad.ir.lower import Evaluation, NeedsBuffer, Plan, Reduction
from coregrad.ir.outline import Outline, Outlines
from coregrad.ir.runs import Places
from coregrad.ir.target import Limits

REPEATS = 4  # times a value may be computed again before it gets a buffer
CHEAP = 3  # instructions that may be repeated without limit (a load, a cast, a multiplication)
COSTLY = 24  # instructions that two kernels should not both compute
LOADED = 6  # of them, a load is worth: memory is what most kernels wait for
CHAIN = 2  # costly values in a row, each wanted by several kernels, that are looked at together
LONG_CHAIN = 16  # such values in a row that would take long to look at
SMALL = 1 << 14  # loop iterations that need no sharing out among threads
GRID = 32  # iterations of the outermost loops that are enough to share out
LARGE = 400  # instructions that one kernel of several outputs should not exceed
NEAR = 16  # groups back in the order that a group may join
SEARCH = 256  # groups that are looked at to see whether one stands between two
MOVED = 8  # tasks in a row, each moved forward to follow the one before
NESTED = 16  # iterations of a reduction that may stand inside another one


@dataclass(eq=False)
class Task:
    """One launch: a kernel, the nodes it computes and the nodes it reads, in parameter order.

    ``initial`` says that the first output's buffer is that of this node, updated in place.
    """

    kernel: Kernel
    outputs: list[Node]
    sources: list[Node]
    initial: Node | None = None


@dataclass(eq=False)
class _Group:
    """Outputs that one kernel will compute; ``first`` and ``last`` say when they joined."""

    outputs: list[Node]
    found: Evaluation = field(default_factory=Evaluation)
    first: int = 0
    last: int = 0

    def is_current(self, buffered: set[Node]) -> bool:
        """Whether no value computed inside has been given a buffer since."""
        inside = (self.found.requests.keys() | self.found.passed) & buffered
        return inside <= set(self.outputs)


@dataclass(eq=False)
class Scheduler:
    """One call of :func:`schedule`."""

    roots: Sequence[Node]
    limits: Limits
    checks: Mapping[Node, int]
    fusion: bool
    places: Places = field(default_factory=Places)
    buffered: set[Node] = field(default_factory=set)
    consumers: dict[Node, list[Node]] = field(default_factory=dict)
    order: list[Node] = field(default_factory=list)
    settled: dict[Node, _Group] = field(default_factory=dict)
    outlines: Outlines = field(default_factory=Outlines)

    def run(self) -> list[Task]:
        """The tasks, in an order in which each finds its sources computed."""
        self.order = toposort(self.roots)
        for node in self.order:
            for source in node.src:
                self.consumers.setdefault(source, []).append(node)
        self.buffered = {n for n in self.order if self._always(n)}
        self.buffered |= {n for n in self.places.buffered if n.op is not ops.BUFFER}
        self.buffered |= {
            self._home(self._summed(n)) for n in self.order if split.is_product_sum(n)
        }
        self.buffered |= self._wanted_twice()
        groups = self._groups()
        while not self._is_settled(groups):
            groups = self._groups()
        tasks = [self._task(group) for group in self._joined(self._with_rows(groups))]
        return _early(_in_order(tasks), set(self.roots))

    def _is_settled(self, groups: Sequence[_Group]) -> bool:
        """Whether the groups are what their kernels will be. What several of them would compute
        gets a buffer; and one that was found early may compute what has got a buffer since."""
        twice = _computed_twice(groups, self.consumers, _hoists(self.limits)) - self.buffered
        for node in twice:
            self._give_buffer(node)
        return not twice and all(group.is_current(self.buffered) for group in groups)

    def has_buffer(self, node: Node) -> bool:
        """Whether kernels load this node instead of computing it."""
        return node.op is ops.BUFFER or node in self.buffered

    def _always(self, node: Node) -> bool:
        if node.op in (ops.BUFFER, ops.CONST, ops.IOTA):
            return node.op is not ops.BUFFER and node in self.roots
        if node in self.roots or node.op in (ops.CONTIGUOUS, *_ALONE):
            return True
        if any(c.op is ops.SCATTER and c.src[0] is node for c in self.consumers.get(node, ())):
            return True
        alone = node.op in ops.ELEMENTWISE or node.op in (ops.REDUCE, ops.FOLD)
        return not self.fusion and alone

    def _wanted_twice(self) -> set[Node]:
        """Costly values that several of the buffers known by now would each have computed again.

        `_computed_twice` finds them, too, but each time a chain of them (the state of a recurrent
        network) would first be evaluated from its beginning.
        """
        cost: dict[Node, int] = {}
        hoists = _hoists(self.limits)
        for node in self.order:
            own = _WEIGHT.get(node.op, 1)
            if self.has_buffer(node):
                cost[node] = LOADED if hoists else 1
            elif hoists and _repeats_rows(node):
                cost[node] = 0
            else:
                cost[node] = min(own + sum(cost[s] for s in node.src), COSTLY)
        found: set[Node] = set()
        kernels: dict[Node, list[Node]] = {}  # one or two in which a node would be computed
        for node in reversed(self.order):
            wanting = dict.fromkeys(k for c in self.consumers.get(node, ()) for k in kernels[c])
            kernels[node] = list(wanting)[:2]
            twice = len(wanting) > 1 and node.op in ops.ELEMENTWISE and cost[node] >= COSTLY
            if twice and not self.has_buffer(node):
                found.add(node)
            if node in found or self.has_buffer(node):
                kernels[node] = [node]
        return self._spaced(found)

    def _spaced(self, found: set[Node]) -> set[Node]:
        """Of a chain of such values only every few, since those between may still share a kernel;
        all of a long chain, which is that of a recurrent network's states."""
        depth: dict[Node, int] = {}
        for node in self.order:
            below = max((depth[s] for s in node.src), default=0)
            depth[node] = 0 if self.has_buffer(node) else below + (node in found)
        if max(depth.values(), default=0) > LONG_CHAIN:
            return found
        return {n for n in found if depth[n] % (CHAIN + 1) == 0}

    # ---- groups ----------------------------------------------------------------------------

    def _groups(self) -> list[_Group]:
        """One group per buffered node, found from the roots down."""
        groups: dict[Node, _Group] = {}
        pending = [r for r in self.roots if r.op is not ops.BUFFER]
        while pending:
            node = pending.pop()
            if node in groups:
                continue
            known = self.settled.get(node)
            if known is None or not known.is_current(self.buffered):
                known = self.settled[node] = self._settle([node])
            group = groups[node] = known
            pending += [n for n in group.found.sources if n.op is not ops.BUFFER]
            if node.op is ops.SCATTER:
                pending += [n for n in node.src[:1] if n.op is not ops.BUFFER]
        return list(groups.values())

    def _settle(self, outputs: list[Node]) -> _Group:
        """Evaluate the group, giving buffers to nodes, until nothing speaks against it."""
        if outputs[0] in self.places.made_by:
            return _Group(outputs, Evaluation(sources=self.places.made_by[outputs[0]]))
        while True:
            outline = self._outline(outputs)
            try:
                found = self._found(outputs, outline)
            except NeedsBuffer as wanted:
                self._give_buffer(wanted.node)
                continue
            against = self._objections(found, outputs, outline)
            homes = {self._place_of(n) for n in against} - set(outputs)
            if not homes - self.buffered:
                return _Group(outputs, found)
            self.buffered |= homes

    def _outline(self, outputs: Sequence[Node]) -> Outline | None:
        """None where the order of updates matters, which is seldom met twice."""
        if any(node.op in _ALONE for node in outputs):
            return None
        return self.outlines.of(outputs, self.has_buffer, self.checks)

    def _found(self, outputs: Sequence[Node], outline: Outline | None) -> Evaluation:
        """Evaluate the outputs as one kernel, unless that has been done for others like them."""
        if outline is None:
            return self._evaluate(outputs, Plan())
        found = outline.found()
        if found is None:
            try:
                found = outline.known.found = self._evaluate(outputs, Plan())
            except NeedsBuffer as wanted:
                outline.known.wanted = wanted.node
                raise
        return found

    def _objections(
        self, found: Evaluation, outputs: Sequence[Node], outline: Outline | None
    ) -> set[Node]:
        if outline is None:
            return objections(found, outputs, self.limits)
        if outline.known.against is None:
            outline.known.against = objections(found, outputs, self.limits)
        return set(outline.here(outline.known.against))

    def _evaluate(self, outputs: Sequence[Node], plan: Plan) -> Evaluation:
        if outputs[0].op is ops.SCATTER:
            return lower.evaluate_scatter(outputs[0], self.has_buffer, plan, self.checks)
        if outputs[0].op is ops.SCAN:
            return lower.evaluate_scan(outputs[0], self.has_buffer, plan, self.checks)
        if outputs[0].op is ops.ARGSORT:
            return lower.evaluate_argsort(outputs[0])
        found = lower.evaluate(outputs, self.has_buffer, plan, self.checks)
        domain = loops.domain(found)
        if not domain:
            return found
        return lower.evaluate(outputs, self.has_buffer, replace(plan, domain=domain), self.checks)

    def _give_buffer(self, node: Node) -> None:
        """Let a node be computed once: where its buffer is best, or there where that has one."""
        place = self._place_of(node)
        self.buffered.add(node if place in self.buffered else place)

    def _place_of(self, node: Node) -> Node:
        """Where the buffer for a node should be: laid out as its only reader wants it."""
        if node.op in _SUMS:
            return self._home(node)
        while len(users := set(self.consumers.get(node, ()))) == 1:
            (user,) = users
            disjoint = user.op is ops.FOLD and lower.is_disjoint(user)
            if not disjoint and user.op not in (ops.RESHAPE, ops.PERMUTE, ops.FLIP):
                break
            node = user
        return node

    def _summed(self, node: Node) -> Node:
        """The outermost of the sums that a sum will be merged with."""
        best = node
        while len(users := set(self.consumers.get(node, ()))) == 1:
            (node,) = users
            if node in self.buffered:
                return node if node.op in _SUMS else best
            if node.op is ops.FOLD or (node.op is ops.REDUCE and node.arg[0] == "add"):
                best = node
            elif node.op not in ops.MOVEMENT:
                return best
        return best

    def _home(self, node: Node) -> Node:
        """Where the buffer of a reduction should be: after the element-wise ops that only it
        feeds, which then run as its epilogue. (Behind a last reshape it would be the same one.)"""
        best = node
        while True:
            users = self.consumers.get(node, [])
            if len(set(users)) != 1 or node in self.buffered:
                return best
            user = users[0]
            stored_as_read = user.op in (ops.RESHAPE, ops.PERMUTE, ops.SHRINK, ops.FLIP)
            others = [s for s in user.src if s is not node]
            if not stored_as_read and not (
                user.op in ops.ELEMENTWISE and all(map(self._light, others))
            ):
                return best
            node = user
            if user.op is not ops.RESHAPE or user in self.buffered:
                best = user

    def _light(self, node: Node) -> bool:
        """Whether no reduction would be drawn in with this operand."""
        stack = [node]
        for _ in range(50):
            if not stack:
                return True
            one = stack.pop()
            if one.op in (ops.REDUCE, ops.FOLD, ops.GATHER) and not self.has_buffer(one):
                return False
            if not self.has_buffer(one):
                stack += one.src
        return False

    # ---- sharing kernels -------------------------------------------------------------------

    def _with_rows(self, groups: list[_Group]) -> list[_Group]:
        """Groups that compute the sums of their rows themselves, for others too: the maximum and
        the sum that a loss needs of each row are made where its gradient is.

        Left apart, each would walk the rows, and compute their exponentials, again. A device of
        many threads shares a row out among them, and its kernels have no place for such results.
        """
        if not self.fusion or self.limits.threads > 1 or not self.limits.vector_bytes:
            return groups
        maker = {node: group for group in groups for node in group.outputs}
        for group in groups:
            if maker[group.outputs[0]] is not group:
                continue
            rows = dict.fromkeys(maker[n] for n in group.found.sources if n in maker)
            members = [group, *(r for r in rows if self._is_of_rows(r, group))]
            if len(members) == 1 or _needs_any(members, set(members), maker):
                continue
            both = self._try([node for member in members for node in member.outputs])
            if both is not None:
                maker.update(dict.fromkeys(both.outputs, both))
        return list(dict.fromkeys(maker.values()))

    def _is_of_rows(self, sums: _Group, group: _Group) -> bool:
        """Whether a group's results are sums over the rows (or planes) of what another computes,
        and both read them."""
        shape, rows = group.outputs[0].shape, sums.outputs[0].shape
        length = math.prod(shape[len(rows) :])
        if length == 1 or shape[: len(rows)] != rows or math.prod(rows) < GRID:
            return False
        if any(o.op in _ALONE or o in self.places.made_by for o in (*group.outputs, *sums.outputs)):
            return False
        if place.contraction(group.found) or place.contraction(sums.found):
            return False
        whole = set(group.found.sources) & set(sums.found.sources)
        return (
            any(math.prod(node.shape) == math.prod(shape) for node in whole)
            and bool(sums.found.reductions)
            and all(_iterations(r.vars) == length for r in sums.found.reductions)
        )

    def _joined(self, groups: list[_Group]) -> list[_Group]:
        """Groups of one shape that read the same buffers share a kernel, where no order forbids."""
        if not self.fusion:
            return groups
        rank = {node: i for i, node in enumerate(self.order)}
        joined: list[_Group] = []
        maker: dict[Node, _Group] = {}
        for when, group in enumerate(
            _sources_first(sorted(groups, key=lambda g: rank[g.outputs[0]]))
        ):
            near = reversed(joined[-NEAR:])
            partner = next(
                (
                    p
                    for p in near
                    if self._may_join(p, group) and not _needs_any([group], {p}, maker, p.first)
                ),
                None,
            )
            both = self._try(partner.outputs + group.outputs) if partner is not None else None
            if partner is None or both is None:
                group.first = group.last = when
                joined.append(group)
                maker.update(dict.fromkeys(group.outputs, group))
            else:
                maker.update(dict.fromkeys(group.outputs, partner))
                partner.outputs, partner.found, partner.last = both.outputs, both.found, when
        return joined

    def _may_join(self, a: _Group, b: _Group) -> bool:
        if a.outputs[0].shape != b.outputs[0].shape:
            return False
        if any(o.op in _ALONE or o in self.places.made_by for o in (*a.outputs, *b.outputs)):
            return False
        epilogue = not b.found.reductions and not set(a.outputs).isdisjoint(b.found.sources)
        if not epilogue and any(place.contraction(g.found) for g in (a, b)):
            return False
        if len(a.found.params) + len(b.found.params) > self.limits.max_buffers:
            return False
        if len(a.found.instrs) + len(b.found.instrs) > LARGE:
            return False
        size = math.prod(a.outputs[0].shape)
        shared = {*a.found.sources, *a.outputs} & set(b.found.sources)
        if not any(math.prod(n.shape) >= size for n in shared):
            return False
        sizes = [sorted(_iterations(r.vars) for r in g.found.reductions) for g in (a, b)]
        return epilogue or sizes[0][:1] == sizes[1][:1]

    def _try(self, outputs: list[Node]) -> _Group | None:
        """The group with all these outputs, if nothing speaks against it."""
        outline = self._outline(outputs)
        try:
            found = self._found(outputs, outline)
        except NeedsBuffer:
            return None
        if any(
            len(found.requests.get(o, ())) > 1 for o in outputs
        ):  # one needs another's other elements
            return None
        return None if self._objections(found, outputs, outline) else _Group(outputs, found)

    # ---- kernels ---------------------------------------------------------------------------

    def _task(self, group: _Group) -> Task:
        if group.outputs[0].op is ops.ARGSORT:
            return self._sort(group)
        if group.outputs[0] in self.places.made_by:
            return Task(Kernel("there", (), []), group.outputs, group.found.sources)
        outline = self._outline(group.outputs)
        known = None if outline is None else outline.kernel()
        if known is not None:
            return Task(known[0], group.outputs, known[1])
        task = self._own_task(group)
        if outline is not None:
            outline.keep_kernel(task.kernel, task.sources)
        return task

    def _own_task(self, group: _Group) -> Task:
        plan = loops.plan(group.found, self.limits)
        found, kernel = self._kernel(group, plan)
        rows = loops.row_caches(found, kernel, row_limits(self.limits))
        if rows and kernel.contraction is None:
            cached = self._kernel(group, replace(plan, rows=rows))
            if keeps_rows(cached[1], self.limits):
                found, kernel = cached
        laid = layout(kernel, self.limits)
        laid.contraction = kernel.contraction  # a backend may claim it all the same
        laid.work = loops.float_operations(kernel)  # without what fills up tiles
        scatter = group.outputs[0].op is ops.SCATTER
        initial = group.outputs[0].src[0] if scatter else None
        return Task(laid, group.outputs, found.sources, initial)

    def _sort(self, group: _Group) -> Task:
        """A launch that the device does in a way of its own."""
        (node,) = group.outputs
        keys = node.src[0]
        made = Kernel(loops.name(group.found, node), tuple(group.found.params), [])
        rows, length = keys.shape
        made.sort = Sort(keys.dtype, rows, length, node.arg)
        return Task(made, group.outputs, group.found.sources)

    def _kernel(self, group: _Group, plan: Plan) -> tuple[Evaluation, Kernel]:
        found = self._evaluate(group.outputs, plan)
        kernel = place.place(found, loops.name(found, group.outputs[0]))
        kernel.contraction = place.contraction(found)
        loops.assign(kernel, self.limits)
        return found, kernel


_SUMS = frozenset((ops.REDUCE, ops.FOLD))
_ALONE = frozenset((ops.SCATTER, ops.SCAN, ops.ARGSORT))  # in an order: they share no kernel


def schedule(
    roots: Sequence[Node],
    limits: Limits,
    checks: Mapping[Node, int],
    fusion: bool = True,
    places: Places | None = None,
) -> list[Task]:
    """The kernels that compute ``roots`` (erased of markers, simplified, split), in order.

    Nodes that others make, as ``places`` says, have no kernel.
    """
    places = Places() if places is None else places
    tasks = Scheduler(roots, limits, checks, fusion, places).run()
    return [task for task in tasks if task.outputs[0] not in places.made_by]


# ---- what speaks against fusing ----------------------------------------------------------------


def objections(found: Evaluation, outputs: Sequence[Node], limits: Limits) -> set[Node]:
    """Nodes that should not be computed inside this kernel; empty if the kernel is good."""
    against = _bad_reductions(found) or _repeated(found, outputs, _hoists(limits))
    if not against and len(found.params) > limits.max_buffers:
        against = _half(found, outputs)
    return against - set(outputs)


def _hoists(limits: Limits) -> bool:
    """Whether a loop's values that are the same all along are computed before it, once: the
    work-items of a device of many threads share nothing."""
    return limits.threads == 1


def _iterations(used: Iterable[Var]) -> int:
    return math.prod(v.extent for v in used)


def _bad_reductions(found: Evaluation) -> set[Node]:
    outs = frozenset(found.output_vars)
    total = _iterations(outs)
    inner = frozenset(v for r in found.reductions for v in r.vars)
    against: set[Node] = set()
    seen: dict[Node, Reduction] = {}
    partial: list[Reduction] = []
    for r in found.reductions:
        work = _iterations(r.free) * _iterations(r.vars)
        if r.node in seen and work > SMALL // 8:
            against.add(r.node)
        seen[r.node] = r
        if r.free & inner:
            again = _iterations(r.free) > math.prod(r.node.shape)
            if again or is_contraction(r) or _iterations(r.vars) > NESTED:
                against.add(r.node)
        elif _iterations(r.free) > math.prod(r.node.shape) and work > SMALL // 4:
            against.add(r.node)
        elif r.free < outs and total > _iterations(r.free):
            if work + total > SMALL and (is_contraction(r) or _iterations(r.free) < GRID):
                against.add(r.node)
            else:
                partial.append(r)
    partial.sort(key=lambda r: len(r.free))
    for a, b in pairwise(partial):
        if not a.free <= b.free:
            against.add(a.node)
    return against | _crowded(found, against) | _checked(found)


def _crowded(found: Evaluation, already: set[Node]) -> set[Node]:
    """A contraction wants a kernel without other reductions: those whose results its operands are
    made of get buffers, and if there are more beside it, so does the contraction."""
    rest = [r for r in found.reductions if r.node not in already]
    large = [r for r in rest if is_contraction(r) and _iterations(r.vars) >= REPEATS]
    if not large or len(rest) < 2:
        return set()
    operands = _results_in(value for r in large for value in r.values)
    before = {r.node for r in rest if r.result in operands}
    return before or {r.node for r in large}


def _checked(found: Evaluation) -> set[Node]:
    """A contraction finds no errors: rows that are looked up at checked places get a buffer."""
    if not found.error_stores or not any(map(is_contraction, found.reductions)):
        return set()
    return {node for node in found.requests if node.op is ops.GATHER}


def _results_in(values: Iterable[Instr]) -> set[Instr]:
    """The results of reductions that these values are made of."""
    stack = list(values)
    seen = set(stack)
    while stack:
        for arg in stack.pop().args:
            if arg not in seen:
                seen.add(arg)
                stack.append(arg)
    return {instr for instr in seen if instr.op is RESULT}


def is_contraction(r: Reduction) -> bool:
    """Whether a sum is over a product of two operands with different free variables."""
    value = r.values[0]
    if r.acc.kind != "add" or value.op is not ops.MUL:
        return False
    a, b = (arg.vars - frozenset(r.vars) for arg in value.args)
    return bool(a - b) and bool(b - a)


def _repeats_rows(node: Node) -> bool:
    """Whether each value of a smaller node stands all along the last axis."""
    return node.op is ops.EXPAND and node.src[0].shape[-1:] == (1,) and node.shape[-1] > 1


def _repeated(found: Evaluation, outputs: Sequence[Node], hoists: bool) -> set[Node]:
    """Values that would be computed much more often than they have elements."""
    cost = costs(found, hoists)
    flagged: set[Node] = set()
    for node, asked in found.requests.items():
        size = math.prod(node.shape)
        computes = node.op in ops.ELEMENTWISE or node.op is ops.UPDATE
        if not computes or size < 2:
            continue
        times = sum(_iterations(instr.vars) for instr in asked.values())
        if times > REPEATS * size and max(cost.get(i, 0) for i in asked.values()) > CHEAP:
            flagged.add(node)
    inside = {s for node in flagged for s in node.src}
    return {n for n in flagged if n not in inside} - set(outputs)


def costs(found: Evaluation, hoists: bool, load: int = 1) -> dict[Instr, int]:
    """Instructions needed for each value, counting shared ones again (up to a limit) and a load as
    ``load`` of them. What is the same all along the innermost loop costs its users there nothing,
    if the device ``hoists``.
    """
    last = next((v for v in reversed(found.group_vars) if v.extent > 1), None)
    inner = {last, *(v for r in found.reductions for v in r.vars)}
    out: dict[Instr, int] = {}
    for instr in found.instrs:
        own = 0 if instr.op in (ops.CONST, RESULT) else _WEIGHT.get(instr.op, 1)
        own = load if instr.op is ops.LOAD else own
        within = instr.vars & inner if hoists else frozenset()
        varying = (a for a in instr.args if not within or a.vars & within)
        out[instr] = min(own + sum(out.get(a, 0) for a in varying), 10_000)
    return out


_WEIGHT = {INDEX: 1, ops.EXP: 10, ops.LOG: 10, ops.SIN: 12, ops.DIV: 4, ops.SQRT: 4}


def _half(found: Evaluation, outputs: Sequence[Node]) -> set[Node]:
    """A node that takes about half of the kernel's parameters with it."""
    reads: dict[Instr, frozenset[object]] = {}
    for instr in found.instrs:
        own = frozenset((instr.attr[0],)) if instr.op is ops.LOAD else frozenset()
        reads[instr] = own.union(*(reads.get(a, frozenset()) for a in instr.args))
    best: tuple[int, Node] | None = None
    for node, asked in found.requests.items():
        if node.op not in ops.ELEMENTWISE or node in outputs:
            continue
        number = max(len(reads.get(i, ())) for i in asked.values())
        distance = abs(2 * number - len(found.params))
        if number > 1 and (best is None or distance < best[0]):
            best = (distance, node)
    return {best[1]} if best else set()


def _computed_twice(
    groups: Sequence[_Group], consumers: Mapping[Node, list[Node]], hoists: bool
) -> set[Node]:
    """Costly values that several kernels would each compute for themselves. What is asked for at
    a costly index (a checked label's) is no more costly itself: the cheapest request counts. The
    operand of a product is computed for each of its panels, and should be a load or so."""
    users: dict[Node, int] = {}
    least: dict[Node, int] = {}
    packed: set[Node] = set()
    known: dict[int, dict[Instr, int]] = {}  # groups of one outline share their instructions
    for group in groups:
        instrs = group.found.instrs
        if id(instrs) not in known:
            known[id(instrs)] = costs(group.found, hoists, LOADED if hoists else 1)
        cost = known[id(instrs)]
        product = place.contraction(group.found) if hoists else None
        for node, asked in group.found.requests.items():
            if node.op not in ops.ELEMENTWISE or node in group.outputs:
                continue
            users[node] = users.get(node, 0) + 1
            least[node] = min([least.get(node, COSTLY), *(cost.get(i, 0) for i in asked.values())])
            if product is not None and any(
                not i.vars.isdisjoint(product.k) for i in asked.values()
            ):
                packed.add(node)
    most = {node: 2 * LOADED if node in packed else COSTLY for node in users}
    twice = {n for n in users if users[n] > 1 and least[n] >= most[n]}
    return {n for n in twice if not any(c in twice for c in consumers.get(n, ()))}


# ---- order -------------------------------------------------------------------------------------


def _needs_any(
    groups: Iterable[_Group], inside: set[_Group], maker: Mapping[Node, _Group], since: int = 0
) -> bool:
    """Whether something outside, that these groups need, needs one inside; as a short search can
    tell, among groups that joined no earlier than ``since``."""
    stack = [g for group in groups for g in _parents(group, maker) if g not in inside]
    seen: set[_Group] = set()
    while stack:
        group = stack.pop()
        if group in inside or len(seen) > SEARCH:
            return True
        if group not in seen and group.last >= since:
            seen.add(group)
            stack += _parents(group, maker)
    return False


def _sources_first(groups: Sequence[_Group]) -> list[_Group]:
    """The groups in their order, each after those that compute what it reads."""
    maker = {node: group for group in groups for node in group.outputs}
    return toposort(groups, lambda group: _parents(group, maker))


def _parents(group: _Group, maker: Mapping[Node, _Group]) -> list[_Group]:
    """The groups that compute what a group reads."""
    wanted = [*group.found.sources]
    wanted += [s for o in group.outputs if o.op is ops.SCATTER for s in o.src[:1]]
    return [maker[n] for n in wanted if n in maker]


def _in_order(tasks: Sequence[Task]) -> list[Task]:
    maker = {node: task for task in tasks for node in task.outputs}
    done: set[Task] = set()
    begun: set[Task] = set()
    out: list[Task] = []
    for start in tasks:
        stack = [start]
        while stack:
            task = stack[-1]
            before = [*task.sources, *([task.initial] if task.initial else [])]
            for node in before:
                if node.op is not ops.BUFFER and node not in maker:
                    raise VerifyError(
                        f"schedule: {task.kernel.name} reads {node}, which none makes"
                    )
            missing = [maker[n] for n in before if n in maker and maker[n] not in done]
            missing = [m for m in missing if m is not task]
            if missing and task not in done:
                if not begun.isdisjoint(missing):
                    raise VerifyError(f"schedule: {task.kernel.name} waits for what waits for it")
                begun.add(task)
                stack += missing
                continue
            stack.pop()
            if task not in done:
                done.add(task)
                out.append(task)
    return out


def _early(tasks: Sequence[Task], kept: set[Node]) -> list[Task]:
    """The tasks with those that free more memory than they take moved to where they can first run:
    the gradient of a weight lets go of what its layer kept, while all layers below still wait.

    What reads a leaf last stays behind the others that read it: its result may take the memory.
    """
    last: dict[Node, int] = {}
    before: dict[Node, int] = {}  # the last but one to read a node
    maker: dict[Node, int] = {}
    for i, task in enumerate(tasks):
        maker.update(dict.fromkeys(task.outputs, i))
        for node in dict.fromkeys(task.sources):
            before[node], last[node] = last.get(node, -1), i
    keys: list[tuple[int, ...]] = []  # a moved task's begins with that of the task it follows
    for i, task in enumerate(tasks):
        done = [maker[n] for n in task.sources if n in maker]
        done += [before[n] for n in task.sources if n.op is ops.BUFFER and last[n] == i]
        freed = sum(
            _bytes(n) for n in task.sources if last[n] == i and n in maker and n not in kept
        )
        place = max((keys[j] for j in done if j >= 0), default=())
        moves = freed > sum(map(_bytes, task.outputs)) and len(place) < MOVED and not task.initial
        keys.append((*place, i) if moves and place else (i,))
    return [tasks[i] for i in sorted(range(len(tasks)), key=keys.__getitem__)]


def _bytes(node: Node) -> int:
    return math.prod(node.shape) * node.dtype.itemsize
