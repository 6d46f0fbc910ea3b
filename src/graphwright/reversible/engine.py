"""The passes of reversible layers: a forward pass that stores the last streams only, a backward pass that rebuilds the others.

The *streams* are the two tensors that go through reversible layers. `run_reversible` takes them through a sequence of *parts* inside
one `tf.custom_gradient`. The forward pass stores the last streams, the weights, and small states. The backward pass visits the parts
from the end. Each part calls its functions again, under a tape: the *value* of that call rebuilds the part's inputs, and the *tape*
gives the gradients. Nothing runs a third time.

An executor could rebuild the whole network before it computes the first gradient. `BackwardRun.gate` delays each rebuilt stream until the
gradients before it exist: by control dependencies, or under XLA, which drops those, by `source.opaque_gate`. Both also keep XLA and
Grappler from merging the recomputation with the forward pass.

Source: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network", NeurIPS 2017, algorithm 1.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from graphwright.errors import UnsupportedError
from graphwright.reversible.remember import Player, Recorder, remembering
from graphwright.reversible.residual import ResidualFunction
from graphwright.source.opaque_gate import always_true, held, some_bits
from graphwright.source.private_keras import without_autocast
from graphwright.source.private_tensorflow import is_recorded, is_traced_for_xla, not_recorded

tf: Any = importlib.import_module("tensorflow")

Streams = tuple[Any, Any]
Pullback = Callable[[Any], Any]
"""Takes the gradient of a function's result; returns the gradient of its argument and adds up the gradients of its weights."""


class Part(Protocol):
    """An element of a sequence. Streams have the stream dtype."""

    is_invertible: bool
    """Whether `stream_backward` works without the inputs."""

    @property
    def functions(self) -> list[ResidualFunction]: ...
    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams: ...
    def stream_inverse(self, y: Streams, run: InverseRun) -> Streams: ...

    # Returns the inputs and their gradients. `x` are the inputs if they were stored.
    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]: ...


@dataclass(frozen=True)
class _Record:
    states: dict[int, Any]
    loss_count: int
    remembered: list[Any]


@dataclass(eq=False)
class InverseRun:
    """Calls functions with the present states, for `inverse`."""

    values: dict[int, Any]
    states: dict[int, Any]
    training: Any
    mask: Any

    def __call__(self, function: ResidualFunction, x: Any) -> Any:
        return _cast_like(function(x, self.values, self.states, self.training, self.mask)[0], x)


@dataclass(eq=False)
class ForwardRun(InverseRun):
    """Calls functions in order and records the states before each call."""

    remembers: bool = False
    records: list[_Record] = field(default_factory=list[_Record])
    losses: list[Any] = field(default_factory=list[Any])

    def __call__(self, function: ResidualFunction, x: Any) -> Any:
        before = {id(v): self.states[id(v)] for v in function.state if id(v) in self.states}
        recorder = Recorder() if self.remembers else None
        with remembering(recorder):
            result, after, losses = function(x, self.values, before, self.training, self.mask)
        before |= read(v for v in function.state if id(v) in after and id(v) not in before)
        self.states.update(after)
        self.records.append(_Record(before, len(losses), recorder.tensors if recorder else []))
        self.losses += losses
        return _cast_like(result, x)


class BackwardRun:
    """Repeats the calls in reverse order, with their states, and adds up the gradients of the weights.

    `variables` are variables that functions read and no Keras layer owns.
    """

    def __init__(self, forward: ForwardRun, loss_gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        self._values, self._training, self._mask = forward.values, forward.training, forward.mask
        self._records = list(forward.records)
        self._loss_gradients = list(loss_gradients)
        self._variables = list(variables)
        self._compiled = is_traced_for_xla()
        self._pending: list[Any] = []
        self.gradients: dict[int, Any] = {}

    def __call__(self, function: ResidualFunction, x: Any) -> tuple[Any, Pullback]:
        record = self._records.pop()
        cut = len(self._loss_gradients) - record.loss_count
        loss_gradients, self._loss_gradients = self._loss_gradients[cut:], self._loss_gradients[:cut]
        owned = function.trainable
        streams = tf.nest.flatten(x)
        sources = [*streams, *(self._values[id(v)] for v in owned), *self._variables]
        remembered = self.delayed(record.remembered, streams)
        with tf.GradientTape(watch_accessed_variables=False, persistent=bool(remembered)) as tape:
            tape.watch(sources)
            player = Player(remembered, tape)
            with remembering(player if remembered else None):
                result, _, losses = function(x, self._values, record.states, self._training, self._mask)
            result = _cast_like(result, x)

        def pull(gradient: Any) -> Any:
            gradients = player.pull([*tf.nest.flatten(result), *losses], [*tf.nest.flatten(gradient), *loss_gradients], sources)
            for variable, part in zip([*owned, *self._variables], gradients[len(streams) :], strict=True):
                self._add(variable, part)
            of_x = [tf.zeros_like(y) if g is None else tf.convert_to_tensor(g) for g, y in zip(gradients, streams, strict=False)]
            return tf.nest.pack_sequence_as(x, of_x)

        return result, pull

    def refuse_second_derivatives(self, inputs: dict[int, Streams], outputs: Sequence[Any]) -> None:
        """Guard stored tensors (replaced in place): no tape knows how they depend on the arguments of the forward pass.

        `outputs` are the last streams, as tapes know them.
        """

        @tf.custom_gradient
        def guarded(stored: Any, *_: Any) -> Any:
            return tf.identity(stored), _refuse_second_derivative

        for number, streams in inputs.items():
            inputs[number] = (guarded(streams[0], *outputs), guarded(streams[1], *outputs))
        for number, record in enumerate(self._records):
            self._records[number] = replace(record, remembered=[guarded(tensor, *outputs) for tensor in record.remembered])

    def gate(self, *tensors: Any, after: Iterable[Any] = ()) -> tuple[Any, ...]:
        """Delay the tensors until `after` and the weights' gradients since the last gate exist."""
        until = [*after, *self._pending]
        self._pending = []
        return tuple(self.delayed(tensors, until))

    def delayed(self, tensors: Sequence[Any], until: Sequence[Any]) -> Sequence[Any]:
        """Delay the tensors until all of `until` exist."""
        if tf.executing_eagerly() or not until or not tensors:
            return tensors
        if self._compiled:
            condition = always_true(some_bits(until))
            return [held(tensor, condition, solid=True) for tensor in tensors]
        with tf.control_dependencies(until):
            return [tf.identity(tensor) for tensor in tensors]

    def _add(self, variable: Any, gradient: Any) -> None:
        if gradient is None:
            return
        gradient = tf.convert_to_tensor(gradient)  # lookups give slices
        total = self.gradients.get(id(variable))
        self.gradients[id(variable)] = gradient if total is None else total + gradient
        self._pending.append(self.gradients[id(variable)])


def run_reversible(
    parts: Sequence[Part], x: Streams, training: Any, mask: Any, kept: frozenset[int], remembering: frozenset[int]
) -> tuple[Streams, list[Any]]:
    """Run the parts with a gradient by reconstruction, and update the states of their layers.

    Args:
        kept: numbers of the parts that store their inputs.
        remembering: numbers of the parts that store what their functions pass through `remember`.

    Returns:
        The streams, and the losses that layers added by `add_loss`.
    """
    trainable, state = variables_of(parts)
    before = _states(state, training)
    weights = list(read(trainable).values())
    after: dict[int, Any] = {}
    outputs: list[Any] = []  # the streams as tapes know them

    @tf.custom_gradient
    def run(x1: Any, x2: Any, *values: Any) -> Any:
        forward = ForwardRun({id(v): value for v, value in zip(trainable, values, strict=True)}, dict(before), training, mask)
        with not_recorded():
            y: Streams = (x1, x2)
            inputs: dict[int, Streams] = {}
            for number, part in enumerate(parts):
                forward.remembers = number in remembering
                if number in kept or not part.is_invertible:
                    inputs[number] = y
                y = part.stream_forward(y, forward)
        after.update(forward.states)

        def backward(dy1: Any, dy2: Any, *loss_gradients: Any, variables: Sequence[Any] = ()) -> Any:
            backward_run = BackwardRun(forward, loss_gradients, variables)
            dx: Streams = (dy1, dy2)
            rebuilt: Streams = (outputs[0], outputs[1])
            if is_recorded():
                backward_run.refuse_second_derivatives(inputs, outputs)
            for number, part in reversed(list(enumerate(parts))):
                stored = inputs.get(number)
                gated = backward_run.gate(*rebuilt, *(stored or ()), after=dx)
                rebuilt, dx = part.stream_backward(gated[:2], dx, backward_run, gated[2:] if stored else None)
            totals = backward_run.gradients
            gradients = [totals[id(v)] if id(v) in totals else tf.zeros_like(value) for v, value in zip(trainable, values, strict=True)]
            arguments = [*dx, *gradients]
            return (arguments, [totals.get(id(v)) for v in variables]) if variables else arguments

        return (*y, *forward.losses), backward

    y1, y2, *losses = run(*x, *weights)
    outputs += [y1, y2]
    _assign(state, before, after)
    return (y1, y2), losses


def run_inverse(parts: Sequence[Part], y: Streams, training: Any, mask: Any) -> Streams:
    """Return the streams before the parts, by ordinary differentiable operations; update no state."""
    trainable, _ = variables_of(parts)
    run = InverseRun(read(trainable), {}, training, mask)
    for part in reversed(parts):
        y = part.stream_inverse(y, run)
    return y


def run_plain(parts: Sequence[Part], x: Streams, training: Any, mask: Any) -> tuple[Streams, list[Any]]:
    """Do the same as `run_reversible` with TensorFlow's own gradient, which stores every intermediate value."""
    trainable, state = variables_of(parts)
    before = _states(state, training)
    forward = ForwardRun(read(trainable), dict(before), training, mask)
    for part in parts:
        x = part.stream_forward(x, forward)
    _assign(state, before, forward.states)
    return x, forward.losses


def variables_of(parts: Sequence[Part]) -> tuple[list[Any], list[Any]]:
    """Return the trainable variables and the others, each once, even if parts share a layer."""
    functions = [function for part in parts for function in part.functions]
    trainable = {id(v): v for function in functions for v in function.trainable}
    state = {id(v): v for function in functions for v in function.state}
    return list(trainable.values()), list(state.values())


def read(variables: Iterable[Any]) -> dict[int, Any]:
    """Return the present values, in their own dtypes, by the id of the variable."""
    with without_autocast():
        return {id(v): tf.convert_to_tensor(v.value) for v in variables}


def _states(state: Sequence[Any], training: Any) -> dict[int, Any]:
    # In inference only the states that a layer assigns are read: an exported graph must not capture unused seeds.
    return read(state) if training else {}


def _assign(state: Sequence[Any], before: dict[int, Any], after: dict[int, Any]) -> None:
    for variable in state:
        if id(variable) in after and after[id(variable)] is not before.get(id(variable)):
            variable.assign(after[id(variable)])


def _refuse_second_derivative(*_: Any) -> Any:
    raise UnsupportedError(
        "a second derivative was requested through streams that a reversible sequence stored",
        cause="kept_blocks or remembering_blocks is not 0, or the sequence contains a RecomputedLayer",
        remedy="store nothing and use InvertibleDownsampling, or set the attribute `reconstructs` of the sequence to False",
    )


def _cast_like(result: Any, x: Any) -> Any:
    dtype = tf.nest.flatten(x)[0].dtype

    def cast(tensor: Any) -> Any:
        return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)

    return tf.nest.map_structure(cast, result)
