"""Candidates that run loops in segments (see `memory.verbs`)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import ceil, sqrt

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.layers import find_layers
from graphwright.analyze.loop_pairs import LoopPair, find_pairs
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.traits.control_flow import function_at
from graphwright.memory.planning import room_bytes
from graphwright.memory.verbs import Candidate, candidate_of, named
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.step.flatten import FlatStep
from graphwright.transform.segment_loops import Segments, segment_loops

_TRIES, _NEAR = 3, 0.02  # to find how many of the last rounds the budget leaves room for
_LEAST_SAVED = 2**16  # bytes that segments of a loop must save: less is not worth the time


def segment_candidates(given: Candidate, map_tasks: Callable[[FlatStep], TaskMap], budget_bytes: int) -> Iterator[Candidate]:
    """Yield the step with as many loops in segments as the budget seems to need, then with all.

    The loops that save most for their time come first. Segments of any length cost one forward pass of their iterations, so each loop gets
    the length that needs the least memory (`best_length`). If the budget leaves room, a candidate comes first in which only the first
    iterations run in segments.
    """
    flat = given.flat
    pairs = {pair.forward.name: pair for pair in find_pairs(flat.graph, flat.purity)[0]}
    saved = {name: saving for name, pair in pairs.items() if (saving := _saving(flat, pair)) >= _LEAST_SAVED}
    tasks = given.tasks
    names = sorted(saved, key=lambda name: tasks.costs.tasks[tasks.task_of[pairs[name].forward]].time / saved[name])
    excess = simulate(tasks.costs, Schedule(tasks.costs.order)).peak_bytes - budget_bytes
    enough = next((count for count in range(1, len(names)) if sum(saved[name] for name in names[:count]) >= excess), len(names))
    for count in dict.fromkeys((enough, len(names)) if names else ()):
        measures = {name: _measures(flat, pairs[name]) for name in reversed(names[:count])}  # what is dear gets the room that is left
        full = _in_segments(given, map_tasks, measures, 0)
        most = budget_bytes - room_bytes(full.tasks.costs, len(full.flat.graph), budget_bytes)
        best, free = full, most - full.peak_bytes
        fits = exceeds = 0
        for _ in range(_TRIES if free > 0 else 0):
            candidate = _in_segments(given, map_tasks, measures, free)
            if candidate.peak_bytes <= most:
                fits, best = free, min(best, candidate, key=lambda one: one.slower)
            else:
                exceeds = free
            if 0 <= most - candidate.peak_bytes < _NEAR * most:
                break
            between = (fits + exceeds) // 2  # whole segments: peaks come in steps, of which the one in the middle may be left out
            free = between if fits and exceeds else free * (most - full.peak_bytes) // max(candidate.peak_bytes - full.peak_bytes, 1)
        if best is not full:
            yield best
        yield full


def _in_segments(
    given: Candidate, map_tasks: Callable[[FlatStep], TaskMap], measures: Mapping[str, tuple[int, int, int]], free_bytes: int
) -> Candidate:
    """Return the step with these loops in segments, except for as many last iterations as fit into the free bytes."""
    asked: dict[str, Segments] = {}
    for name, (rounds, round_bytes, border_bytes) in measures.items():
        length = best_length(rounds, round_bytes, border_bytes)
        each = max(round_bytes - border_bytes // length, 1)
        # Of a loop that may end early nobody knows how many rounds are left behind those in segments.
        is_counted = given.flat.loops.trip_counts[given.flat.graph[name]].kind == "exact"
        first = max(ceil((rounds - free_bytes // each) / length), 1) * length if is_counted else rounds
        first = first if first <= rounds - length else rounds
        asked[name] = Segments(length, first if first < rounds else None)
        free_bytes -= (rounds - first) * each
    graph = copy_graph(given.flat.graph).graph
    pairs = find_pairs(graph, given.flat.purity.of(graph))[0]
    segment_loops(graph, {pair: asked[pair.forward.name] for pair in pairs if pair.forward.name in asked})
    layers = find_layers(given.flat.graph)
    alike: dict[str, list[str]] = {}
    for name, s in asked.items():
        until = "" if s.first is None else f" up to round {s.first} of {measures[name][0]}"
        alike.setdefault(f"in segments of {s.length} rounds{until}", []).append(layers.words(name))
    how = ", ".join(f"{named('loop', names)} {words}" for words, names in alike.items())
    return replace(candidate_of(given, graph, map_tasks, f"{how}, each run again for its gradient"), loops=tuple(asked))


def best_length(rounds: int, round_bytes: int, border_bytes: int) -> int:
    """Return the iterations per segment that minimize the memory of borders and of one segment together.

    With T iterations of a bytes each and borders of c bytes, T c / L + a L is least at L = sqrt(T c / a). The length is at least sqrt(T) /
    2, since starting a segment takes time, and all segments have nearly equal lengths.

    >>> best_length(128, 2**20, 2**18)
    6
    >>> best_length(2000, 2**20, 2**20), best_length(100, 2**20, 0)
    (45, 5)
    """
    length = max(sqrt(rounds * border_bytes / max(round_bytes, 1)), sqrt(rounds) / 2, 1)
    return ceil(rounds / ceil(rounds / length))


def _saving(flat: FlatStep, pair: LoopPair) -> int:
    rounds, round_bytes, border_bytes = _measures(flat, pair)
    length = best_length(rounds, round_bytes, border_bytes)
    return rounds * round_bytes - ceil(rounds / length) * border_bytes - length * round_bytes


def _measures(flat: FlatStep, pair: LoopPair) -> tuple[int, int, int]:
    trip = flat.loops.trip_counts.get(pair.forward)
    is_measured = pair.forward.name in flat.graph.example  # which says nothing of loops in segments
    rounds = 1 if trip is None or trip.kind == "unknown" or is_measured else max(trip.count, 1)
    lists = [pair.forward.outputs[k] for k, _ in pair.lists]
    held = {value for one in lists for value in (one, *flat.loops.holds.get(one, ())) if value.producer is pair.forward}
    pushed = sum(flat.loops.variant_bytes.get(value, 0) for value in held)
    body = function_at(pair.forward, "body", flat.graph)
    assert body is not None
    return rounds, pushed // rounds, sum(body.body.inputs[k].nbytes or 0 for k in pair.borders)
