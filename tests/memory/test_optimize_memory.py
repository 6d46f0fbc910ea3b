"""A step in a budget: same results, budget kept, and a clear error for everything that cannot be."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.ir.edit.insert import insert_after
from graphwright.ir.walk import backward_reachable
from graphwright.memory import optimized_step as module
from graphwright.memory import plan_step
from graphwright.source.concrete_function import from_concrete_function
from graphwright.transform.proof import Proof
from tests.memory.xla.chain import chain


def _descend(weight: Any, x: Any, *, layers: int = 6, dropout: float = 0.0) -> Any:
    """One step of gradient descent on a chain of layers with one weight; the loss before it."""
    with tf.GradientTape() as tape:
        y = x
        for _ in range(layers):
            y = tf.tanh(y @ weight)
            y = tf.nn.dropout(y, dropout) if dropout else y
        loss = tf.reduce_mean(y * y)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss


def test_a_step_keeps_its_budget_and_its_results(conv_step: Any) -> None:
    step, inputs, _ = conv_step
    fast = gw.optimize_memory(step, budget=0.6, inputs=inputs)
    assert fast.plan.peak_bytes <= 0.6 * fast.plan.original_peak_bytes
    assert fast.plan.resident_bytes < fast.plan.lower_bound_bytes <= fast.plan.peak_bytes
    assert fast.plan.verification.startswith("equal by structure")
    assert "recompute" in {verb for layer in fast.plan.layers for verb in layer.verbs}
    assert fast.plan.recomputed_count > 0
    found = gw.verify(step, fast, inputs, steps=3)
    assert found.bitwise, found


def test_without_inputs_the_plan_is_made_at_the_first_call(conv_step: Any) -> None:
    step, inputs, _ = conv_step
    fast = gw.optimize_memory(step, budget=0.7)
    with pytest.raises(gw.ArgumentError, match="nothing was planned"):
        _ = fast.plan
    fast(*inputs)
    assert fast.plan.verification.startswith("equal")
    fast(*inputs)
    assert len(fast.plans) == 1


def test_a_smaller_batch_follows_the_plan_of_the_larger_one(conv_step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, (x, y), _ = conv_step
    fast = gw.optimize_memory(step, budget=0.6, inputs=(x, y))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("planned anew")

    monkeypatch.setattr("graphwright.memory.planning.solve", refuse)
    smaller = (x[:8], y[:8])
    assert gw.verify(step, fast, smaller).bitwise
    fast(*smaller)
    assert len(fast.plans) == 2
    assert fast.plan.feeds["x"][0] == 16  # the plan shown is the one of the larger batch


def test_a_second_process_would_read_the_plan_from_the_cache(conv_step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, inputs, _ = conv_step
    first = gw.optimize_memory(step, budget=0.6, inputs=inputs, cache_dir=tmp_path).plan

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("planned anew")

    monkeypatch.setattr("graphwright.memory.planning.solve", refuse)
    second = gw.optimize_memory(step, budget=0.6, inputs=inputs, cache_dir=tmp_path).plan
    assert second.peak_bytes == first.peak_bytes
    assert "plan cache" in second.how["plan"]


def test_feeds_plan_without_values_and_run_both_ways_at_the_first_call(conv_step: Any) -> None:
    step, inputs, _ = conv_step
    fast = gw.optimize_memory(step, budget=0.7, feeds={"x": (16, 24, 24, 3), "y": tf.TensorSpec((16,), tf.int32)}, verify="run")
    assert fast.plan.peak_bytes <= 0.7 * fast.plan.original_peak_bytes
    assert fast.plan.verification.startswith("equal by structure")
    fast(inputs[0], tf.cast(inputs[1], tf.int32))
    assert fast.plan.verification.startswith("equal bit for bit")
    assert "equal by structure" in fast.plan.verification
    assert len(fast.plans) == 1


def test_inside_another_function_it_follows_the_plan(conv_step: Any) -> None:
    step, inputs, _ = conv_step
    fast = gw.optimize_memory(step, budget=0.7)

    @tf.function
    def epoch(x: Any, y: Any) -> Any:
        loss = 0.0
        for _ in range(2):
            loss = fast(x, y)["loss"]
        return loss

    losses = [float(epoch(*inputs)) for _ in range(2)]
    assert losses[1] != losses[0]
    assert len(fast.plans) == 1


def test_the_curve_falls_in_memory_and_rises_in_time(conv_step: Any) -> None:
    step, inputs, _ = conv_step
    plan = gw.optimize_memory(step, budget=0.6, inputs=inputs, verify=False, curve_points=3).plan
    peaks = [p.peak_bytes for p in plan.curve]
    assert peaks == sorted(peaks, reverse=True)
    assert (peaks[0], peaks[-1]) == (plan.original_peak_bytes, plan.peak_bytes)
    assert len(peaks) > 2


def _wrong_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every plan subtract from a moving mean what it should add."""
    follow = plan_step.follow_schedule

    def follow_wrongly(flat: Any, *args: Any) -> Any:
        node = next(n for n in flat.graph.nodes if n.op_type == "AssignSubVariableOp")
        insert_after(node.inputs[1], "Neg", "negative", attrs={"T": node.inputs[1].dtype})
        return follow(flat, *args)

    monkeypatch.setattr(plan_step, "follow_schedule", follow_wrongly)


@pytest.mark.parametrize("verify", ["structure", "run"])
def test_a_step_that_is_not_proved_by_structure_is_not_used(conv_step: Any, monkeypatch: pytest.MonkeyPatch, verify: Any) -> None:
    step, inputs, model = conv_step
    _wrong_plans(monkeypatch)
    before = model.get_weights()
    options: dict[str, Any] = {"inputs": inputs, "cache_dir": None, "verify": verify}
    with pytest.raises(gw.VerificationError, match=r"not proved: .*AssignSubVariableOp.* does something else"):
        gw.optimize_memory(step, 0.7, **options)
    with pytest.warns(gw.VerificationWarning, match=r"not proved: .*AssignSubVariableOp.* does something else"):
        fast = gw.optimize_memory(step, 0.7, on_failure="original", **options)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = [float(fast(*inputs)["loss"]) for _ in range(2)]
    assert losses[0] != losses[1]  # the original ran: it trains


def test_what_running_finds_is_not_used(conv_step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, inputs, _ = conv_step
    _wrong_plans(monkeypatch)
    monkeypatch.setattr(plan_step, "prove_function", lambda *_: Proof("", 1))
    options: dict[str, Any] = {"inputs": inputs, "cache_dir": None, "verify": "run"}
    with pytest.raises(gw.VerificationError, match="differs from the original: variable"):
        gw.optimize_memory(step, 0.7, **options)
    with pytest.warns(gw.VerificationWarning, match="differs from the original: variable"):
        fast = gw.optimize_memory(step, 0.7, on_failure="original", **options)
    assert float(fast(*inputs)["loss"]) > 0


@pytest.mark.slow
def test_a_warning_that_is_an_error_finds_the_variables_put_back(conv_step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, inputs, model = conv_step
    _wrong_plans(monkeypatch)
    monkeypatch.setattr(plan_step, "prove_function", lambda *_: Proof("", 1))
    fast = gw.optimize_memory(step, budget=0.7, cache_dir=None, verify="run", on_failure="original")
    before = model.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("error", gw.VerificationWarning)
        with pytest.raises(gw.VerificationWarning, match="differs from the original: variable"):
            fast(*inputs)
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
        assert not fast.plans
        assert float(fast(*inputs)["loss"]) > 0  # by the original, without a word


@pytest.mark.parametrize("error", [KeyboardInterrupt, tf.errors.ResourceExhaustedError(None, None, "no memory")])
def test_a_proof_that_did_not_end_proves_nothing(conv_step: Any, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    step, inputs, model = conv_step
    feeds = {"x": (16, 24, 24, 3), "y": tf.TensorSpec((16,), tf.int32)}
    fast = gw.optimize_memory(step, budget=0.7, feeds=feeds, cache_dir=None, verify="run", on_failure="original")
    before = model.get_weights()

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "verify_steps", fail)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                fast(*inputs)
        else:
            with pytest.warns(gw.VerificationWarning, match="failed: ResourceExhaustedError"):
                fast(*inputs)
            assert not fast.plans  # the original runs from now on
            return
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    fast(*inputs)  # is proved now, before it is used
    assert fast.plan.verification.startswith("equal bit for bit")


@pytest.mark.slow
def test_running_both_ways_says_before_when_the_original_does_not_fit(conv_step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, inputs, _ = conv_step
    monkeypatch.setattr(module, "free_bytes", lambda: 1_000_000)
    with pytest.raises(gw.UnsupportedError, match=r"needs .* for the original step; 977 KiB are free"):
        gw.optimize_memory(step, budget=0.7, inputs=inputs, cache_dir=None, verify="run")
    assert gw.optimize_memory(step, budget=0.7, inputs=inputs, cache_dir=None).plan.verification.startswith("equal by structure")


def test_threads_share_one_plan_and_lose_no_update() -> None:
    weight, count = tf.Variable(tf.ones((64, 64)) * 0.1), tf.Variable(0)

    @tf.function
    def step(x: Any) -> Any:
        loss = _descend(weight, x)
        count.assign_add(1)
        return loss

    fast = gw.optimize_memory(step, budget=0.8, cache_dir=None)
    with warnings.catch_warnings(), ThreadPoolExecutor(8) as threads:
        warnings.simplefilter("error")
        list(threads.map(lambda _: fast(tf.ones((512, 64))), range(24)))
    assert int(count) == 24
    assert len(fast.plans) == 1
    assert fast.plan.verification.startswith("equal by structure")


def test_a_variable_that_is_given_twice_is_one() -> None:
    @tf.function
    def step(a: Any, b: Any) -> Any:
        a.assign_add(1.0)
        b.assign(b * 2.0)
        return a + b

    fast = gw.optimize_memory(step, budget="1MiB", cache_dir=None)
    first, second = tf.Variable(1.0), tf.Variable(3.0)
    assert float(fast(first, second)) == 8.0
    assert float(fast(second, second)) == 28.0  # (6 + 1) * 2, twice
    assert len(fast.plans) == 2


def test_an_iterator_gives_each_batch_once() -> None:
    weight = tf.Variable(tf.ones((64, 64)) * 0.1)

    @tf.function
    def step(batches: Any) -> Any:
        x = next(batches)
        _descend(weight, x)
        return x[0, 0]

    data = tf.data.Dataset.range(1, 6).map(lambda k: tf.fill((512, 64), tf.cast(k, tf.float32)))
    fast = gw.optimize_memory(step, budget=0.8, cache_dir=None)
    batches = iter(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = [float(fast(batches)) for _ in range(5)]
    assert seen == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert fast.plan.recomputed_count > 0
    with pytest.raises(gw.UnsupportedError, match="resource that is not a variable"):
        gw.verify(step, fast, (iter(data),))


def test_a_proof_that_finds_a_damaged_graph_falls_back_to_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [tf.Variable(tf.ones((64, 64)) * 0.1) for _ in range(2)]
    steps = [tf.function(lambda x, weight=weight: _descend(weight, x)) for weight in weights]
    x = tf.ones((512, 64))

    def refuse(*_: Any) -> None:
        raise gw.GraphError("two nodes have one name")

    monkeypatch.setattr(plan_step, "prove_function", refuse)
    fast = gw.optimize_memory(steps[0], budget=0.8, cache_dir=None, on_failure="original")
    with pytest.warns(gw.VerificationWarning, match="the original step runs.* cannot be built: GraphError: two nodes have one name"):
        loss = fast(x)
    assert not fast.plans
    assert float(loss) == float(steps[1](x))
    assert np.array_equal(weights[0].numpy(), weights[1].numpy())


@pytest.mark.parametrize("error", [ValueError("stop"), gw.GraphError("stop"), KeyboardInterrupt("stop")])
def test_what_a_progress_callback_raises_reaches_the_caller(error: BaseException) -> None:
    weight = tf.Variable(tf.ones((64, 64)) * 0.1)
    step, x, before = tf.function(lambda x: _descend(weight, x)), tf.ones((512, 64)), weight.numpy()
    raises = True

    def progress(share: float, text: str) -> None:
        if raises and share > 0.0:
            raise error

    fast = gw.optimize_memory(step, budget=0.8, cache_dir=None, progress=progress)
    for _ in range(2):
        with pytest.raises(type(error), match="stop") as caught:
            fast(x)
        assert caught.value is error
    assert np.array_equal(before, weight.numpy())
    raises = False
    fast(x)
    assert not np.array_equal(before, weight.numpy())
    assert fast.plan.verification.startswith("equal by structure")


def test_other_threads_see_whole_plans_alone_while_one_is_made() -> None:
    weight = tf.Variable(tf.ones((64, 64)) * 0.1)
    seen: list[int] = []

    def look(_share: float, _text: str) -> None:
        with ThreadPoolExecutor(1) as thread:
            seen.append(thread.submit(lambda: len(fast.plans)).result(timeout=30))

    fast = gw.optimize_memory(tf.function(lambda x: _descend(weight, x)), budget=0.8, cache_dir=None, progress=look)
    fast(tf.ones((512, 64)))
    fast(tf.ones((1024, 64)))  # does not fit the first plan
    assert seen[0] == 0
    assert seen[-1] == 1
    assert len(fast.plans) == 2

    class Planned:
        @property
        def plan(self) -> None:  # another thread ends its planning while the plans are read
            fast._planned[len(fast._planned)] = None

    fast._planned["new"] = Planned()
    assert len(fast.plans) == 3


def test_an_unknown_dimension_names_the_node_or_the_argument() -> None:
    step = tf.function(lambda x: tf.reduce_sum(tf.nn.relu(x)), input_signature=[tf.TensorSpec((None, 1024), tf.float32, name="x")])
    with pytest.raises(gw.UnknownShapeError, match=r"argument 'x' has the shape \[\?,1024\]"):
        gw.inspect(step)
    report = gw.inspect(step, feeds={"x": (8, 1024)})
    assert report.feeds == {"x": (8, 1024)}
    masked = tf.function(lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)))
    bounded, taken = (gw.inspect(masked, **given) for given in ({"feeds": {"x": (4096,)}}, {"inputs": (tf.ones((4096,)),)}))
    assert "upper bounds, with as many rows as there can be: boolean_mask/Where" in bounded.how["sizes"]
    assert "as in the example inputs" in taken.how["sizes"]
    assert "with the sizes of the example inputs" in taken.verdict
    unbounded = tf.function(lambda n: tf.reduce_sum(tf.sort(tf.zeros([tf.reduce_sum(n)]))))
    with pytest.raises(gw.UnknownShapeError, match=r"(?s)depends on data, and nothing bounds it: 'zeros' \(Fill\).*tf\.ensure_shape"):
        gw.inspect(unbounded, feeds={"n": tf.TensorSpec((64,), tf.int32)})
    assert "as in the example inputs" in gw.inspect(unbounded, inputs=(tf.ones((64,), tf.int32),)).how["sizes"]


def test_a_variable_read_before_and_after_its_update_stays_on_its_side() -> None:
    weight = tf.Variable(tf.ones((256, 256)) * 0.1)

    @tf.function
    def step(x: Any) -> Any:
        return _descend(weight, x, layers=8), tf.reduce_sum(tf.tanh(x @ weight))

    x = tf.random.stateless_normal((1024, 256), (0, 1))
    fast = gw.optimize_memory(step, budget=0.8, inputs=(x,))
    assert fast.plan.recomputed_count > 0
    assert gw.verify(step, fast, (x,), steps=3).bitwise


def test_stateful_random_nodes_run_once() -> None:
    weight = tf.Variable(tf.ones((128, 128)) * 0.1)

    @tf.function
    def step(x: Any) -> Any:
        return _descend(weight, x, dropout=0.3)

    x = tf.random.stateless_normal((1024, 128), (0, 1))
    fast = gw.optimize_memory(step, budget=0.8, inputs=(x,))
    assert fast.plan.recomputed_count > 0
    operations = [op.name for op in fast.concrete_function(x).graph.get_operations()]
    assert any(name.startswith("recomputed/") for name in operations)
    assert not any("recomputed/" in name and "RandomUniform" in name.rsplit("/", 1)[-1] for name in operations)
    assert gw.verify(step, fast, (x,), steps=2).bitwise


def test_a_variable_is_updated_when_nobody_holds_what_it_was() -> None:
    """Else TensorFlow copies it first: the gradient of a weight may be there before the gradient of what it was multiplied with."""
    step, x, weights = chain(8, width=128, scale=10, batch=1024, compiled=False)
    fast = gw.optimize_memory(step, budget=0.8, inputs=(x,))
    graph = from_concrete_function(fast.concrete_function(x), planned=False)[0]
    updates = {node.inputs[0]: node for node in graph.nodes if node.op_type == "AssignSubVariableOp"}
    reads = [node for node in graph.nodes if node.op_type == "ReadVariableOp"]
    assert len(updates) == len(reads) == len(weights)
    for read in reads:
        assert len(read.outputs[0].consumers) >= 2 or read is reads[0]
        assert set(read.outputs[0].consumers) <= backward_reachable([updates[read.inputs[0]]]), read
