"""The parameters of a Keras model, read from its objects without tracing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from graphwright.analyze.parameters import Parameter, ParameterKind, make_parameter, scope_of
from graphwright.errors import ArgumentError, first_line
from graphwright.ir.dtypes import DTYPES
from graphwright.source.private_keras import all_layers, own_variables
from graphwright.source.tensorflow_import import import_keras
from graphwright.step.keras_model import has_call, has_own_step
from graphwright.step.keras_step import metrics_are_built

_MOVING = ("moving_mean", "moving_variance")


@dataclass(frozen=True, slots=True)
class KerasParameters:
    """Parameters of a model, its metrics and its optimizer; the index of the parameter by `id` of a variable's handle."""

    parameters: list[Parameter] = field(default_factory=list[Parameter])
    handles: dict[int, int] = field(default_factory=dict[int, int])
    how: Mapping[str, str] = field(default_factory=dict[str, str])


def keras_parameters(model: Any, *, is_traced: bool = False) -> KerasParameters:
    """Return the variables of a model, of its metrics and of its optimizer, each once; a traced step has made all that it needs.

    The state of an optimizer that is not built yet is found by building a copy of it for one variable of each shape at a time.
    """
    own_step = has_own_step(model)  # it may need nothing but the parts of the model
    unbuilt = [layer.name for layer in all_layers(model) if not layer.built and has_call(layer) and not (own_step and layer is model)]
    if unbuilt and not is_traced:
        raise ArgumentError(
            f"{len(unbuilt)} layers are not built: {', '.join(unbuilt[:3])}",
            where=f"model {model.name!r}",
            cause="a layer creates its variables when it first gets the shape of its input",
            remedy="call the model once, or model.build(input_shape)",
        )
    table, how = KerasParameters(), {"trainable": "the model's trainable_variables"}
    uses, scopes = _uses(model), _scopes(model)

    def scope(variable: Any) -> str:  # as `model.summary()` names layers
        return scopes.get(id(variable), scope_of(variable.path)).removeprefix(f"{model.name}/")

    trainable = {id(v) for v in model.trainable_variables}
    weights = {id(v) for v in model.weights}
    metrics = {id(v) for v in model.metrics_variables}
    for variable in model.variables:
        if id(variable) in metrics:
            kind, use = "other state", "metric"
        elif id(variable) not in weights:
            kind, use = "other state", "random state"
        else:
            kind = "trainable" if id(variable) in trainable else "non-trainable"
            use = uses.get(id(variable), "")
        _add(table, scope(variable), variable, kind, use)
    for variable in model.metrics_variables:
        _add(table, scope(variable), variable, "other state", "metric")
    if getattr(model, "compiled", False) and not (own_step or metrics_are_built(model)):
        how["other state"] = "metrics that Keras makes when training begins are not counted yet"
    optimizer: Any = getattr(model, "optimizer", None)
    if optimizer is None:
        return replace(table, how={**how, "optimizer state": "the model is not compiled: it has no optimizer"})
    attributes = cast("dict[str, Any]", vars(model))
    others = [v for v in attributes.values() if isinstance(v, import_keras().optimizers.Optimizer) and v is not optimizer]
    for variable in (variable for other in others for variable in other.variables):
        _add(table, scope(variable), variable, "optimizer state", "")
    if others and not optimizer.built:
        return replace(table, how={**how, "optimizer state": "the variables of the optimizers that the model's own train_step may use"})
    for variable in optimizer.variables:
        _add(table, scope(variable), variable, "optimizer state", "")
    state_how = "the optimizer's variables" if optimizer.built else _predict(table, optimizer, model.trainable_variables)
    return replace(table, how={**how, "optimizer state": state_how})


def _scopes(model: Any) -> dict[int, str]:
    """Return the layers around variables, by `id`; a functional model in another one counts as a layer."""
    keras: Any = import_keras()
    scopes = {id(variable): scope_of(variable.path) for variable in model.variables}
    for part in model.layers:
        if isinstance(part, keras.Model):
            for variable, scope in _scopes(part).items():
                scopes[variable] = scope if f"/{part.name}/" in f"/{scope}/" else f"{part.name}/{scope}"
    return scopes


def _uses(model: Any) -> Mapping[int, str]:
    keras: Any = import_keras()
    uses: dict[int, str] = {}
    for layer in all_layers(model):
        own = own_variables(layer)
        mode = getattr(layer, "quantization_mode", None)
        for variable in own:
            notes: list[str] = []
            if isinstance(layer, keras.layers.Embedding) and "embeddings" in variable.name:
                notes.append("embedding")
            if variable.name in _MOVING:
                notes.append("moving average")
            if mode is not None and "int" in str(variable.dtype):
                notes.append("quantized, packed: 2 values a byte" if "int4" in str(mode) else f"quantized ({mode})")
            uses[id(variable)] = ", ".join(notes)
    return uses


def _add(table: KerasParameters, scope: str, variable: Any, kind: ParameterKind, use: str) -> None:
    handle = id(variable.value.handle)
    if handle in table.handles:
        return
    table.handles[handle] = len(table.parameters)
    dtype, shape = DTYPES[str(variable.dtype)], tuple(variable.shape)
    table.parameters.append(make_parameter(variable.path, kind, dtype, shape, scope=scope, use=use))


def _predict(table: KerasParameters, optimizer: Any, variables: Iterable[Any]) -> str:
    """Add the state that the optimizer will have once it is built; return how it was found."""
    keras: Any = import_keras()
    slots: dict[tuple[Any, ...], list[Any]] = {}
    try:
        for variable in variables:
            looks = (tuple(variable.shape), str(variable.dtype), variable.name)
            if looks not in slots:
                slots[looks] = _slots(keras, optimizer, variable)
            stem = variable.path.replace("/", "_")
            for suffix, dtype, shape in slots[looks]:
                name = f"{optimizer.name}/{stem}_{suffix}"
                table.parameters.append(make_parameter(name, "optimizer state", DTYPES[dtype], shape))
    except (TypeError, ValueError, AttributeError, KeyError, NotImplementedError, RuntimeError) as error:  # an optimizer of the user's
        first = first_line(error)
        return f"not complete: the optimizer is not built, and a copy of it cannot be ({first})"
    return "the optimizer is not built yet: found by building a copy of it, one variable of each shape at a time"


def _slots(keras: Any, optimizer: Any, variable: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    copy: Any = optimizer.__class__.from_config(optimizer.get_config())
    before = {id(v) for v in copy.variables}
    stand_in = keras.Variable(keras.ops.zeros(variable.shape, variable.dtype), name=variable.name)
    copy.build([stand_in])
    state = [v for v in copy.variables if id(v) not in before]
    prefix = stand_in.path.replace("/", "_") + "_"
    return [(v.name.removeprefix(prefix), str(v.dtype), tuple(v.shape)) for v in state]
