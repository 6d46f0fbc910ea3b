"""`step_costs`: the costs of a step, as figures that can be kept; `compare`: two steps side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from os import PathLike
from typing import Any

from graphwright.analyze.cost import TaskMap, unknown_rounds
from graphwright.analyze.device_models import HERE
from graphwright.analyze.flop_tally import Sums, Tally
from graphwright.costs.baseline import is_costs_file, read_costs
from graphwright.costs.peak import check_order, own_peak, traced_how
from graphwright.costs.xla_peak import by_operation
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node
from graphwright.memory.planning import HOW_PEAK_TRACED, map_tasks
from graphwright.plan.model import Schedule
from graphwright.report.comparison import FIGURES, Comparison, LayerFigures, LayerPair, StepCosts, model_scope
from graphwright.report.peak_prediction import Order, PeakPrediction
from graphwright.source.load import made_by
from graphwright.step.feeds import ask_each
from graphwright.step.flatten import flat_step
from graphwright.step.summary import Roles, count_executed, count_parameters, find_roles, make_layers, make_timeline
from graphwright.step.targets import Feed, Mode, about_a_step, trace

_NUMBER = re.compile(r"(?:_\d+)+(?=/|$)")
_ALIGNED = 3000  # layers: up to here the longest common sequence is looked for, which takes the square of their number
_HOW = {
    "peak": HOW_PEAK_TRACED,
    "FLOPs": "counted per operation from static shapes, a multiply-add as two; loops count every round; unused operations are left out",
    "parameters": "elements of the weights that the step reads or writes, metrics, counters and random states left out; optimizer state is "
    "what updates write and the forward pass never reads",
    "bytes moved": "each input of an operation read once and each output written once, views not at all",
    "layers": "by name scope; layers that differ only at the peak count as equal",
}


@garbage_collection_paused()
@about_a_step
def step_costs(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    device: str = HERE,
    order: Order = "executor",
) -> StepCosts:
    """Return the costs of a step as figures for `compare` and `check`: peak, parameters, FLOPs, nodes, per layer.

    Args:
        target: a `tf.function`, a `ConcreteFunction`, a Keras model, the path of a `.keras` file, a SavedModel or a graph; a
            `tf.Graph`, a `GraphDef`, a `Graph`; the path of a file of costs; or a `StepCosts`, which is returned.
        order: "executor" for the peak as TensorFlow runs the step; "traced" for the order in which it was traced.

    Raises:
        UnknownShapeError: a dimension is unknown; the message names the argument to bind.
        ArgumentError, UnsupportedError, FileFormatError: the target cannot be traced or read.

    >>> import tensorflow as tf
    >>> product = tf.function(lambda a, b: a @ b)
    >>> costs = step_costs(product, feeds={"a": (256, 256), "b": (256, 256)}, order="traced")
    >>> costs.figures["total_flops"], costs.figures["peak_bytes"]
    (33554432.0, 786432)
    """
    check_order(order)
    target = made_by(target)
    if isinstance(target, StepCosts):
        return target
    if is_costs_file(target):
        return read_costs(target)
    traced = trace(target, feeds=feeds, inputs=inputs, outputs=outputs, mode=mode, batch=batch, device=device)
    flat = flat_step(traced)
    growing = flat.loops.unknown
    tasks = map_tasks(replace(flat, loops=replace(flat.loops, unknown=None)))
    roles = find_roles(tasks)
    if growing is not None or (order == "traced" and not traced.is_compiled):
        return _figures(traced.name, traced.feeds, flat.graph, tasks, roles, growing=growing)
    prediction, reason = own_peak(traced, flat, tasks, roles)
    costs = _figures(traced.name, traced.feeds, flat.graph, tasks, roles, prediction)
    costs = replace(costs, how={**costs.how, **flat.loops.sizes})
    if prediction is None:
        return replace(costs, how={**costs.how, "peak": traced_how(reason)})
    return replace(costs, how={**by_operation(costs.how, traced, "layers", "bytes moved"), "peak": prediction.how["peak"]})


def _figures(
    name: str,
    feeds: Mapping[str, tuple[int, ...]],
    graph: Graph,
    tasks: TaskMap,
    roles: Roles,
    prediction: PeakPrediction | None = None,
    growing: Node | None = None,
) -> StepCosts:
    """Return the figures of a step.

    Args:
        prediction: the predicted peak; None takes the peak in the order of the graph.
        growing: the loop that makes the peak unknown, see `LoopCosts`.
    """
    timeline = prediction.timeline if prediction is not None else None
    shown = timeline or make_timeline(tasks, Schedule(tasks.costs.order), roles)
    execution, counted = count_executed(graph, roles)
    parameters = count_parameters(graph, roles)
    peak_bytes = shown.peak_bytes if prediction is None else prediction.peak_bytes
    figures: dict[str, float] = {
        "peak_bytes": peak_bytes if growing is None else math.nan,
        "resident_bytes": tasks.costs.resident_bytes if prediction is None else prediction.resident_bytes,
        "parameters": parameters.weights,
        "trainable_parameters": parameters.elements["trainable"],
        "optimizer_state": parameters.elements["optimizer state"],
        "total_flops": counted.whole.total,
        **{name: flops for name, flops in counted.whole.by_direction.items() if name in FIGURES},
        "bytes_moved": counted.whole.bytes_moved,
        "nodes": len(graph),
    }
    assert figures.keys() == FIGURES.keys()
    rows = {row.layer: row for row in make_layers(tasks, roles, shown, None)}
    run = (roles.layers.of(node.name) for task in tasks.costs.order for node in tasks.nodes[task])
    order = dict.fromkeys([*run, *(roles.layers.of(node.name) for node in graph.nodes), *rows])
    layers = _with_variables([_layer(layer, rows[layer], counted) for layer in order if layer in rows])
    unknown = tuple(sorted(counted.unknown_reason))
    drawn = shown if prediction is None else timeline
    how = dict(_HOW)
    if execution.per_round:
        how["FLOPs"] = f"not known, since how often {', '.join(execution.per_round)} runs depends on data: give example inputs"
    if growing is not None:
        error = unknown_rounds(growing)
        how["peak"], layers, drawn = f"not known, since {error.what}: {error.remedy}", [], None
    return StepCosts(name, feeds, figures, tuple(layers), unknown, how, drawn)


def _layer(name: str, row: Any, counted: Tally) -> LayerFigures:
    return LayerFigures(
        layer=name,
        nodes=row.op_count,
        parameters=row.parameter_count,
        residual_bytes=row.residual_bytes,
        peak_share_bytes=row.peak_share_bytes,
        **counted.per_layer.get(name, Sums()).by_direction,
    )


def _with_variables(layers: Sequence[LayerFigures]) -> list[LayerFigures]:
    """Join layers that only hold variables with the layer that computes with them: Keras renumbers an optimizer's scope in each trace."""
    joined = [layer for layer in layers if layer.nodes]
    place = {_NUMBER.sub("", layer.layer): k for k, layer in reversed(list(enumerate(joined)))}
    for layer in layers:
        if layer.nodes:
            continue
        k = place.get(_NUMBER.sub("", layer.layer))
        if k is None:
            joined.append(layer)
        else:
            both = {name: getattr(joined[k], name) + getattr(layer, name) for name in ("parameters", "peak_share_bytes")}
            joined[k] = replace(joined[k], **both)
    return joined


@about_a_step
def compare(
    a: Any,
    b: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    device: str = HERE,
    order: Order = "executor",
) -> Comparison:
    """Compare two steps: peak, parameters, FLOPs and nodes, with differences and ratios, in all and per layer.

    Layers are matched by name scope, without the model's own scope. The rest is matched without the numbers that Keras appends
    (`conv2d_3` and `conv2d_11`), in the order in which it runs. The other layers were added or removed.

    Args:
        a: a target of `step_costs`, or its result, for example with other feeds or another mode.
        b: the target to compare with it. The other arguments are for both; a feed may name an input that only one of them has.
        order: of the peak, see `step_costs`.

    Returns:
        A `Comparison`, which prints itself.

    Raises:
        UnknownShapeError, ArgumentError, UnsupportedError, FileFormatError: see `step_costs`.

    >>> import tensorflow as tf
    >>> once = tf.function(lambda x: tf.nn.relu(x @ x))
    >>> twice = tf.function(lambda x: tf.nn.relu(x @ x @ x))
    >>> found = compare(once, twice, feeds={"x": (64, 64)})
    >>> found.difference("total_flops"), found.difference("parameters")
    (524288.0, 0)
    """
    return compare_costs(*both_costs([(a, mode, batch), (b, mode, batch)], feeds, inputs, outputs, device, order))


def both_costs(
    targets: Sequence[tuple[Any, Mode, int | None]],
    feeds: Mapping[str, Feed] | None,
    inputs: Any = None,
    outputs: Any = None,
    device: str = HERE,
    order: Order = "executor",
) -> list[StepCosts]:
    """Return the costs of targets, each with the feeds of its own inputs.

    Args:
        targets: each with its mode and batch size.
    """
    options = {"inputs": inputs, "outputs": outputs, "device": device, "order": order}
    questions = [partial(step_costs, target, mode=mode, batch=batch, **options) for target, mode, batch in targets]
    costs = ask_each(questions, feeds)
    return [of_file(target, found) for (target, _, _), found in zip(targets, costs, strict=True)]


def of_file(target: Any, costs: StepCosts) -> StepCosts:
    """Name costs after the file of the target, since two files may hold models of one name."""
    return replace(costs, name=f"{target}: {costs.name}") if isinstance(target, str | PathLike) else costs


def compare_costs(a: StepCosts, b: StepCosts) -> Comparison:
    return Comparison(a, b, match_layers(a.layers, b.layers))


def match_layers(a: Sequence[LayerFigures], b: Sequence[LayerFigures]) -> tuple[LayerPair, ...]:
    """Return pairs of layers in the order of `b`; a layer that only `a` has follows the one that it followed there.

    >>> def layer(name): return LayerFigures(name, 1, 0, 0.0, 0.0, 0.0, 0, 0)
    >>> pairs = match_layers([layer("m/conv"), layer("m/old")], [layer("m_1/conv"), layer("m_1/new")])
    >>> [(pair.name, pair.change) for pair in pairs]
    [('m_1/conv', 'same'), ('m/old', 'removed'), ('m_1/new', 'added')]
    """
    keys_a, keys_b = _keys(a), _keys(b)
    place_b = {key: k for k, key in enumerate(keys_b)}
    partner = {i: place_b[key] for i, key in enumerate(keys_a) if key in place_b}
    taken = set(partner.values())
    left_a = [i for i in range(len(a)) if i not in partner]
    left_b = [j for j in range(len(b)) if j not in taken]
    for with_parameters in (True, False):
        pairs = _aligned(
            [_base(keys_a[i], a[i] if with_parameters else None) for i in left_a],
            [_base(keys_b[j], b[j] if with_parameters else None) for j in left_b],
        )
        partner |= {left_a[i]: left_b[j] for i, j in pairs}
        used_a, used_b = {i for i, _ in pairs}, {j for _, j in pairs}
        left_a = [i for k, i in enumerate(left_a) if k not in used_a]
        left_b = [j for k, j in enumerate(left_b) if k not in used_b]
    return _in_order(a, b, partner)


def _in_order(a: Sequence[LayerFigures], b: Sequence[LayerFigures], partner: Mapping[int, int]) -> tuple[LayerPair, ...]:
    removed: dict[int, list[LayerPair]] = {}
    before = -1
    for i, layer in enumerate(a):
        if i in partner:
            before = partner[i]
        else:
            removed.setdefault(before, []).append(LayerPair(layer, None))
    of_b = {j: i for i, j in partner.items()}
    pairs = removed.get(-1, [])
    for j, layer in enumerate(b):
        pairs.append(LayerPair(a[of_b[j]] if j in of_b else None, layer))
        pairs += removed.get(j, [])
    return tuple(pairs)


def _keys(layers: Sequence[LayerFigures]) -> list[str]:
    scope = model_scope(layers)
    return ["." + layer.layer.removeprefix(scope) if scope and layer.layer.startswith(scope) else layer.layer for layer in layers]


def _base(key: str, layer: LayerFigures | None) -> tuple[str, int]:
    return _NUMBER.sub("", key), -1 if layer is None else layer.parameters


def _aligned(a: Sequence[tuple[str, int]], b: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    if len(a) + len(b) <= _ALIGNED:
        blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]
    waiting: dict[tuple[str, int], list[int]] = {}
    for j in reversed(range(len(b))):
        waiting.setdefault(b[j], []).append(j)
    return [(i, waiting[entry].pop()) for i, entry in enumerate(a) if waiting.get(entry)]
