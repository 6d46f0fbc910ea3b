"""TensorFlow's executor, simulated: in which order it runs the kernels of a graph, and how much memory that takes.

`executor_order` has the threads and their queues, `executor_frames` who gets which tensor, `executor_memory` what kernels hold.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from graphwright.analyze.executor_frames import Frames
from graphwright.analyze.executor_memory import Constant, Memory, PeakState
from graphwright.analyze.executor_order import Numbered, execute, number_nodes
from graphwright.ir.graph import Graph, Node

_EARLIER_STEPS = 2


def simulate_executor(
    graph: Graph,
    *,
    time_of: Callable[[Node], float],
    workspace_of: Callable[[Node], int],
    constant: Constant,
    resident_bytes: int,
    threads: int = 1,
    seed: int | None = None,
    numbered: Numbered | None = None,
    computed_once: Container[Node] = (),
) -> PeakState:
    """Run a graph as TensorFlow's executor does, on buffers in place of numbers.

    Args:
        graph: the graph that is executed, its nodes in TensorFlow's order (`graphwright.run.executed_graph`).
        time_of: seconds that a kernel takes; with one thread they do not matter.
        workspace_of: bytes that a kernel needs beyond its outputs.
        constant: the array of a constant, or None.
        resident_bytes: bytes of variables, inputs and constants.
        threads: inter-op threads.
        seed: draws what TensorFlow leaves to chance: tables of readers, what passes for quick, durations. None for no draw.
        numbered: `number_nodes(graph)`, where it is known.
        computed_once: nodes that count as constants (`graphwright.analyze.runtime_constants`).

    Raises:
        UnknownShapeError: the size of a tensor that a kernel makes is not known.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("_Arg", "x", output_types=[(f32, (256,))]).outputs[0]
    >>> a = g.add_node("Exp", "a", inputs=[x], output_types=[(f32, (256,))]).outputs[0]
    >>> b = g.add_node("Exp", "b", inputs=[x], output_types=[(f32, (256,))]).outputs[0]
    >>> state = simulate_executor(g, time_of=lambda n: 1.0, workspace_of=lambda n: 0, constant=lambda v: None, resident_bytes=1024)
    >>> state.order, state.peak_bytes >= 2048
    (('x', 'b', 'a'), True)
    """
    numbered = numbered or number_nodes(graph)
    memory = Memory(graph, workspace_of, constant, resident_bytes, computed_once=computed_once)
    frames = Frames(numbered, memory, time_of, seed)
    execute(frames, threads=threads)
    if max(frames.runs.values(), default=0) > 1:  # a loop: what its kernels cost is known from the steps before
        earlier = {k: _EARLIER_STEPS * count for k, count in frames.runs.items()}
        memory = Memory(graph, workspace_of, constant, resident_bytes, computed_once=computed_once)
        execute(Frames(numbered, memory, time_of, seed, earlier), threads=threads)
    return memory.result()
