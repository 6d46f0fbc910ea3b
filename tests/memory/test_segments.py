"""Loops run in segments where recomputing alone does not keep a budget, and only where that is proved."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.errors import InfeasibleError, VerificationWarning
from graphwright.ir.traits.control_flow import LOOPS
from graphwright.memory import plan_step
from graphwright.memory.planning import map_tasks
from graphwright.memory.segments import segment_candidates
from graphwright.memory.verbs import Candidate
from graphwright.step.executor_peak import inter_op_threads
from graphwright.step.flatten import flat_step
from graphwright.step.targets import trace

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")
OPTIONS: dict[str, Any] = {"cache_dir": None, "time_limit_s": 0.5}


def recurrent(rounds: int = 64, *, ends_early: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """A recurrent step with a loop that keeps 16 KiB three times a round."""
    weight = tf.Variable(np.random.default_rng(0).normal(0, 0.2, (32, 32)).astype(np.float32))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            body = lambda i, y: (i + 1, tf.sin(tf.tanh(y @ weight)) + x)  # noqa: E731 - a loop's body
            goes_on = lambda i, y: tf.logical_and(i < rounds, tf.reduce_sum(y) < 1e9) if ends_early else i < rounds  # noqa: E731
            loss = tf.reduce_mean(tf.while_loop(goes_on, body, (0, x))[1] ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return tf.function(step), (tf.constant(np.random.default_rng(1).normal(size=(128, 32)).astype(np.float32)),)


def test_a_budget_below_every_recomputation_is_kept_in_segments() -> None:
    step, inputs = recurrent()
    fast = gw.optimize_memory(step, 0.4, inputs=inputs, verify="run", **OPTIONS)
    plan = fast.plan
    assert plan.peak_bytes <= 0.4 * plan.original_peak_bytes
    assert plan.how["plan"].startswith("segment: loop while in segments of ")
    assert plan.verification.startswith("equal bit for bit")
    assert "1 loops run in segments" in plan.verification
    assert 0 < plan.recomputed_flops < 0.5
    assert {verb for layer in plan.layers for verb in layer.verbs} == {"segment"}


def test_a_mild_budget_runs_only_the_first_rounds_again() -> None:
    step, inputs = recurrent()
    milder, mild, tight = (gw.optimize_memory(step, budget, inputs=inputs, **OPTIONS).plan for budget in (0.9, 0.7, 0.4))
    assert milder.peak_bytes > 0.75 * milder.original_peak_bytes
    assert milder.overhead < 0.8 * mild.overhead
    assert 0.5 * mild.original_peak_bytes <= mild.peak_bytes <= 0.7 * mild.original_peak_bytes
    assert " up to round " in mild.how["plan"]
    assert mild.overhead < 0.8 * tight.overhead
    assert "1 loops run in segments" in mild.verification


def layers() -> tuple[Any, tuple[Any, ...]]:
    """Two recurrent layers of 64 rounds, the second of which is dear, with the sequences that they hand on."""
    random = np.random.default_rng(0)
    weights = [tf.Variable(random.normal(0, 0.1, (32, 32)).astype(np.float32)) for _ in range(2)]

    def layer(sequence: Any, weight: Any, products: int) -> Any:
        taken = tf.TensorArray(tf.float32, 64).unstack(sequence)
        y, made = tf.zeros((256, 32)), tf.TensorArray(tf.float32, 64)
        for t in tf.range(64):
            y = tf.tanh(taken.read(t) + y @ weight)
            for _ in range(products):
                y = tf.tanh(y @ weight)
            made = made.write(t, y)
        return made.stack()

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(layer(x, weights[0], 0), weights[1], 3) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    return step, (tf.constant(random.normal(size=(64, 256, 32)).astype(np.float32)),)


def test_rounds_that_keep_their_intermediates_take_no_more_than_these() -> None:
    """The sequences that loops hand on are there once, also where a loop for the last rounds comes between."""
    step, inputs = layers()
    flat = flat_step(trace(step, inputs=inputs))
    mild, whole, *_ = segment_candidates(Candidate(flat, map_tasks(flat)), map_tasks, 18 * 2**20)
    kept = re.fullmatch(r"loop while_1 in segments of \d rounds up to round (\d+) of 64, each .*", mild.how)
    assert kept is not None
    assert mild.peak_bytes - whole.peak_bytes < 1.2 * (64 - int(kept[1])) * 4 * 36864


@pytest.mark.slow
def test_first_rounds_in_segments_take_what_was_predicted() -> None:
    step, inputs = layers()
    fast = gw.optimize_memory(step, 18 * 2**20, inputs=inputs, allow=["segment"], **OPTIONS)
    assert " up to round " in fast.plan.rewritten
    assert gw.measure(fast, inputs, time=False, steps=1).peak_bytes <= fast.plan.budget_bytes


def test_reshapes_there_and_back_inside_a_loop_are_proved_too() -> None:
    """Of a body that was read back from TensorFlow no shapes are known."""
    weight = tf.Variable(np.full((32, 32), 0.01, np.float32))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            body = lambda i, y: (i + 1, tf.sin(tf.reshape(tf.reshape(tf.tanh(y @ weight), (64, 64)), (128, 32))))  # noqa: E731 - a loop's body
            loss = tf.reduce_mean(tf.while_loop(lambda i, y: i < 64, body, (0, x))[1] ** 2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    plan = gw.optimize_memory(step, 0.5, inputs=(tf.ones((128, 32)),), **OPTIONS).plan
    assert "1 loops run in segments" in plan.verification


def test_a_segment_with_as_many_values_as_its_gradient_is_told_from_it() -> None:
    """A loop that reads its variable in each round has as many as its gradient loop and two more."""
    weight = tf.Variable(np.full((16, 16), 0.05, np.float32))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.zeros_like(x[0])
            for k in tf.range(64):
                h = tf.tanh((h + x[k]) @ weight)
            loss = tf.reduce_mean(h**2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    plan = gw.optimize_memory(step, 0.6, inputs=(tf.ones((64, 256, 16)),), **OPTIONS).plan
    assert "1 loops run in segments" in plan.verification


def test_a_loop_that_may_end_early_is_counted_with_all_its_rounds() -> None:
    plans = [gw.optimize_memory(step, 0.7, inputs=inputs, **OPTIONS).plan for step, inputs in (recurrent(), recurrent(ends_early=True))]
    assert plans[0].original_peak_bytes == pytest.approx(plans[1].original_peak_bytes, rel=0.1)
    assert plans[0].rewritten.startswith("loop while in segments of 6 rounds up to round ")
    assert plans[1].rewritten.startswith("loop while in segments of 6 rounds, ")


def test_the_smallest_budget_is_what_segments_reach() -> None:
    step, inputs = recurrent()
    with pytest.raises(InfeasibleError) as error:
        gw.optimize_memory(step, 0.01, inputs=inputs, **OPTIONS)
    smallest = error.value.smallest_budget_bytes
    assert smallest is not None
    assert gw.optimize_memory(step, smallest, inputs=inputs, **OPTIONS).plan.peak_bytes <= smallest


def test_a_plan_in_segments_is_found_in_the_cache(tmp_path: Any) -> None:
    step, inputs = recurrent()
    options: dict[str, Any] = {**OPTIONS, "cache_dir": tmp_path, "inputs": inputs}
    bytes_in_segments = gw.optimize_memory(step, 0.36, **options).plan.peak_bytes
    assert gw.optimize_memory(step, 0.36, **options).plan.peak_bytes == bytes_in_segments


def test_what_is_not_proved_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step, inputs = recurrent()
    monkeypatch.setattr(plan_step, "segments_difference", lambda *_: "a segment is something else")
    with pytest.warns(VerificationWarning, match="a segment is something else"):
        fast = gw.optimize_memory(step, 0.4, inputs=inputs, on_failure="original", **OPTIONS)
    assert not fast.plans  # the original runs


def test_iterations_overlap_where_the_peak_of_the_plan_leaves_room() -> None:
    step, inputs = recurrent()

    def overlapping(budget: Any) -> list[int]:
        planned = gw.optimize_memory(step, budget, inputs=inputs, **OPTIONS).concrete_function(*inputs)
        return [node.attr["parallel_iterations"].i for node in planned.graph.as_graph_def().node if node.op in LOOPS]

    roomy, tight = overlapping(64 * 2**20), overlapping(0.4)
    assert max(roomy) == inter_op_threads()
    assert min(tight) == 1
