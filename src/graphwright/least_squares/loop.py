"""One damped step, and the loop around it: all TensorFlow, no Python between steps.

Bounds: parameters at a bound that the gradient pushes against are held, and steps of the others are clipped to theirs (the two-metric
projection of D. P. Bertsekas: Projected Newton methods for optimization problems with simple constraints, 1982). The more a step is damped,
the more it resembles a projected gradient step, which descends; so refusals lead to an accepted step.

Geodesic acceleration (M. K. Transtrum, J. P. Sethna: Improvements to the Levenberg-Marquardt algorithm, 2012): the second derivative of
the residuals along the step bends it. A step whose correction is longer than `LARGEST_BEND / 2` times itself is refused: the linear model
does not hold that far.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from graphwright.least_squares.curvature import Curvature, newton_offset, no_curvature, updated_curvature
from graphwright.least_squares.damping import first_scale, loses_influence, updated_damping, updated_scale
from graphwright.least_squares.linear_systems import Linearization, LinearSystem, QrSystem, Solve
from graphwright.least_squares.rows import Rows
from graphwright.least_squares.stopping import LARGEST_DAMPING, LIGHT_DAMPING, Status, Tolerances

tf: Any = importlib.import_module("tensorflow")

LARGEST_BEND = 0.75
_GUARDED_UNTIL = 64.0
"""Growth of the damping up to which lost influence refuses a step: six refusals in a row."""
_LAST_GROWTH = 2.0**20
"""Growth of the damping in the last attempt, which begins with an undamped step: a few refusals."""


class State(NamedTuple):
    """The state of the loop: the point, its linearization, the damping, and counts. All tensors.

    `curvature` is an empty tuple for systems that do not use it.
    """

    x: Any
    cost: Any
    at: Linearization
    curvature: Curvature | tuple[()]
    scale: Any
    damping: Any
    growth: Any
    iterations: Any
    accepted: Any
    evaluations: Any
    status: Any


class Trial(NamedTuple):
    """A step that was tried: its end, predicted reduction, and whether it may be accepted."""

    step: Any
    target: Any
    cost: Any
    predicted: Any
    promising: Any


@dataclass(frozen=True)
class Descent:
    """A problem, and how to minimize it.

    Attributes:
        linearize: a traced function of `system.linearize`, since the loop contains it twice.
        first_damping: relative to squared column norms.
        geodesic: whether steps are bent.
        bounds: lower and upper ones (n,) each, or None.
        watch: called after each step with the tensors of a `LeastSquaresStep`, returns whether to stop; or None.
        jit_steps: whether XLA compiles each step, if it cannot compile the loop because of `watch`.
    """

    rows: Rows
    system: LinearSystem
    linearize: Callable[[Any], Linearization]
    tolerances: Tolerances
    first_damping: float
    geodesic: bool
    bounds: tuple[Any, Any] | None
    watch: Callable[..., Any] | None = None
    jit_steps: bool = False

    def minimize(self, start: Any) -> State:
        advance: Callable[[State], State] = self._iterate
        if self.jit_steps:
            advance = tf.function(advance, autograph=False, jit_compile=True)

        def continues(state: State) -> Any:
            return (state.status == 0) & (state.iterations < self.tolerances.max_iterations)

        def advance_and_watch(state: State) -> tuple[State]:
            after = advance(state)
            if self.watch is None:
                return (after,)
            moved, accepted = tf.norm(after.x - state.x), after.accepted > state.accepted
            stop = self.watch(after.iterations, after.cost, self.gradient_norm(after), moved, state.damping, accepted, after.x)
            return (after._replace(status=tf.where(stop & (after.status == 0), Status.STOPPED.code, after.status)),)

        state: State = tf.while_loop(continues, advance_and_watch, (self._begin(start),), parallel_iterations=1)[0]
        return state._replace(status=tf.where(state.status == 0, Status.MAX_ITERATIONS.code, state.status))

    def free(self, state: State) -> Any:
        """Return 1 for parameters that may move, 0 for parameters that the gradient pushes against their bound: (n,)."""
        if self.bounds is None:
            return tf.ones_like(state.x)
        lower, upper = self.bounds
        held = ((state.x <= lower) & (state.at.gradient > 0.0)) | ((state.x >= upper) & (state.at.gradient < 0.0))
        return tf.where(held, tf.zeros_like(state.x), tf.ones_like(state.x))

    def gradient_norm(self, state: State) -> Any:
        return tf.reduce_max(tf.abs(self.free(state) * state.at.gradient))

    def flat(self, state: State) -> Any:
        """Return which parameters that may move have no influence on the residuals: (n,) bools."""
        return (state.at.column_norms <= _epsilon(state.x) * state.scale) & (self.free(state) > 0.0)

    def undamped_offset(self, state: State) -> Any:
        """Return the relative offset at the point of a state: a scalar, NaN if the system has no undamped step."""
        free = self.free(state)
        step = self.system.undamped(state.x, state.at, state.scale, free)
        return tf.constant(np.nan, state.x.dtype) if step is None else _offset(state, step, free)

    def _begin(self, start: Any) -> State:
        cost, at = self.rows.cost(start), self.linearize(start)
        finite = tf.math.is_finite(cost) & _all_finite(at.gradient) & _all_finite(at.column_norms)
        return State(
            x=start,
            cost=cost,
            at=at,
            curvature=no_curvature(start) if isinstance(self.system, QrSystem) else (),
            scale=first_scale(at.column_norms),
            damping=tf.constant(self.first_damping, start.dtype),
            growth=tf.constant(2.0, start.dtype),
            iterations=tf.constant(0),
            accepted=tf.constant(0),
            evaluations=tf.constant(1),
            status=tf.where(finite, tf.where(cost == 0.0, Status.ZERO.code, 0), Status.NOT_FINITE.code),
        )

    def _iterate(self, state: State) -> State:
        free = self.free(state)
        step, solve = self._step(state, free)
        trial = self._try(state, step, solve, free)
        reduction = state.cost - trial.cost

        def take() -> tuple[Any, Linearization]:
            at = self.linearize(trial.target)
            accepted = _all_finite(at.gradient) & _all_finite(at.column_norms)
            steepness = tf.norm(state.at.gradient * free / state.scale), tf.norm(at.gradient * free / state.scale)
            accepted &= (reduction > 0.0) | (steepness[1] <= 0.9 * steepness[0])
            if isinstance(self.system, QrSystem):
                lost = loses_influence(state.at.column_norms, state.at.residual_norm, at.column_norms, at.residual_norm)
                accepted &= ~lost | (state.growth > _GUARDED_UNTIL)
            # A branch rather than `tf.where`, which would copy the factor: it may be the largest tensor in memory.
            return tf.cond(accepted, lambda: (accepted, at), lambda: (accepted, state.at))

        accepted, at = tf.cond(trial.promising, take, lambda: (tf.constant(False), state.at))
        gain = tf.where(reduction > 0.0, tf.math.divide_no_nan(reduction, trial.predicted), tf.ones_like(reduction))
        damping, growth = updated_damping(state.damping, state.growth, gain, accepted)
        shortened = tf.math.divide_no_nan(at.residual_norm, state.at.residual_norm)
        after = State(
            x=tf.where(accepted, trial.target, state.x),
            cost=tf.where(accepted, trial.cost, state.cost),
            at=at,
            curvature=tf.cond(accepted, lambda: self._updated_curvature(state, at, trial, reduction), lambda: state.curvature),
            scale=tf.where(accepted, updated_scale(state.scale, at.column_norms, state.damping, shortened), state.scale),
            damping=tf.clip_by_value(damping, self.system.smallest_damping, LARGEST_DAMPING),
            growth=growth,
            iterations=state.iterations + 1,
            accepted=state.accepted + tf.cast(accepted, tf.int32),
            evaluations=state.evaluations + (3 if self.geodesic else 1),
            status=state.status,
        )
        status = self._status(state, after, trial, step, free, accepted)
        # Damped steps may be too short to lower the cost where an undamped step is not: try one before giving up.
        last = (status == Status.STALLED.code) & (state.growth < _LAST_GROWTH)
        return after._replace(
            status=tf.where(last, 0, status),
            damping=tf.where(last, tf.constant(self.system.smallest_damping, after.damping.dtype), after.damping),
            growth=tf.where(last, tf.constant(_LAST_GROWTH, after.growth.dtype), after.growth),
        )

    def _step(self, state: State, free: Any) -> tuple[Any, Solve | None]:
        if isinstance(self.system, QrSystem) and isinstance(state.curvature, Curvature):
            return self.system.step_with(state.curvature, state.at, state.scale, state.damping, free)
        return self.system.step(state.x, state.at, state.scale, state.damping, free)

    def _updated_curvature(self, state: State, at: Linearization, trial: Trial, reduction: Any) -> Curvature | tuple[()]:
        if not isinstance(self.system, QrSystem) or not isinstance(state.curvature, Curvature):
            return ()
        half_square = self.system.half_square(state.x, state.at, trial.step)
        change, image = at.gradient - state.at.gradient, self.system.gram_product(at, trial.step)
        return updated_curvature(state.curvature, trial.step, state.at.gradient, change, half_square, image, reduction)

    def _half_form(self, state: State, step: Any) -> Any:
        half_square = self.system.half_square(state.x, state.at, step)
        return half_square + state.curvature.half_form(step) if isinstance(state.curvature, Curvature) else half_square

    def _try(self, state: State, step: Any, solve: Any, free: Any) -> Trial:
        steady = _all_finite(step)
        moved = step
        if self.geodesic:
            bend = -0.5 * free * solve(free * self.rows.curvature_gradient(state.x, step))
            finite = _all_finite(bend)
            moved = tf.where(finite, step + bend, step)
            steady &= ~finite | (2.0 * tf.norm(state.scale * bend) <= LARGEST_BEND * tf.norm(state.scale * step))
        target = state.x + moved
        if self.bounds is None:
            damped = tf.reduce_sum(tf.square(state.scale * step))
            predicted = self._half_form(state, step) + state.damping * damped
        else:
            target = tf.clip_by_value(target, *self.bounds)
            moved = target - state.x
            predicted = -tf.tensordot(state.at.gradient, moved, 1) - self._half_form(state, moved)
        cost = self.rows.cost(target)
        # Where rounding of the cost hides the reduction, the gradient, which is better resolved, decides after the linearization.
        rounding = _epsilon(cost) * state.cost
        hidden = (predicted <= 32.0 * rounding) & (cost <= state.cost + 4.0 * rounding)
        promising = steady & tf.math.is_finite(cost) & ((cost < state.cost) | hidden) & (predicted > 0.0)
        return Trial(target - state.x, target, cost, predicted, promising)

    def _status(self, state: State, after: State, trial: Trial, step: Any, free: Any, accepted: Any) -> Any:
        tolerances, dtype = self.tolerances, state.x.dtype
        epsilon = _epsilon(state.x)
        size = tf.norm(state.scale * state.x)
        moved = _relative(tf.norm(state.scale * trial.step), size)
        offset = _offset(state, step, free)
        small_cost = tolerances.cost * state.cost
        falls_no_more = accepted & (state.cost - trial.cost <= small_cost) & (trial.predicted <= small_cost)
        negligible = (tf.abs(trial.predicted) <= 2.0 * epsilon * state.cost) | (moved <= epsilon)
        stuck = ~accepted & (negligible | (state.damping >= LARGEST_DAMPING))

        def undamped() -> tuple[Any, Any]:
            full = self.system.undamped(state.x, state.at, state.scale, free)
            if full is None:
                light = state.damping <= LIGHT_DAMPING
                infinite = tf.constant(np.inf, dtype)
                return tf.where(light, offset, infinite), tf.where(light, moved, infinite)
            return _offset(state, full, free), _relative(tf.norm(state.scale * full), size)

        def judged() -> Any:
            full_offset, full_step = undamped()
            could_fall = 0.5 * tf.square(full_offset * state.at.residual_norm)
            near = (full_offset <= tolerances.rounding) | (full_step <= tolerances.rounding)
            # Where rounding of the parameters moves the residuals by their length, the residuals are zero as far as numbers can say.
            near |= state.at.residual_norm <= 32.0 * epsilon * tf.norm(state.at.column_norms * state.x)
            near = tf.cond(stuck & ~near, lambda: self._is_near_by_hessian(state, free), lambda: near)
            code = tf.where(stuck, tf.where(near, Status.PRECISION.code, Status.STALLED.code), 0)
            code = tf.where((moved <= tolerances.step) & (full_step <= tolerances.step), Status.STEP.code, code)
            code = tf.where(falls_no_more & (could_fall <= small_cost), Status.COST.code, code)
            code = tf.where(full_offset <= tolerances.gradient, Status.GRADIENT.code, code)
            flat = tf.reduce_any(self.flat(after))
            return tf.where((code != 0) & (code != Status.STALLED.code) & flat, Status.FLAT.code, code)

        may_end = (offset <= tolerances.gradient) | falls_no_more | (moved <= tolerances.step) | stuck
        code = tf.cond(may_end, judged, lambda: tf.constant(0))
        return tf.where(after.cost == 0.0, Status.ZERO.code, code)

    def _is_near_by_hessian(self, state: State, free: Any) -> Any:
        """Return whether the whole Hessian shows that the minimum is within rounding: a scalar bool.

        J'J does not show it where residuals are large: at a minimum of as many residuals as parameters, it is singular.
        """
        if not isinstance(self.system, QrSystem):
            return tf.constant(False)
        at = state.at
        offset = newton_offset(self.rows.gradient_at, state.x, at.gradient, at.column_norms, at.residual_norm, free)
        return offset <= 4.0 * self.tolerances.rounding


def _offset(state: State, step: Any, free: Any) -> Any:
    """Return the share of the residuals' length that a step's directions account for; infinite if it is not finite."""
    decrement = -tf.tensordot(state.at.gradient * free, step, 1)
    return _relative(tf.abs(tf.sqrt(tf.maximum(decrement, 0.0 * decrement))), state.at.residual_norm)


def _relative(length: Any, size: Any) -> Any:
    quotient = length / size
    return tf.where(tf.math.is_finite(quotient), quotient, tf.constant(np.inf, quotient.dtype))


def _all_finite(tensor: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(tensor))


def _epsilon(tensor: Any) -> float:
    return float(np.finfo(tensor.dtype.as_numpy_dtype).eps)
