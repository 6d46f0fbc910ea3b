"""Schedules of a joint graph: which tensors are kept and which are recomputed.

The first steps of each schedule are the forward part, each task once. Repeated tasks are among the steps of the backward part.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from graphwright.analyze.cost import TaskMap
from graphwright.ir.graph import Node
from graphwright.ir.traits.control_flow import called_functions, is_control_flow
from graphwright.memory.planning import infeasible
from graphwright.ops.flops import flop_rule
from graphwright.plan.budget import Budget
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import drop_useless_repeats, minimum_within, solve

EXTRA = 0.9  # of the estimated time of one forward pass; the rest covers the error of the estimate
_SLOW = frozenset({"convolution", "matrix product", "recurrent", "linear algebra"})


def keep_only(costs: CostGraph, forward: int, kept: AbstractSet[int], *, last_stays: bool = True) -> Schedule:
    """Keep these buffers of the forward part, and those that cannot be recomputed; recompute each other buffer once, at its first use.

    Args:
        forward: number of tasks of the forward part, the first of the order.
        kept: indices of buffers.
        last_stays: whether to keep the buffers that the backward part needs first, too, if that takes no more memory.
    """
    steps = list(costs.order[:forward])
    done = set(steps)
    kept = kept | _small_results_of_kept(costs, forward)
    at_hand = {b for b, buffer in enumerate(costs.buffers) if _stays(costs, b, kept) or buffer.producer not in done}
    for t in costs.order[forward:]:
        for again in _missing(costs, costs.tasks[t].inputs, at_hand):
            steps.append(again)
            at_hand.update(costs.tasks[again].outputs)
        steps.append(t)
        at_hand.update(costs.tasks[t].outputs)
    schedule = Schedule(tuple(steps))
    return _without_first_repeats(costs, forward, schedule) if last_stays else schedule


def _stays(costs: CostGraph, number: int, kept: AbstractSet[int]) -> bool:
    producer = costs.buffers[number].producer
    return number in kept or producer is None or costs.buffers[number].kept or not costs.tasks[producer].recomputable


def _small_results_of_kept(costs: CostGraph, forward: int) -> set[int]:
    """Return smaller results that replace a buffer that cannot be recomputed and has no other reader: the mask of a dropout."""
    readers: dict[int, list[int]] = {}
    for t, task in enumerate(costs.tasks):
        for number in task.inputs:
            readers.setdefault(number, []).append(t)
    smallest: dict[int, int] = {}  # of the buffer and the results computed from it only
    for t in reversed(costs.order[:forward]):
        for number in costs.tasks[t].outputs:
            smallest[number] = number
            only = readers.get(number, ())
            task = costs.tasks[only[0]] if len(only) == 1 else None
            if task is not None and task.recomputable and len(task.outputs) == 1 and task.outputs[0] in smallest:
                result = smallest[task.outputs[0]]
                smallest[number] = result if costs.buffers[result].nbytes < costs.buffers[number].nbytes else number
    fixed = [number for t in costs.order[:forward] if not costs.tasks[t].recomputable for number in costs.tasks[t].outputs]
    return {smallest[number] for number in fixed if smallest[number] != number}


def _missing(costs: CostGraph, buffers: Iterable[int], at_hand: AbstractSet[int]) -> list[int]:
    tasks: dict[int, None] = {}
    stack = [(number, False) for number in buffers]
    while stack:
        number, ready = stack.pop()
        producer = costs.buffers[number].producer
        if number in at_hand or producer is None or producer in tasks:
            continue
        if ready:
            tasks[producer] = None
            continue
        stack.append((number, True))
        stack += [(before, False) for before in costs.tasks[producer].inputs]
    return list(tasks)


def forward_first(costs: CostGraph, forward: int, schedule: Schedule) -> Schedule:
    """Move the forward part to the front of a schedule, without repetitions in it."""
    steps, waiting = list(costs.order[:forward]), set(costs.order[:forward])
    early = frozenset(waiting)
    for t in schedule.steps:
        if t in waiting:
            waiting.remove(t)
        elif not waiting or t not in early:
            steps.append(t)
    return Schedule(tuple(steps))


def _without_first_repeats(costs: CostGraph, forward: int, schedule: Schedule) -> Schedule:
    """Keep the buffers that the backward part needs first, if that takes no more memory: they exist when the forward part ends."""
    steps = schedule.steps
    seen = set(steps[:forward])
    place = next((k for k in range(forward, len(steps)) if steps[k] in seen), len(steps))
    end = next((k for k in range(place, len(steps)) if steps[k] not in seen), len(steps))
    shorter = Schedule((*steps[:place], *steps[end:]))
    return shorter if simulate(costs, shorter).peak_bytes <= simulate(costs, schedule).peak_bytes else schedule


def fast(tasks: TaskMap, forward: int) -> Schedule:
    costs = tasks.costs
    slow = {b for t in costs.order[:forward] if any(map(_is_slow, tasks.nodes[t])) for b in costs.tasks[t].outputs}
    return _unless_worse(costs, drop_useless_repeats(costs, keep_only(costs, forward, slow)))


def _unless_worse(costs: CostGraph, schedule: Schedule) -> Schedule:
    """Return the schedule, or the schedule of plain gradients if it saves nothing."""
    plain = Schedule(costs.order)
    return schedule if simulate(costs, schedule).peak_bytes < simulate(costs, plain).peak_bytes else plain


def _is_slow(node: Node) -> bool:
    rule = flop_rule(node.op_type)
    return is_control_flow(node) or bool(called_functions(node)) or (rule is not None and rule.family in _SLOW)


def least_peak(costs: CostGraph, forward: int, forward_time: float, time_limit_s: float) -> Schedule:
    once = sum(task.time for task in costs.tasks)
    solution = minimum_within(costs, once + EXTRA * forward_time, time_limit_s=time_limit_s)
    return _unless_worse(costs, forward_first(costs, forward, solution.schedule))


def within_budget(tasks: TaskMap, forward: int, budget: int | float | str, time_limit_s: float) -> Schedule:
    costs = tasks.costs
    plain = Schedule(costs.order)
    peak = simulate(costs, plain).peak_bytes
    budget_bytes = Budget.read(budget).of(peak)
    if peak <= budget_bytes:
        return plain
    solution = solve(costs, budget_bytes, time_limit_s=time_limit_s)
    schedule = forward_first(costs, forward, solution.schedule)
    planned_peak = simulate(costs, schedule).peak_bytes
    if planned_peak > budget_bytes:
        raise infeasible(tasks, replace(solution, peak_bytes=planned_peak), budget_bytes, peak)
    return schedule
