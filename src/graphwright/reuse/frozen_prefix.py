"""The frozen prefix of a Keras model: what training does not change, and computes anew for every sample in every epoch.

A functional model is a list of calls of layers; functional models among its layers are opened. A call belongs to the prefix where
nothing trained is called before it, its layer has no trainable weight, and it does the same in training whenever it is called: it
draws nothing at random and changes no variable, which is read off its traced graph.
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
"""A value of the model: where in it, as a path of models, and the number of a symbolic tensor there."""


@dataclass(frozen=True)
class Call:
    """One call of a layer or operation.

    Attributes:
        operation: what is called.
        fill: from values by the `id` of symbolic tensors to the arguments of the call.
        takes, gives: those `id`s, and what values they stand for.
    """

    operation: Any
    fill: Callable[[dict[int, Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    takes: dict[int, Key]
    gives: list[Key]

    @property
    def name(self) -> str:
        """The name of the layer."""
        return str(self.operation.name)

    @property
    def has_weights(self) -> bool:
        """Whether the layer has weights, trained or not."""
        return bool(getattr(self.operation, "weights", []))

    @property
    def is_trained(self) -> bool:
        """Whether training changes a weight of the layer."""
        return bool(getattr(self.operation, "trainable_variables", []))


@dataclass(frozen=True)
class FrozenPrefix:
    """A model in two: what is computed once for each sample, and what is trained.

    Attributes:
        inputs: the model's inputs.
        outputs: the model's outputs.
        prefix: the calls that are made once.
        head: all others.
        features: the values that go from the prefix to the head, or out of the model.
        read, passed_on: which of the model's inputs the prefix takes, and which the head takes itself, as places.
        specs: for each feature its symbolic tensor.
        compute: from tensors of a batch that the prefix reads to the list of features; as in training, since that is where they are used.
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
        """The variables of the prefix."""
        found = {id(variable): variable for call in self.prefix for variable in getattr(call.operation, "variables", [])}
        return list(found.values())

    def finish(self, features: Sequence[Any], passed_on: Sequence[Any], *, training: bool) -> list[Any]:
        """The outputs of the model."""
        given = dict(zip((*self.features, *(self.inputs[place] for place in self.passed_on)), (*features, *passed_on), strict=True))
        values = run(self.head, given, training=training)
        return [values[key] for key in self.outputs]


def find_prefix(model: Any) -> FrozenPrefix:
    """The frozen prefix of a functional model.

    Raises:
        UnsupportedError: it has none, or frozen layers stand behind what draws at random, updates statistics or adds a loss.
    """
    if not is_functional(model):
        raise UnsupportedError(
            f"{type(model).__name__} {model.name!r} does not say which layer takes what",
            cause="its class has a call method of its own, or it is not built yet",
            remedy="give a functional model or a Sequential that has an Input",
        )
    inputs: list[Key] = [("", id(x)) for x in model.inputs]
    specs: dict[Key, Any] = dict(zip(inputs, model.inputs, strict=True))
    calls, local = _opened(model, "", dict(zip(map(id, model.inputs), inputs, strict=True)), specs)
    outputs = [local[id(x)] for x in model.outputs]
    why: dict[int, str] = {}
    prefix = _without_the_trained(calls, inputs, why)
    parts = _cut(calls, prefix, inputs, outputs, specs)
    effects = _effects(parts.compute)
    if effects:
        why |= {id(call): f"layer {call.name!r} {'; '.join(sorted(effects[id(call)]))}" for call in prefix if id(call) in effects}
        frozen = _without_the_trained(calls, inputs, why)
        lost = next((call for call in prefix if call.has_weights and all(call is not other for other in frozen)), None)
        if lost is not None:
            raise UnsupportedError(
                f"the features of frozen layer {lost.name!r} are not the same in every epoch: {next(iter(why.values()))}",
                cause="that layer stands in front of it, or is it"
                if len(why) == 1
                else f"{len(why)} layers of that kind stand in front of it",
                remedy="put random augmentation behind the frozen layers or into the data, freeze batch norms, and set the rate of frozen "
                "dropout to 0",
            )
        parts = _cut(calls, frozen, inputs, outputs, specs)
    if not any(call.has_weights for call in parts.prefix):
        first = next((call.name for call in calls if call.is_trained), "")
        raise UnsupportedError(
            f"model {model.name!r} has no frozen layer with weights in front of what is trained",
            cause=f"layer {first!r} is the first that is trained" if first else "nothing in it is trained, and nothing has weights",
            remedy="set `layer.trainable = False` for the first layers, before `compile`",
        )
    return parts


def _cut(calls: list[Call], prefix: list[Call], inputs: list[Key], outputs: list[Key], specs: dict[Key, Any]) -> FrozenPrefix:
    inside = {id(call) for call in prefix}
    head = [call for call in calls if id(call) not in inside]
    made = {key for call in prefix for key in call.gives}
    needed = dict.fromkeys([*(key for call in head for key in call.takes.values()), *outputs])
    features = [key for key in needed if key in made]
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


def run(calls: Iterable[Call], given: Mapping[Key, Any], *, training: bool) -> dict[Key, Any]:
    """All values, from some of them, by calls in order."""
    keras: Any = importlib.import_module("keras")
    values = dict(given)
    for call in calls:
        args, kwargs = call.fill({number: values[key] for number, key in call.takes.items()})
        outputs = as_called_in(training, call.operation)(*args, **kwargs)
        values.update(zip(call.gives, keras.tree.flatten(outputs), strict=True))
    return values


def _opened(model: Any, path: str, local: dict[int, Key], specs: dict[Key, Any]) -> tuple[list[Call], dict[int, Key]]:
    """The calls of a model, those of functional models inside it in place of a call of that model; and what its tensors stand for."""
    calls: list[Call] = []
    for number, (operation, fill, takes, gives) in enumerate(graph_calls(model)):
        where = f"{path}/{number}"
        keys = [local[id(x)] for x in takes]
        if is_functional(operation) and len(operation.inputs) == len(takes) == 1 and type(operation).__call__ is type(model).__call__:
            inner = {id(operation.inputs[0]): keys[0]}
            inside, names = _opened(operation, where, inner, specs)
            calls += inside
            made = [names[id(x)] for x in operation.outputs]
        else:
            made: list[Key] = [(where, id(x)) for x in gives]
            specs.update(zip(made, gives, strict=True))
            calls.append(Call(operation, fill, {id(x): key for x, key in zip(takes, keys, strict=True)}, made))
        local.update(zip(map(id, gives), made, strict=True))
    return calls, local


def _without_the_trained(calls: Iterable[Call], inputs: Iterable[Key], refused: Mapping[int, str]) -> list[Call]:
    """The calls that take nothing but the inputs and one another, of layers that are not trained."""
    known, found = set(inputs), list[Call]()
    for call in calls:
        if not call.is_trained and id(call) not in refused and known.issuperset(call.takes.values()):
            known.update(call.gives)
            found.append(call)
    return found


def _traced(calls: list[Call], takes: list[Key], gives: list[Key], specs: Mapping[Key, Any]) -> Any:
    """Calls as a `ConcreteFunction`. Its attribute `left_out` says what each call, by `id`, makes besides its outputs, in words; `made_by`
    which call made an operation.
    """
    tf: Any = importlib.import_module("tensorflow")
    left_out: dict[int, set[str]] = {}
    made_by: dict[str, int] = {}

    def compute(*given: Any) -> list[Any]:
        values = dict(zip(takes, given, strict=True))
        made = 0
        for call in calls:
            values = run([call], values, training=True)
            operations = tf.compat.v1.get_default_graph().get_operations()
            made_by.update((operation.name, id(call)) for operation in operations[made:])
            made = len(operations)
            if hasattr(call.operation, "add_loss") and added_losses(call.operation):
                left_out.setdefault(id(call), set()).add("adds a loss of its own, which would be left out")
                forget_added_losses(call.operation)
            masked = [any(mask_of(values[key]) is not None for key in keys) for keys in (call.takes.values(), call.gives)]
            if masked == [False, True]:
                left_out.setdefault(id(call), set()).add("gives a mask to later layers, which would be left out")
        return [values[key] for key in gives]

    given = [tf.TensorSpec(specs[key].shape, specs[key].dtype) for key in takes]
    concrete = tf.function(compute, autograph=False).get_concrete_function(*given)
    concrete.left_out, concrete.made_by = left_out, made_by
    return concrete


def _effects(concrete: Any) -> dict[int, set[str]]:
    """What each call of a traced function does in training besides making its outputs, in words."""
    graph = from_concrete_function(concrete, planned=False)[0]
    purity = Purity(graph, stateful_op_types(graph))
    found = {call: set(words) for call, words in concrete.left_out.items()}
    for node in impure_nodes(graph, purity):
        culprit = culprit_in(graph, node, purity)
        found.setdefault(concrete.made_by[node.name], set()).add(f"{effect_of(culprit)} ({culprit.op_type})")
    return found
