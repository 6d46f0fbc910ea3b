"""Which verb serves a budget, and what is said of it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.errors import ArgumentError, InfeasibleError
from graphwright.memory import plan_step, planning
from graphwright.memory.verbs import read_allow
from graphwright.ops.machine import onednn_enabled
from graphwright.transform.proof import Proof
from tests.memory.test_segments import recurrent

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")


def convolutions(batch: int = 16) -> tuple[Any, tuple[Any, ...], list[Any]]:
    """Convolutions with a mask of dropout by a stateless seed."""
    rng = np.random.default_rng(4)
    weights = [tf.Variable(rng.normal(0, 0.1, (3, 3, 8, 8)).astype(np.float32)) for _ in range(4)]
    calls = tf.Variable(0)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x
            for k, weight in enumerate(weights):
                h = tf.nn.relu(tf.nn.conv2d(h, weight, 1, "SAME"))
                h = tf.nn.experimental.stateless_dropout(h, 0.2, seed=tf.stack([calls, k]))
            loss = tf.reduce_mean(tf.square(h))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        calls.assign_add(1)
        return loss

    return tf.function(step), (tf.constant(rng.normal(size=(batch, 24, 24, 8)).astype(np.float32)),), [*weights, calls]


def head_of_a_language_model(batch: int, tokens: int = 96, *, words: int = 3000, layers: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """A table of embeddings, some layers, and a product with all words for each token."""
    rng, width = np.random.default_rng(3), 64 if layers else 8
    shapes = [(words, width), *[(width, width)] * layers, (width, words)]
    weights = [tf.Variable(rng.normal(0, 0.1, shape).astype(np.float32)) for shape in shapes]

    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.gather(weights[0], given)
            for weight in weights[1:-1]:
                h = tf.tanh(tf.tensordot(h, weight, 1))
            logits = tf.tensordot(h, weights[-1], 1)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=given, logits=logits))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(tf.convert_to_tensor(gradient))
        return loss

    return tf.function(step), (tf.constant(rng.integers(0, words, (batch, tokens)).astype(np.int32)),)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_logits_of_one_sequence_are_made_by_rows(batch: int) -> None:
    step, inputs = head_of_a_language_model(batch, 192 // batch)
    fast = gw.optimize_memory(step, 0.35, inputs=inputs, allow="all", verify="run", cache_dir=None, time_limit_s=0.5)
    assert fast.plan.peak_bytes <= 0.35 * fast.plan.original_peak_bytes
    assert fast.plan.rewritten.startswith("what the largest values are for (")
    assert "equal but for the order of sums" in fast.plan.verification


def test_a_budget_below_every_recomputation_is_kept_in_parts() -> None:
    step, inputs, _ = convolutions()
    options = {"inputs": inputs, "cache_dir": None, "time_limit_s": 0.5}
    with pytest.raises(InfeasibleError, match=r'allow="all" \(.* in \d+ parts, one after another, takes') as error:
        gw.optimize_memory(step, 0.2, **options)
    assert error.value.smallest_budget_bytes is not None
    fast = gw.optimize_memory(step, 0.2, allow="all", verify="run", **options)
    plan = fast.plan
    assert plan.peak_bytes <= 0.2 * plan.original_peak_bytes
    assert plan.how["plan"].startswith("split: the batch of 16 in ")
    assert plan.rewritten.startswith("the batch of 16 in ")
    assert plan.rewritten.split(",")[0] in " ".join(plan.text("all").split())
    assert plan.status != "unchanged"
    assert "split" in {verb for layer in plan.layers for verb in layer.verbs}
    assert plan.verification.startswith("equal within the tolerance")
    assert "equal but for the order of sums over the batch" in plan.verification
    assert plan.timeline_before.peak_bytes > plan.timeline_after.peak_bytes


def test_a_plan_that_cannot_run_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that TensorFlow refuses to build as well as one that is not proved."""
    step, inputs, _ = convolutions()
    built, proved = list[Any](), list[Any]()
    build, prove = planning.to_concrete_function, plan_step.prove_function

    def refuse_first(*args: Any, **named: Any) -> Any:
        built.append(args)
        if len(built) == 1:
            raise tf.errors.InvalidArgumentError(None, None, "nodes in a cycle")
        return build(*args, **named)

    def refute_first(*args: Any) -> Proof:
        proved.append(args)
        return prove(*args) if len(proved) > 1 else Proof("it is too late")

    monkeypatch.setattr(planning, "to_concrete_function", refuse_first)
    monkeypatch.setattr(plan_step, "prove_function", refute_first)
    plan = gw.optimize_memory(step, 0.5, inputs=inputs, cache_dir=None, time_limit_s=0.5, allow="all").plan
    assert plan.peak_bytes <= 0.5 * plan.original_peak_bytes
    assert plan.how["refused"].index("nodes in a cycle") < plan.how["refused"].index("it is too late")
    assert not plan.rewritten or plan.rewritten not in plan.how["refused"]
    assert plan.verification.startswith("equal by structure")
    assert (len(built), len(proved)) == (3, 2)


def test_several_steps_in_parts_train_as_the_plain_step_does() -> None:
    step, inputs, state = convolutions(batch=10)
    fast = gw.optimize_memory(step, 0.45, inputs=inputs, allow=["split"], cache_dir=None, time_limit_s=0.5)
    assert fast.plan.recomputed_count == 0
    start, ends = [v.numpy() for v in state], list[list[Any]]()
    for run in (step, fast):
        for variable, value in zip(state, start, strict=True):
            variable.assign(value)
        losses = [float(run(*inputs)) for _ in range(4)]
        ends.append([losses, *(v.numpy() for v in state)])
    for ours, theirs in zip(*ends, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def twice(product: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Any, ...]]:
    """A step that computes some of its products twice, which Grappler knows and the traced graph does not."""
    weights = [tf.Variable(tf.random.stateless_normal((96, 96), (k, 0), stddev=0.1)) for k in range(4)]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(product(x, weight)) + tf.sin(product(x, weight))
            loss = tf.reduce_mean(tf.square(x))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return tf.function(step), (tf.random.stateless_normal((512, 96), (0, 1)),)


@pytest.mark.parametrize(
    ("make", "budget"),
    [
        pytest.param(lambda: convolutions()[:2], 0.6, marks=pytest.mark.slow),
        pytest.param(recurrent, 0.5, marks=pytest.mark.slow),
        (lambda: twice(tf.matmul), 0.75),
        pytest.param(lambda: twice(lambda x, w: tf.einsum("bi,ij->bj", x, w)), 0.75, marks=pytest.mark.slow),
    ],
)
def test_all_verbs_give_no_less_than_the_default(make: Callable[[], tuple[Any, tuple[Any, ...]]], budget: float) -> None:
    step, inputs = make()
    options: dict[str, Any] = {"inputs": inputs, "cache_dir": None, "time_limit_s": 1.0}
    default = gw.optimize_memory(step, budget, **options).plan
    every = gw.optimize_memory(step, default.budget_bytes, allow="all", **options).plan
    assert every.peak_bytes <= default.budget_bytes
    assert every.overhead <= default.overhead + 0.01  # the search has less time for each
    assert every.rewritten or every.how["graph"] == default.how["graph"]


@pytest.mark.parametrize(("sizes", "budget"), [((512, 3000, 0), 0.35), pytest.param((2048, 800, 16), 0.42, marks=pytest.mark.slow)])
def test_an_infeasible_budget_names_the_verb_that_keeps_it(sizes: tuple[int, int, int], budget: float) -> None:
    """One operation alone needs more. Behind layers, parts of it keep the budget when something is run again as well."""
    tokens, words, layers = sizes
    step, inputs = head_of_a_language_model(1, tokens, words=words, layers=layers)
    options: dict[str, Any] = {"inputs": inputs, "cache_dir": None, "time_limit_s": 0.5}
    said = r'alone needs .*allow="all" \(.* in \d parts, one after another, takes ([\d.]+) MiB and \d+ % more time\)'
    with pytest.raises(InfeasibleError) as error:
        gw.optimize_memory(step, budget, **options)
    found = re.search(said, str(error.value), re.DOTALL)
    assert found is not None
    plan = gw.optimize_memory(step, budget, allow="all", **options).plan
    assert max(plan.peak_bytes, float(found[1]) * 2**20) <= budget * plan.original_peak_bytes
    assert bool(plan.recomputed_count) == bool(layers)


def test_a_mild_budget_changes_no_bits_where_order_is_enough() -> None:
    step, inputs, _ = convolutions()
    fast = gw.optimize_memory(step, 0.97, inputs=inputs, allow="all", cache_dir=None, time_limit_s=0.5)
    assert not fast.plan.how["plan"].startswith("split")
    assert gw.verify(step, fast, inputs).bitwise


@pytest.mark.slow
@pytest.mark.skipif(not onednn_enabled(), reason="TensorFlow's own kernels have no gradients of convolutions in groups")
def test_convolutions_that_keras_has_xla_compile_run_by_kernels_where_roundings_may_change() -> None:
    keras: Any = importlib.import_module("keras")
    image = h = keras.Input((16, 16, 8))
    for groups in (8, 4):
        h = h + keras.layers.Conv2D(8, 5, padding="same", groups=groups, activation="tanh")(h)
    model = keras.Model(image, h)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    inputs = (tf.constant(np.random.default_rng(0).normal(size=(16, 16, 16, 8)).astype(np.float32)),)
    options = {"inputs": inputs, "cache_dir": None, "time_limit_s": 0.5}
    fast = gw.optimize_memory(step, 0.6, allow="all", verify="run", **options)
    fast(*inputs)
    assert fast.plan.verification.startswith("equal within the tolerance")
    assert "4 calls that hold convolutions alone and that XLA compiles in the original" in fast.plan.verification
    assert fast.plan.executor is None
    assert not {"XlaLaunch", "StatefulPartitionedCall"} & {op.type for op in fast.concrete_function(*inputs).graph.get_operations()}


@pytest.mark.slow
def test_the_cache_keeps_plans_in_parts(tmp_path: Any) -> None:
    step, inputs, _ = convolutions()
    options = {"inputs": inputs, "cache_dir": tmp_path, "time_limit_s": 0.5, "allow": "all"}
    first = gw.optimize_memory(step, 0.3, **options).plan
    second = gw.optimize_memory(step, 0.3, **options).plan
    assert (first.peak_bytes, first.overhead) == (second.peak_bytes, second.overhead)


@pytest.mark.parametrize("allow", ["split", "none", ["rewind"], 3, None])
def test_verbs_that_nobody_knows(allow: Any) -> None:
    with pytest.raises(ArgumentError, match="allow="):
        read_allow(allow)


def test_parts_with_another_mask_are_not_equal() -> None:
    """What running finds where structure is not asked: rounding is allowed, another mask is not."""
    step, inputs, state = convolutions()

    def other(draw: int) -> Callable[..., Any]:
        def changed(x: Any) -> Any:
            state[-1].assign_add(draw)
            loss = step(x)
            state[-1].assign_sub(draw)
            return loss

        return tf.function(changed)

    assert gw.verify(step, other(0), inputs, other_sums=True)
    assert not gw.verify(step, other(7), inputs, other_sums=True)
