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

from graphwright.analyze.cost import unknown_rounds
from graphwright.analyze.device_models import HERE
from graphwright.analyze.flop_tally import Sums, Tally
from graphwright.costs.baseline import is_costs_file, read_costs
from graphwright.costs.peak import check_order, step_peak
from graphwright.costs.xla_peak import by_operation
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.planning import map_tasks
from graphwright.plan.model import Schedule
from graphwright.report.comparison import FIGURES, Comparison, LayerFigures, LayerPair, StepCosts, model_scope
from graphwright.report.peak_prediction import Order
from graphwright.source.load import made_by
from graphwright.step.feeds import ask_each
from graphwright.step.flatten import flat_step
from graphwright.step.summary import count_executed, count_parameters, find_roles, make_layers, make_timeline
from graphwright.step.targets import Feed, Mode, about_a_step, trace

_NUMBER = re.compile(r"(?:_\d+)+(?=/|$)")
_ALIGNED = 3000  # layers: up to here the longest common sequence is looked for, which takes the square of their number
_HOW = {
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
        target: as of `inspect`; or the path of a file of costs, or a `StepCosts`, which is returned.
        order: see `predict_peak`.

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
    peak = step_peak(traced, flat, tasks, order if growing is None else "traced", roles)
    timeline = peak.timeline or make_timeline(tasks, Schedule(tasks.costs.order), roles)
    execution, counted = count_executed(flat.graph, roles)
    parameters = count_parameters(flat.graph, roles)
    figures: dict[str, float] = {
        "peak_bytes": peak.peak_bytes if growing is None else math.nan,
        "resident_bytes": peak.resident_bytes,
        "parameters": parameters.weights,
        "trainable_parameters": parameters.elements["trainable"],
        "optimizer_state": parameters.elements["optimizer state"],
        "total_flops": counted.whole.total,
        **{name: flops for name, flops in counted.whole.by_direction.items() if name in FIGURES},
        "bytes_moved": counted.whole.bytes_moved,
        "nodes": len(flat.graph),
    }
    assert figures.keys() == FIGURES.keys()
    rows = {row.layer: row for row in make_layers(tasks, roles, timeline, None)}
    run = (roles.layers.of(node.name) for task in tasks.costs.order for node in tasks.nodes[task])
    in_order = dict.fromkeys([*run, *(roles.layers.of(node.name) for node in flat.graph.nodes), *rows])
    layers = _with_variables([_layer(layer, rows[layer], counted) for layer in in_order if layer in rows])
    how = by_operation(_HOW, traced, "layers", "bytes moved") | {"peak": peak.how["peak"]} | flat.loops.sizes
    if execution.per_round:
        how["FLOPs"] = f"not known, since how often {', '.join(execution.per_round)} runs depends on data: give example inputs"
    costs = StepCosts(traced.name, traced.feeds, figures, tuple(layers), tuple(sorted(counted.unknown_reason)), how, peak.timeline)
    if growing is not None:
        error = unknown_rounds(growing)
        return replace(costs, layers=(), timeline=None, how={**how, "peak": f"not known, since {error.what}: {error.remedy}"})
    return costs if peak.order == "traced" else replace(costs, peak_high_bytes=peak.high_bytes)


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
    joined = {layer.layer: layer for layer in layers if layer.nodes}
    computing = {_NUMBER.sub("", name): name for name in reversed(joined)}
    for layer in (layer for layer in layers if not layer.nodes):
        name = computing.get(_NUMBER.sub("", layer.layer), layer.layer)
        own = joined.get(name, replace(layer, parameters=0, peak_share_bytes=0))
        sums = own.parameters + layer.parameters, own.peak_share_bytes + layer.peak_share_bytes
        joined[name] = replace(own, parameters=sums[0], peak_share_bytes=sums[1])
    return list(joined.values())


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
    """Return the costs of targets, each with its mode and batch size, and with the feeds of its own inputs."""
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
    for with_parameters in (True, False):
        taken = set(partner.values())
        left_a = [i for i in range(len(a)) if i not in partner]
        left_b = [j for j in range(len(b)) if j not in taken]
        bases_a = [(_NUMBER.sub("", keys_a[i]), a[i].parameters if with_parameters else -1) for i in left_a]
        bases_b = [(_NUMBER.sub("", keys_b[j]), b[j].parameters if with_parameters else -1) for j in left_b]
        partner |= {left_a[i]: left_b[j] for i, j in _aligned(bases_a, bases_b)}
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


def _aligned(a: Sequence[tuple[str, int]], b: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    if len(a) + len(b) <= _ALIGNED:
        blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]
    waiting: dict[tuple[str, int], list[int]] = {}
    for j in reversed(range(len(b))):
        waiting.setdefault(b[j], []).append(j)
    return [(i, waiting[entry].pop()) for i, entry in enumerate(a) if waiting.get(entry)]
