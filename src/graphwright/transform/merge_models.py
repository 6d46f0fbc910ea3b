"""Make one model of two."""

from __future__ import annotations

from collections.abc import Mapping

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.graph import Graph, Value
from graphwright.ir.signature import Signature
from graphwright.transform.copy_nodes import Copied, copied_package, copy_model, copy_nodes, copy_surroundings
from graphwright.transform.interface import PLACEHOLDERS, agree, find_input, find_output, input_values, output_values, put_in_order

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


def merge_models(
    first: Graph,
    second: Graph,
    *,
    connect: Mapping[str, str] | None = None,
    scope: str = "second",
    signature: str = "serving_default",
    keep_outputs: bool = False,
) -> Graph:
    """A new model of both: inputs of the second read outputs of the first where `connect` says so, else they lie side by side.

    Nodes of the second go below `scope`, those of its inputs and outputs keep their names where these
    are free. The new model has one signature: the inputs of both that are still fed, and the
    outputs of the second; those of the first where nothing is connected, or on request. A key that
    both have is called `<scope>_<key>` for the second.

    Args:
        connect: name of an input of the second -> name of an output of the first.
        scope: the scope of the second model's nodes.
        signature: the signature of either model whose keys are taken, and the name of the new one.
        keep_outputs: return the outputs of the first too though it is connected.

    Raises:
        ArgumentError: a name is unknown, or dtypes or shapes do not fit.
        UnsupportedError: both models come from a SavedModel with variables, whose values lie in two files.

    >>> from graphwright.ir.graph import DTYPES
    >>> def model(op_type):
    ...     g = Graph(op_type)
    ...     x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))]).outputs
    ...     g.inputs, g.outputs = x, g.add_node(op_type, "y", inputs=x, output_types=[(DTYPES["float32"], (2,))]).outputs
    ...     return g
    >>> merge_models(model("Relu"), model("Neg"), connect={"x": "y"}).nodes
    (<Node x = Placeholder()>, <Node y = Relu(x:0)>, <Node second/y = Neg(y:0)>)
    """
    pairs = _pairs(first, second, connect or {}, signature)
    packages = [g for g in (first, second) if g.package is not None and any(n.op_type in _VARIABLES for n in g.nodes)]
    if len(packages) == 2:
        raise UnsupportedError(
            "both models have variables, whose values lie in two SavedModels",
            where=f"graphs {first.name!r} and {second.name!r}",
            remedy="freeze one of them first (freeze_variables)",
        )
    merged, copied_first = copy_model(first)
    skipped = {value.producer for value in pairs}
    kept_names = {v.producer: v.producer.name for v in (*_ends(second, signature)[0].values(), *_ends(second, signature)[1].values())}
    replaced = {value: copied_first.values[source] for value, source in pairs.items()}
    names = {node.name for node in kept_names if node.name not in merged and node not in skipped}
    copied_second = copy_nodes(
        second,
        merged,
        nodes=[node for node in second.nodes if node not in skipped],
        replaced=replaced,
        rename=lambda name: name if name in names else f"{scope}/{name}",
    )
    if packages == [second]:
        merged.package = copied_package(second.package, copied_second)
    _join(merged, (first, copied_first), (second, copied_second), pairs, scope=scope, signature=signature, keep_outputs=keep_outputs)
    put_in_order(merged)
    return merged


def _join(
    merged: Graph,
    first: tuple[Graph, Copied],
    second: tuple[Graph, Copied],
    pairs: Mapping[Value, Value],
    *,
    scope: str,
    signature: str,
    keep_outputs: bool,
) -> None:
    """Inputs, outputs, signature and collections of the merged model."""
    inputs_of_first, outputs_of_first = _ends(first[0], signature)
    inputs_of_second, outputs_of_second = _ends(second[0], signature)
    inputs = {key: first[1].values[v] for key, v in inputs_of_first.items()}
    for key, value in inputs_of_second.items():
        if value not in pairs:
            inputs[_free(key, inputs, scope)] = second[1].values[value]
    outputs = {key: first[1].values[v] for key, v in outputs_of_first.items()} if keep_outputs or not pairs else {}
    for key, value in outputs_of_second.items():
        outputs[_free(key, outputs, scope)] = second[1].values[value]
    variables = [second[1].values[v] for v in second[0].inputs if v in second[0].variables]
    resources = [v for v in merged.inputs if v in merged.variables]
    merged.inputs = dict.fromkeys([*inputs.values(), *resources, *variables])
    merged.outputs = dict.fromkeys(outputs.values())
    merged.control_outputs = dict.fromkeys(
        [*merged.control_outputs, *(second[1].nodes[n] for n in second[0].control_outputs if n in second[1].nodes)]
    )
    no_signatures = Graph()
    no_signatures.collections = second[0].collections
    copy_surroundings(no_signatures, merged, second[1])
    merged.signatures.clear()
    merged.signatures[signature] = Signature(inputs=inputs, outputs=outputs, method_name="tensorflow/serving/predict")


def _pairs(first: Graph, second: Graph, connect: Mapping[str, str], signature: str) -> dict[Value, Value]:
    """Input of the second -> output of the first that it reads."""
    pairs: dict[Value, Value] = {}
    for input_name, output_name in connect.items():
        value = find_input(second, input_name, signature=signature if signature in second.signatures else None)
        source = find_output(first, output_name, signature=signature if signature in first.signatures else None)
        where = f"argument 'connect', {input_name!r}"
        if value in pairs:
            raise ArgumentError(f"the input {input_name!r} is connected twice", where=where)
        if value.producer.op_type not in PLACEHOLDERS or value.producer.inputs:
            raise ArgumentError(f"the input {input_name!r} is no placeholder", where=where)
        if value.dtype != source.dtype:
            raise ArgumentError(
                f"{value!r} cannot read {source!r}: the dtypes differ", where=where, remedy="add a Cast with add_postprocessing"
            )
        if not agree(value.shape, source.shape):
            raise ArgumentError(f"{value!r} cannot read {source!r}: the shapes differ", where=where)
        pairs[value] = source
    return pairs


def _ends(graph: Graph, signature: str) -> tuple[dict[str, Value], dict[str, Value]]:
    """Inputs and outputs by name: of the signature, of the only one, or of the graph."""
    chosen = graph.signatures.get(signature) or (next(iter(graph.signatures.values())) if len(graph.signatures) == 1 else None)
    if chosen is not None:
        return chosen.inputs, chosen.outputs
    if graph.signatures:
        raise ArgumentError(
            f"graph {graph.name!r} has no signature {signature!r}",
            where="argument 'signature'",
            remedy=f"it has {', '.join(graph.signatures)}",
        )
    inputs, outputs = input_values(graph), output_values(graph)
    return {_name(v): v for v in inputs if v not in graph.variables}, {_name(v): v for v in outputs}


def _name(value: Value) -> str:
    return value.producer.name if value.index == 0 else f"{value.producer.name}_{value.index}"


def _free(key: str, taken: Mapping[str, Value], scope: str) -> str:
    candidate, number = key, 0
    while candidate in taken:
        candidate = f"{scope}_{key}" + (f"_{number}" if number else "")
        number += 1
    return candidate
