"""Graft graphs onto a model, before its inputs and behind its outputs, under the names that callers know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import backward_reachable
from graphwright.transform.copy_nodes import copy_nodes
from graphwright.transform.interface import (
    PLACEHOLDERS,
    agree,
    find_in_signatures,
    hand_on_control,
    put_in_order,
    replace_input_value,
    replace_output_value,
    says_less,
    unique_scope,
)


def add_preprocessing(
    graph: Graph, preprocessing: Graph, *, signature: str | None = None, scope: str = "preprocessing"
) -> dict[str, Value]:
    """Let a model be fed something else under the same input names, such as JPEG bytes instead of pixels.

    `preprocessing` has one placeholder per input to replace, called as the input is (the key of a
    signature, or the name of its node), and a node `<input>_preprocessed` that makes what the
    model's own placeholder held. Shape and dtype of the new input are those of the placeholder;
    the signatures of the model follow. Everything is checked before anything changes.

    Args:
        graph: the model; changed in place.
        preprocessing: copied, with the functions that it calls.
        signature: the signature whose keys the placeholders are called after; by default every one that has them all
            (each gets a graft of its own, unless they share their placeholders).
        scope: where the new nodes go.

    Returns:
        The new inputs, by name, of the first signature.

    Raises:
        ArgumentError: a placeholder names no input, `<input>_preprocessed` is missing, has another number of outputs
            than one, another dtype or a shape that cannot be, or there is one for an input without placeholder.

    >>> from graphwright.ir.graph import DTYPES
    >>> float32, uint8 = DTYPES["float32"], DTYPES["uint8"]
    >>> model = Graph("model")
    >>> x = model.add_node("Placeholder", "x", output_types=[(float32, (2,))]).outputs[0]
    >>> model.inputs, model.outputs = [x], [model.add_node("Relu", "y", inputs=[x], output_types=[(float32, (2,))]).outputs[0]]
    >>> before = Graph("before")
    >>> raw = before.add_node("Placeholder", "x", attrs={"dtype": uint8}, output_types=[(uint8, (2,))]).outputs[0]
    >>> cast = before.add_node("Cast", "x_preprocessed", inputs=[raw], output_types=[(float32, (2,))])
    >>> add_preprocessing(model, before)
    {'x': <Value x:0 uint8[2]>}
    >>> model["y"].inputs
    (<Value preprocessing/x_preprocessed:0 float32[2]>,)
    """
    pairs = _pairs(preprocessing, "preprocessed", "input")
    meanings = find_in_signatures(graph, pairs, signature=signature, is_input=True)
    for old_of in meanings:
        _check_different(old_of, "input")
        for name, (_, made) in pairs.items():
            old = old_of[name]
            if old.producer.op_type not in PLACEHOLDERS:
                raise ArgumentError(
                    f"the input {name!r} is fed at {old.name}, which a {old.producer.op_type} node makes",
                    where=f"graph {graph.name!r}",
                    cause="only a placeholder can be replaced by another",
                    remedy="cut the model there first (extract_submodel)",
                )
            _check_fits(made, old, f"{name}_preprocessed")
    grafted = [_graft_before(graph, preprocessing, pairs, old_of, scope) for old_of in meanings]
    put_in_order(graph)
    return grafted[0]


def _graft_before(
    graph: Graph, graft: Graph, pairs: Mapping[str, tuple[Value, Value]], old_of: Mapping[str, Value], scope: str
) -> dict[str, Value]:
    place = unique_scope(graph, scope)
    copied = copy_nodes(graft, graph, rename=lambda name: f"{place}/{name}")
    new_inputs: dict[str, Value] = {}
    for name, (placeholder, made) in pairs.items():
        old, new = old_of[name], copied.values[placeholder]
        result = copied.values[made]
        if says_less(result.shape, old.shape):
            result = _stated(graph, result, old, f"{place}/{name}_shape")
        old_node = old.producer
        replace_input_value(graph, old, new)
        graph.replace_uses(old, result)  # where the input itself was returned, its preprocessed form is returned
        hand_on_control(graph, old_node, [new.producer])
        own_name = old_node.name
        graph.remove_node(old_node)
        graph.rename(new.producer, own_name)
        new_inputs[name] = new
    return new_inputs


def add_postprocessing(
    graph: Graph, postprocessing: Graph, *, signature: str | None = None, scope: str = "postprocessing"
) -> dict[str, Value]:
    """Let a model return something else under the same output names, such as labels instead of scores.

    `postprocessing` has one placeholder per output to replace, called as the output is (the key of
    a signature, or the name of its node), and a node `<output>_postprocessed` that makes the new
    output. The signatures of the model follow. The new node also takes the name of the old
    output's node, which becomes `<name>_raw`, unless that node has several outputs or is an input
    too. Everything is checked before anything changes.

    Args:
        graph: the model; changed in place.
        postprocessing: copied, with the functions that it calls.
        signature: the signature whose keys the placeholders are called after; by default every one that has them all.
        scope: where the new nodes go.

    Returns:
        The new outputs, by name, of the first signature.

    Raises:
        ArgumentError: a placeholder names no output or does not fit it, `<output>_postprocessed` is missing, has another
            number of outputs than one, or there is one for an output without placeholder.

    >>> from graphwright.ir.graph import DTYPES
    >>> float32 = DTYPES["float32"]
    >>> model, after = Graph("model"), Graph("after")
    >>> x = model.add_node("Placeholder", "x", output_types=[(float32, (2,))]).outputs[0]
    >>> model.inputs, model.outputs = [x], [model.add_node("Relu", "y", inputs=[x], output_types=[(float32, (2,))]).outputs[0]]
    >>> y = after.add_node("Placeholder", "y", output_types=[(float32, None)]).outputs[0]
    >>> _ = after.add_node("ArgMax", "y_postprocessed", inputs=[y], output_types=[(DTYPES["int64"], ())])
    >>> add_postprocessing(model, after)
    {'y': <Value y:0 int64[]>}
    >>> model["y"].inputs
    (<Value y_raw:0 float32[2]>,)
    """
    pairs = _pairs(postprocessing, "postprocessed", "output")
    meanings = find_in_signatures(graph, pairs, signature=signature, is_input=False)
    for old_of in meanings:
        _check_different(old_of, "output")
        for name, (placeholder, _) in pairs.items():
            _check_fits(old_of[name], placeholder, name)
    grafted = [_graft_behind(graph, postprocessing, pairs, old_of, scope) for old_of in meanings]
    put_in_order(graph)
    return grafted[0]


def _graft_behind(
    graph: Graph, graft: Graph, pairs: Mapping[str, tuple[Value, Value]], old_of: Mapping[str, Value], scope: str
) -> dict[str, Value]:
    placeholders = {placeholder for placeholder, _ in pairs.values()}
    inner = [node for node in graft.nodes if not placeholders.intersection(node.outputs)]
    place = unique_scope(graph, scope)
    replaced = {placeholder: old_of[name] for name, (placeholder, _) in pairs.items()}
    fed = {v.producer for v in (*graph.inputs, *(v for s in graph.signatures.values() for v in s.inputs.values()))}
    copied = copy_nodes(graft, graph, nodes=inner, replaced=replaced, rename=lambda name: f"{place}/{name}")
    new_outputs: dict[str, Value] = {}
    for name, (_, made) in pairs.items():
        old, new = old_of[name], copied.values[made]
        node = old.producer
        replace_output_value(graph, old, new)
        if len(node.outputs) == 1 and node not in fed:
            own_name = node.name
            graph.rename(node, graph.unique_name(f"{own_name}_raw"))
            graph.rename(new.producer, own_name)
        new_outputs[name] = new
    return new_outputs


def _pairs(graft: Graph, suffix: str, kind: str) -> dict[str, tuple[Value, Value]]:
    """Per name, the placeholder and what is made of it."""
    where = f"graph {graft.name!r}" if graft.name else f"the {suffix.removesuffix('ed')}ing graph"
    placeholders = [v.producer for v in graft.inputs] or [n for n in graft.nodes if n.op_type in PLACEHOLDERS]
    if not placeholders:
        raise ArgumentError(
            "the graph to graft has no placeholder", where=where, remedy=f"give it one per {kind} to replace, called as the {kind} is"
        )
    pairs: dict[str, tuple[Value, Value]] = {}
    for node in placeholders:
        wanted = f"{node.name}_{suffix}"
        if wanted not in graft:
            raise ArgumentError(
                f"there is no node {wanted!r} for the placeholder {node.name!r}",
                where=where,
                remedy=f"give the node that replaces the {kind} this name, for example with tf.identity(..., name={wanted!r})",
            )
        result = graft[wanted]
        if len(result.outputs) != 1:
            raise ArgumentError(
                f"the node {wanted!r} has {len(result.outputs)} outputs, but must have one",
                where=where,
                remedy=f"pick one with tf.identity(..., name={wanted!r})",
            )
        pairs[node.name] = (node.outputs[0], result.outputs[0])
    names = {node.name for node in placeholders}
    for node in graft.nodes:
        name = node.name.removesuffix(f"_{suffix}")
        if name != node.name and "/" not in node.name and name not in names:
            raise ArgumentError(
                f"the node {node.name!r} is for the {kind} {name!r}, but there is no placeholder {name!r}",
                where=where,
                remedy=f"add a placeholder called {name!r}, or rename the node",
            )
    _check_complete([made.producer for _, made in pairs.values()], placeholders, where)
    return pairs


def _check_complete(results: Sequence[Node], placeholders: Sequence[Node], where: str) -> None:
    """Refuse what would have to be fed or initialized besides."""
    known = set(placeholders)
    for node in backward_reachable(results):
        if node.op_type in ("Placeholder", "PlaceholderV2", "_Arg") and node not in known:
            raise ArgumentError(f"the placeholder {node.name!r} is no input of the graph to graft", where=where)
        if node.op_type in ("VarHandleOp", "VariableV2", "Variable"):
            raise ArgumentError(
                f"the graph to graft holds the variable {node.name!r}, whose value would be lost",
                where=where,
                remedy="freeze it first (freeze_variables)",
            )


def _check_different(values: Mapping[str, Value], kind: str) -> None:
    names: dict[Value, str] = {}
    for name, value in values.items():
        if value in names:
            raise ArgumentError(f"{names[value]!r} and {name!r} are the same {kind} {value.name}", where="the placeholders of the graft")
        names[value] = name


def _check_fits(made: Value, wanted: Value, name: str) -> None:
    if made.dtype != wanted.dtype:
        raise ArgumentError(
            f"{made.name} has dtype {made.dtype}, but {wanted.name} has {wanted.dtype}", where=f"{name!r}", remedy="add a Cast to the graft"
        )
    if not agree(made.shape, wanted.shape):
        raise ArgumentError(f"{made!r} cannot have the shape of {wanted!r}", where=f"{name!r}")


def _stated(graph: Graph, value: Value, like: Value, name: str) -> Value:
    """The value with the shape that the model counted on, proved when it runs."""
    node = graph.add_node(
        "EnsureShape",
        graph.unique_name(name),
        inputs=[value],
        attrs={"T": like.dtype, "shape": ShapeAttribute(like.shape)},
        output_types=[(like.dtype, like.shape)],
    )
    return node.outputs[0]
