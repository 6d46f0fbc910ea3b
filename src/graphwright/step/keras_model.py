"""Training a compiled Keras model by another step, also under a `tf.distribute` strategy.

Under `MultiWorkerMirroredStrategy` `fit` and `evaluate` of Keras 3 fail before the first step: the batch that builds the model stays in its
`PerReplica`, and scalar metrics are averaged along an axis that they do not have. Both are repaired here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from graphwright.errors import UnsupportedError
from graphwright.source.private_keras import build_from, set_builder, what_is_overridden
from graphwright.source.private_tensorflow import is_default_strategy
from graphwright.source.tensorflow_import import import_keras, import_tensorflow


def strategy_of(model: Any) -> Any:
    """Return the strategy of the model, or None; raises `UnsupportedError` for parameter servers, whose step is not one graph."""
    strategy = model.distribute_strategy
    if is_default_strategy(strategy):
        return None
    tf = import_tensorflow()
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise UnsupportedError(
            "the model was made under ParameterServerStrategy",
            where=f"model {model.name!r}",
            cause="its variables live on other machines, which run steps of their own",
            remedy="use MirroredStrategy or MultiWorkerMirroredStrategy",
        )
    return strategy


def has_call(layer: Any) -> bool:
    """Whether a model defines `call`; it may have a `train_step` over its parts instead."""
    kind: Any = cast("Any", type(layer))
    return kind.call is not import_keras().Model.call


def has_own_step(model: Any) -> bool:
    return "train_step" in what_is_overridden(model)


def spans_workers(strategy: Any) -> bool:
    tf = import_tensorflow()
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(strategy.cluster_resolver.cluster_spec())


def on_replicas(strategy: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of one batch that runs the step on every replica and reduces its results, as Keras does."""
    if strategy is None:
        return step
    tf = import_tensorflow()

    def reduced(value: Any) -> Any:
        if spans_workers(strategy):
            return strategy.reduce("MEAN", value, axis=None)
        values = strategy.experimental_local_results(value)
        return values[0] if isinstance(strategy, tf.distribute.TPUStrategy) else tf.reduce_mean(values, axis=0)

    def run(data: Any) -> Any:
        outputs = strategy.run(step, args=(data,))
        return tf.nest.map_structure(reduced, outputs)

    return tf.autograph.experimental.do_not_convert(run)


def one_replica(strategy: Any, data: Any) -> Any:
    if strategy is None:
        return data
    tf = import_tensorflow()

    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    return tf.nest.map_structure(first, data)


def as_tensors(structure: Any) -> Any:
    tf = import_tensorflow()

    def as_tensor(value: Any) -> Any:
        return value if tf.is_tensor(value) or isinstance(value, tf.distribute.DistributedValues) else tf.convert_to_tensor(value)

    return tf.nest.map_structure(as_tensor, structure)


def repair_building(model: Any, strategy: Any) -> None:
    """Let a model build itself from the share of one replica; Keras averages all shares, which may differ in size."""

    def maybe_symbolic_build(iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            data_batch = next((one_replica(strategy, next(batches)) for _, _, batches in iterator), None)
        if data_batch is not None:
            with strategy.scope():
                build_from(model, data_batch)

    set_builder(model, maybe_symbolic_build)


def repair_evaluation(model: Any, strategy: Any) -> None:
    """Let `evaluate`, and the validation of `fit`, run `test_step` on every replica of every process."""
    tf = import_tensorflow()

    def make_function() -> Callable[[Any], Any]:
        test_step = tf.function(on_replicas(strategy, model.test_step), reduce_retracing=True)
        return lambda iterator: steps_of(model, iterator, test_step)

    take_over(model, "test", make_function)


def take_over(model: Any, kind: Literal["train", "test"], make: Callable[[], Callable[[Any], Any]]) -> None:
    """Let a model run another function of an iterator; `make` makes it now, and again after each `compile`.

    `compile` resets `train_function`, and `fit` asks `make_train_function` for it. A model compiled with `run_eagerly=True` runs plainly.
    """
    name = f"{kind}_function"
    own = getattr(model, f"make_{name}")

    def make_function(force: bool = False) -> Any:
        if model.run_eagerly:
            own(force)
        elif getattr(model, name) is None or force:
            setattr(model, name, make())
        return getattr(model, name)

    setattr(model, f"make_{name}", make_function)
    make_function(force=True)


def steps_of(model: Any, iterator: Any, step: Callable[[Any], Any]) -> Any:
    """Run as many steps as the model makes per call, and return the last logs; raises `StopIteration` without a batch."""
    tf = import_tensorflow()
    logs: Any = None
    for number in range(model.steps_per_execution):
        try:
            data = next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            if number:
                break  # the epoch ends within these steps: those that ran count
            raise
        logs = step(data)
    return logs
