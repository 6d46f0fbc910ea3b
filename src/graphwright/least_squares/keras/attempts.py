"""One batch, one step: tried at growing damping until one lowers the loss; and what the next batch says of it. All TensorFlow."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from graphwright.least_squares.damping import eased_damping, raised_damping
from graphwright.least_squares.linear_systems import Linearization, LinearSystem

tf: Any = importlib.import_module("tensorflow")

CostOf = Callable[[Any], Any]
_HARM = 2.0
"""A step that raises the loss of the next batch by more than this factor is taken back."""


class Attempted(NamedTuple):
    """What came of a batch. Tensors.

    Attributes:
        point: the parameters after it (n,).
        cost: the loss there.
        promised: by how much the first step tried should have lowered it.
        gain: actual reduction over the predicted one, of the step taken; 0 if none was.
        damping: of the last step, if it was taken; else for the next one.
        growth: factor of the next refusal.
        attempts: steps tried.
        accepted: whether the last one was taken.
    """

    point: Any
    cost: Any
    promised: Any
    gain: Any
    damping: Any
    growth: Any
    attempts: Any
    accepted: Any


def attempt_steps(
    cost_of: CostOf,
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
        cost_of: parameters -> the loss of the batch.
        scale: units of the parameters (n,).
        growth: what a first refusal multiplies it with.
        attempts: steps tried at most.
        limits: smallest and largest damping.
    """
    smallest, largest = max(limits[0], system.smallest_damping), limits[1]

    def go_on(state: Attempted) -> Any:
        return ~state.accepted & (state.attempts < attempts)

    def attempt(state: Attempted) -> tuple[Attempted]:
        step, _ = system.step(point, at, scale, state.damping, None)
        predicted = -tf.reduce_sum(at.gradient * step) - system.half_square(point, at, step)
        target = point + step
        reached = cost_of(target)
        accepted = (reached < cost) & (predicted > 0.0)  # never where one of them is not a number
        raised, growth = raised_damping(state.damping, state.growth)
        return (
            Attempted(
                point=tf.where(accepted, target, point),
                cost=tf.where(accepted, reached, cost),
                promised=tf.maximum(predicted, state.promised),  # the first, at the smallest damping
                gain=tf.where(accepted, (cost - reached) / predicted, tf.zeros_like(cost)),
                damping=tf.where(accepted, state.damping, tf.minimum(raised, largest)),
                growth=tf.where(accepted, tf.constant(2.0, growth.dtype), growth),
                attempts=state.attempts + 1,
                accepted=accepted,
            ),
        )

    start = Attempted(
        point=point,
        cost=cost,
        promised=tf.zeros_like(cost),
        gain=tf.zeros_like(cost),
        damping=tf.clip_by_value(damping, smallest, largest),
        growth=tf.convert_to_tensor(growth),
        attempts=tf.constant(0),
        accepted=tf.constant(False),
    )
    return tf.while_loop(go_on, attempt, (start,), parallel_iterations=1)[0]


class Judged(NamedTuple):
    """What a batch says of the step taken before it. Tensors.

    Attributes:
        point: where to go on (n,): where the step led, or where it came from if it did harm.
        cost: the loss of this batch there.
        damping: eased or raised.
        growth: factor of the next refusal.
    """

    point: Any
    cost: Any
    damping: Any
    growth: Any


def judge_step(cost_of: CostOf, before: Any, point: Any, gain: Any, damping: Any, growth: Any) -> Judged:
    """What a batch says of a step that was made for the batch before it.

    On its own batch every step gains. It eases the damping by Nielsen's rule only if it lowers the loss of the next batch too; otherwise it
    raises it. Where batches are all of the data, this is Nielsen's rule.

    Args:
        cost_of: parameters -> the loss of the new batch.
        before: where the step came from (n,).
        point: where it led (n,).
        gain: actual reduction of its own batch's loss over the predicted one; 0 if there was no step.
        damping: of the step.
        growth: what a refusal multiplies it with.
    """
    cost = cost_of(point)
    moved = gain > 0.0
    earlier = tf.cond(moved, lambda: cost_of(before), lambda: cost)
    harmed = moved & ~(cost <= _HARM * earlier)
    # Other samples are noise to a step: a loss there raises the damping, but losses in a row do not raise it ever faster.
    following = tf.where(cost < earlier, eased_damping(damping, gain), 2.0 * damping)
    return Judged(
        point=tf.where(harmed, before, point),
        cost=tf.where(harmed, earlier, cost),
        damping=tf.where(moved, following, damping),
        growth=growth,
    )
