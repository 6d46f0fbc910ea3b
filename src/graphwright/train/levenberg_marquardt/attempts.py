"""One batch, one step: tried at growing damping until one lowers the loss. All TensorFlow, one loop."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from graphwright.train.damped_least_squares.damping import updated_damping
from graphwright.train.damped_least_squares.linear_systems import Linearization, LinearSystem

tf: Any = importlib.import_module("tensorflow")


class Attempted(NamedTuple):
    """What came of a batch. Tensors.

    Attributes:
        point: the parameters after it (n,).
        cost: the loss there.
        predicted: by how much the first step tried should have lowered it.
        damping: for the next batch.
        growth: factor of the next refusal.
        attempts: steps tried.
        accepted: whether the last one was taken.
    """

    point: Any
    cost: Any
    predicted: Any
    damping: Any
    growth: Any
    attempts: Any
    accepted: Any


def attempt_steps(
    rows: Any,
    system: LinearSystem,
    point: Any,
    cost: Any,
    at: Linearization,
    scale: Any,
    damping: Any,
    growth: Any,
    *,
    attempts: int,
    limits: tuple[float, float],
) -> Attempted:
    """Try steps from `point` until one lowers the loss.

    Args:
        rows: of the batch.
        system: that linearized it.
        point: the parameters (n,).
        cost: the loss there.
        at: the linearization there.
        scale: units of the parameters (n,).
        damping: of the first step tried.
        growth: what a first refusal multiplies it with.
        attempts: steps tried at most.
        limits: smallest and largest damping.
    """
    free = tf.ones_like(point)
    smallest, largest = max(limits[0], system.smallest_damping), limits[1]

    def go_on(state: Attempted) -> Any:
        return ~state.accepted & (state.attempts < attempts)

    def attempt(state: Attempted) -> tuple[Attempted]:
        step, _ = system.step(point, at, scale, state.damping, free)
        predicted = -tf.tensordot(at.gradient, step, 1) - 0.5 * system.squared_length(point, at, step)
        target = point + step
        reached = rows.cost(target)
        accepted = tf.math.is_finite(reached) & (reached < cost) & (predicted > 0.0)
        gain = tf.math.divide_no_nan(cost - reached, predicted)
        following, growth = updated_damping(state.damping, state.growth, gain, accepted)
        return (
            Attempted(
                point=tf.where(accepted, target, point),
                cost=tf.where(accepted, reached, cost),
                predicted=tf.where(state.attempts == 0, predicted, state.predicted),
                damping=tf.clip_by_value(following, smallest, largest),
                growth=growth,
                attempts=state.attempts + 1,
                accepted=accepted,
            ),
        )

    start = Attempted(
        point=point,
        cost=cost,
        predicted=tf.zeros_like(cost),
        damping=tf.clip_by_value(damping, smallest, largest),
        growth=tf.convert_to_tensor(growth),
        attempts=tf.constant(0),
        accepted=tf.constant(False),
    )
    return tf.while_loop(go_on, attempt, (start,), parallel_iterations=1)[0]
