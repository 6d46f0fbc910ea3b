"""What is kept and what is computed again: schedules of a joint graph.

Each policy gives a schedule whose first steps are the forward part as it is, each task once; what is repeated stands among the
steps of the backward part.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.flops import flop_rule
from graphwright.ir.graph import Node
from graphwright.ir.traits.control_flow import called_functions, is_control_flow
from graphwright.memory.planning import infeasible
from graphwright.plan.budget import Budget
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import drop_useless_repeats, minimum_within, solve

EXTRA = 0.9  # of the estimated time of one forward pass: what is left is for the error of the estimate
_SLOW = frozenset({"convolution", "matrix product", "recurrent", "linear algebra"})


def keep_only(costs: CostGraph, forward: int, kept: AbstractSet[int], *, last_stays: bool = True) -> Schedule:
    """Keep these buffers of the forward part and what may not be made again; make every other one again, once, where it is first read.

    Args:
        forward: the first tasks of the order are the forward part.
        kept: indices of buffers.
        last_stays: whether what the backward part needs first is kept too, where that takes no more memory.

    >>> from graphwright.plan.model import Buffer, Task
    >>> buffers = (Buffer("a", 4, 0), Buffer("b", 4, 1), Buffer("loss", 4, 2))
    >>> forward = (Task("a", 1, (), (0,), recomputable=False), Task("b", 1, (0,), (1,)), Task("loss", 1, (1,), (2,)))
    >>> costs = CostGraph((*forward, Task("d", 1, (1, 2), ())), buffers, (0, 1, 2, 3))
    >>> keep_only(costs, 3, {2}).steps
    (0, 1, 2, 3)
    """
    steps = list(costs.order[:forward])
    made = set(steps)
    kept = kept | _small_results_of_what_stays(costs, forward)
    at_hand = {b for b, buffer in enumerate(costs.buffers) if _stays(costs, b, kept) or buffer.producer not in made}
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


def _small_results_of_what_stays(costs: CostGraph, forward: int) -> set[int]:
    """What is made of a buffer that cannot be made again, where it is smaller and nothing else reads that buffer: the mask of a dropout."""
    readers: dict[int, list[int]] = {}
    for t, task in enumerate(costs.tasks):
        for number in task.inputs:
            readers.setdefault(number, []).append(t)
    smallest: dict[int, int] = {}  # of what is made of a buffer alone, itself among it
    for t in reversed(costs.order[:forward]):
        for number in costs.tasks[t].outputs:
            smallest[number] = number
            only = readers.get(number, ())
            task = costs.tasks[only[0]] if len(only) == 1 else None
            if task is not None and task.recomputable and len(task.outputs) == 1 and task.outputs[0] in smallest:
                made = smallest[task.outputs[0]]
                smallest[number] = made if costs.buffers[made].nbytes < costs.buffers[number].nbytes else number
    stays = [number for t in costs.order[:forward] if not costs.tasks[t].recomputable for number in costs.tasks[t].outputs]
    return {smallest[number] for number in stays if smallest[number] != number}


def _missing(costs: CostGraph, wanted: Iterable[int], at_hand: AbstractSet[int]) -> list[int]:
    """The tasks to run again, in order, for these buffers to be at hand."""
    found: dict[int, None] = {}
    stack = [(number, False) for number in wanted]
    while stack:
        number, ready = stack.pop()
        producer = costs.buffers[number].producer
        if number in at_hand or producer is None or producer in found:
            continue
        if ready:
            found[producer] = None
            continue
        stack.append((number, True))
        stack += [(before, False) for before in costs.tasks[producer].inputs]
    return list(found)


def forward_first(costs: CostGraph, forward: int, schedule: Schedule) -> Schedule:
    """The same schedule with the forward part first, without what it repeats there."""
    steps, waiting = list(costs.order[:forward]), set(costs.order[:forward])
    early = frozenset(waiting)
    for t in schedule.steps:
        if t in waiting:
            waiting.remove(t)
        elif not waiting or t not in early:
            steps.append(t)
    return Schedule(tuple(steps))


def _without_first_repeats(costs: CostGraph, forward: int, schedule: Schedule) -> Schedule:
    """Keep what the backward part needs first instead of making it again, where that takes no more memory.

    The last segment is still there when the forward part ends.
    """
    steps = schedule.steps
    seen = set(steps[:forward])
    place = next((k for k in range(forward, len(steps)) if steps[k] in seen), len(steps))
    end = next((k for k in range(place, len(steps)) if steps[k] not in seen), len(steps))
    shorter = Schedule((*steps[:place], *steps[end:]))
    return shorter if simulate(costs, shorter).peak_bytes <= simulate(costs, schedule).peak_bytes else schedule


def fast(tasks: TaskMap, forward: int) -> Schedule:
    """Repeat only what is cheap, and only where the peak asks for it."""
    costs = tasks.costs
    slow = {b for t in costs.order[:forward] if any(map(_is_slow, tasks.nodes[t])) for b in costs.tasks[t].outputs}
    return _unless_worse(costs, drop_useless_repeats(costs, keep_only(costs, forward, slow)))


def _unless_worse(costs: CostGraph, schedule: Schedule) -> Schedule:
    """The schedule, or that of the plain gradients where it saves nothing."""
    plain = Schedule(costs.order)
    return schedule if simulate(costs, schedule).peak_bytes < simulate(costs, plain).peak_bytes else plain


def _is_slow(node: Node) -> bool:
    """Whether its result is worth keeping for speed: convolutions, matrix products, loops and calls."""
    rule = flop_rule(node.op_type)
    return is_control_flow(node) or bool(called_functions(node)) or (rule is not None and rule.family in _SLOW)


def least_peak(costs: CostGraph, forward: int, forward_time: float, time_limit_s: float) -> Schedule:
    """The schedule with the smallest peak found that takes at most about one forward pass longer."""
    once = sum(task.time for task in costs.tasks)
    solution = minimum_within(costs, once + EXTRA * forward_time, time_limit_s=time_limit_s)
    return _unless_worse(costs, forward_first(costs, forward, solution.schedule))


def within_budget(tasks: TaskMap, forward: int, budget: int | float | str, time_limit_s: float) -> Schedule:
    """The cheapest schedule found within the budget.

    Raises:
        InfeasibleError: there is none.
    """
    costs = tasks.costs
    plain = Schedule(costs.order)
    peak = simulate(costs, plain).peak_bytes
    budget_bytes = Budget.read(budget).of(peak)
    if peak <= budget_bytes:
        return plain
    solution = solve(costs, budget_bytes, time_limit_s=time_limit_s)
    schedule = forward_first(costs, forward, solution.schedule)
    found = simulate(costs, schedule)
    if found.peak_bytes > budget_bytes:
        raise infeasible(tasks, replace(solution, peak_bytes=found.peak_bytes), budget_bytes, peak)
    return schedule
