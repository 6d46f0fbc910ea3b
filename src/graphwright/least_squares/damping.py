"""How strongly steps are damped, and in which units.

**Damping by gain ratio** (H. B. Nielsen: Damping parameter in Marquardt's method, 1999; K. Madsen, H. B. Nielsen, O. Tingleff: Methods
for non-linear least squares problems, 2004). The gain is the actual reduction of the cost over that of the linearized problem. A step that
gains is taken and the damping multiplied by `max(1/3, 1 - (2 gain - 1)**3)`; another is refused and the damping multiplied by 2, 4, 8, ...

**Scale** (D. W. Marquardt 1963; J. J. Moré 1978). Steps are measured in units of the Jacobian's column norms, which makes the method
invariant to the units of the parameters. Moré takes the largest norm so far; here that maximum fades, so that a start where a model
overflows by many orders of magnitude does not cripple a parameter for good. While damping is light, steps follow the linear model, and the
maximum fades by a factor per step taken. Where it is not, the residuals bend by more than the columns show, in proportion to
their length: there the maximum fades only as they get shorter. Else a column that comes near to zero while residuals stay large
(Brown and Dennis, penalty 1 of Moré, Garbow and Hillstrom) takes its scale along, and all other parameters pay with damping for that one.

**Influence.** A step that lowers the cost may still lead to a plateau where a parameter no longer matters, whence no step leads back: the
rate of `b1 * (1 - exp(-b2 * x))` grown too large. The length of a Jacobian column relative to that of the residuals tells; where a step
cuts it to a hundredth, the step counts as too long. The measure is invariant to units, and grows wherever a fit gets better.
The numbers below are this project's own, chosen on NIST's regression problems and the test problems of Moré, Garbow and Hillstrom; none is
sensitive (0.5 to 0.7, 0.001 to 0.1, 0.001 to 0.1).
"""

import importlib
from typing import Any

tf: Any = importlib.import_module("tensorflow")

SCALE_FADES_BY = 0.7
SCALE_FADES_BELOW = 0.01
LEAST_INFLUENCE_KEPT = 0.01


def updated_damping(damping: Any, growth: Any, gain: Any, accepted: Any) -> tuple[Any, Any]:
    """The next damping, and the factor by which it would grow if the next step were refused; all scalars.

    Args:
        damping: the one of the step just tried.
        growth: the factor by which a refusal multiplies it; 2 at first.
        gain: actual reduction of the cost over the predicted one.
        accepted: whether the step was taken.

    >>> one = tf.constant(1.0, tf.float64)
    >>> [float(x) for x in updated_damping(one, 2.0 * one, one, True)]
    [0.3333333333333333, 2.0]
    >>> [float(x) for x in updated_damping(one, 2.0 * one, -one, False)]
    [2.0, 4.0]
    """
    raised, grown = raised_damping(damping, growth)
    return tf.where(accepted, eased_damping(damping, gain), raised), tf.where(accepted, tf.constant(2.0, growth.dtype), grown)


def eased_damping(damping: Any, gain: Any) -> Any:
    """The damping after a step with this gain was taken, a scalar.

    >>> float(eased_damping(tf.constant(3.0, tf.float64), tf.constant(0.5, tf.float64)))
    3.0
    """
    return damping * tf.maximum(tf.constant(1.0 / 3.0, damping.dtype), 1.0 - (2.0 * gain - 1.0) ** 3)


def raised_damping(damping: Any, growth: Any) -> tuple[Any, Any]:
    """The damping after a step was refused, and the factor of the next refusal; both scalars."""
    return damping * growth, 2.0 * growth


def first_scale(column_norms: Any) -> Any:
    """The scale (n,) at the start: the column norms, and 1 for parameters that have no influence."""
    return tf.where(column_norms > 0.0, column_norms, tf.ones_like(column_norms))


def updated_scale(scale: Any, column_norms: Any, damping: Any, shortened: Any) -> Any:
    """The scale (n,) after a step was taken: the maximum of the faded scale and the new column norms.

    Args:
        scale: before it (n,).
        column_norms: after it (n,).
        damping: of the step, a scalar.
        shortened: the length of the residuals after the step over that before, a scalar.

    >>> scale, norms = tf.constant([1.0, 10.0]), tf.constant([2.0, 0.0])
    >>> [updated_scale(scale, norms, tf.constant(damping), tf.constant(0.9)).numpy().tolist() for damping in (1e-6, 1.0)]
    [[2.0, 7.0], [2.0, 9.0]]
    """
    smallest = tf.constant(scale.dtype.as_numpy_dtype(1e-30), scale.dtype)
    fades_by = tf.where(damping < SCALE_FADES_BELOW, tf.constant(SCALE_FADES_BY, scale.dtype), tf.minimum(shortened, 1.0))
    return tf.maximum(tf.maximum(fades_by * scale, column_norms), smallest)


def loses_influence(before: Any, residual_norm_before: Any, after: Any, residual_norm_after: Any) -> Any:
    """Whether some influence falls to less than a hundredth, by the Jacobian's column norms (n,) and the residuals' length: a scalar."""
    return tf.reduce_any(after * residual_norm_before < LEAST_INFLUENCE_KEPT * before * residual_norm_after)
