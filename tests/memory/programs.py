"""Random training steps of some fifty kinds of operations, for a differential test of plans: see `test_programs.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from graphwright.plan.model import CostGraph, Schedule

_BATCH, _WIDTH = 24, 48
Kind = Callable[["Program", Any, int], Any]
"""Takes and returns a tensor of the shape (batch, width); the number tells the place in the program."""


class Program:
    """A training step made of random operations: `step(x)`, and the variables it trains and keeps.

    Args:
        seed: the same seed, the same program.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.weights: dict[Any, Any] = {}
        self.state: dict[Any, Any] = {}
        self.kinds = [self.rng.choice(list(KINDS)) for _ in range(self.rng.randint(5, 9))]
        self._skips = [self.rng.random() < 0.3 for _ in self.kinds]
        self.optimizer_name = self.rng.choice(list(OPTIMIZERS))
        self.optimizer = OPTIMIZERS[self.optimizer_name]()
        self._reads_late = self.rng.random() < 0.4
        self.count = tf.Variable(0, dtype=tf.int64)
        self.x = tf.constant(self.values.normal(size=(_BATCH, _WIDTH)), tf.float32)
        self._forward(self.x)  # makes the variables
        trained = list(self.weights.values())
        self.optimizer.build(trained)
        self.step = tf.function(self._step)

    def weight(self, key: Any, shape: tuple[int, ...]) -> Any:
        """A variable that is trained, made at its first use."""
        if key not in self.weights:
            self.weights[key] = tf.Variable(
                self.values.normal(size=shape) / np.sqrt(shape[-1]), dtype=tf.float32, name=f"w{len(self.weights)}"
            )
        return self.weights[key]

    def kept(self, key: Any, shape: tuple[int, ...]) -> Any:
        """A variable that the forward part updates."""
        if key not in self.state:
            self.state[key] = tf.Variable(tf.ones(shape), trainable=False, name=f"s{len(self.state)}")
        return self.state[key]

    def _forward(self, x: Any) -> Any:
        y = x
        for k, (kind, skips) in enumerate(zip(self.kinds, self._skips, strict=True)):
            before, y = y, KINDS[kind](self, y, k)
            y = tf.ensure_shape(tf.clip_by_value(y, -50.0, 50.0), (_BATCH, _WIDTH))
            y = y + before if skips else y
        return y

    def _step(self, x: Any) -> Any:
        trained = list(self.weights.values())
        with tf.GradientTape() as tape:
            y = self._forward(x)
            loss = tf.reduce_mean(tf.square(y)) + sum(1e-3 * tf.reduce_sum(tf.square(w)) for w in trained)
        first = [tf.reduce_sum(w) for w in trained[:1]]
        pairs = [(g, w) for g, w in zip(tape.gradient(loss, trained), trained, strict=True) if g is not None]
        if pairs:
            self.optimizer.apply([g for g, _ in pairs], [w for _, w in pairs])
        self.count.assign_add(1)
        late = [tf.reduce_sum(w) for w in trained[:1]] if self._reads_late else []
        return {"loss": loss, "y": y[0], "weights": first + late, "count": self.count.read_value()}


def _dense(p: Program, y: Any, k: int) -> Any:
    return tf.nn.bias_add(tf.matmul(y, p.weight((k, "w"), (_WIDTH, _WIDTH))), p.weight((k, "b"), (_WIDTH,)))


def _image(y: Any) -> Any:
    return tf.reshape(y, (_BATCH, 4, 4, 3))


def _flat(y: Any) -> Any:
    return tf.reshape(y, (_BATCH, _WIDTH))


def _conv(p: Program, y: Any, k: int) -> Any:
    return _flat(tf.nn.conv2d(_image(y), p.weight(k, (3, 3, 3, 3)), 1, "SAME"))


def _depthwise(p: Program, y: Any, k: int) -> Any:
    return _flat(tf.nn.depthwise_conv2d(_image(y), p.weight(k, (3, 3, 3, 1)), (1, 1, 1, 1), "SAME"))


def _conv_transposed(p: Program, y: Any, k: int) -> Any:
    return _flat(tf.nn.conv2d_transpose(_image(y), p.weight(k, (3, 3, 3, 3)), (_BATCH, 4, 4, 3), 1, "SAME"))


def _conv1d(p: Program, y: Any, k: int) -> Any:
    return _flat(tf.nn.conv1d(tf.reshape(y, (_BATCH, 8, 6)), p.weight(k, (3, 6, 6)), 1, "SAME"))


def _conv3d(p: Program, y: Any, k: int) -> Any:
    return _flat(tf.nn.conv3d(tf.reshape(y, (_BATCH, 4, 4, 3, 1)), p.weight(k, (2, 2, 2, 1, 1)), (1, 1, 1, 1, 1), "SAME"))


def _pooled(pool: Any) -> Kind:
    return lambda p, y, k: _flat(tf.repeat(tf.repeat(pool(_image(y), 2, 2, "SAME"), 2, 1), 2, 2))


def _batch_norm(p: Program, y: Any, k: int) -> Any:
    mean, variance = tf.nn.moments(y, [0])
    for name, value in (("mean", mean), ("variance", variance)):
        moving = p.kept((k, name), (_WIDTH,))
        moving.assign(moving * 0.9 + tf.stop_gradient(value) * 0.1)
    return tf.nn.batch_normalization(y, mean, variance, p.weight((k, "b"), (_WIDTH,)), p.weight((k, "g"), (_WIDTH,)), 1e-3)


def _fused_batch_norm(p: Program, y: Any, k: int) -> Any:
    scale, offset = p.weight((k, "g"), (3,)), p.weight((k, "b"), (3,))
    result, mean, variance = tf.compat.v1.nn.fused_batch_norm(_image(y), scale, offset, is_training=True)
    p.kept((k, "mean"), (3,)).assign_sub(0.1 * (p.kept((k, "mean"), (3,)) - mean))
    p.kept((k, "variance"), (3,)).assign_sub(0.1 * (p.kept((k, "variance"), (3,)) - variance))
    return _flat(result)


def _layer_norm(p: Program, y: Any, k: int) -> Any:
    mean, variance = tf.nn.moments(y, [1], keepdims=True)
    return (y - mean) * tf.math.rsqrt(variance + 1e-3) * p.weight(k, (_WIDTH,))


def _attention(p: Program, y: Any, k: int) -> Any:
    tokens = tf.reshape(y, (_BATCH, 6, 8))
    q, keys, v = (tf.einsum("btd,de->bte", tokens, p.weight((k, name), (8, 8))) for name in "qkv")
    return _flat(tf.matmul(tf.nn.softmax(tf.matmul(q, keys, transpose_b=True) / 3.0), v))


def _embedding(p: Program, y: Any, k: int) -> Any:
    ids = tf.cast(tf.math.floormod(tf.abs(y[:, :2]) * 7.0, 16.0), tf.int32)
    return y + tf.reshape(tf.nn.embedding_lookup(p.weight(k, (16, _WIDTH // 2)), ids), (_BATCH, _WIDTH))


def _loop(p: Program, y: Any, k: int) -> Any:
    w = p.weight(k, (_WIDTH, _WIDTH))
    return tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, tf.tanh(z @ w)), (0, y))[1]


def _loop_with_draws(p: Program, y: Any, k: int) -> Any:
    return tf.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, tf.nn.dropout(z, 0.2)), (0, y))[1]


def _loop_with_state(p: Program, y: Any, k: int) -> Any:
    total = p.kept(k, ())

    def body(i: Any, z: Any) -> Any:
        total.assign(total * 0.5 + tf.reduce_mean(tf.stop_gradient(z)))
        return i + 1, z * 0.9 + tf.stop_gradient(total) * 0.01

    return tf.while_loop(lambda i, z: i < 3, body, (0, y))[1]


def _branch(p: Program, y: Any, k: int) -> Any:
    w = p.weight(k, (_WIDTH, _WIDTH))
    return tf.cond(tf.reduce_sum(y) > 0.0, lambda: tf.tanh(y @ w), lambda: tf.sin(y))


def _branch_with_state(p: Program, y: Any, k: int) -> Any:
    total = p.kept(k, ())

    def update() -> Any:
        total.assign_add(1.0)
        return y * 0.5

    return tf.cond(tf.reduce_mean(y) > -0.1, update, lambda: y)


def _case(p: Program, y: Any, k: int) -> Any:
    index = tf.cast(tf.math.floormod(tf.reduce_sum(tf.abs(y)), 3.0), tf.int32)
    return tf.switch_case(index, [lambda: tf.tanh(y), lambda: tf.nn.dropout(y, 0.1), lambda: tf.nn.relu(y)])


def _mapped(p: Program, y: Any, k: int) -> Any:
    w = p.weight(k, (_WIDTH, 1))
    return tf.map_fn(lambda row: tf.tanh(row * tf.squeeze(tf.expand_dims(row, 0) @ w)), y)


def _scanned(p: Program, y: Any, k: int) -> Any:
    return tf.scan(lambda a, row: 0.5 * a + row, y)


def _called(p: Program, y: Any, k: int) -> Any:
    w = p.weight(k, (_WIDTH, _WIDTH))
    inner = tf.function(lambda z: tf.nn.gelu(z @ w))
    return inner(inner(y))


def _own_gradient(p: Program, y: Any, k: int) -> Any:
    @tf.custom_gradient
    def clipped(z: Any) -> Any:
        return tf.exp(tf.minimum(z, 1.0)), lambda g: tf.clip_by_value(g * tf.exp(tf.minimum(z, 1.0)), -1.0, 1.0)

    return clipped(y)


def _recomputed(p: Program, y: Any, k: int) -> Any:
    w = p.weight(k, (_WIDTH, _WIDTH))
    return tf.recompute_grad(lambda z: tf.tanh(z @ w))(y)


def _dropout(p: Program, y: Any, k: int) -> Any:
    return tf.nn.dropout(y, 0.3)


def _stateless_dropout(p: Program, y: Any, k: int) -> Any:
    seed = tf.stack([tf.cast(p.count, tf.int32), k])
    return tf.nn.experimental.stateless_dropout(y, 0.3, seed)


def _generator(p: Program, y: Any, k: int) -> Any:
    if k not in p.state:
        p.state[k] = tf.random.Generator.from_seed(k)
    return y + 0.1 * p.state[k].normal((_BATCH, _WIDTH))


def _gathered(p: Program, y: Any, k: int) -> Any:
    return tf.gather(y, tf.constant([(7 * i + k) % _WIDTH for i in range(_WIDTH)]), axis=1)


def _segments(p: Program, y: Any, k: int) -> Any:
    ids = tf.constant([i % 6 for i in range(_BATCH)])
    return tf.gather(tf.math.unsorted_segment_sum(y, ids, 6), ids)


def _scattered(p: Program, y: Any, k: int) -> Any:
    rows = tf.constant([[0], [3], [5]])
    return tf.tensor_scatter_nd_update(y, rows, tf.tanh(tf.gather_nd(y, rows)))


def _topped(p: Program, y: Any, k: int) -> Any:
    best, where = tf.math.top_k(y, 4)
    return y + tf.reduce_sum(best, 1, keepdims=True) * 0.1 + tf.cast(where[:, :1], tf.float32) * 0.01


def _long_sum(p: Program, y: Any, k: int) -> Any:
    return tf.add_n([y, tf.sin(y), tf.cos(y), tf.tanh(y)])


def _concatenated(p: Program, y: Any, k: int) -> Any:
    left, right = tf.split(y, 2, axis=1)
    return tf.concat([tf.tanh(right), left], axis=1)


def _one(f: Callable[[Any], Any]) -> Kind:
    return lambda p, y, k: f(y)


KINDS: dict[str, Kind] = {
    "dense": _dense,
    "conv": _conv,
    "depthwise": _depthwise,
    "conv transposed": _conv_transposed,
    "conv1d": _conv1d,
    "conv3d": _conv3d,
    "max pool": _pooled(tf.nn.max_pool2d),
    "average pool": _pooled(tf.nn.avg_pool2d),
    "batch norm": _batch_norm,
    "fused batch norm": _fused_batch_norm,
    "layer norm": _layer_norm,
    "attention": _attention,
    "embedding": _embedding,
    "loop": _loop,
    "loop with draws": _loop_with_draws,
    "loop with state": _loop_with_state,
    "branch": _branch,
    "branch with state": _branch_with_state,
    "case": _case,
    "map": _mapped,
    "scan": _scanned,
    "call": _called,
    "own gradient": _own_gradient,
    "recomputed": _recomputed,
    "dropout": _dropout,
    "stateless dropout": _stateless_dropout,
    "generator": _generator,
    "gather": _gathered,
    "segments": _segments,
    "scatter": _scattered,
    "top k": _topped,
    "long sum": _long_sum,
    "concatenation": _concatenated,
    "noise": _one(lambda y: y + 0.1 * tf.random.normal((_BATCH, _WIDTH))),
    "tanh": _one(tf.tanh),
    "relu": _one(tf.nn.relu),
    "gelu": _one(tf.nn.gelu),
    "softplus": _one(tf.nn.softplus),
    "selu": _one(tf.nn.selu),
    "softmax": _one(tf.nn.softmax),
    "log softmax": _one(tf.nn.log_softmax),
    "square root": _one(lambda y: tf.sqrt(tf.abs(y) + 0.1)),
    "logarithm": _one(lambda y: tf.math.log1p(tf.abs(y))),
    "exponential": _one(lambda y: tf.exp(-tf.square(y))),
    "quotient": _one(lambda y: y / (1.0 + tf.abs(y))),
    "power": _one(lambda y: tf.pow(tf.abs(y) + 0.5, 0.7)),
    "maximum": _one(lambda y: tf.maximum(y, tf.reduce_mean(y, 0, keepdims=True))),
    "choice": _one(lambda y: tf.where(y > 0.0, tf.sin(y), y * 0.1)),
    "half precision": _one(lambda y: tf.cast(tf.tanh(tf.cast(y, tf.float16)), tf.float32)),
    "double precision": _one(lambda y: tf.cast(tf.sin(tf.cast(y, tf.float64)), tf.float32)),
    "bfloat16": _one(lambda y: tf.cast(tf.nn.relu(tf.cast(y, tf.bfloat16)), tf.float32)),
    "transposes": _one(lambda y: tf.transpose(tf.tanh(tf.transpose(y)))),
    "slices": _one(lambda y: tf.pad(y[:, 1:-1] * 2.0, [[0, 0], [1, 1]])),
    "reverse": _one(lambda y: tf.reverse(y, [1])),
    "roll": _one(lambda y: tf.roll(y, 3, 1)),
    "cumulated": _one(lambda y: tf.cumsum(y, 1) * 0.1),
    "sorted": _one(lambda y: tf.sort(y, 1)),
    "normalized": _one(lambda y: tf.math.l2_normalize(y, 1) * 5.0),
    "one hot": _one(lambda y: y + tf.one_hot(tf.argmax(y, 1), _WIDTH)),
    "tiles": _one(lambda y: tf.tile(tf.reduce_max(y, 1, keepdims=True), (1, _WIDTH)) + y),
    "checked": _one(lambda y: tf.debugging.check_numerics(y, "y")),
}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(1e-2, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(1e-2, clipnorm=1.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(1e-2),
    "adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "adamax": lambda: keras.optimizers.Adamax(1e-2, global_clipnorm=1.0),
    "nadam": lambda: keras.optimizers.Nadam(1e-2),
    "lion": lambda: keras.optimizers.Lion(1e-3, use_ema=True),
    "ftrl": lambda: keras.optimizers.Ftrl(1e-2),
}


def random_schedule(costs: CostGraph, seed: int, *, repeats: float = 0.25) -> Schedule:
    """A valid schedule drawn at random: any order that the graph allows, with recomputations anywhere that they are allowed."""
    rng = random.Random(seed)
    tasks, buffers = costs.tasks, costs.buffers
    needs: list[set[int]] = [set(task.after) for task in tasks]
    for t, task in enumerate(tasks):
        needs[t] |= {p for b in task.inputs if (p := buffers[b].producer) is not None}
    for t, task in enumerate(tasks):
        for b in (*task.inputs, *task.outputs):
            killer = buffers[b].killed_by
            if killer is not None and killer != t:
                needs[killer].add(t)
    done: set[int] = set()
    steps: list[int] = []
    ready = sorted(t for t in range(len(tasks)) if not needs[t])
    readers: dict[int, list[int]] = {}
    for t, before in enumerate(needs):
        for b in before:
            readers.setdefault(b, []).append(t)
    while ready:
        t = ready.pop(rng.randrange(len(ready)))
        steps.append(t)
        done.add(t)
        ready += sorted(r for r in readers.get(t, ()) if needs[r] <= done and r not in done)
        while rng.random() < repeats:
            again = steps[rng.randrange(len(steps))]
            touched = (*tasks[again].inputs, *tasks[again].outputs)
            kills = any(buffer.killed_by == again for buffer in buffers)
            if tasks[again].recomputable and not kills and not any(buffers[b].killed_by in done for b in touched):
                steps.append(again)
    assert len(done) == len(tasks)
    return Schedule(tuple(steps))
