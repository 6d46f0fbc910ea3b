"""A planned step runs the kernels of the plain step as Grappler rewrites it, and repeats of them."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras

import graphwright as gw
from graphwright.source.private_tensorflow import read_xspace

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

tf: Any = importlib.import_module("tensorflow")
WIDTH = 32
NO_WORK = frozenset(
    "Const Identity IdentityN NoOp ReadVariableOp VariableShape Shape Reshape Squeeze ExpandDims Cast Fill PartitionedCall If StatelessIf "
    "While StatelessWhile Switch Merge Enter Exit NextIteration LoopCond Less LogicalAnd StatefulPartitionedCall EmptyTensorList "
    "TensorListPushBack TensorListPopBack OptionalFromValue OptionalGetValue OptionalNone".split()
)
"""Kernels that forward values, make shapes and zeros, decide, or count rounds."""
BORDERS = frozenset(
    {"Slice", "Sub", "ConcatV2", "Split", "SplitV", "StridedSlice", "Pack", "AddV2", "AddN", "Fill", "Mul", "Tile", "BroadcastTo"}
)
"""What parts and segments add: cuts, joins, sums of gradients, and counts of rounds."""


def dense(x: Any, kernel: Any) -> Any:
    return tf.nn.relu(tf.nn.bias_add(x @ kernel, tf.ones(WIDTH))) ** 2.0


def mapped(x: Any, kernel: Any) -> Any:
    return tf.map_fn(lambda rows: dense(rows, kernel), tf.reshape(x, (8, -1, WIDTH)))


def scanned(x: Any, kernel: Any) -> Any:
    return tf.scan(lambda y, row: tf.tanh(y @ kernel + row), tf.reshape(x, (8, -1, WIDTH)))


def looped(x: Any, kernel: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 6, lambda i, y: (i + 1, tf.nn.softmax(dense(y, kernel))), (0, x))[1]


def nested(x: Any, kernel: Any) -> Any:
    def inside(i: Any, y: Any) -> Any:
        return i + 1, tf.while_loop(lambda j, _: j < 3, lambda j, z: (j + 1, tf.tanh(dense(z, kernel))), (0, y))[1]

    return tf.while_loop(lambda i, _: i < 3, inside, (0, x))[1]


def branched(x: Any, kernel: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) < 1e9, lambda: dense(dense(x, kernel), kernel), lambda: x)


def loop_in_branch(x: Any, kernel: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) < 1e9, lambda: looped(x, kernel), lambda: x)


def branch_in_loop(x: Any, kernel: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 6, lambda i, y: (i + 1, tf.tanh(branched(y, kernel))), (0, x))[1]


def called(x: Any, kernel: Any) -> Any:
    inner = tf.function(dense)
    return inner(inner(inner(x, kernel), kernel), kernel)


def images(x: Any, kernel: Any) -> Any:
    y = tf.reshape(x, (-1, 8, 8, WIDTH))
    for _ in range(3):
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(y, tf.reshape(kernel, (1, 1, WIDTH, WIDTH)), 1, "SAME"), tf.ones(WIDTH)))
    return y**2.0


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "map": mapped,
    "scan": scanned,
    "while": looped,
    "loop in loop": nested,
    "branch": branched,
    "loop in branch": loop_in_branch,
    "branch in loop": branch_in_loop,
    "calls": called,
    "convolutions": images,
}
LAYERS: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: keras.layers.LSTM(WIDTH, use_cudnn=False),
    "GRU": lambda: keras.layers.GRU(WIDTH, use_cudnn=False, return_sequences=True),
    "both directions": lambda: keras.layers.Bidirectional(keras.layers.LSTM(WIDTH // 2, use_cudnn=False)),
}


def step_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    rng = np.random.default_rng(3)
    if name in FUNCTIONS:
        kernel = tf.Variable(rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32))
        inputs = (tf.constant(rng.normal(size=(256, WIDTH)).astype(np.float32)),)
        forward, variables = FUNCTIONS[name], [kernel]
    else:
        layer = LAYERS[name]()
        layer.build((8, 24, WIDTH))
        inputs = (tf.constant(rng.normal(size=(8, 24, WIDTH)).astype(np.float32)),)
        forward, variables = (lambda x, _: layer(x)), [variable.value for variable in layer.trainable_variables]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x, variables[0]) ** 2.0)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(1e-6 * gradient)
        return loss

    return step, inputs


def kernels(step: Callable[[], Any], folder: Path) -> Counter[str]:
    """Count the kernels that one call runs, by op type, with those that TensorFlow's profiler names."""
    step()
    tf.profiler.experimental.start(str(folder), tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0))
    step()
    tf.profiler.experimental.stop()
    runs: Counter[str] = Counter()
    for plane in read_xspace(next(folder.rglob("*.xplane.pb")).read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name, colon, op_type = plane.event_metadata[event.metadata_id].name.rpartition(":")
                if colon and op_type.isidentifier() and not name.startswith(("Threadpool", "Executor", "Eager", "Kernel")):
                    runs[op_type] += 1
    return Counter({op_type: count for op_type, count in runs.items() if op_type not in NO_WORK and "__inference" not in op_type})


@pytest.mark.parametrize("name", [*FUNCTIONS, *LAYERS])
def test_an_order_runs_the_kernels_of_the_plain_step(name: str, tmp_path: Path) -> None:
    step, inputs = step_of(name)
    fast = gw.optimize_memory(step, 2 * gw.predict_peak(step, inputs=inputs).high_bytes, inputs=inputs, cache_dir=None, time_limit_s=0.5)
    assert (fast.plan.recomputed_count, fast.plan.rewritten) == (0, "")
    plain, planned = (kernels(lambda one=one: one(*inputs), tmp_path / how) for how, one in (("plain", step), ("fast", fast)))
    assert planned == plain


@pytest.mark.parametrize("name", [*FUNCTIONS, *LAYERS])
@pytest.mark.parametrize("allow", [("recompute", "segment"), "all"], ids=["default", "all"])
def test_a_plan_repeats_kernels_of_the_plain_step_and_adds_no_others(name: str, allow: Any, tmp_path: Path) -> None:
    step, inputs = step_of(name)
    try:
        fast = gw.optimize_memory(step, 0.6, inputs=inputs, allow=allow, cache_dir=None, time_limit_s=0.5)
    except gw.InfeasibleError:
        pytest.skip("no plan")
    plain, planned = (kernels(lambda one=one: one(*inputs), tmp_path / how) for how, one in (("plain", step), ("fast", fast)))
    added = BORDERS if " parts" in fast.plan.rewritten or "segments" in fast.plan.rewritten else frozenset[str]()
    assert set(planned) - set(plain) <= added
    assert added or not plain - planned
