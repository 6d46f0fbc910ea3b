"""Graft graphs onto a model, before its inputs or after its outputs, under the names that callers know."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.edit.clone import CloneResult, clone
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.jobs import Written, as_graph, edits_in_place
from graphwright.ir.select import unique_scope
from graphwright.ir.traits.values import INPUTS, MAY_BE_FED
from graphwright.ir.walk import backward_reachable, fed_values, forward_reachable
from graphwright.transform.attach import Attachment, check_values, in_files
from graphwright.transform.interface import check_fits, find_in_signatures, put_in_order, replace_end, says_less

Pairs = Mapping[str, tuple[Value, Value]]
"""Input or output of the model -> the placeholder of the graft, and the value that replaces the input or output."""
Side = Literal["input", "output"]


@edits_in_place
def add_preprocessing(
    graph: Graph, preprocessing: Any, *, signature: str | None = None, scope: str = "preprocessing", **written: Unpack[Written]
) -> dict[str, Value]:
    """Let a model be fed something else under the same input names, such as JPEG bytes instead of pixels.

    `preprocessing` has one placeholder per input that it replaces, named like the input (the key of a signature, or the name of its
    node), and a node `<input>_preprocessed` whose value the model reads instead. If the graft has a signature, its keys are used: those
    of its inputs, and `<input>_preprocessed` or `<input>` for its outputs; a single input belongs to a single output of any name. The new
    input has the shape and dtype of the placeholder, and the signatures of the model follow. Nothing changes before all checks passed.

    A graft that was loaded from files (an adapted layer, an embedding, a vocabulary) brings its variables, tables, assets and
    initializers, see `merge_models`. The model is then written as a SavedModel. Functions that `tf.saved_model.load` finds beside the
    signatures (`serve` of Keras) stay as they are.

    Args:
        graph: the model; changed in place.
        preprocessing: a `Graph`, or whatever `load` reads; copied, with its functions and files.
        signature: the signature whose keys are meant; by default every signature that has them all. Each gets a graft of its own, unless
            they share their placeholders; variables and tables are shared.
        scope: the scope of the new nodes, and the name of the part in the files.

    Returns:
        The new inputs of the first signature, by name.

    Raises:
        ArgumentError: placeholders, inputs and results do not belong together, or have other dtypes or shapes; or the values of the
            graft's variables are not available.
        FileFormatError: files of the graft or of the model are missing or damaged.
        UnsupportedError: the model comes from a live function and the graft has files; or one is a SavedModel of TF1 with tables or
            reference variables, and the other of TF2.

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
    return _grafted(graph, preprocessing, "input", signature, scope)


@edits_in_place
def add_postprocessing(
    graph: Graph, postprocessing: Any, *, signature: str | None = None, scope: str = "postprocessing", **written: Unpack[Written]
) -> dict[str, Value]:
    """Let a model return something else under the same output names, such as labels instead of scores.

    `postprocessing` has one placeholder per output that it replaces, named like the output (the key of a signature, or the name of its
    node), and a node `<output>_postprocessed` that makes the new output. The signatures of the model follow. The new node also takes the
    name of the old output's node, which becomes `<name>_raw`, unless that node has several outputs or is an input too. Nothing changes
    before all checks passed. Arguments, errors, signatures and files are those of `add_preprocessing`.

    Returns:
        The new outputs of the first signature, by name.

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
    return _grafted(graph, postprocessing, "output", signature, scope)


def _grafted(graph: Graph, model: Any, side: Side, signature: str | None, scope: str) -> dict[str, Value]:
    graft = in_files(as_graph(model))
    pairs = _pairs(graft, side)
    meanings = find_in_signatures(graph, pairs, signature=signature, is_input=side == "input")
    for old_of in meanings:
        _check(graph, pairs, old_of, side)
    place = unique_scope(graph, scope)
    attachment = Attachment(graph, graft, place)
    fed = {value.producer for value in fed_values(graph)}
    read = {placeholder: meanings[0][name] for name, (placeholder, _) in pairs.items()} if side == "output" else {}
    copies = [attachment.attach(read, left_out={placeholder.producer for placeholder in read})]
    for old_of in meanings[1:]:
        moved = {meanings[0][name]: old_of[name] for name in pairs} if side == "output" else {}
        copies.append(_copied_again(graft, copies[0], pairs, moved, unique_scope(graph, scope)))
    ends: list[dict[str, Value]] = []
    for old_of, copy in zip(meanings, copies, strict=True):
        if side == "input":
            ends.append(_connect_before(graph, pairs, old_of, copy, place))
        else:
            ends.append(_connect_after(graph, pairs, old_of, copy, fed))
    put_in_order(graph)
    return ends[0]


def _copied_again(graft: Graph, first: CloneResult, pairs: Pairs, input_map: Mapping[Value, Value], scope: str) -> CloneResult:
    """Copy what depends on the placeholders once more; constants, variables and tables are shared."""
    fed = forward_reachable(placeholder.producer for placeholder, _ in pairs.values())
    nodes = [first.node_of[node] for node in graft.nodes if node in fed and node in first.node_of]
    second = clone(nodes, scope=scope, input_map=input_map)
    return CloneResult(
        second.graph,
        {old: second.node_of.get(node, node) for old, node in first.node_of.items()},
        {old: second.value_of.get(value, value) for old, value in first.value_of.items()},
    )


def _connect_before(graph: Graph, pairs: Pairs, old_of: Mapping[str, Value], copied: CloneResult, place: str) -> dict[str, Value]:
    new_inputs: dict[str, Value] = {}
    for name, (placeholder, replacement) in pairs.items():
        old, new = old_of[name], copied.value_of[placeholder]
        result = copied.value_of[replacement]
        if says_less(result.shape, old.shape):
            shape = ShapeAttribute(old.shape)  # checked when it runs
            result = add_op(graph, "EnsureShape", f"{place}/{name}_shape", [result], old.dtype, old.shape, T=old.dtype, shape=shape)
        old_node = old.producer
        replace_end(graph, "inputs", old, new)
        graph.replace_uses(old, result)  # an input that was returned is returned preprocessed
        reroute_control([new.producer], old_node)
        own_name = old_node.name
        graph.remove_node(old_node)
        graph.rename(new.producer, own_name)
        new_inputs[name] = new
    return new_inputs


def _connect_after(
    graph: Graph, pairs: Pairs, old_of: Mapping[str, Value], copied: CloneResult, fed: AbstractSet[Node]
) -> dict[str, Value]:
    new_outputs: dict[str, Value] = {}
    for name, (_, replacement) in pairs.items():
        old, new = old_of[name], copied.value_of[replacement]
        node = old.producer
        replace_end(graph, "outputs", old, new)
        if len(node.outputs) == 1 and node not in fed:
            own_name = node.name
            graph.rename(node, graph.unique_name(f"{own_name}_raw"))
            graph.rename(new.producer, own_name)
        new_outputs[name] = new
    return new_outputs


def _pairs(graft: Graph, side: Side) -> Pairs:
    suffix = "preprocessed" if side == "input" else "postprocessed"
    where = f"graph {graft.name!r}" if graft.name else f"the {suffix.removesuffix('ed')}ing graph"
    pairs = _pairs_of_signature(graft, suffix, where) or _pairs_of_nodes(graft, suffix, side, where)
    placeholders = {placeholder.producer for placeholder, _ in pairs.values()}
    for node in backward_reachable(replacement.producer for _, replacement in pairs.values()):
        if node.op_type in INPUTS and node not in placeholders:
            raise ArgumentError(f"the placeholder {node.name!r} is not an input of the graph to graft", where=where)
    check_values(graft)
    return pairs


def _pairs_of_signature(graft: Graph, suffix: str, where: str) -> Pairs:
    """Return the pairs by the keys of the graft's default or only signature; none where nodes are named instead."""
    chosen = graft.signatures.get("serving_default") or (next(iter(graft.signatures.values())) if len(graft.signatures) == 1 else None)
    if chosen is None or not chosen.inputs or not chosen.outputs:
        return {}
    if len(chosen.inputs) == len(chosen.outputs) == 1:
        result_of = dict(zip(chosen.inputs, chosen.outputs.values(), strict=True))
    else:
        results = {key: chosen.outputs.get(f"{key}_{suffix}", chosen.outputs.get(key)) for key in chosen.inputs}
        result_of = {key: replacement for key, replacement in results.items() if replacement is not None}
        if len(result_of) != len(results) and any(f"{key}_{suffix}" in graft for key in results):
            return {}
    missing = [key for key in chosen.inputs if key not in result_of]
    unused = [key for key, value in chosen.outputs.items() if value not in result_of.values()]
    if missing or unused:
        raise ArgumentError(
            f"inputs and outputs of the graft do not belong together: {', '.join([*missing, *unused])}",
            where=f"{where}, its signature",
            remedy=f"give the output for the input x the key 'x_{suffix}' or 'x'",
        )
    for key, value in chosen.inputs.items():
        if value.producer.op_type not in MAY_BE_FED or value.producer.inputs:
            raise ArgumentError(f"the input {key!r} is not a placeholder but {value.producer!r}", where=where)
    return {key: (value, result_of[key]) for key, value in chosen.inputs.items()}


def _pairs_of_nodes(graft: Graph, suffix: str, side: Side, where: str) -> Pairs:
    placeholders = [v.producer for v in graft.inputs] or [n for n in graft.nodes if n.op_type in MAY_BE_FED]
    if not placeholders:
        raise ArgumentError(
            "the graph to graft has no placeholder", where=where, remedy=f"give it one per {side} to replace, called as the {side} is"
        )
    pairs: dict[str, tuple[Value, Value]] = {}
    for node in placeholders:
        wanted = f"{node.name}_{suffix}"
        if wanted not in graft or len(graft[wanted].outputs) != 1:
            raise ArgumentError(
                f"there is no node {wanted!r} with one output for the placeholder {node.name!r}",
                where=where,
                remedy=f"give the value that replaces the {side} this name, for example with tf.identity(..., name={wanted!r})",
            )
        pairs[node.name] = (node.outputs[0], graft[wanted].outputs[0])
    names = {node.name for node in placeholders}
    for node in graft.nodes:
        name = node.name.removesuffix(f"_{suffix}")
        if name != node.name and "/" not in node.name and name not in names:
            raise ArgumentError(
                f"the node {node.name!r} is for the {side} {name!r}, but there is no placeholder {name!r}",
                where=where,
                remedy=f"add a placeholder called {name!r}, or rename the node",
            )
    return pairs


def _check(graph: Graph, pairs: Pairs, old_of: Mapping[str, Value], side: Side) -> None:
    names: dict[Value, str] = {}
    for name, old in old_of.items():
        if old in names:
            raise ArgumentError(f"{names[old]!r} and {name!r} are the same {side} {old.name}", where="the placeholders of the graft")
        names[old] = name
    for name, (placeholder, replacement) in pairs.items():
        old = old_of[name]
        if side == "input" and old.producer.op_type not in MAY_BE_FED:
            raise ArgumentError(
                f"the input {name!r} is fed at {old.name}, which a {old.producer.op_type} node makes",
                where=f"graph {graph.name!r}",
                cause="only a placeholder can be replaced by another",
                remedy="cut the model there first (extract_submodel)",
            )
        check_fits(*((replacement, old) if side == "input" else (old, placeholder)), where=f"the {side} {name!r}")
