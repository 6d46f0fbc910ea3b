"""Graphs for planner tests: builders, strategies, and a slow simulator that follows the model's text word by word."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from graphwright.plan.model import Buffer, CostGraph, Task


def reference_step_bytes(graph: CostGraph, steps: Sequence[int]) -> list[int]:
    """Bytes of every step, straight from the definitions of `graphwright.plan.model`; quadratic."""
    total = len(steps)
    lives: list[tuple[int, int, int]] = []  # buffer, first and last live step
    for number, buffer in enumerate(graph.buffers):
        made = [k for k in range(total) if steps[k] == buffer.producer] if buffer.producer is not None else [-1]
        for place, start in enumerate(made):
            stop = made[place + 1] if place + 1 < len(made) else total
            reads = [k for k in range(start + 1, stop) if number in graph.tasks[steps[k]].inputs]
            if buffer.kept and place == len(made) - 1:
                lives.append((number, start, total - 1))
            elif reads:
                lives.append((number, start, reads[-1]))
            elif start >= 0:
                lives.append((number, start, start))
    found: list[int] = []
    for k in range(total):
        task = graph.tasks[steps[k]]
        here = graph.resident_bytes + task.workspace_bytes
        here += sum(graph.buffers[number].nbytes for number, start, end in lives if start <= k <= end)
        inputs_used: set[int] = set()
        outputs_done: set[int] = set()
        for source, output in task.in_place:
            buffer = graph.buffers[source]
            last_use = any(number == source and end == k for number, start, end in lives if start < k)
            if source in inputs_used or output in outputs_done or not last_use or buffer.kept or buffer.producer is None:
                continue
            if buffer.nbytes >= graph.buffers[output].nbytes:
                inputs_used.add(source)
                outputs_done.add(output)
                here -= graph.buffers[output].nbytes
        found.append(here)
    return found


def reference_is_valid(graph: CostGraph, steps: Sequence[int], *, partial: bool = False) -> bool:
    """Whether a schedule, or a part from its start, is allowed; every rule by a scan of the prefix."""
    if not partial and set(steps) != set(range(len(graph.tasks))):
        return False
    for k, index in enumerate(steps):
        task = graph.tasks[index]
        before = steps[:k]
        if index in before and not task.recomputable:
            return False
        if any(earlier not in before for earlier in task.after):
            return False
        for number in task.inputs:
            producer = graph.buffers[number].producer
            if producer is not None and producer not in before:
                return False
        if any(graph.buffers[number].killed_by in before for number in (*task.inputs, *task.outputs)):
            return False
    return True


def random_graph(rng: random.Random, count: int) -> CostGraph:
    """A graph with every feature of the model: given, kept and killed buffers, in-place pairs, `after`, workspace."""
    tasks: list[Task] = []
    buffers = [Buffer(f"given{place}", rng.randint(0, 9), None, rng.random() < 0.5) for place in range(rng.randint(0, 2))]
    for index in range(count):
        alive = [number for number, buffer in enumerate(buffers) if buffer.killed_by is None]
        recent = alive[-6:] if rng.random() < 0.7 else alive
        inputs = tuple(rng.sample(recent, min(len(recent), rng.randint(0, 3))))
        outputs: list[int] = []
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            outputs.append(len(buffers))
            buffers.append(Buffer(f"b{len(buffers)}", rng.randint(0, 9), index, rng.random() < 0.1))
        kills = bool(inputs) and rng.random() < 0.12
        if kills:
            killed = buffers[inputs[0]]
            buffers[inputs[0]] = Buffer(killed.name, killed.nbytes, killed.producer, killed.kept, index)
        after = (rng.randrange(index),) if index and rng.random() < 0.1 else ()
        pairs = tuple((number, output) for number in inputs for output in outputs if rng.random() < 0.5)
        recomputable = rng.random() < 0.85 and not kills
        tasks.append(Task(f"t{index}", rng.randint(0, 5), inputs, tuple(outputs), after, rng.choice([0, 0, 0, 3]), recomputable, pairs))
    return CostGraph(tuple(tasks), tuple(buffers), tuple(range(count)), rng.randint(0, 3), "FLOPs", "random")


@st.composite
def cost_graphs(draw: st.DrawFn, max_tasks: int = 14) -> CostGraph:
    """Random graphs with every feature of the model."""
    return random_graph(random.Random(draw(st.integers(0, 2**32))), draw(st.integers(1, max_tasks)))


def relabel(graph: CostGraph, seed: int) -> CostGraph:
    """The same graph with tasks and buffers numbered and named anew; the order of execution is the same."""
    rng = random.Random(seed)
    task_at: dict[int | None, int] = dict(enumerate(rng.sample(range(len(graph.tasks)), len(graph.tasks))))
    buffer_at = rng.sample(range(len(graph.buffers)), len(graph.buffers))

    def numbers(old: Sequence[int]) -> tuple[int, ...]:
        return tuple(buffer_at[number] for number in old)

    tasks = {
        task_at[index]: replace(
            task,
            name=f"n{rng.randrange(10**6)}",
            inputs=numbers(task.inputs),
            outputs=numbers(task.outputs),
            after=tuple(task_at[other] for other in task.after),
            in_place=tuple((buffer_at[number], buffer_at[output]) for number, output in task.in_place),
        )
        for index, task in enumerate(graph.tasks)
    }
    buffers = {
        number: replace(old, name=f"m{rng.randrange(10**6)}", producer=task_at.get(old.producer), killed_by=task_at.get(old.killed_by))
        for number, old in zip(buffer_at, graph.buffers, strict=True)
    }
    order = tuple(task_at[index] for index in graph.order)
    return replace(graph, tasks=tuple(tasks[k] for k in sorted(tasks)), buffers=tuple(buffers[k] for k in sorted(buffers)), order=order)
