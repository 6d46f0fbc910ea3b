"""The training step and the inference of a compiled Keras 3 model, as a `tf.function` of its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, cast

from graphwright.errors import ArgumentError, GraphwrightError, UnsupportedError
from graphwright.source.private_keras import all_layers, build_from, compile_arguments, losses_and_metrics, what_is_overridden
from graphwright.source.tensorflow_import import import_keras, import_tensorflow
from graphwright.step.keras_model import (
    as_tensors,
    has_call,
    has_own_step,
    on_replicas,
    one_replica,
    repair_building,
    repair_evaluation,
    spans_workers,
    steps_of,
    strategy_of,
    take_over,
)


def is_keras_model(target: Any) -> bool:
    return isinstance(target, import_keras().Model)


def mode_of(model: Any, mode: Literal["auto", "train", "infer"]) -> Literal["train", "infer"]:
    """Return "train" or "infer"; "auto" is training if the model is compiled."""
    return mode if mode != "auto" else "train" if getattr(model, "compiled", False) else "infer"


def check_trainable(model: Any) -> None:
    """Check that TensorFlow's own step can train the model.

    Raises `ArgumentError` if it is not compiled, `UnsupportedError` if it runs eagerly, XLA would compile it for several replicas, or its
    strategy has no joint graph.
    """
    where = f"model {model.name!r}"
    keras = import_keras()
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedError(f"Keras runs on {keras.backend.backend()!r}", where=where, remedy="set KERAS_BACKEND=tensorflow")
    if not getattr(model, "compiled", False):
        raise ArgumentError(
            "the model is not compiled",
            where=where,
            cause="its loss and its optimizer are not known",
            remedy="call model.compile(...) first; for its inference give tf.function(model), or use --mode infer",
        )
    strategy = strategy_of(model)
    if isinstance(strategy, import_tensorflow().distribute.TPUStrategy):
        raise UnsupportedError(
            "the model was made under TPUStrategy",
            where=where,
            cause="TensorFlow makes the TPU's program of marked operations of the whole step: there is no function of a replica to plan",
            remedy="use gw.checkpointed or reversible layers in the model: XLA keeps their recomputation in place",
        )
    if model.run_eagerly:
        raise UnsupportedError("the model runs eagerly", where=where, remedy="compile it with run_eagerly=False: there is no graph to plan")
    if is_compiled_by_xla(model) and strategy is not None and strategy.num_replicas_in_sync > 1:
        raise UnsupportedError(
            f"the model is compiled with jit_compile=True under {type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas",
            where=where,
            cause="XLA would compile one program for all replicas, whose variables are on different devices; Keras alone fails too",
            remedy="model.compile(..., jit_compile=False)",
        )


def is_compiled_by_xla(model: Any) -> bool:
    """Whether the user asked for XLA; Keras' "auto" counts as no."""
    return bool(model.jit_compile) and compile_arguments(model).get("jit_compile", "auto") != "auto"


def keras_step(model: Any, mode: Literal["train", "infer"]) -> Any:
    """Return a `tf.function` of `data` (as `model.train_step` takes it), or of `x` for inference.

    Raises `ArgumentError` if the model is not compiled (for training), or has no `call` (for inference).
    """
    tf = import_tensorflow()
    if mode == "infer":
        if not has_call(model):
            raise ArgumentError(
                "the model has no `call`, so its inference is not defined",
                where=f"model {model.name!r}",
                remedy="compile it and ask about its training step (mode='train'), or give one of its parts",
            )

        @tf.function
        def infer(x: Any) -> Any:
            return model(x, training=False)

        return infer
    check_trainable(model)

    step = on_replicas(strategy_of(model), model.train_step)

    def train(data: Any) -> Any:
        return step(data)

    return tf.function(train, jit_compile=True if is_compiled_by_xla(model) else None)


def train_with(model: Any, make_step: Callable[[], Callable[[Any], Any]]) -> None:
    """Let `fit` and `train_on_batch` of a compiled model run another step, under its strategy too."""
    strategy = strategy_of(model)

    def make_function() -> Callable[[Any], Any]:
        step = make_step()
        if not is_compiled_by_xla(model):
            model.jit_compile = False  # it was left to Keras

        def train_step(data: Any) -> Any:
            build_as_fit(model, data)
            return step(_without_missing(model, data))

        def run(iterator: Any) -> Any:
            try:
                return steps_of(model, iterator, train_step)
            except GraphwrightError as error:
                raise error.with_traceback(None) from error.__cause__  # it says all that its frames could

        return run

    take_over(model, "train", make_function)
    if strategy is not None:
        repair_building(model, strategy)
    if spans_workers(strategy):
        repair_evaluation(model, strategy)


def _without_missing(model: Any, data: Any) -> Any:
    """Return the data without the None that `train_on_batch` adds for sample weights, which would be planned separately.

    A `train_step` of the user's own gets what Keras gives, since it may unpack three parts.
    """
    is_own = has_own_step(model)
    if (is_own and has_call(model)) or not isinstance(data, tuple):
        return data
    parts = list(cast("tuple[Any, ...]", data))
    while len(parts) > 1 and parts[-1] is None:
        parts.pop()
    return parts[0] if is_own and len(parts) == 1 else tuple(parts)


def build_as_fit(model: Any, data: Any) -> None:
    """Make the variables of a training step, if Keras knows them before tracing.

    A `train_step` of the user's own makes its variables while it is traced, as in `fit`.
    """
    if strategy_of(model) is not None or not has_own_step(model) or getattr(model, "inputs", None):
        build_for_training(model, data)


def build_for_training(model: Any, data: Any) -> None:
    """Make all variables of the model, its optimizer and its metrics before the step is traced."""
    strategy = strategy_of(model)
    optimizer = model.optimizer
    ready = all(layer.built for layer in all_layers(model)) and metrics_are_built(model)
    if not ready or not (optimizer is None or optimizer.built):
        with strategy.scope() if strategy is not None else nullcontext():
            build_from(model, one_replica(strategy, data))
    build_optimizer(model)


def build_optimizer(model: Any) -> None:
    strategy, optimizer = strategy_of(model), model.optimizer
    if optimizer is not None and not optimizer.built:
        with strategy.scope() if strategy is not None else nullcontext():
            optimizer.build(model.trainable_variables)


def metrics_are_built(model: Any) -> bool:
    return all(item.built for item in losses_and_metrics(model))


def check_targets(model: Any, mode: Literal["train", "infer"], inputs: Any) -> None:
    data: Any = inputs
    while isinstance(data, tuple | list) and len(cast("Sequence[Any]", data)) == 1:
        data = cast("Sequence[Any]", data)[0]
    has_targets = isinstance(data, tuple | list) and data[1] is not None
    if (
        mode == "train"
        and not has_targets
        and getattr(model, "loss", None)
        and not {"train_step", "compute_loss"} & {*what_is_overridden(model)}
    ):
        raise ArgumentError(
            f"a {type(cast('object', data)).__name__} was given as the data of a training step, and its loss needs targets",
            argument="inputs",
            where=f"model {model.name!r}",
            remedy="give a tuple, inputs=(x, y); for the model's inference give mode='infer'",
        )


def keras_data(model: Any, mode: Literal["train", "infer"], inputs: Any, *, are_specs: bool) -> tuple[Any, ...]:
    """Return the arguments of `keras_step` for example data, and make the variables of the first training step.

    Args:
        inputs: `(x, y)` or `(x, y, sample_weight)`, or a tuple with only that element; for inference `x`.
        are_specs: whether they are `tf.TensorSpec`s; then no variables are made.
    """
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", inputs) if isinstance(inputs, tuple) else ()
    data: Any = parts[0] if len(parts) == 1 else cast("Any", inputs)
    if mode == "train":
        data = _without_missing(model, data)
    if not are_specs:
        data = as_tensors(data)
        if mode == "train":
            build_as_fit(model, data)
    return (data,)
