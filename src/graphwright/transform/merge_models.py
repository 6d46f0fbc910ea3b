"""Merge two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph, Value
from graphwright.ir.jobs import Written, as_graph, makes_graph
from graphwright.ir.names import free_name
from graphwright.ir.select import parents, scopes, unique_scope
from graphwright.ir.signature import Signature
from graphwright.ir.traits.values import MAY_BE_FED
from graphwright.transform.attach import Attachment, holds_values, in_files
from graphwright.transform.interface import check_fits, find_end, input_values, output_values, put_in_order


@makes_graph
def merge_models(
    first: Any,
    second: Any,
    *,
    connect: Mapping[str, str] | None = None,
    scope: str = "second",
    signature: str = "serving_default",
    keep_outputs: bool = False,
    keep_signatures: bool = False,
    **written: Unpack[Written],
) -> Graph:
    """Return a new model of both, in which inputs of the second may read outputs of the first.

    Nodes of the second go below `scope` (`scope_1` if it exists); its inputs and outputs keep their names where these are free. The new
    model has one signature: the inputs of both that are still fed, and the outputs of the second, with those of the first if nothing is
    connected. A key that both have becomes `<scope>_<key>` for the second.

    Models that were loaded from files keep the variables, tables, assets and initializers of both, each with its own values. The values
    are copied into one checkpoint in a temporary folder, so the sources may be deleted. In the written SavedModel, the root of the second
    model is the child `<scope>` of the root of the first. The result of a TF1 and a TF2 SavedModel is of TF2. A live function is saved
    first. Functions that `tf.saved_model.load` finds on objects beside the signatures stay as they are.

    Args:
        first: a `Graph`, or whatever `load` reads; not changed.
        second: like `first`.
        connect: input of the second -> output of the first.
        scope: the scope of the second model's nodes, and the name of its part in the files.
        signature: the signature of each model whose keys are used, and the name of the new one.
        keep_outputs: whether to return the outputs of the first too if it is connected.
        keep_signatures: whether to keep the signatures of both that can still be served; without `connect`, no joint one is made. A
            signature of the second becomes `<scope>_<key>` if the first has one of its name.

    Raises:
        ArgumentError: a name is unknown, or dtypes or shapes do not fit.
        FileFormatError: the variables or assets of a model are missing or damaged.
        UnsupportedError: one model is a TF1 SavedModel whose tables or reference variables do not fit into the other's TF2 SavedModel.

    >>> from graphwright.ir.graph import DTYPES
    >>> def model(op_type):
    ...     g = Graph(op_type)
    ...     x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))]).outputs
    ...     g.inputs, g.outputs = x, g.add_node(op_type, "y", inputs=x, output_types=[(DTYPES["float32"], (2,))]).outputs
    ...     return g
    >>> merge_models(model("Relu"), model("Neg"), connect={"x": "y"}).nodes
    (<Node x = Placeholder()>, <Node y = Relu(x:0)>, <Node second/y = Neg(y:0)>)
    """
    first, second = as_graph(first), in_files(as_graph(second))
    if holds_values(second):
        first = in_files(first)
    pairs = _pairs(first, second, connect or {}, signature)
    inputs_of_first, outputs_of_first = _ends(first, signature)
    inputs_of_second, outputs_of_second = _ends(second, signature)
    copied_first = copy_graph(first)
    merged = copied_first.graph
    place = unique_scope(merged, scope)
    names_of_second = _kept_signatures(first, second, pairs, place) if keep_signatures else {}
    attachment = Attachment(merged, second, place, signatures=names_of_second)
    replaced = {value.producer for value in pairs}
    # TensorFlow puts inlined nodes below the name of a call: no node has the name of a scope, or lies below another node.
    nodes = {node.name for node in merged}
    taken = {*scopes(merged), *nodes}
    ends = {v.producer.name for v in (*inputs_of_second.values(), *outputs_of_second.values()) if v.producer not in replaced}
    names = {name for name in ends if name not in taken and nodes.isdisjoint(parents(name))}
    copied_second = attachment.attach(
        {value: copied_first.value_of[source] for value, source in pairs.items()},
        left_out=replaced,
        rename=lambda name: name if name in names else f"{place}/{name}",
        plain_collections=True,
    )
    inputs = {key: copied_first.value_of[v] for key, v in inputs_of_first.items()}
    for key, value in inputs_of_second.items():
        if value not in pairs:
            inputs[_free(key, inputs, place)] = copied_second.value_of[value]
    outputs = {key: copied_first.value_of[v] for key, v in outputs_of_first.items()} if keep_outputs or not pairs else {}
    for key, value in outputs_of_second.items():
        outputs[_free(key, outputs, place)] = copied_second.value_of[value]
    variables = [v for v in merged.inputs if v in merged.variables]
    variables += [copied_second.value_of[v] for v in second.inputs if v in second.variables]
    waited = [copied_second.node_of[n] for n in second.control_outputs if n in copied_second.node_of]
    merged.inputs = dict.fromkeys([*inputs.values(), *variables])
    merged.outputs = dict.fromkeys(outputs.values())
    merged.control_outputs = dict.fromkeys([*merged.control_outputs, *waited])
    signatures = dict(merged.signatures) if keep_signatures else {}
    signatures.update((new, second.signatures[old].of_copies(copied_second.value_of)) for old, new in names_of_second.items())
    if pairs or not keep_signatures:
        signatures[signature] = Signature(inputs=inputs, outputs=outputs, method_name="tensorflow/serving/predict")
    merged.signatures = signatures
    put_in_order(merged)
    return merged


def _kept_signatures(first: Graph, second: Graph, pairs: Mapping[Value, Value], scope: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for key, known in second.signatures.items():
        if not any(value in pairs for value in known.inputs.values()):
            names[key] = _free(key, {**first.signatures, **dict.fromkeys(names.values())}, scope)
    return names


def _pairs(first: Graph, second: Graph, connect: Mapping[str, str], signature: str) -> dict[Value, Value]:
    pairs: dict[Value, Value] = {}
    for input_name, output_name in connect.items():
        value = find_end(second, input_name, is_input=True, signature=signature if signature in second.signatures else None)
        source = find_end(first, output_name, is_input=False, signature=signature if signature in first.signatures else None)
        if value in pairs:
            raise ArgumentError(f"the input {input_name!r} is connected twice", argument="connect", item=input_name)
        if value.producer.op_type not in MAY_BE_FED or value.producer.inputs:
            raise ArgumentError(f"the input {input_name!r} is not a placeholder", argument="connect", item=input_name)
        check_fits(source, value, argument="connect", item=input_name)
        pairs[value] = source
    return pairs


def _ends(graph: Graph, signature: str) -> tuple[dict[str, Value], dict[str, Value]]:
    chosen = graph.signatures.get(signature) or (next(iter(graph.signatures.values())) if len(graph.signatures) == 1 else None)
    if chosen is not None:
        return chosen.inputs, chosen.outputs
    if graph.signatures:
        raise ArgumentError(
            f"graph {graph.name!r} has no signature {signature!r}",
            argument="signature",
            remedy=f"it has {', '.join(graph.signatures)}",
        )
    inputs, outputs = input_values(graph), output_values(graph)
    return {_name(v): v for v in inputs if v not in graph.variables}, {_name(v): v for v in outputs}


def _name(value: Value) -> str:
    return value.producer.name if value.index == 0 else f"{value.producer.name}_{value.index}"


def _free(key: str, taken: Mapping[str, object], scope: str) -> str:
    return free_name(f"{scope}_{key}", taken) if key in taken else key
