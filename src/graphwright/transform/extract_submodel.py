"""Cut out a part of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack, cast

from graphwright.errors import ArgumentError
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.insert import add_placeholder
from graphwright.ir.graph import Graph, Value
from graphwright.ir.jobs import Written, as_graph, makes_graph
from graphwright.ir.signature import Signature
from graphwright.ir.traits.values import INPUTS, MAY_BE_FED
from graphwright.ir.walk import reached
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import find_value, put_in_order
from graphwright.transform.strip_training import drop_collections, remove_unneeded

Ends = Iterable[str | Value] | Mapping[str, str | Value]


@makes_graph
def extract_submodel(graph: Any, inputs: Ends, outputs: Ends, *, signature: str = "serving_default", **written: Unpack[Written]) -> Graph:
    """Return a new model that computes `outputs` from `inputs`, which may be any values inside the old model.

    An input that is computed in the old model becomes a placeholder of the node's name, dtype and shape. The new model has one signature,
    whose keys are the given names, or those of the nodes. Everything that initializes and restores its tables and variables is kept.

    Names may also be those of inlined nodes (`StatefulPartitionedCall/model/dense/BiasAdd`): functions of a TF2 model are inlined in the
    copy where such a name is given. `inline_calls` shows the names.

    Args:
        graph: a `Graph`, or whatever `load` reads; not changed.
        inputs: names or values, or a mapping from new names to these.
        outputs: as `inputs`.
        signature: the name of the new signature.

    Raises:
        ArgumentError: a value does not exist, or `outputs` also depend on an input of the old model that is not in `inputs`.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = [(DTYPES["float32"], (2,))]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=f32).outputs
    >>> y = g.add_node("Relu", "y", inputs=x, output_types=f32).outputs
    >>> g.inputs, g.outputs = x, g.add_node("Neg", "z", inputs=y, output_types=f32).outputs
    >>> part = extract_submodel(g, ["y"], ["z"])
    >>> part.nodes
    (<Node y = Placeholder()>, <Node z = Neg(y:0)>)
    """
    graph = as_graph(graph)
    named = {**_items(inputs), **{f"output {name}": end for name, end in _items(outputs).items()}}
    for end in named.values():
        if isinstance(end, Value):
            find_value(graph, end)
    copied = copy_graph(graph)
    source = copied.graph
    held = {value: copied.value_of[value] for value in named.values() if isinstance(value, Value)}
    if any(not _is_found(graph, end) for end in named.values()):
        source.outputs = [*source.outputs, *held.values()]  # to find them again after inlining
        count = len(source.outputs) - len(held)
        inline_calls(source)
        held = dict(zip(held, source.outputs[count:], strict=True))
        source.outputs = source.outputs[:count]

    def meant(end: str | Value) -> Value:
        return held[end] if isinstance(end, Value) else find_value(source, end)

    starts = _by_key(_items(inputs), meant, "inputs")
    ends = _by_key(_items(outputs), meant, "outputs")
    if not ends:
        raise ArgumentError("no output was given", argument="outputs")
    if len(set(starts.values())) != len(starts):
        raise ArgumentError("a value is an input twice", argument="inputs")

    _check_complete(source, ends.values(), starts.values())
    _cut(source, starts, ends, signature)
    return source


def _cut(graph: Graph, starts: dict[str, Value], ends: dict[str, Value], signature: str) -> None:
    graph.signatures.clear()
    graph.outputs = dict.fromkeys(ends.values())
    graph.control_outputs = []
    graph.inputs = [v for v in graph.inputs if _is_captured(v)]
    for name, value in starts.items():
        node = value.producer
        if node.op_type in MAY_BE_FED and not node.inputs:
            continue
        own_name = node.name if len(node.outputs) == 1 else f"{node.name}_{value.index}"
        fed = add_placeholder(graph, f"{own_name}/fed", value.dtype, value.shape)
        graph.replace_uses(value, fed)
        starts[name] = fed
        if len(node.outputs) == 1:
            graph.rename(node, graph.unique_name(f"{own_name}/computed"))
        graph.rename(fed.producer, graph.unique_name(own_name))
    results = list(graph.outputs)
    graph.inputs = [*starts.values(), *graph.inputs]
    graph.signatures[signature] = Signature(
        inputs=dict(starts), outputs=dict(zip(ends, results, strict=True)), method_name="tensorflow/serving/predict"
    )
    drop_collections(graph, keep_variables=True)
    remove_unneeded(graph)
    put_in_order(graph)


def _check_complete(graph: Graph, ends: Iterable[Value], starts: Iterable[Value]) -> None:
    fed = set(starts)
    seeds = (v.producer for v in ends if v not in fed)
    for node in reached(seeds, lambda node: [*(v.producer for v in node.inputs if v not in fed), *node.control_inputs]):
        if node.op_type in INPUTS and not _is_captured(node.outputs[0]):
            raise ArgumentError(
                f"the outputs also depend on {node.name!r}",
                where=f"graph {graph.name!r}",
                cause="the inputs given do not cut the model in two",
                remedy=f"add {node.name!r} to the inputs",
            )


def _is_captured(value: Value) -> bool:
    return value in value.producer.graph.variables or value.dtype.name == "resource"


def _items(ends: Ends) -> dict[str, str | Value]:
    if isinstance(ends, Mapping):
        return dict(cast("Mapping[str, str | Value]", ends))
    return {end.name if isinstance(end, Value) else end: end for end in ends}


def _by_key(items: Mapping[str, str | Value], meant: Callable[[str | Value], Value], argument: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, end in items.items():
        # The name of an argument of a signature: `a/b:0` -> `b`.
        key = re.sub(r"\W", "_", name.removesuffix(":0").rpartition("/")[2]) if re.search(r"[/:]", name) else name
        if key in values:
            raise ArgumentError(f"two values would be called {key!r}", argument=argument, remedy="give a mapping from names to values")
        values[key] = meant(end)
    return values


def _is_found(graph: Graph, end: str | Value) -> bool:
    try:
        find_value(graph, end)
    except ArgumentError:
        return False
    return True
