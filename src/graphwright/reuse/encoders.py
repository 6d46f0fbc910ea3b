"""The proof, on an encoder's graph, that a batch may be encoded in chunks, and encoded again with the same result.

An encoder takes and returns structures of tensors with the same samples in their first dimension. There are three conditions. A call
changes nothing except *random states*, the variables of generators. It draws random numbers from these only: an operation that hides its
counter in the kernel cannot be drawn again. And the representation of a sample depends on no other: the rules of `analyze.splitting`
split the batch from inputs to outputs, without a sum over the batch and without a value that needs the whole batch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphwright.analyze.in_parts import InParts
from graphwright.analyze.splitting import find_splitting
from graphwright.analyze.variable_access import find_accesses
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.effects import CHECKS, MESSAGES, Purity, draws_by_counter
from graphwright.ir.traits.values import ARGUMENTS, PLACEHOLDERS, only_orders
from graphwright.ir.traits.variables import DRAWS_FROM_VARIABLE, READS_OF_TABLES
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.private_keras import added_losses
from graphwright.source.tensorflow_import import import_keras
from graphwright.step.flatten import flatten_graph, stateful_op_types

tf: Any = importlib.import_module("tensorflow")

_SEED_STATE = "seed_generator_state"
_HARMLESS = CHECKS | MESSAGES | PLACEHOLDERS | ARGUMENTS | READS_OF_TABLES | DRAWS_FROM_VARIABLE
"""Operations that may run twice: they change no computed value, or their random state is restored."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder that may run in chunks, twice.

    Attributes:
        call: inputs -> representations.
        outputs: the structure of the representations, as `tf.TensorSpec`s without the samples' dimension.
        states: the random states that a call changes, as `tf.Variable`s.
        trainable: the trainable `tf.Variable`s that a call reads.
        read: ids of the handles of all variables that a call reads.
    """

    call: Callable[[Any], Any]
    outputs: Any
    states: tuple[Any, ...]
    trainable: tuple[Any, ...]
    read: frozenset[int]


def with_training(encoder: Any, training: bool) -> Callable[[Any], Any]:
    is_layer = isinstance(encoder, import_keras().layers.Layer)
    parameters: Any = {}
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(encoder.call if is_layer else encoder).parameters
    takes_it = "training" in parameters or (is_layer and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))
    return partial(encoder, training=training) if takes_it else encoder


def examine(encoder: Any, specs: Any, *, training: bool, assume_independent: bool, where: str) -> Encoder:
    """Trace an encoder for a chunk, and prove that it may run in chunks, twice.

    Args:
        encoder: a Keras layer, or a function.
        specs: the structure of its inputs, as `tf.TensorSpec`s of a chunk of at least two samples.
        assume_independent: skip the proof that samples are independent.
        where: the name of the encoder in errors.
    """
    call = with_training(encoder, training)
    concrete = tf.function(call).get_concrete_function(specs)
    if isinstance(encoder, import_keras().layers.Layer) and (count := len(added_losses(encoder))):
        raise UnsupportedError(
            f"the encoder adds {count} losses of its own (add_loss, activity regularizers)",
            where=where,
            cause="they would be losses of chunks",
            remedy="leave them out, or make them part of the representations and of the loss",
        )
    size = tf.nest.flatten(specs)[0].shape[0]
    outputs = tf.nest.map_structure(partial(_without_samples, size=size, where=where), concrete.structured_outputs)
    graph, binding = from_concrete_function(concrete, planned=False)
    handles = dict(zip(graph.inputs[binding.argument_count :], binding.captures, strict=True))
    variables = tuple(concrete.graph.variables)
    by_handle = {id(variable.handle): variable for variable in variables}
    states = _random_states(graph, {value.name: by_handle.get(id(handle)) for value, handle in handles.items()}, where)
    if not assume_independent:
        shapes = {k: tuple(leaf.shape) for k, leaf in enumerate(tf.nest.flatten(specs))}
        flat, purity = flatten_graph(graph, shapes)
        _check_independence(flat, purity, binding.argument_count, where)
    trainable = tuple(variable for variable in variables if variable.trainable)
    return Encoder(call, outputs, states, trainable, frozenset(by_handle))


def _without_samples(leaf: Any, size: int, where: str) -> Any:
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0 or (leaf.shape.rank and leaf.shape[0] not in (size, None)):
        got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, tf.Tensor) else type(leaf).__name__
        raise ArgumentError(
            f"for {size} samples the encoder gives {got}", where=where, remedy="let it give dense tensors with the samples in front"
        )
    return tf.TensorSpec(leaf.shape[1:], leaf.dtype)


def _random_states(graph: Graph, variables: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    """Return the random states; raise if a call changes other variables (given by names of resource inputs) or draws in another way."""
    resources = {value: value.name for value in graph.inputs if value.dtype.name == "resource"}
    writes = [access for access in find_accesses(graph, resources) if access.writes]
    states: dict[str, Any] = {}
    for access in writes:
        variable = variables.get(access.key)
        name = str(getattr(variable, "path", None) or getattr(variable, "name", access.key))
        if variable is None or not (_SEED_STATE in name or access.node.op_type in DRAWS_FROM_VARIABLE):
            raise _changed_variable(name, f"{where}, node {access.path!r}")
        states[access.key] = variable
    known = {access.node for access in writes}
    purity = Purity(graph, stateful_op_types(graph))
    for node in (node for body in bodies(graph) for node in body.nodes):
        if only_orders(node) or node.op_type in _HARMLESS or node in known or called_functions(node) or purity.is_pure(node):
            continue
        counts_calls = draws_by_counter(node)
        raise UnsupportedError(
            f"the encoder holds a {node.op_type}, which may give another result when it runs again",
            where=f"{where}, node {node.name!r}",
            cause="a random operation of TensorFlow that counts its calls itself" if counts_calls else "it has effects",
            remedy="draw with keras.random and a SeedGenerator, keras.layers.Dropout, a tf.random.Generator, or tf.random.stateless_*"
            if counts_calls
            else "keep it out of the encoder",
        )
    return tuple(states.values())


def _changed_variable(name: str, where: str) -> UnsupportedError:
    changed = f"the encoder changes the variable {name!r}"
    if "moving_" in name:
        return UnsupportedError(
            changed,
            where=where,
            cause="batch normalization in training mode: the statistics of a chunk are not those of the batch",
            remedy="freeze the batch normalization (layer.trainable = False), or use layer or group normalization",
        )
    return UnsupportedError(
        changed, where=where, cause="it would change once per chunk and pass", remedy="change it outside of the encoder"
    )


def _check_independence(graph: Graph, purity: Purity, argument_count: int, where: str) -> None:
    inputs = graph.inputs[:argument_count]
    splitting = find_splitting(graph, purity, inputs)
    nodes: Mapping[Node, InParts] = {} if splitting is None else splitting.nodes
    phases: Mapping[Node, int] = {} if splitting is None else splitting.phases

    def is_split(node: Node, index: int) -> bool:
        return node in nodes and nodes[node].outputs[index] == 0 and phases[node] == 0

    if all(value in inputs or is_split(value.producer, value.index) for value in graph.outputs):
        return
    culprit = _mixing_node(graph, nodes, phases, inputs)
    raise UnsupportedError(
        "it cannot be shown that the representation of a sample depends on that sample only",
        where=where + (f", node {culprit.name!r} ({culprit.op_type})" if culprit is not None else ""),
        cause="normalization over the batch, or an operation that mixes samples or is not known to keep them apart; or sizes are open",
        remedy="remove operations that mix samples; give inputs of known shapes; or pass assume_independent=True if you know that "
        "samples are independent",
    )


def _mixing_node(graph: Graph, nodes: Mapping[Node, InParts], phases: Mapping[Node, int], inputs: Sequence[Any]) -> Node | None:
    fed = {value.producer for value in inputs}
    needed = backward_reachable(value.producer for value in graph.outputs) - fed
    split = {value for node in nodes for value in node.outputs} | {*inputs}
    for node in topological_order(graph):
        if node in needed and (phases.get(node, 0) > 0 or (node not in nodes and not split.isdisjoint(node.inputs))):
            sums = (n for n in (value.producer for value in node.inputs) if n in nodes and nodes[n].makes_terms)
            return next(sums, node)
    return None
