"""What an encoder must be so that a batch may be encoded in chunks, and encoded again with the same result: shown on its graph.

Terms
-----
encoder
    A function of a structure of tensors, samples in their first dimension, that gives a structure of tensors with the same samples there:
    the *representations*.
random state
    A variable that holds where a random generator is: that of Keras' `SeedGenerator` (dropout), or of a `tf.random.Generator`.

Three things are asked. A call may change nothing but random states. It may draw random numbers from these alone: what hides its counter in
the kernel, as `tf.random.uniform` does, cannot be drawn a second time. And the representation of a sample may depend on no other sample,
which holds where the rules of `analyze.splitting` cut the batch into samples from inputs to outputs without a sum over it or a value
that is made whole.
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
from graphwright.ir.traits.effects import CHECKS, MESSAGES, Purity
from graphwright.ir.traits.values import ARGUMENTS, PLACEHOLDERS, only_orders
from graphwright.ir.traits.variables import DRAWS_FROM_VARIABLE, READS_OF_TABLES
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.private_keras import added_losses
from graphwright.source.tensorflow_import import import_keras
from graphwright.step.flatten import flatten_graph, stateful_op_types

tf: Any = importlib.import_module("tensorflow")

_SEED_STATE = "seed_generator_state"
_SEEN_TWICE = CHECKS | MESSAGES | PLACEHOLDERS
"""What may run twice: it changes nothing that is computed."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder of which it was shown that it may run in chunks, twice.

    Attributes:
        call: inputs -> representations.
        outputs: per representation, its `tf.TensorSpec` without the samples, in the structure of the representations.
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
    """The encoder as a function of its inputs alone: it is told `training` where its call takes that."""
    is_layer = isinstance(encoder, import_keras().layers.Layer)
    parameters: Any = {}
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(encoder.call if is_layer else encoder).parameters
    told = "training" in parameters or (is_layer and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))
    return partial(encoder, training=training) if told else encoder


def examine(encoder: Any, specs: Any, *, training: bool, assume_independent: bool, where: str) -> Encoder:
    """Trace an encoder for a chunk, and show that it may run in chunks, twice.

    Args:
        encoder: a Keras layer, or a function.
        specs: the structure of its inputs, as `tf.TensorSpec`s of a chunk of at least two samples.
        assume_independent: take it on trust that samples do not depend on each other.
        where: what to call it in errors.

    Raises:
        UnsupportedError: it may not, or it cannot be shown that it may; the message names the variable or operation.
        ArgumentError: it gives something else than a structure of tensors with samples in front.
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
    states = _random_states(graph, {value.name: _named(concrete.graph.variables, handle) for value, handle in handles.items()}, where)
    if not assume_independent:
        shapes = {k: tuple(leaf.shape) for k, leaf in enumerate(tf.nest.flatten(specs))}
        flat, purity = flatten_graph(graph, shapes)
        _show_independent(flat, purity, binding.argument_count, where)
    variables = tuple(concrete.graph.variables)
    trainable = tuple(variable for variable in variables if variable.trainable)
    return Encoder(call, outputs, states, trainable, frozenset(id(variable.handle) for variable in variables))


def _named(variables: Sequence[Any], handle: Any) -> Any:
    return next((variable for variable in variables if variable.handle is handle), None)


def _without_samples(leaf: Any, size: int, where: str) -> Any:
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank == 0 or (leaf.shape.rank and leaf.shape[0] not in (size, None)):
        got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, tf.Tensor) else type(leaf).__name__
        raise ArgumentError(
            f"for {size} samples the encoder gives {got}", where=where, remedy="let it give dense tensors with the samples in front"
        )
    return tf.TensorSpec(leaf.shape[1:], leaf.dtype)


def _random_states(graph: Graph, variables: dict[str, Any], where: str) -> tuple[Any, ...]:
    """The variables that hold random states, where a call changes nothing else and draws from nothing else."""
    resources = {value: value.name for value in graph.inputs if value.dtype.name == "resource"}
    writes = [access for access in find_accesses(graph, resources) if access.writes]
    states: dict[str, Any] = {}
    for access in writes:
        variable = variables.get(access.key)
        name = str(getattr(variable, "path", None) or getattr(variable, "name", access.key))
        if variable is None or not (_SEED_STATE in name or access.node.op_type in DRAWS_FROM_VARIABLE):
            raise UnsupportedError(
                f"the encoder changes the variable {name!r}",
                where=f"{where}, node {access.path!r}",
                cause="batch normalization in training mode: the statistics of a chunk are not those of the batch"
                if "moving_" in name
                else "what a call changes would change once per chunk and pass",
                remedy="freeze the batch normalization (layer.trainable = False), or use layer or group normalization"
                if "moving_" in name
                else "change it outside of the encoder",
            )
        states[access.key] = variable
    known = {access.node for access in writes}
    purity = Purity(graph, stateful_op_types(graph))
    for node in (node for body in bodies(graph) for node in body.nodes):
        harmless = only_orders(node) or node.op_type in ARGUMENTS | _SEEN_TWICE | READS_OF_TABLES | DRAWS_FROM_VARIABLE
        if harmless or node in known or called_functions(node) or purity.is_pure(node):
            continue
        raise UnsupportedError(
            f"the encoder holds a {node.op_type}, which does not give the same a second time",
            where=f"{where}, node {node.name!r}",
            cause="a random operation of TensorFlow that counts its calls by itself" if "seed2" in node.attrs else "it has effects",
            remedy="draw with keras.random and a SeedGenerator, keras.layers.Dropout, a tf.random.Generator, or tf.random.stateless_*"
            if "seed2" in node.attrs
            else "keep it out of the encoder",
        )
    return tuple(states.values())


def _show_independent(graph: Graph, purity: Purity, argument_count: int, where: str) -> None:
    """Raise where a representation of one sample may depend on another sample."""
    given = graph.inputs[:argument_count]
    found = find_splitting(graph, purity, given)
    nodes: Mapping[Node, InParts] = {} if found is None else found.nodes
    phases: Mapping[Node, int] = {} if found is None else found.phases

    def apart(node: Node, index: int) -> bool:
        return node in nodes and nodes[node].outputs[index] == 0 and phases[node] == 0

    if all(value in given or apart(value.producer, value.index) for value in graph.outputs):
        return
    needed = backward_reachable(value.producer for value in graph.outputs)
    order = [node for node in topological_order(graph) if node in needed and node not in {value.producer for value in given}]
    split = {value for node in nodes for value in node.outputs} | {*given}
    mixes = (node for node in order if phases.get(node, 0) > 0 or (node not in nodes and not split.isdisjoint(node.inputs)))
    culprit = next(mixes, None)
    if culprit is not None:  # where it reads a sum over samples, who made that?
        culprit = next((n for n in (value.producer for value in culprit.inputs) if n in nodes and nodes[n].makes_terms), culprit)
    at = f", node {culprit.name!r} ({culprit.op_type})" if culprit is not None else ""
    raise UnsupportedError(
        "it cannot be shown that the representation of a sample depends on that sample alone",
        where=where + at,
        cause="normalization over the batch, or an operation that mixes samples or is not known to keep them apart; or sizes are open",
        remedy="leave out what mixes samples; give inputs of known shapes; where you know better, assume_independent=True",
    )
