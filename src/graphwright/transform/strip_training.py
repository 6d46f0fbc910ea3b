"""Keep only what serving needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import agree
from graphwright.ir.edit.library import bodies
from graphwright.ir.edit.prune import prune
from graphwright.ir.edit.reroute import replace_node, reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.ir.signature import node_of, references_of
from graphwright.ir.traits.values import MAY_BE_FED, STOPS_GRADIENTS
from graphwright.ir.traits.variables import makes_table
from graphwright.ir.walk import needed_nodes, served_variables
from graphwright.transform.interface import described, find_in_signatures, find_value, put_in_order
from graphwright.transform.known_branches import take_decided_branches
from graphwright.transform.one_copy import leave_one_copy

_TRAINING_COLLECTIONS = frozenset(
    "train_op summaries summary_op losses regularization_losses update_ops trainable_variables moving_average_variables "
    "saved_model_train_op global_step global_step_read_op_cache metric_variables ready_op ready_for_local_init_op "
    "queue_runners local_init_op cond_context while_context savers".split()
)
_SAVER = "graphwright:saver"  # what saves and restores, see `source.meta_graph`
_VARIABLE_COLLECTIONS = frozenset(("variables", "local_variables", "model_variables", _SAVER))


@edits_in_place
def strip_training(
    graph: Graph,
    *,
    outputs: Iterable[str | Value] | None = None,
    constants: Mapping[str, Any] | None = None,
    keep_variables: bool = True,
    **written: Unpack[Written],
) -> int:
    """Remove everything that outputs and signatures do not need (gradients, optimizers, summaries, losses); returns how many nodes.

    Inputs that only training uses, such as `keep_prob` or `is_training`, become constants by `constants`. Branches that they decide are
    removed, in functions too, with the assignments in them. `StopGradient` nodes are removed. Nodes that initialize tables and restore
    variables stay.

    Args:
        outputs: values that become the outputs of the graph.
        constants: name of an input, or of a placeholder in no signature -> its value.
        keep_variables: whether to keep the nodes that save and restore variables; a graph with frozen variables does not need them.

    Raises:
        ArgumentError: the graph states no output and none is given, a name is unknown, a value does not fit its input, or
            `keep_variables` is false and a variable is still read.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = [(DTYPES["float32"], (2,))]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=f32).outputs[0]
    >>> y = g.add_node("Relu", "y", inputs=[x], output_types=f32).outputs[0]
    >>> _ = g.add_node("L2Loss", "loss", inputs=[y], output_types=[(DTYPES["float32"], ())])
    >>> strip_training(g, outputs=["y"]), [node.name for node in g]
    (1, ['x', 'y'])
    """
    wanted = None if outputs is None else [find_value(graph, name) for name in outputs]
    if wanted is None and not graph.outputs and not graph.signatures:
        raise ArgumentError("the graph states no outputs", where=f"graph {graph.name!r}", remedy="name what serving fetches: outputs=[...]")
    bound = {value: _array(value, name, content) for name, content in (constants or {}).items() for value in _placeholders(graph, name)}

    before = len(graph)
    if wanted is not None:
        graph.outputs = dict.fromkeys(wanted)
    for value, array in bound.items():
        _make_constant(graph, value, array)
    _pass_through(graph)
    drop_collections(graph, keep_variables=keep_variables)
    decided = bool(bound) and take_decided_branches(graph) > 0
    remove_unneeded(graph)
    if decided:
        leave_one_copy(graph)
    left = [] if keep_variables else served_variables(graph)
    if left:
        raise ArgumentError(
            f"what is served reads {len(left)} variables, and nothing would restore them: {', '.join(left[:3])}",
            argument="keep_variables",
            remedy="freeze them first (freeze_variables), or keep_variables=True",
        )
    put_in_order(graph)
    return before - len(graph)


def drop_collections(graph: Graph, *, keep_variables: bool) -> None:
    forgotten = _TRAINING_COLLECTIONS if keep_variables else _TRAINING_COLLECTIONS | _VARIABLE_COLLECTIONS
    if not keep_variables and any(makes_table(node) for body in bodies(graph) for node in body):
        forgotten -= {_SAVER}  # tables that can be written are restored as variables are
    for name in forgotten & graph.collections.keys():
        del graph.collections[name]


def forget_items(graph: Graph, nodes: Iterable[Node]) -> None:
    """Remove items that mention these nodes from the collections."""
    forgotten = set(nodes)
    for name, collection in list(graph.collections.items()):
        remaining = [item for item in collection.items if not any(node_of(held) in forgotten for held in references_of(item))]
        if collection.items and not remaining:
            del graph.collections[name]
        collection.items = remaining


def remove_unneeded(graph: Graph) -> int:
    """Remove nodes that outputs, inputs, signatures and collections do not need, and unread variables; returns how many nodes."""
    needed = needed_nodes(graph, inputs=False)
    graph.inputs = [v for v in graph.inputs if v.producer in needed]
    return prune(graph)


def _placeholders(graph: Graph, name: str) -> list[Value]:
    """Return the inputs of this name in each signature, or the placeholder of this name if no signature has it."""
    called = [v for node in graph.nodes if node.op_type in MAY_BE_FED for v in node.outputs if name in (node.name, v.name)]
    if called and not any(name in known.inputs for known in graph.signatures.values()):
        return called
    return [meant[name] for meant in find_in_signatures(graph, [name], is_input=True)]


def _array(value: Value, name: str, content: Any) -> np.ndarray[Any, Any]:
    if value.producer.op_type not in MAY_BE_FED:
        raise ArgumentError(f"the input {name!r} is not a placeholder", argument="constants")
    try:
        array = np.asarray(content, dtype=value.dtype.name)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{content!r} is not a value of dtype {value.dtype}", argument="constants", where=f"input {name!r}") from error
    if not agree(value.shape, array.shape):
        raise ArgumentError(
            f"a value of shape {array.shape} does not fit {described(value)}", argument="constants", where=f"input {name!r}"
        )
    return array


def _make_constant(graph: Graph, value: Value, array: np.ndarray[Any, Any]) -> None:
    node = value.producer
    constant = add_constant(graph, f"{node.name}/constant", array, device=node.device)
    graph.inputs = [v for v in graph.inputs if v is not value]
    for signature in graph.signatures.values():
        signature.inputs = {key: v for key, v in signature.inputs.items() if v is not value}
    reroute_control([], node)
    replace_node(node, constant.producer)


def _pass_through(graph: Graph) -> None:
    for node in graph.nodes:
        if node.op_type not in STOPS_GRADIENTS or node.control_inputs or graph.is_border(node):
            continue
        reroute_control([node.inputs[0].producer], node)
        graph.replace_uses(node.outputs[0], node.inputs[0])
        graph.remove_node(node)
