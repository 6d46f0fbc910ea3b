"""A picture of a model: from its inputs to its outputs, layer by layer, with calls inlined.

Weights, and values computed only from weights, belong to the operation that reads them. Nodes that no output depends on are left out, and
so are nodes that forward a value (`Identity`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from graphwright.analyze.layers import Layers, blocks, find_layers, in_gradient_scope, layers_by_names, several, unnumbered
from graphwright.errors import GraphwrightError
from graphwright.ir.dtypes import format_shape
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.inline import inline
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import is_call
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import INPUTS, SAME_VALUE
from graphwright.ir.traits.variables import VARIABLES
from graphwright.ir.walk import topological_order

_MOST_NODES = 50_000  # of a larger graph the whole is drawn
_WHOLE = 0.9  # share of the nodes that lie in one scope, from which on it is the model's
_MANY = 40  # layers beside each other: more are folded by the blocks that their names tell


@dataclass(frozen=True)
class ServedPicture:
    """The boxes of a model from inputs to outputs, by drawn node in execution order.

    Attributes:
        weights: the variables and constants that a node reads, in words.
        place: its layer behind its block, as `block_1/block_1_conv`; "" for none.
        labels: the names of inputs and outputs in the signature.
        names: its layer and the last part of its own name.
    """

    inputs: Mapping[Node, list[Value]]
    weights: Mapping[Node, list[str]]
    place: Mapping[Node, str]
    labels: Mapping[Node, str]
    names: Mapping[Node, str]
    outputs: frozenset[Node]


def served_picture(graph: Graph) -> ServedPicture | None:
    """Return the picture of the main signature, or of a graph without signatures; None if no output depends on an input."""
    if len(graph) + sum(len(function.body) for function in graph.functions.values()) > _MOST_NODES:
        return None
    if any(is_call(node, graph) for node in graph.nodes):
        graph = copy_graph(graph).graph
    name = "serving_default" if "serving_default" in graph.signatures else next(iter(graph.signatures), None)
    inputs_by_key: dict[str, Value] = {}
    outputs_by_key: dict[str, Value] = {}
    if name is not None:
        inputs_by_key, outputs_by_key = dict(graph.signatures[name].inputs), dict(graph.signatures[name].outputs)
    if not inputs_by_key:
        fed_values = [value for value in graph.inputs or _placeholders(graph) if not _is_variable(value.producer)]
        inputs_by_key = {value.producer.name: value for value in fed_values}
    fed = [value.producer for value in inputs_by_key.values()]
    trains = any(in_gradient_scope(node.name) for node in graph.nodes)  # it may return metrics, which lead to nothing that is fed
    outputs_by_key = outputs_by_key or {value.name: value for value in (not trains and graph.outputs) or _ends(fed)}
    try:
        outputs_by_key, traced_names = _inlined(graph, outputs_by_key)
    except GraphwrightError:  # a function that is missing, or calls itself: the whole graph is drawn as it is
        return None
    below, needed = _reached(fed, forward=True), _reached([value.producer for value in outputs_by_key.values()], forward=False)
    body = [node for node in topological_order(graph) if node in below and node in needed]
    ends = frozenset(value.producer for value in outputs_by_key.values()).intersection(body)
    drawn = [node for node in body if node.op_type not in SAME_VALUE or node in ends]
    if not ends or len(drawn) == len(set(fed).intersection(drawn)):
        return None
    boxes = set(drawn)
    inputs = {node: [source for value in node.inputs if (source := _seen_through(value, boxes)).producer in boxes] for node in drawn}
    read = {node: [value for value in node.inputs if value.producer not in below] for node in drawn}
    called = _variable_names(source for values in read.values() for source in _reached([v.producer for v in values], forward=False))
    weights = {node: [text for value in values for text in _weights(value, called)] for node, values in read.items()}
    labels = {value.producer: key for key, value in inputs_by_key.items()}
    labels |= {value.producer: key for key, value in outputs_by_key.items() if value.producer.op_type in SAME_VALUE}
    traced_names = {node: traced_names.get(node, node.name) for node in drawn}
    layers = _layers(graph, traced_names)
    names = {node: labels.get(node) or layers.words(name) for node, name in traced_names.items()}
    return ServedPicture(inputs, weights, _places(layers, traced_names, labels), labels, names, ends)


def _placeholders(graph: Graph) -> list[Value]:
    return [node.outputs[0] for node in graph.nodes if node.op_type in INPUTS and not (node.inputs or _is_variable(node)) and node.outputs]


def _is_variable(node: Node) -> bool:
    """Return whether a node is a variable, or the argument of a traced function for one."""
    return node.op_type in VARIABLES or (node.op_type in INPUTS and any(value.dtype.name == "resource" for value in node.outputs))


def _ends(fed: Sequence[Node]) -> list[Value]:
    """Return the values that depend on an input and that at most gradients read.

    Assigned values, such as moving averages, count only if an input reaches nothing else.
    """

    def is_gradient(node: Node) -> bool:
        return in_gradient_scope(node.name)

    forward = _reached(fed, forward=True, unless=is_gradient)
    computed = {node: None for node in forward if node.outputs}  # assigned values are no outputs
    readers = {node: [n for v in node.outputs for n in v.consumers] for node in computed if node.inputs}
    ends = [node for node, by in readers.items() if not any(n in computed for n in by)]
    results = {node for node in ends if not readers[node] or any(n.outputs for n in readers[node])}
    for node in fed:
        reached = _reached([node], forward=True, unless=is_gradient)
        results.update(() if any(end in reached for end in results) else (end for end in ends if end in reached))
    return [node.outputs[0] for node in ends if node in results]


def _reached(nodes: Iterable[Node], *, forward: bool, unless: Callable[[Node], bool] = lambda _: False) -> dict[Node, None]:
    """Return these nodes and all nodes after or before them, along paths on which `unless` is false."""
    reached = dict.fromkeys(nodes)
    waiting = list(reached)
    for node in waiting:  # grows while it is walked
        near = [n for v in node.outputs for n in v.consumers] if forward else [v.producer for v in node.inputs]
        for other in near:
            if other not in reached and not unless(other):
                reached[other] = None
                waiting.append(other)
    return reached


def _inlined(graph: Graph, outputs: Mapping[str, Value]) -> tuple[dict[str, Value], dict[Node, str]]:
    """Inline the calls that the outputs need; return the outputs, and the names of the copied nodes without the names of the calls."""
    names: dict[Node, str] = {}
    if not any(is_call(node, graph) for node in graph.nodes):
        return dict(outputs), names
    graph.outputs = list(outputs.values())
    purity = Purity(graph, {})
    for _ in range(100):
        calls = [n for n in _reached([v.producer for v in graph.outputs], forward=False) if is_call(n, graph)]
        if not calls:
            break
        for call in calls:
            scope = names.get(call, call.name).rpartition("/")[0]
            copies = inline(call, purity=purity, strict=False).node_of
            names.update((copy, f"{scope}/{node.name}" if scope else node.name) for node, copy in copies.items())
    return dict(zip(outputs, graph.outputs, strict=True)), names


def _seen_through(value: Value, shown: set[Node]) -> Value:
    while value.producer not in shown and value.producer.op_type in SAME_VALUE:
        value = value.producer.inputs[value.index]
    return value


def _variable_names(nodes: Iterable[Node]) -> dict[Node, str]:
    """Name variables; drop the numbers that a Keras export gives to all of them."""
    names = {node: _name(node) for node in nodes if _is_variable(node)}
    plain = {node: unnumbered(name) for node, name in names.items()}
    numbered = all(plain[node] != name for node, name in names.items()) and len(set(plain.values())) == len(plain)
    return plain if numbered else names


def _weights(value: Value, called: Mapping[Node, str]) -> list[str]:
    """Name the variables that a value is computed from, or its constants if it depends on no variable."""
    sources = list(_reached([value.producer], forward=False))
    variables = [node for node in sources if _is_variable(node)]
    words: list[str] = []
    for node in variables or [node for node in sources if not node.inputs]:
        read = next((v for n in [node, *node.outputs[0].consumers] for v in n.outputs if v.dtype.name != "resource"), None)
        typed = value if read is None or (variables and len(variables) == 1) else read
        words.append(f"{called.get(node) or node.name} {typed.dtype}{format_shape(typed.shape)}")
    return words


def _name(node: Node) -> str:
    for variable in (node.graph.variables[value] for value in node.outputs if value in node.graph.variables):
        return variable.name
    called = node.attrs.get("shared_name") if node.op_type in VARIABLES else None
    return called.decode(errors="replace") if isinstance(called, bytes) and called else node.name


def _layers(graph: Graph, names: Mapping[Node, str]) -> Layers:
    variables = [_name(node) for node in graph.nodes if node.op_type in VARIABLES] or [v.name for v in graph.variables.values()]
    return layers_by_names(names.values(), variables) if variables else find_layers(graph)


def _places(layers: Layers, names: Mapping[Node, str], labels: Mapping[Node, str]) -> dict[Node, str]:
    place = {node: "" if node in labels else layers.of(name) for node, name in names.items()}
    for whole, count in Counter(layer.partition("/")[0] for layer in place.values() if "/" in layer).most_common(1):
        if count > _WHOLE * len(place):  # one scope around the model: its layers are shown
            place = {node: layer.removeprefix(f"{whole}/") for node, layer in place.items()}
    place = _beside_layers(place, names)
    top = list(dict.fromkeys(layer.partition("/")[0] for layer in place.values() if layer))
    block = blocks(top) if len(top) > _MANY else {}
    place = {node: f"{block[top]}/{layer}" if (top := layer.partition("/")[0]) in block else layer for node, layer in place.items()}
    group = _alike(place)
    return {node: f"{group[top]}/{layer}" if (top := layer.partition("/")[0]) in group else layer for node, layer in place.items()}


def _beside_layers(place: Mapping[Node, str], names: Mapping[Node, str]) -> dict[Node, str]:
    """Place operations between the layers of a model in their scopes, not all in one box of the model."""
    within: dict[str, set[str]] = {}
    for node, layer in place.items():
        within.setdefault(names[node].partition("/")[0], set()).add(layer.partition("/")[0])

    def beside(node: Node) -> str:
        scope, *inner = names[node].split("/")[:-1]
        return "/".join(inner) if len(within[scope]) > 2 and place[node] == unnumbered(scope) else place[node]

    return {node: beside(node) if "/" in names[node] else layer for node, layer in place.items()}


def _alike(place: Mapping[Node, str]) -> dict[str, str]:
    """Fold consecutive layers with the same operations and shapes whose names differ only in numbers."""
    made_of: dict[str, list[object]] = {}
    for number, (node, layer) in enumerate(place.items()):
        top, *inside = re.sub(r"\d+", "", layer).split("/")
        if layer:
            own = node.op_type, inside, [value.shape for value in node.outputs]
            made_of.setdefault(layer.partition("/")[0], [top]).append(own)
        elif any(place.get(value.producer) for value in node.inputs):  # an operation between two layers
            made_of[f" {number}"] = [number]
    runs = [list(run) for _, run in groupby(made_of, key=made_of.__getitem__)]
    return {top: several(run) for run in runs if len(run) > 1 and len(made_of[run[0]]) > 2 for top in run}
