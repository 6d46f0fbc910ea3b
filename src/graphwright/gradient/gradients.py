"""`gradients`: the gradients of `tf.gradients`, for less memory. A drop-in for graphs of TF1 and inside `tf.function`.

`tf.gradients` itself takes the gradients, so all its arguments, sparse gradients, control flow and custom gradients keep their meaning.
Then the graph is read back, forward and backward part together, and a schedule decides which tensors of the forward part are kept, which
are recomputed, and when. Clones of forward operations are added, the new backward operations read them, and control edges fix the order of
the backward part. Operations that existed before are not changed.

After Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174), for graphs of any form: a checkpoint need not
separate the graph in two.
"""

from __future__ import annotations

import importlib
import time as clock
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.storages import SMALL_BYTES
from graphwright.errors import AssumedSizeWarning, CheckpointWarning
from graphwright.gradient import policies
from graphwright.gradient.arguments import (
    Checkpoints,
    check_feeds,
    check_graph,
    check_mode,
    check_options,
    check_time_limit,
    flat,
    listed,
    named_checkpoints,
)
from graphwright.gradient.joint import Joint, read_joint
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import RECOMPUTED_FROM, is_constant
from graphwright.ir.traits.variables import VARIABLES, resource_of
from graphwright.ir.walk import topological_order
from graphwright.memory.xla.gates import add_gates
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.source.live_graph import is_numeric, write_live_graph
from graphwright.source.opaque_gate import some_bits
from graphwright.source.private_tensorflow import is_traced_for_xla
from graphwright.source.tensorflow_import import left_alone
from graphwright.transform.rematerialize import apply_schedule

tf: Any = importlib.import_module("tensorflow")

PLANS = "graphwright_gradient_plans"
"""The graph's collection of plans, one `GradientPlan` for each call."""


@dataclass(frozen=True)
class GradientPlan:
    """The plan of one call of `gradients`.

    Attributes:
        peak_bytes: simulated peak of forward and backward part, variables included.
        plain_peak_bytes: the same with plain gradients.
        extra_time: estimated time of recomputation, as a share of one forward pass.
        recomputed_count: recomputed operations that take memory.
        assumed: unknown sizes and the values assumed for them, in words.
        planning_time_s: seconds from reading the graph to the schedule.
    """

    peak_bytes: int
    plain_peak_bytes: int
    extra_time: float
    recomputed_count: int
    assumed: str
    planning_time_s: float


@left_alone
def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    checkpoints: Checkpoints = "collection",
    *,
    feeds: Mapping[Any, Sequence[int]] | None = None,
    time_limit_s: float = 3.0,
    **kwargs: Any,
) -> list[Any]:
    """Take the gradients of `tf.gradients` for less memory: recompute parts of the forward pass when the backward pass needs them.

    The gradients are equal to those of `tf.gradients`. Random numbers are drawn once and stateful operations run once (dropout keeps its
    mask, moving averages are updated once); their results are kept. Gradients of the result may be taken again.

    Args:
        ys: tensor or tensors to differentiate, of a graph of TF1 or of the `tf.function` that is being traced.
        xs: tensors or variables to differentiate by.
        grad_ys: incoming gradients of the ys; ones by default.
        checkpoints: which tensors of the forward pass are kept:
            a list of tensors; "collection", the tensors in the graph's collection named "checkpoints" (`tf.compat.v1.add_to_collection`);
            "memory", the least peak for at most about one more forward pass of time;
            "speed", the results of convolutions, matrix products and loops, so that only cheap operations are recomputed;
            or a budget for the simulated peak of forward and backward pass together, variables included: bytes (int), a share of the
            peak with plain gradients (float below 1), or text such as "2.5GiB" or "60%".
        feeds: shapes by placeholder (or its name) for unknown dimensions. Without them an unknown dimension counts as 32, with a
            warning if the plan depends on it.
        time_limit_s: approximate seconds for planning ("memory" and budgets).
        **kwargs: arguments of `tf.gradients`: name, gate_gradients, aggregation_method, stop_gradients, unconnected_gradients;
            colocate_gradients_with_ops as `tf.compat.v1.gradients` does.

    Returns:
        For each x a gradient as of `tf.gradients`: a tensor, a `tf.IndexedSlices`, or None.

    Raises:
        ArgumentError: an unknown mode, an empty collection, a tensor of another graph, feeds that do not fit.
        InfeasibleError: no plan keeps the budget; the error has the smallest feasible one.
        UnsupportedError: called eagerly.

    >>> import tensorflow as tf
    >>> @tf.function
    ... def slope(x):
    ...     h = x
    ...     for _ in range(20):
    ...         h = tf.sin(h)
    ...     return gradients(tf.reduce_sum(h), [x], checkpoints="memory")[0]
    >>> bool(tf.reduce_all(slope(tf.zeros((100, 100))) == 1.0))
    True
    """
    mode = check_mode(checkpoints)
    live = check_graph(ys)
    check_options(kwargs)
    check_time_limit(time_limit_s)
    named = named_checkpoints(live, mode) if not isinstance(mode, str | int | float) or mode == "collection" else []
    shapes = check_feeds(live, feeds or {})
    taken = take(ys, xs, grad_ys, kwargs, shapes)
    if taken.joint is None:
        return taken.gradients
    schedule = choose(taken.joint, mode, named, time_limit_s)
    return follow(taken, schedule, xs)


def gradients_memory(ys: Any, xs: Any, grad_ys: Any = None, **kwargs: Any) -> list[Any]:
    """Call `gradients` with `checkpoints="memory"`: the least peak for at most about one forward pass of extra time."""
    return gradients(ys, xs, grad_ys, checkpoints="memory", **kwargs)


def gradients_speed(ys: Any, xs: Any, grad_ys: Any = None, **kwargs: Any) -> list[Any]:
    """Call `gradients` with `checkpoints="speed"`: convolutions and matrix products are not recomputed."""
    return gradients(ys, xs, grad_ys, checkpoints="speed", **kwargs)


def gradients_collection(ys: Any, xs: Any, grad_ys: Any = None, **kwargs: Any) -> list[Any]:
    """Call `gradients` with `checkpoints="collection"`: the tensors in the graph's collection "checkpoints" are kept."""
    return gradients(ys, xs, grad_ys, checkpoints="collection", **kwargs)


@dataclass(frozen=True)
class PlainGradients:
    """Gradients of `tf.gradients`, and the planning problem; None if there is nothing to plan."""

    live: Any
    gradients: list[Any]
    started: float
    joint: Joint | None


def take(ys: Any, xs: Any, grad_ys: Any, options: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> PlainGradients:
    """Take plain gradients in the current graph, and read it back."""
    live = tf.compat.v1.get_default_graph()
    function = tf.compat.v1.gradients if "colocate_gradients_with_ops" in options else tf.gradients
    ends = flat(ys)
    if is_traced_for_xla():  # the backward part waits for some bits of the ys, so it need not keep them
        ends = [some_bits([y for y in ends if y.shape.rank is not None])]
    before = len(live.get_operations())
    result: list[Any] = function(ys, xs, grad_ys, **options)
    added = {operation.name for operation in live.get_operations()[before:]}
    tensors = flat(result)
    if not any(tensor.op.name in added for tensor in tensors):
        return PlainGradients(live, result, 0.0, None)
    sources = [x for x in listed(xs) if tf.is_tensor(x) and hasattr(x, "op")]
    return PlainGradients(live, result, clock.perf_counter(), read_joint(live, added, ends, flat(grad_ys), tensors, shapes, sources))


def follow(taken: PlainGradients, schedule: Schedule, xs: Any) -> list[Any]:
    """Rewrite the live graph to follow the schedule; return the new gradients."""
    live, joint = taken.live, taken.joint
    assert joint is not None
    if schedule.steps == joint.tasks.costs.order:
        return taken.gradients
    costs = joint.tasks.costs
    plain, planned = simulate(costs, Schedule(costs.order)), simulate(costs, schedule)
    extra = (planned.time - plain.time) / joint.forward_time if joint.forward_time else 0.0
    again, time_s = len(schedule.steps) - len(costs.tasks), clock.perf_counter() - taken.started
    live.add_to_collection(PLANS, GradientPlan(planned.peak_bytes, plain.peak_bytes, extra, again, joint.assumed, time_s))
    graph = joint.graph
    outputs = {value.name: k for k, value in enumerate(graph.outputs)}
    compiled = is_traced_for_xla()
    steps = apply_schedule(
        joint.tasks, schedule, fix_order=not compiled, ordered_from=joint.forward, behind=joint.behind, unordered=joint.framed
    )
    originals = _new_nodes(live, graph)
    if compiled:
        backward = [[node for node in steps[k] if node.name in graph] for k in range(joint.forward, len(schedule.steps))]
        opaque = add_gates(graph, backward, joint.behind, {graph[name] for name in originals})
    else:
        opaque = _hide_constants(joint)
    originals |= {gate.name: gate.inputs[0].producer.name for gate in opaque}
    written = write_live_graph(live, graph, originals, fixed=joint.fixed, opaque=opaque)
    new_tensors = {tensor.name: written[graph.outputs[outputs[tensor.name]]] for tensor in flat(taken.gradients)}
    if live.building_function:  # where updates wait for all earlier operations
        return [_replaced(gradient, new_tensors, ()) for gradient in taken.gradients]
    readers = _readers_of_variables(graph, originals, written)
    before = [readers.get(_variable_of(x), []) for x in listed(xs)]
    return [_replaced(gradient, new_tensors, waits) for gradient, waits in zip(taken.gradients, before, strict=True)]


def _hide_constants(joint: Joint) -> dict[Node, bool]:
    """Insert gates, which `write_live_graph` makes opaque, before clones and gradients of large constant values.

    TensorFlow would compute such clones and gradients when it prepares the graph, and keep all results.
    """
    graph = joint.graph
    constant, gates = set[Node](), dict[Value, Node]()
    for node in topological_order(graph):
        if not is_constant(node) and (not node.inputs or node in joint.framed or any(v.producer not in constant for v in node.inputs)):
            continue
        large = next((k for k, v in enumerate(node.inputs) if (v.nbytes or 0) >= SMALL_BYTES and is_numeric(v)), None)
        if large is None or node.name in joint.fixed:
            constant.add(node)
            continue
        value = node.inputs[large]
        if value not in gates:
            gates[value] = add_identity(value, f"recomputed/{value.producer.name}/gate")
        graph.replace_input(node, large, gates[value].outputs[0])
    graph.sort_nodes(topological_order(graph))
    return dict.fromkeys(gates.values(), False)


def _new_nodes(live: Any, graph: Graph) -> dict[str, str]:
    """Return, for each node that the live graph lacks, the name of the original operation."""
    known = {operation.name for operation in live.get_operations()}
    originals: dict[str, str] = {}
    for node in graph.nodes:
        source = node.attrs.get(RECOMPUTED_FROM)
        if isinstance(source, bytes):
            originals.setdefault(node.name, source.decode())
        elif node.name not in known:  # a gate in front of a convolution
            originals[node.name] = node.inputs[0].producer.name
    return originals


def _readers_of_variables(graph: Graph, originals: Mapping[str, str], written: Mapping[Value, Any]) -> dict[str, list[Any]]:
    """Return, by variable, the clones that read the variable itself: an update must come after them.

    Inside a `tf.function` TensorFlow ensures that. Variables of TF1 without a handle are updated in place, so a value read earlier changes.
    """
    readers: dict[str, list[Any]] = {}
    for node in graph.nodes:
        for value in node.inputs if node.name in originals else ():
            source = resource_of(value).producer
            if source.op_type in VARIABLES:
                readers.setdefault(source.name, []).append(written[node.outputs[0]].op)
    return readers


def choose(
    joint: Joint, mode: Checkpoints, named: Sequence[Any], time_limit_s: float, *, remedy: str = "give feeds={placeholder: shape}"
) -> Schedule:
    """Return the schedule for the argument `checkpoints`; "inputs" keeps only tensors that must be kept."""
    costs, forward = joint.tasks.costs, joint.forward
    if not isinstance(mode, str | int | float) or mode == "collection":
        return policies.keep_only(costs, forward, _named_buffers(joint, named, strict=mode != "collection"))
    if mode == "inputs":
        return policies.keep_only(costs, forward, set(), last_stays=False)
    if mode == "speed":
        return policies.fast(joint.tasks, forward)
    if joint.assumed:
        warnings.warn(
            f"the plan assumes sizes: {joint.assumed}. With other sizes the peak differs; {remedy}", AssumedSizeWarning, stacklevel=4
        )
    if mode == "memory":
        return policies.least_peak(costs, forward, joint.forward_time, time_limit_s)
    return policies.within_budget(joint.tasks, forward, mode, time_limit_s)


def _named_buffers(joint: Joint, named: Sequence[Any], *, strict: bool) -> set[int]:
    buffers: set[int] = set()
    useless: list[str] = []
    tasks = joint.tasks
    for tensor in named:
        if tensor.op.name not in joint.fixed:
            useless.append(tensor.name)
            continue
        root = tasks.root_of[joint.graph.value(tensor.name)]
        if root in tasks.buffer_of:
            buffers.add(tasks.buffer_of[root])
    if useless and (strict or len(useless) == len(named)):
        names = ", ".join(useless[:5]) + (f" and {len(useless) - 5} more" if len(useless) > 5 else "")
        warnings.warn(f"no gradient needs these checkpoints: {names}. They do not lie between xs and ys", CheckpointWarning, stacklevel=5)
    return buffers


def _replaced(gradient: Any, new_tensors: Mapping[str, Any], before: Sequence[Any]) -> Any:
    """Return the new gradient, delayed until the operations `before` have run."""
    if gradient is None:
        return None
    first, *others = [new_tensors[part.name] for part in tf.nest.flatten(gradient, expand_composites=True)]
    if before:
        with tf.control_dependencies(before):
            first = tf.identity(first)
    return tf.nest.pack_sequence_as(gradient, [first, *others], expand_composites=True)


def _variable_of(x: Any) -> str:
    operation = getattr(getattr(x, "handle", x), "op", None)
    return "" if operation is None else str(operation.name)
