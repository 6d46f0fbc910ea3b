"""One damped step, and the loop around it: all TensorFlow, nothing of Python between steps.

Bounds: parameters at a bound that the gradient pushes against are held there, and steps of the others are cut off at theirs (the two-metric
projection of D. P. Bertsekas: Projected Newton methods for optimization problems with simple constraints, 1982). The more a step is damped,
the more it is a projected gradient step, which descends; so refusals lead to a step that is taken.

Geodesic acceleration (M. K. Transtrum, J. P. Sethna: Improvements to the Levenberg-Marquardt algorithm, 2012): the second derivative of
the residuals along the step bends it. A step whose correction is longer than `LARGEST_BEND / 2` times itself is refused: the linear model
does not hold that far.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
"""Growth of the damping up to which lost influence refuses a step: six refusals in a row; what then still loses it may."""
_LAST_GROWTH = 2.0**20
"""Growth of the damping in the last attempt, from an undamped step on: a few refusals."""


@dataclass(frozen=True)
class LoopOptions:
    """How steps are made.

    Attributes:
        first_damping: relative to squared column norms.
        geodesic: whether steps are bent.
        guard_influence: whether steps after which a parameter no longer matters are refused.
        bounds: lower and upper ones (n,) each, or None.
        watch: called after each step with the tensors of a `LeastSquaresStep`, tells whether to stop; or None.
        jit_steps: whether XLA compiles each step, where it cannot compile the loop because of `watch`.
    """

    tolerances: Tolerances
    first_damping: float
    geodesic: bool
    guard_influence: bool
    bounds: tuple[Any, Any] | None
    watch: Callable[..., Any] | None = None
    jit_steps: bool = False


@dataclass(frozen=True)
class Descent:
    """A problem, and how it is to be minimized.

    Attributes:
        linearize: the system's, traced once though the loop has it in two places.
    """

    rows: Rows
    system: LinearSystem
    options: LoopOptions
    linearize: Callable[[Any], Linearization]


class State(NamedTuple):
    """Where the loop is: the point, its linearization, the damping, and counts. All tensors.

    What is known of the curvature is an empty tuple where the system does not use it.
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
    """A step that was tried: where it leads, what it was to bring, and whether it may be taken."""

    step: Any
    target: Any
    cost: Any
    predicted: Any
    promising: Any


def minimize(how: Descent, start: Any) -> State:
    """Damped steps from `start` (n,) until a tolerance is met."""
    advance: Callable[[State], State] = partial(iterate, how)
    if how.options.jit_steps:
        advance = tf.function(advance, autograph=False, jit_compile=True)

    def goes_on(state: State) -> Any:
        return (state.status == 0) & (state.iterations < how.options.tolerances.max_iterations)

    def go_on(state: State) -> tuple[State]:
        after = advance(state)
        if how.options.watch is None:
            return (after,)
        moved, accepted = tf.norm(after.x - state.x), after.accepted > state.accepted
        norm = gradient_norm(after, how.options)
        stop = how.options.watch(after.iterations, after.cost, norm, moved, state.damping, accepted, after.x)
        return (after._replace(status=tf.where(stop & (after.status == 0), Status.STOPPED.code, after.status)),)

    state: State = tf.while_loop(goes_on, go_on, (begin(how, start),), parallel_iterations=1)[0]
    return state._replace(status=tf.where(state.status == 0, Status.MAX_ITERATIONS.code, state.status))


def undamped_offset(how: Descent, state: State) -> Any:
    """The relative offset at the point where the loop ended: a scalar, NaN where the system cannot tell."""
    free = free_parameters(state, how.options)
    step = how.system.undamped(state.x, state.at, state.scale, free)
    return tf.constant(np.nan, state.x.dtype) if step is None else _offset(state, step, free)


def begin(how: Descent, start: Any) -> State:
    """The state before the first step from `start` (n,)."""
    cost, at = how.rows.cost(start), how.linearize(start)
    finite = tf.math.is_finite(cost) & _all_finite(at.gradient) & _all_finite(at.column_norms)
    status = tf.where(finite, tf.where(cost == 0.0, Status.ZERO.code, 0), Status.NOT_FINITE.code)
    return State(
        x=start,
        cost=cost,
        at=at,
        curvature=no_curvature(start) if isinstance(how.system, QrSystem) else (),
        scale=first_scale(at.column_norms),
        damping=tf.constant(how.options.first_damping, start.dtype),
        growth=tf.constant(2.0, start.dtype),
        iterations=tf.constant(0),
        accepted=tf.constant(0),
        evaluations=tf.constant(1),
        status=status,
    )


def iterate(how: Descent, state: State) -> State:
    """The state after one more step was tried, and taken or refused."""
    options = how.options
    free = free_parameters(state, options)
    step, solve = _step(how, state, free)
    trial = _try(how, state, step, solve, free)
    reduction = state.cost - trial.cost

    def take() -> tuple[Any, Linearization]:
        at = how.linearize(trial.target)
        kept = _all_finite(at.gradient) & _all_finite(at.column_norms)
        steepness = tf.norm(state.at.gradient * free / state.scale), tf.norm(at.gradient * free / state.scale)
        kept &= (reduction > 0.0) | (steepness[1] <= 0.9 * steepness[0])
        if options.guard_influence:
            lost = loses_influence(state.at.column_norms, state.at.residual_norm, at.column_norms, at.residual_norm)
            kept &= ~lost | (state.growth > _GUARDED_UNTIL)
        # A branch rather than `tf.where`: the factor may be the largest thing in memory, and this does not copy it.
        return tf.cond(kept, lambda: (kept, at), lambda: (kept, state.at))

    accepted, at = tf.cond(trial.promising, take, lambda: (tf.constant(False), state.at))
    gain = tf.where(reduction > 0.0, tf.math.divide_no_nan(reduction, trial.predicted), tf.ones_like(reduction))
    damping, growth = updated_damping(state.damping, state.growth, gain, accepted)
    shortened = tf.math.divide_no_nan(at.residual_norm, state.at.residual_norm)
    after = State(
        x=tf.where(accepted, trial.target, state.x),
        cost=tf.where(accepted, trial.cost, state.cost),
        at=at,
        curvature=tf.cond(accepted, lambda: _learned(how, state, at, trial, reduction), lambda: state.curvature),
        scale=tf.where(accepted, updated_scale(state.scale, at.column_norms, state.damping, shortened), state.scale),
        damping=tf.clip_by_value(damping, how.system.smallest_damping, LARGEST_DAMPING),
        growth=growth,
        iterations=state.iterations + 1,
        accepted=state.accepted + tf.cast(accepted, tf.int32),
        evaluations=state.evaluations + (3 if options.geodesic else 1),
        status=state.status,
    )
    status = _status(how, state, after, trial, step, free, accepted)
    # Damped steps may be too short to lower the cost where one that is not damped at all is not: this is tried before giving up.
    last = (status == Status.STALLED.code) & (state.growth < _LAST_GROWTH)
    return after._replace(
        status=tf.where(last, 0, status),
        damping=tf.where(last, tf.constant(how.system.smallest_damping, after.damping.dtype), after.damping),
        growth=tf.where(last, tf.constant(_LAST_GROWTH, after.growth.dtype), after.growth),
    )


def _step(how: Descent, state: State, free: Any) -> tuple[Any, Solve | None]:
    """The damped step (n,), and a solver with its matrix, if there is one."""
    if isinstance(how.system, QrSystem) and isinstance(state.curvature, Curvature):
        return how.system.step_with(state.curvature, state.at, state.scale, state.damping, free)
    return how.system.step(state.x, state.at, state.scale, state.damping, free)


def _learned(how: Descent, state: State, at: Linearization, trial: Trial, reduction: Any) -> Curvature | tuple[()]:
    if not isinstance(how.system, QrSystem) or not isinstance(state.curvature, Curvature):
        return ()
    half_square = how.system.half_square(state.x, state.at, trial.step)
    change, image = at.gradient - state.at.gradient, how.system.gram_product(at, trial.step)
    return updated_curvature(state.curvature, trial.step, state.at.gradient, change, half_square, image, reduction)


def _half_form(how: Descent, state: State, step: Any) -> Any:
    """Half of the quadratic form that the system minimizes, of a step (n,): a scalar."""
    known = how.system.half_square(state.x, state.at, step)
    return known + state.curvature.half_form(step) if isinstance(state.curvature, Curvature) else known


def _try(how: Descent, state: State, step: Any, solve: Any, free: Any) -> Trial:
    """Bend the step, keep it within bounds, and evaluate it."""
    rows, options = how.rows, how.options
    steady = _all_finite(step)
    moved = step
    if options.geodesic:
        bend = -0.5 * free * solve(free * rows.curvature_gradient(state.x, step))
        known = _all_finite(bend)
        moved = tf.where(known, step + bend, step)
        steady &= ~known | (2.0 * tf.norm(state.scale * bend) <= LARGEST_BEND * tf.norm(state.scale * step))
    target = state.x + moved
    if options.bounds is None:
        damped = tf.reduce_sum(tf.square(state.scale * step))
        predicted = _half_form(how, state, step) + state.damping * damped
    else:
        target = tf.clip_by_value(target, *options.bounds)
        moved = target - state.x
        predicted = -tf.tensordot(state.at.gradient, moved, 1) - _half_form(how, state, moved)
    cost = rows.cost(target)
    # Where the reduction drowns in the rounding of the cost, the gradient, which is better resolved, decides once it is known.
    rounding = float(np.finfo(cost.dtype.as_numpy_dtype).eps) * state.cost
    drowned = (predicted <= 32.0 * rounding) & (cost <= state.cost + 4.0 * rounding)
    promising = steady & tf.math.is_finite(cost) & ((cost < state.cost) | drowned) & (predicted > 0.0)
    return Trial(target - state.x, target, cost, predicted, promising)


def _status(how: Descent, state: State, after: State, trial: Trial, step: Any, free: Any, accepted: Any) -> Any:
    system, tolerances = how.system, how.options.tolerances
    dtype = state.x.dtype
    epsilon = float(np.finfo(dtype.as_numpy_dtype).eps)
    size = tf.norm(state.scale * state.x)
    moved = _relative(tf.norm(state.scale * trial.step), size)
    offset = _offset(state, step, free)
    small_cost = tolerances.cost * state.cost
    falls_no_more = accepted & (state.cost - trial.cost <= small_cost) & (trial.predicted <= small_cost)
    negligible = (tf.abs(trial.predicted) <= 2.0 * epsilon * state.cost) | (moved <= epsilon)
    stuck = ~accepted & (negligible | (state.damping >= LARGEST_DAMPING))

    def undamped() -> tuple[Any, Any]:
        full = system.undamped(state.x, state.at, state.scale, free)
        if full is None:
            light = state.damping <= LIGHT_DAMPING
            nothing = tf.constant(np.inf, dtype)
            return tf.where(light, offset, nothing), tf.where(light, moved, nothing)
        return _offset(state, full, free), _relative(tf.norm(state.scale * full), size)

    def judged() -> Any:
        full_offset, full_step = undamped()
        could_fall = 0.5 * tf.square(full_offset * state.at.residual_norm)
        near = (full_offset <= tolerances.rounding) | (full_step <= tolerances.rounding)
        # Parameters are rounded; where that alone moves the residuals by their length, they are zero as far as numbers tell.
        near |= state.at.residual_norm <= 32.0 * epsilon * tf.norm(state.at.column_norms * state.x)
        near = tf.cond(stuck & ~near, lambda: _near_by_hessian(how, state, free), lambda: near)
        code = tf.where(stuck, tf.where(near, Status.PRECISION.code, Status.STALLED.code), 0)
        code = tf.where((moved <= tolerances.step) & (full_step <= tolerances.step), Status.STEP.code, code)
        code = tf.where(falls_no_more & (could_fall <= small_cost), Status.COST.code, code)
        code = tf.where(full_offset <= tolerances.gradient, Status.GRADIENT.code, code)
        flat = tf.reduce_any(flat_parameters(after, how.options))
        return tf.where((code != 0) & (code != Status.STALLED.code) & flat, Status.FLAT.code, code)

    asked = (offset <= tolerances.gradient) | falls_no_more | (moved <= tolerances.step) | stuck
    code = tf.cond(asked, judged, lambda: tf.constant(0))
    return tf.where(after.cost == 0.0, Status.ZERO.code, code)


def _near_by_hessian(how: Descent, state: State, free: Any) -> Any:
    """Whether the whole Hessian, where it can be had, shows that the minimum is within rounding: a scalar bool.

    J'J alone does not where residuals are large: at a minimum of as many residuals as parameters, it is singular.
    """
    if not isinstance(how.system, QrSystem):
        return tf.constant(False)
    offset = newton_offset(how.rows.gradient_at, state.x, state.at.gradient, state.at.column_norms, state.at.residual_norm, free)
    return offset <= 4.0 * how.options.tolerances.rounding


def free_parameters(state: State, options: LoopOptions) -> Any:
    """1 for parameters that may move, 0 for those that the gradient pushes against their bound: (n,)."""
    if options.bounds is None:
        return tf.ones_like(state.x)
    lower, upper = options.bounds
    held = ((state.x <= lower) & (state.at.gradient > 0.0)) | ((state.x >= upper) & (state.at.gradient < 0.0))
    return tf.where(held, tf.zeros_like(state.x), tf.ones_like(state.x))


def gradient_norm(state: State, options: LoopOptions) -> Any:
    """The largest element of the gradient, of parameters that may move: a scalar."""
    return tf.reduce_max(tf.abs(free_parameters(state, options) * state.at.gradient))


def flat_parameters(state: State, options: LoopOptions) -> Any:
    """Whether a parameter that may move has no influence on the residuals: (n,) bools."""
    epsilon = float(np.finfo(state.x.dtype.as_numpy_dtype).eps)
    return (state.at.column_norms <= epsilon * state.scale) & (free_parameters(state, options) > 0.0)


def _offset(state: State, step: Any, free: Any) -> Any:
    """The share of the residuals' length that a step's directions account for; infinite where it is not known."""
    decrement = -tf.tensordot(state.at.gradient * free, step, 1)
    return _relative(tf.abs(tf.sqrt(tf.maximum(decrement, 0.0 * decrement))), state.at.residual_norm)


def _relative(length: Any, size: Any) -> Any:
    """Their quotient, infinite where it is not known."""
    quotient = length / size
    return tf.where(tf.math.is_finite(quotient), quotient, tf.constant(np.inf, quotient.dtype))


def _all_finite(tensor: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(tensor))
