"""The frozen prefix of a Keras model: the layers whose results do not change during training.

A functional model is a list of layer calls; nested functional models are expanded. A call belongs to the prefix if no trained layer is
called before it, its layer has no trainable weight, and its calls in training are equal: it draws no random numbers and changes no
variable, which is checked on its traced graph.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir.traits.effects import Purity
from graphwright.reuse.pure_function import culprit_in, effect_of, impure_nodes
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.private_keras import added_losses, as_called_in, forget_added_losses, graph_calls, is_functional, mask_of
from graphwright.step.flatten import stateful_op_types

Key = tuple[str, int]
"""A value of the model: a path of nested models, and the `id` of a symbolic tensor there."""


@dataclass(frozen=True)
class Call:
    """One call of a layer or operation: `fill` returns its arguments for values by the `id` of symbolic tensors, `takes` the values that
    it reads by these `id`s, `gives` the values that it makes.
    """

    operation: Any
    fill: Callable[[dict[int, Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    takes: dict[int, Key]
    gives: list[Key]

    @property
    def name(self) -> str:
        return str(self.operation.name)

    @property
    def has_weights(self) -> bool:
        return bool(getattr(self.operation, "weights", []))

    @property
    def is_trained(self) -> bool:
        return bool(getattr(self.operation, "trainable_variables", []))


@dataclass(frozen=True)
class FrozenPrefix:
    """A model in two parts: `prefix`, the calls that are computed once per sample, and `head`, all other calls.

    Attributes:
        features: the values that the prefix passes to the head or out of the model; `specs` are their symbolic tensors.
        read: the places of the model's inputs that the prefix reads.
        passed_on: the places of the model's inputs that the head reads.
        compute: returns the features for a batch of what the prefix reads, as in training.
    """

    inputs: list[Key]
    outputs: list[Key]
    prefix: list[Call]
    head: list[Call]
    features: list[Key]
    read: list[int]
    passed_on: list[int]
    specs: list[Any]
    compute: Callable[..., list[Any]]

    @property
    def variables(self) -> list[Any]:
        return list({id(v): v for call in self.prefix for v in getattr(call.operation, "variables", [])}.values())

    def finish(self, features: Sequence[Any], passed_on: Sequence[Any], *, training: bool) -> list[Any]:
        keys = (*self.features, *(self.inputs[place] for place in self.passed_on))
        values = _run(self.head, dict(zip(keys, (*features, *passed_on), strict=True)), training=training)
        return [values[key] for key in self.outputs]


def find_prefix(model: Any) -> FrozenPrefix:
    """Return the frozen prefix of a functional model, or raise an UnsupportedError with the reason."""
    if not is_functional(model):
        raise UnsupportedError(
            f"{type(model).__name__} {model.name!r} does not state how its layers are connected",
            cause="its class has a call method of its own, or it is not built yet",
            remedy="give a functional model or a Sequential that has an Input",
        )
    inputs: list[Key] = [("", id(x)) for x in model.inputs]
    specs: dict[Key, Any] = dict(zip(inputs, model.inputs, strict=True))
    calls, keys = _expanded(model, "", dict(zip(map(id, model.inputs), inputs, strict=True)), specs)
    outputs = [keys[id(x)] for x in model.outputs]
    prefix = _untrained_calls(calls, inputs, {})
    parts = _split(calls, prefix, inputs, outputs, specs)
    effects = _effects(parts.compute)
    if effects:
        frozen = _untrained_calls(calls, inputs, effects)
        lost = next((call for call in prefix if call.has_weights and all(call is not other for other in frozen)), None)
        if lost is not None:
            reasons = [f"layer {call.name!r} {'; '.join(sorted(effects[id(call)]))}" for call in prefix if id(call) in effects]
            raise UnsupportedError(
                f"the features of frozen layer {lost.name!r} are not the same in every epoch: {reasons[0]}",
                cause="that layer precedes it or is the same layer"
                if len(reasons) == 1
                else f"{len(reasons)} layers of that kind precede it",
                remedy="put random augmentation behind the frozen layers or into the data, freeze batch norms, and set the rate of frozen "
                "dropout to 0",
            )
        parts = _split(calls, frozen, inputs, outputs, specs)
    if not any(call.has_weights for call in parts.prefix):
        first = next((call.name for call in calls if call.is_trained), "")
        raise UnsupportedError(
            f"model {model.name!r} has no frozen layer with weights before its trained layers",
            cause=f"layer {first!r} is the first that is trained" if first else "nothing in it is trained, and nothing has weights",
            remedy="set `layer.trainable = False` for the first layers, before `compile`",
        )
    return parts


def _split(calls: list[Call], prefix: list[Call], inputs: list[Key], outputs: list[Key], specs: dict[Key, Any]) -> FrozenPrefix:
    inside = {id(call) for call in prefix}
    head = [call for call in calls if id(call) not in inside]
    computed = {key for call in prefix for key in call.gives}
    needed = dict.fromkeys([*(key for call in head for key in call.takes.values()), *outputs])
    features = [key for key in needed if key in computed]
    for key in features:
        if specs[key].shape[0] is not None or len(specs[key].shape) == 0:
            raise UnsupportedError(
                f"value {specs[key].name!r}, made by frozen layers, has the shape {specs[key].shape}, without an open batch in front",
                remedy="let its first dimension be the batch",
            )
    taken = {key for call in prefix for key in call.takes.values()}
    read = [place for place, key in enumerate(inputs) if key in taken]
    compute = _traced(prefix, [inputs[place] for place in read], features, specs)
    passed_on = [place for place, key in enumerate(inputs) if key in needed]
    return FrozenPrefix(inputs, outputs, prefix, head, features, read, passed_on, [specs[key] for key in features], compute)


def _run(calls: Iterable[Call], values: Mapping[Key, Any], *, training: bool) -> dict[Key, Any]:
    keras: Any = importlib.import_module("keras")
    values = dict(values)
    for call in calls:
        args, kwargs = call.fill({number: values[key] for number, key in call.takes.items()})
        outputs = as_called_in(training, call.operation)(*args, **kwargs)
        values.update(zip(call.gives, keras.tree.flatten(outputs), strict=True))
    return values


def _expanded(model: Any, path: str, keys: dict[int, Key], specs: dict[Key, Any]) -> tuple[list[Call], dict[int, Key]]:
    """Return the calls of a model with nested functional models expanded, and the values of its symbolic tensors by `id`."""
    calls: list[Call] = []
    for number, (operation, fill, takes, gives) in enumerate(graph_calls(model)):
        where = f"{path}/{number}"
        sources = {id(x): keys[id(x)] for x in takes}
        if is_functional(operation) and len(operation.inputs) == len(takes) == 1 and type(operation).__call__ is type(model).__call__:
            inner_calls, inner_keys = _expanded(operation, where, {id(operation.inputs[0]): keys[id(takes[0])]}, specs)
            calls += inner_calls
            results = [inner_keys[id(x)] for x in operation.outputs]
        else:
            results: list[Key] = [(where, id(x)) for x in gives]
            specs.update(zip(results, gives, strict=True))
            calls.append(Call(operation, fill, sources, results))
        keys.update(zip(map(id, gives), results, strict=True))
    return calls, keys


def _untrained_calls(calls: Iterable[Call], inputs: Iterable[Key], excluded: Mapping[int, object]) -> list[Call]:
    """Return the calls of untrained layers that read only the inputs and each other's values, except excluded ones (by `id`)."""
    known = set(inputs)
    untrained: list[Call] = []
    for call in calls:
        if not call.is_trained and id(call) not in excluded and known.issuperset(call.takes.values()):
            known.update(call.gives)
            untrained.append(call)
    return untrained


def _traced(calls: list[Call], takes: list[Key], gives: list[Key], specs: Mapping[Key, Any]) -> Any:
    """Return calls as a `ConcreteFunction`, with `side_results`, by the `id` of a call, and `call_of`, by the name of an operation."""
    tf: Any = importlib.import_module("tensorflow")
    side_results: dict[int, set[str]] = {}
    call_of: dict[str, int] = {}

    def compute(*tensors: Any) -> list[Any]:
        values = dict(zip(takes, tensors, strict=True))
        count = 0
        for call in calls:
            values = _run([call], values, training=True)
            operations = tf.compat.v1.get_default_graph().get_operations()
            call_of.update((operation.name, id(call)) for operation in operations[count:])
            count = len(operations)
            if hasattr(call.operation, "add_loss") and added_losses(call.operation):
                side_results.setdefault(id(call), set()).add("adds a loss of its own, which would be left out")
                forget_added_losses(call.operation)
            masked = [any(mask_of(values[key]) is not None for key in keys) for keys in (call.takes.values(), call.gives)]
            if masked == [False, True]:
                side_results.setdefault(id(call), set()).add("gives a mask to later layers, which would be left out")
        return [values[key] for key in gives]

    signature = [tf.TensorSpec(specs[key].shape, specs[key].dtype) for key in takes]
    concrete = tf.function(compute, autograph=False).get_concrete_function(*signature)
    concrete.side_results, concrete.call_of = side_results, call_of
    return concrete


def _effects(concrete: Any) -> dict[int, set[str]]:
    graph = from_concrete_function(concrete, planned=False)[0]
    purity = Purity(graph, stateful_op_types(graph))
    effects = {call: set(words) for call, words in concrete.side_results.items()}
    for node in impure_nodes(graph, purity):
        culprit = culprit_in(graph, node, purity)
        effects.setdefault(concrete.call_of[node.name], set()).add(f"{effect_of(culprit)} ({culprit.op_type})")
    return effects
