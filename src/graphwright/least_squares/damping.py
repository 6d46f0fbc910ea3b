"""The damping of steps, and the units in which they are measured.

**Damping by gain ratio** (H. B. Nielsen: Damping parameter in Marquardt's method, 1999; K. Madsen, H. B. Nielsen, O. Tingleff: Methods
for non-linear least squares problems, 2004). The gain is the actual over the predicted reduction of the cost. After a step that gains, the
damping is multiplied by `max(1/3, 1 - (2 gain - 1)**3)`; after refused steps by 2, 4, 8, ...

**Scale** (D. W. Marquardt 1963; J. J. Moré 1978). Steps are measured in units of the Jacobian's column norms, which makes the method
invariant to the units of the parameters. Moré takes the largest norm so far. Here that maximum fades, so that a start where a model
overflows does not cripple a parameter for good: by a factor per accepted step while damping is light, and otherwise only as the residuals
get shorter, since residuals that bend also shrink a column that must not lose its scale (Brown and Dennis; penalty 1).

**Influence.** A step that lowers the cost may lead to a plateau where a parameter no longer matters, such as the rate of
`b1 * (1 - exp(-b2 * x))` grown too large. A step counts as too long if it cuts the length of a Jacobian column, relative to the residuals'
length, to a hundredth. The measure is invariant to units, and grows wherever a fit gets better.

The numbers below were chosen on NIST's regression problems and the test problems of Moré, Garbow and Hillstrom; none is sensitive (0.5 to
0.7, 0.001 to 0.1, 0.001 to 0.1).
"""

import importlib
from typing import Any

tf: Any = importlib.import_module("tensorflow")

SCALE_FADES_BY = 0.7
SCALE_FADES_BELOW = 0.01
LEAST_INFLUENCE = 0.01


def updated_damping(damping: Any, growth: Any, gain: Any, accepted: Any) -> tuple[Any, Any]:
    """Return the next damping, and the factor of the next refusal; `growth` is the factor of a refusal of this step, 2 at first."""
    raised, grown = raised_damping(damping, growth)
    return tf.where(accepted, eased_damping(damping, gain), raised), tf.where(accepted, tf.constant(2.0, growth.dtype), grown)


def eased_damping(damping: Any, gain: Any) -> Any:
    """Return the damping after an accepted step, a scalar."""
    return damping * tf.maximum(tf.constant(1.0 / 3.0, damping.dtype), 1.0 - (2.0 * gain - 1.0) ** 3)


def raised_damping(damping: Any, growth: Any) -> tuple[Any, Any]:
    """Return the damping after a refused step, and the factor of the next refusal; both scalars."""
    return damping * growth, 2.0 * growth


def first_scale(column_norms: Any) -> Any:
    """Return the scale (n,) at the start: the column norms, and 1 for parameters without influence."""
    return tf.where(column_norms > 0.0, column_norms, tf.ones_like(column_norms))


def updated_scale(scale: Any, column_norms: Any, damping: Any, shortened: Any) -> Any:
    """Return the scale (n,) after an accepted step: the maximum of the faded scale and the new column norms.

    `shortened` is the residuals' length after the step over their length before.
    """
    smallest = tf.constant(scale.dtype.as_numpy_dtype(1e-30), scale.dtype)
    fades_by = tf.where(damping < SCALE_FADES_BELOW, tf.constant(SCALE_FADES_BY, scale.dtype), tf.minimum(shortened, 1.0))
    return tf.maximum(tf.maximum(fades_by * scale, column_norms), smallest)


def loses_influence(before: Any, residual_norm_before: Any, after: Any, residual_norm_after: Any) -> Any:
    """Return whether some influence falls below a hundredth, by column norms (n,) and residual norms: a scalar."""
    return tf.reduce_any(after * residual_norm_before < LEAST_INFLUENCE * before * residual_norm_after)
