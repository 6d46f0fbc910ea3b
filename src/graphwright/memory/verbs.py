"""The verbs of a plan, besides reordering, and the steps that they make of a step.

recompute
    Run an operation again instead of keeping its result. Bit for bit the same.
segment
    Run a loop and its gradient in segments (`transform.segment_loops`); only the values at segment borders are kept. Bit for bit the same.
offload
    Copy a result to disk or to another device, and read it back, instead of keeping it (`plan.copies`). Bit for bit the same. It needs a
    place, so "all" does not include it.
split
    Run the step in parts of its batch, one after another, with one update (`transform.split_batch`); or split only the operations around
    the largest values, along any axis. Equal up to the order of sums along that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.layers import find_layers
from graphwright.analyze.splitting import LARGE, find_splitting, find_splitting_of_largest
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import PART_OF
from graphwright.memory.offload import Offload
from graphwright.plan.bound import lower_bound
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.step.flatten import FlatStep, find_loop_costs, stateful_op_types
from graphwright.step.grappler_step import grappler_parts
from graphwright.transform.cancel_reshapes import cancel_reshapes
from graphwright.transform.running_sums import add_up_in_turn, large_sums
from graphwright.transform.split_batch import split_batch

Verb = Literal["recompute", "segment", "split", "offload"]
Allow = Literal["all"] | Collection[Verb]
BIT_FOR_BIT: tuple[Verb, ...] = ("recompute", "segment")
"""The verbs that a plan may use unless others are asked for."""
NOT_UNDER_XLA: tuple[Verb, ...] = ("segment", "offload")
ON_ONE_DEVICE: tuple[Verb, ...] = (*NOT_UNDER_XLA, "split")
"""The verbs that no plan uses of a step on several devices."""
WITH_COPIES = ", and offload_to,"
_ALL: tuple[Verb, ...] = (*BIT_FOR_BIT, "split")
_KNOWN: tuple[Verb, ...] = (*_ALL, "offload")
_IN_ORDER_S = 2.5e-5
"""What it costs, besides its kernels, that a task waits for others; parts have many small ones.

Some 13 microseconds on two cores whose kernels are 2.5 times as fast as the model of time says, and only ratios count.
"""
_LEAST_GAIN = 0.97  # twice the parts must bring the peak below this share of what it was
_LARGE_SUM = 0.1  # of what the step holds besides what stays: sums of many terms that take as much can be added up as the terms come
_MOST_NAMED = 3  # loops, in words of what was done to them
_MOST_NODES = 400_000  # of a step in parts: beyond that TensorFlow takes minutes to start


def read_allow(allow: object) -> frozenset[Verb]:
    """Return the verbs that a user allows. Raises `ArgumentError` if the argument is neither "all" nor a collection of verbs.

    >>> sorted(read_allow("all"))
    ['recompute', 'segment', 'split']
    """
    if allow == "all":
        return frozenset(_ALL)
    verbs = set(cast("Collection[object]", allow)) if isinstance(allow, Collection) and not isinstance(allow, str) else {None}
    if verbs <= set(_KNOWN):
        return frozenset(verb for verb in _KNOWN if verb in verbs)
    known = ", ".join(repr(verb) for verb in _KNOWN)
    raise ArgumentError(f"allow={allow!r} was given", argument="allow", remedy=f'give "all" or a collection of {known}')


def refuse_verbs(allow: Collection[Verb], unused: Collection[Verb], what: str, *, where: str = "", cause: str, remedy: str) -> None:
    """Raise `UnsupportedError` for a verb that is named explicitly where it cannot apply; the default and "all" may contain such verbs.

    >>> refuse_verbs(read_allow("all"), ("split",), "loops", cause="", remedy="")
    >>> refuse_verbs(("recompute", "split"), ("split",), "loops", cause="", remedy="")
    Traceback (most recent call last):
        ...
    graphwright.errors.UnsupportedError: 'split' is not for loops
      where: argument 'allow'
    """
    besides = next((verbs for verbs in (_ALL, BIT_FOR_BIT) if set(verbs) <= set(allow)), ())
    refused = [repr(verb) for verb in unused if verb in allow and verb not in besides]
    if refused:
        what = f"{' and '.join(refused)} {'is' if len(refused) == 1 else 'are'} not for {what}"
        raise UnsupportedError(what, argument="allow", where=where, cause=cause, remedy=remedy)


def refuse_for_xla(allow: Collection[Verb], where: str) -> None:
    """Raise `UnsupportedError` for a named verb that cannot apply to a step that XLA compiles."""
    cause = "XLA makes order and buffers itself, and drops control edges, so nothing says when a copy may go or a round runs again"
    remedy = f"leave it{WITH_COPIES * ('offload' in allow)} out; or plan the step without XLA: jit_compile=False, and no device=..."
    refuse_verbs(allow, NOT_UNDER_XLA, "a step that XLA compiles", where=where, cause=cause, remedy=remedy)


@dataclass(frozen=True)
class Candidate:
    """A step that may be planned instead of the given one.

    Attributes:
        parts: number of parts of the batch.
        loops: names of the loops that run in segments.
        offload: where copied tasks have their copies; None without copies.
        for_grappler: whether Grappler rewrites the steps that split this one.
        split: of a step in parts that Grappler has rewritten, the step before that.
        how: how the given step was rewritten; "" for the given step.
        slower: extra time of its tasks, each run once, relative to the given step.
        before: the step that it was made of; None for the given and the traced step.
        peak_bytes: peak in its own order.
        bound_bytes: lower bound on the peak of any plan for it.
    """

    flat: FlatStep
    tasks: TaskMap
    parts: int = 1
    loops: tuple[str, ...] = ()
    how: str = ""
    slower: float = 0.0
    peak_bytes: int = 0
    bound_bytes: int = 0
    before: Candidate | None = None
    offload: Offload | None = None
    for_grappler: bool = False
    split: FlatStep | None = None

    @property
    def root(self) -> Candidate:
        """The step from which all rewrites started."""
        return self if self.before is None else self.before.root

    @property
    def verb(self) -> Verb:
        if self.offload is not None:
            return "offload"
        return "split" if self.parts > 1 else "segment" if self.loops else "recompute"


def split_candidates(
    given: Candidate, argument_count: int, map_tasks: Callable[[FlatStep], TaskMap], *, largest: int = 0, first: int = 2
) -> Iterator[Candidate]:
    """Yield the step in 2, 4, 8, ... parts of its batch while more parts clearly reduce the peak or its lower bound.

    If something is normalized over the whole batch, the values of all parts stay until the last is computed: the peak in its own order does
    not fall, but the lower bound does, as a part is recomputed in less memory than the whole. Yields nothing if nothing can be split, or if
    shapes depend on data.

    Args:
        argument_count: number of graph inputs that are arguments, among which the batch is searched.
        largest: split only the operations around the largest values; how much smaller than the largest a value may be (`LARGE`).
        first: number of parts to begin with.
    """
    if any(body.at_most for body in bodies(given.flat.graph)):
        return
    graph = given.flat.graph
    if largest:
        graph = copy_graph(graph).graph
        cancel_reshapes(graph)
    purity, arguments = Purity(graph, stateful_op_types(graph)), graph.inputs[:argument_count]
    splitting = find_splitting_of_largest(graph, purity, largest) if largest else find_splitting(graph, purity, arguments)
    narrow = find_splitting_of_largest(graph, purity) if largest > LARGE else None
    if splitting is None or (narrow is not None and len(narrow.nodes) >= len(splitting.nodes)):
        return
    before, parts = _needs(given.tasks.costs), min(first, splitting.batch)
    while parts <= splitting.batch and len(graph) + parts * len(splitting.nodes) <= _MOST_NODES:
        copy = copy_graph(graph)
        rewritten = split_batch(copy.graph, purity.of(copy.graph), splitting.in_copy(copy), parts)
        what = f"what the largest values are for ({len(splitting.nodes)} operations)" if largest else f"the batch of {splitting.batch}"
        candidate = candidate_of(given, rewritten, map_tasks, f"{what} in {parts} parts, one after another", parts=parts)
        needs = candidate.peak_bytes, candidate.bound_bytes
        if all(now > _LEAST_GAIN * then for now, then in zip(needs, before, strict=True)):
            return
        yield candidate
        before, parts = needs, 2 * parts


def summed_candidate(given: Candidate, map_tasks: Callable[[FlatStep], TaskMap]) -> Candidate:
    """Return the step with large sums replaced by running sums; the given step if it has none."""
    costs = given.tasks.costs
    free = simulate(costs, Schedule(costs.order)).peak_bytes - costs.resident_bytes
    sums = large_sums(given.flat.graph, int(_LARGE_SUM * free))
    if not sums:
        return given
    copy = copy_graph(given.flat.graph).graph
    add_up_in_turn(copy, [copy[node.name] for node in sums])
    words = find_layers(given.flat.graph).words
    return candidate_of(given, copy, map_tasks, f"{named('sum', [words(node.name) for node in sums])} added up as the terms come")


def priced_beside(given: Candidate, flat: FlatStep, tasks: TaskMap, *, for_grappler: bool = False) -> Candidate:
    """Return the step with its time relative to another graph of the same step."""
    slower = _time(tasks.costs) / max(_time(given.tasks.costs), 1e-30) - 1
    return Candidate(flat, tasks, slower=slower, for_grappler=for_grappler)


def named(what: str, names: Sequence[str]) -> str:
    """Return names after a noun, or their number if there are many.

    >>> named("loop", ["a"]), named("loop", ["a", "b"]), named("loop", "abcd")
    ('loop a', 'loops a, b', '4 loops')
    """
    if len(names) > _MOST_NAMED:
        return f"{len(names)} {what}s"
    return f"{what}{'' if len(names) == 1 else 's'} {', '.join(names)}"


def candidate_of(given: Candidate, graph: Graph, map_tasks: Callable[[FlatStep], TaskMap], how: str, *, parts: int = 1) -> Candidate:
    graph.example = given.flat.graph.example
    step = FlatStep(graph, given.flat.binding, Purity(graph, stateful_op_types(graph)), find_loop_costs(graph))
    optimized = None
    if parts > 1 and given.for_grappler:
        known = {node.name for node in given.flat.graph.nodes}
        optimized = grappler_parts(step, [node for node in graph.nodes if node.name not in known and PART_OF not in node.attrs])
    tasks = map_tasks(step)
    needs = _needs(tasks.costs)
    if optimized is not None:  # Grappler merges equal operations of several parts, even if their result is large
        its_tasks = map_tasks(optimized)
        its_needs = _needs(its_tasks.costs)
        if all(its * _LEAST_GAIN <= own for its, own in zip(its_needs, needs, strict=True)):
            tasks, needs = its_tasks, its_needs
        else:
            optimized = None
    return Candidate(
        optimized or step,
        tasks,
        parts,
        how=f"{given.how}; {how}" if given.how else how,
        slower=(1 + given.slower) * _time(tasks.costs) / max(_time(given.tasks.costs), 1e-30) - 1,
        peak_bytes=needs[0],
        bound_bytes=needs[1],
        before=given,
        for_grappler=given.for_grappler and parts == 1,
        split=None if optimized is None else step,
    )


def _needs(costs: CostGraph) -> tuple[int, int]:
    return simulate(costs, Schedule(costs.order)).peak_bytes, lower_bound(costs).nbytes


def _time(costs: CostGraph) -> float:
    return sum(task.time + _IN_ORDER_S for task in costs.tasks)
