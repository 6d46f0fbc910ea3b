"""Two replicas on two logical CPU devices: `replicas.py '{"checks": ["fit", ...]}'` prints what each check found as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright.run.call_options import grappler_disabled
from graphwright.run.measure import resident_bytes
from graphwright.run.step_session import StepSession
from graphwright.run.traced_step import resolve

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.random((700, 32), np.float32)
_Y = _RANDOM.integers(0, 3, 700)
_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")


def _strategy(**options: Any) -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], **options)


def _model(strategy: Any, *, synchronized: bool = False, depth: int = 4, width: int = 64, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        hidden = inputs = keras.Input((32,))
        for _ in range(depth):
            hidden = keras.layers.Dense(width, activation="relu")(hidden)
            hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization(synchronized=synchronized)(hidden))
        model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
        optimizer = keras.optimizers.Adam(1e-2)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False, **options)
    return model


def _weights(strategy: Any, variables: Any) -> list[Any]:
    """Every replica's value of every variable."""
    return [replica.numpy() for v in variables for replica in strategy.experimental_local_results(getattr(v, "value", v))]


def _same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _plan(plan: Any) -> dict[str, Any]:
    return {
        "verification": plan.verification,
        "peak": plan.peak_bytes,
        "budget": plan.budget_bytes,
        "original": plan.original_peak_bytes,
        "recomputed": plan.recomputed_count,
        "devices": plan.device_peaks,
    }


def _fits(strategy: Any, *, budget: float = 0.8, **options: Any) -> dict[str, Any]:
    """The same training as Keras does it and with a budget; the last batch is uneven."""
    training: dict[str, Any] = {"batch_size": 512, "epochs": 2, "verbose": 0, "shuffle": False, "validation_data": (_X[:64], _Y[:64])}
    plain = _model(strategy, **options)
    with grappler_disabled():  # its fusions change the last bits
        expected = plain.fit(_X, _Y, **training).history
    model = gw.optimize_memory(_model(strategy, **options), budget, cache_dir=None)
    batches: list[int] = []
    history = model.fit(
        _X, _Y, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))], **training
    )
    return {
        "history": history.history == expected,
        "weights": _same(_weights(strategy, model.variables), _weights(strategy, plain.variables)),
        "optimizer": _same(_weights(strategy, model.optimizer.variables), _weights(strategy, plain.optimizer.variables)),
        "batches": batches,
        "plans": [_plan(plan) for plan in model.optimized_step.plans],
    }


def fit() -> dict[str, Any]:
    """`fit` of a model with batch norm and dropout."""
    return _fits(_strategy())


def synchronized_batch_norm() -> dict[str, Any]:
    """Statistics of all replicas together: collectives in the middle of the forward and of the backward pass."""
    return _fits(_strategy(), synchronized=True)


def train_on_batch() -> dict[str, Any]:
    """One step by hand."""
    strategy = _strategy()
    plain, model = _model(strategy), gw.optimize_memory(_model(strategy), 0.9, cache_dir=None)
    with grappler_disabled():
        expected = [plain.train_on_batch(_X[:256], _Y[:256]) for _ in range(2)]
    found = [model.train_on_batch(_X[:256], _Y[:256]) for _ in range(2)]
    return {"found": [list(map(float, f)) for f in found], "expected": [list(map(float, e)) for e in expected]}


def _batch(strategy: Any, size: int = 512) -> Any:
    data = tf.data.Dataset.from_tensor_slices((_X[:size], _Y[:size])).batch(size)
    return next(iter(strategy.experimental_distribute_dataset(data)))


def _gradients_of(model: Any, x: Any, y: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        loss = _LOSS(y, model(x, training=True)) / 512
    return loss, tape.gradient(loss, model.trainable_variables)


def custom_step() -> dict[str, Any]:
    """A step of one's own, around `strategy.run`."""
    strategy = _strategy()

    def make() -> tuple[Any, Any]:
        model = _model(strategy)
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)

        def replica(x: Any, y: Any) -> Any:
            loss, gradients = _gradients_of(model, x, y)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(x: Any, y: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

        return model, step

    batch = _batch(strategy)
    plain, step = make()
    with grappler_disabled():
        expected = [float(step(*batch)) for _ in range(3)]
    model, other = make()
    fast = gw.optimize_memory(other, 0.7, cache_dir=None, inputs=batch)
    found = [float(fast(*batch)) for _ in range(3)]
    session_peaks = _measured_peaks(fast.concrete_function(*batch), batch)
    refused = ""
    try:
        gw.measure(fast, batch)
    except gw.UnsupportedError as error:
        refused = str(error)
    return {
        "found": found,
        "expected": expected,
        "weights": _same(_weights(strategy, model.variables), _weights(strategy, plain.variables)),
        "plans": [_plan(fast.plan)],
        "measured": session_peaks,
        "measure": refused,
        "unmodified": _measured_peaks(step.get_concrete_function(*batch), batch),
    }


def _measured_peaks(function: Any, batch: Any) -> dict[str, int]:
    """Per device: resident bytes, and the most that its kernels had allocated at once, by TensorFlow's own records."""
    step = resolve(function, batch)
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
    options.experimental.collective_graph_key = 7
    metadata = tf.compat.v1.RunMetadata()
    with StepSession(step, grappler=False) as session:
        session.run(options=options)
        session.run(options=options, metadata=metadata)
    peaks: dict[str, int] = {}
    for device in metadata.step_stats.dev_stats:
        changes = [
            (record.alloc_micros, record.alloc_bytes)
            for node in device.node_stats
            for memory in node.memory
            for record in memory.allocation_records
        ]
        level = highest = 0
        for _, change in sorted(changes, key=lambda change: (change[0], change[1])):
            level += change
            highest = max(highest, level)
        name = device.device.rpartition("device:")[2]
        peaks[name] = max(peaks.get(name, 0), highest)
    halves = resident_bytes(step) // 2  # the replicas hold the same
    return {name: nbytes + halves for name, nbytes in peaks.items() if name in ("CPU:0", "CPU:1")}


def inside_run() -> dict[str, Any]:
    """The optimized function is what each replica runs; the update stays outside."""
    # For the process, so that replicas, which have threads of their own, plan the step as it runs here: without Grappler.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = _strategy()
    model = _model(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    start = _weights(strategy, model.variables)
    gradients_of = tf.function(lambda x, y: _gradients_of(model, x, y))
    fast = gw.optimize_memory(gradients_of, 0.8, cache_dir=None, verify=False)

    def training(gradients: Callable[..., Any]) -> tuple[float, list[Any]]:
        variables = [*model.variables, *model.optimizer.variables]
        values = _weights(strategy, variables)

        def replica(x: Any, y: Any) -> Any:
            loss, found = gradients(x, y)
            model.optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(x: Any, y: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

        loss = [float(step(*_batch(strategy))) for _ in range(2)][-1]
        after = _weights(strategy, model.variables)
        replicas = [r for v in variables for r in strategy.experimental_local_results(getattr(v, "value", v))]
        for replica_variable, value in zip(replicas, values, strict=True):
            replica_variable.assign(value)
        return loss, after

    expected, plain = training(gradients_of)
    found, weights = training(fast)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    return {
        "found": found,
        "expected": expected,
        "weights": _same(weights, plain),
        "moved": not _same(start, plain),
        "plans": [_plan(plan) for plan in fast.plans],
    }


def merge_inside_run() -> dict[str, Any]:
    """An optimized step that applies gradients, inside `strategy.run`: TensorFlow cannot trace that."""
    strategy = _strategy()
    model = _model(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    @tf.function
    def replica(x: Any, y: Any) -> Any:
        loss, gradients = _gradients_of(model, x, y)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    fast = gw.optimize_memory(replica, 0.8, cache_dir=None)
    try:
        strategy.run(fast, args=_batch(strategy))
    except gw.GraphwrightError as error:
        return {"error": str(error)}
    return {"error": ""}


def loop_around_run() -> dict[str, Any]:
    """`strategy.run` in a loop of the graph."""
    strategy = _strategy()
    model = _model(strategy)

    @tf.function
    def steps(x: Any, y: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total += strategy.reduce("SUM", strategy.run(lambda a, b: _LOSS(b, model(a, training=False)), args=(x, y)), axis=None)
        return total

    try:
        gw.optimize_memory(steps, 0.8, cache_dir=None, inputs=_batch(strategy))
    except gw.UnsupportedError as error:
        return {"error": str(error)}
    return {"error": ""}


def main(checks: list[str]) -> None:
    """Run the checks one after the other."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print(json.dumps({name: globals()[name]() for name in checks}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["checks"])
