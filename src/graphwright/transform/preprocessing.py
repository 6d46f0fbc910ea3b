"""Graft graphs onto a model, before its inputs and behind its outputs, under the names that callers know."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import agree
from graphwright.ir.edit.clone import CloneResult, clone
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.given import Written, as_graph, edits_in_place
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.select import unique_scope
from graphwright.ir.traits.values import INPUTS, MAY_BE_FED
from graphwright.ir.walk import backward_reachable, fed_values, forward_reachable
from graphwright.transform.attach import Attachment, check_values, in_files
from graphwright.transform.interface import described, find_in_signatures, put_in_order, replace_end, says_less


@edits_in_place
def add_preprocessing(
    graph: Graph, preprocessing: Any, *, signature: str | None = None, scope: str = "preprocessing", **written: Unpack[Written]
) -> dict[str, Value]:
    """Let a model be fed something else under the same input names, such as JPEG bytes instead of pixels.

    `preprocessing` has one placeholder per input to replace, called as the input is (the key of a
    signature, or the name of its node), and a node `<input>_preprocessed` that makes what the
    model's own placeholder held. Where it has a signature, as what `load` read has, the keys count: of its inputs, and
    `<input>_preprocessed` or `<input>` of its outputs; one input and one output belong together whatever the output is called.
    Shape and dtype of the new input are those of the placeholder; the signatures of the model follow.
    Everything is checked before anything changes.

    A graft that was loaded from files (a layer that was adapted, an embedding, a vocabulary) brings its variables, tables,
    assets and initializers along, see `merge_models`. The written model is then a SavedModel. Functions that
    `tf.saved_model.load` finds on its objects beside the signatures (`serve` of Keras) stay as they are.

    Args:
        graph: the model; changed in place.
        preprocessing: a `Graph`, or whatever `load` reads; copied, with the functions that it calls and what its files hold.
        signature: the signature whose keys the placeholders are called after; by default every one that has them all
            (each gets a graft of its own, unless they share their placeholders; variables and tables are there once).
        scope: where the new nodes go, and the name of the part in the files.

    Returns:
        The new inputs, by name, of the first signature.

    Raises:
        ArgumentError: a placeholder names no input, `<input>_preprocessed` is missing, has another number of outputs
            than one, another dtype or a shape that cannot be, or there is one for an input without placeholder.
            Or the graft holds variables whose values are not at hand.
        FileFormatError: the files of the graft or of the model are missing or damaged.
        UnsupportedError: the model comes from a live function and the graft has files; or one is a SavedModel of TF1 with
            tables or reference variables, and the other of TF2.

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
    preprocessing = as_graph(preprocessing)
    preprocessing = in_files(preprocessing)
    pairs = _pairs(preprocessing, "preprocessed", "input")
    meanings = find_in_signatures(graph, pairs, signature=signature, is_input=True)
    for old_of in meanings:
        _check_different(old_of, "input")
        for name, (_, made) in pairs.items():
            old = old_of[name]
            if old.producer.op_type not in MAY_BE_FED:
                raise ArgumentError(
                    f"the input {name!r} is fed at {old.name}, which a {old.producer.op_type} node makes",
                    where=f"graph {graph.name!r}",
                    cause="only a placeholder can be replaced by another",
                    remedy="cut the model there first (extract_submodel)",
                )
            _check_fits(made, old, f"{name}_preprocessed")
    place = unique_scope(graph, scope)
    attachment = Attachment(graph, preprocessing, place)
    with graph.restored_on_error():
        copies = [attachment.attach({})]
        copies += [_again(preprocessing, copies[0], pairs, {}, unique_scope(graph, scope)) for _ in meanings[1:]]
        grafted = [_connect_before(graph, pairs, old_of, copy, place) for old_of, copy in zip(meanings, copies, strict=True)]
        put_in_order(graph)
    return grafted[0]


def _again(
    graft: Graph, first: CloneResult, pairs: Mapping[str, tuple[Value, Value]], input_map: Mapping[Value, Value], scope: str
) -> CloneResult:
    """Copy once more what depends on the placeholders; constants, variables and tables are shared."""
    fed = forward_reachable(placeholder.producer for placeholder, _ in pairs.values())
    nodes = [first.node_of[node] for node in graft.nodes if node in fed and node in first.node_of]
    second = clone(nodes, scope=scope, input_map=input_map)
    return CloneResult(
        second.graph,
        {old: second.node_of.get(node, node) for old, node in first.node_of.items()},
        {old: second.value_of.get(value, value) for old, value in first.value_of.items()},
    )


def _connect_before(
    graph: Graph, pairs: Mapping[str, tuple[Value, Value]], old_of: Mapping[str, Value], copied: CloneResult, place: str
) -> dict[str, Value]:
    new_inputs: dict[str, Value] = {}
    for name, (placeholder, made) in pairs.items():
        old, new = old_of[name], copied.value_of[placeholder]
        result = copied.value_of[made]
        if says_less(result.shape, old.shape):
            shape = ShapeAttribute(old.shape)  # that the model counted on, proved when it runs
            result = add_op(graph, "EnsureShape", f"{place}/{name}_shape", [result], old.dtype, old.shape, T=old.dtype, shape=shape)
        old_node = old.producer
        replace_end(graph, "inputs", old, new)
        graph.replace_uses(old, result)  # where the input itself was returned, its preprocessed form is returned
        reroute_control([new.producer], old_node)
        own_name = old_node.name
        graph.remove_node(old_node)
        graph.rename(new.producer, own_name)
        new_inputs[name] = new
    return new_inputs


@edits_in_place
def add_postprocessing(
    graph: Graph, postprocessing: Any, *, signature: str | None = None, scope: str = "postprocessing", **written: Unpack[Written]
) -> dict[str, Value]:
    """Let a model return something else under the same output names, such as labels instead of scores.

    `postprocessing` has one placeholder per output to replace, called as the output is (the key of
    a signature, or the name of its node), and a node `<output>_postprocessed` that makes the new
    output. The signatures of the model follow. The new node also takes the name of the old
    output's node, which becomes `<name>_raw`, unless that node has several outputs or is an input
    too. Everything is checked before anything changes.

    Signatures and files of the graft count as in `add_preprocessing`.

    Args:
        graph: the model; changed in place.
        postprocessing: copied, with the functions that it calls and what its files hold.
        signature: the signature whose keys the placeholders are called after; by default every one that has them all.
        scope: where the new nodes go, and the name of the part in the files.

    Returns:
        The new outputs, by name, of the first signature.

    Raises:
        ArgumentError: a placeholder names no output or does not fit it, `<output>_postprocessed` is missing, has another
            number of outputs than one, or there is one for an output without placeholder.
            Or the graft holds variables whose values are not at hand.
        FileFormatError: the files of the graft or of the model are missing or damaged.
        UnsupportedError: as for `add_preprocessing`.

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
    postprocessing = as_graph(postprocessing)
    postprocessing = in_files(postprocessing)
    pairs = _pairs(postprocessing, "postprocessed", "output")
    meanings = find_in_signatures(graph, pairs, signature=signature, is_input=False)
    for old_of in meanings:
        _check_different(old_of, "output")
        for name, (placeholder, _) in pairs.items():
            _check_fits(old_of[name], placeholder, name)
    place = unique_scope(graph, scope)
    attachment = Attachment(graph, postprocessing, place)
    placeholders = {name: placeholder for name, (placeholder, _) in pairs.items()}
    fed = {value.producer for value in fed_values(graph)}
    with graph.restored_on_error():
        input_map = {placeholder: meanings[0][name] for name, placeholder in placeholders.items()}
        copies = [attachment.attach(input_map, left_out={v.producer for v in placeholders.values()})]
        for old_of in meanings[1:]:
            moved = {meanings[0][name]: old_of[name] for name in placeholders}
            copies.append(_again(postprocessing, copies[0], pairs, moved, unique_scope(graph, scope)))
        grafted = [_connect_behind(graph, pairs, old_of, copy, fed) for old_of, copy in zip(meanings, copies, strict=True)]
        put_in_order(graph)
    return grafted[0]


def _connect_behind(
    graph: Graph, pairs: Mapping[str, tuple[Value, Value]], old_of: Mapping[str, Value], copied: CloneResult, fed: AbstractSet[Node]
) -> dict[str, Value]:
    new_outputs: dict[str, Value] = {}
    for name, (_, made) in pairs.items():
        old, new = old_of[name], copied.value_of[made]
        node = old.producer
        replace_end(graph, "outputs", old, new)
        if len(node.outputs) == 1 and node not in fed:
            own_name = node.name
            graph.rename(node, graph.unique_name(f"{own_name}_raw"))
            graph.rename(new.producer, own_name)
        new_outputs[name] = new
    return new_outputs


def _pairs(graft: Graph, suffix: str, kind: str) -> dict[str, tuple[Value, Value]]:
    """Per name, the placeholder and what is made of it."""
    where = f"graph {graft.name!r}" if graft.name else f"the {suffix.removesuffix('ed')}ing graph"
    pairs = _pairs_of_signature(graft, suffix, where) or _pairs_of_nodes(graft, suffix, kind, where)
    placeholders = {placeholder.producer for placeholder, _ in pairs.values()}
    for node in backward_reachable(made.producer for _, made in pairs.values()):  # what would have to be fed or initialized besides
        if node.op_type in INPUTS and node not in placeholders:
            raise ArgumentError(f"the placeholder {node.name!r} is not an input of the graph to graft", where=where)
    check_values(graft)
    return pairs


def _pairs_of_signature(graft: Graph, suffix: str, where: str) -> dict[str, tuple[Value, Value]]:
    """As the keys of the graft's default or only signature say; nothing where they do not belong together."""
    chosen = graft.signatures.get("serving_default") or (next(iter(graft.signatures.values())) if len(graft.signatures) == 1 else None)
    if chosen is None or not chosen.inputs or not chosen.outputs:
        return {}
    if len(chosen.inputs) == len(chosen.outputs) == 1:
        made_of = dict(zip(chosen.inputs, chosen.outputs.values(), strict=True))
    else:
        found = {key: chosen.outputs.get(f"{key}_{suffix}", chosen.outputs.get(key)) for key in chosen.inputs}
        made_of = {key: made for key, made in found.items() if made is not None}
        if len(made_of) != len(found) and any(f"{key}_{suffix}" in graft for key in found):
            return {}  # nodes say it
    missing = [key for key in chosen.inputs if key not in made_of]
    unused = [key for key, value in chosen.outputs.items() if value not in made_of.values()]
    if missing or unused:
        raise ArgumentError(
            f"inputs and outputs of the graft do not belong together: {', '.join([*missing, *unused])}",
            where=f"{where}, its signature",
            remedy=f"give the output for the input x the key 'x_{suffix}' or 'x'",
        )
    for key, value in chosen.inputs.items():
        if value.producer.op_type not in MAY_BE_FED or value.producer.inputs:
            raise ArgumentError(f"the input {key!r} is not a placeholder but {value.producer!r}", where=where)
    return {key: (value, made_of[key]) for key, value in chosen.inputs.items()}


def _pairs_of_nodes(graft: Graph, suffix: str, kind: str, where: str) -> dict[str, tuple[Value, Value]]:
    """As the names of placeholders and nodes say."""
    placeholders = [v.producer for v in graft.inputs] or [n for n in graft.nodes if n.op_type in MAY_BE_FED]
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
    return pairs


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
        raise ArgumentError(f"{described(made)} cannot have the shape of {described(wanted)}", where=f"{name!r}")
