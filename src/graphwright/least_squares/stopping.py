"""When the loop stops, and what follows from it.

The distance of a point from the minimum is judged by the *undamped* step, since a strongly damped step is small anywhere:

- **offset**: the share of the residuals' length that lies in the directions in which the model can move, the root of the Gauss-Newton
  step's relative reduction; zero at a minimum, invariant to units. D. M. Bates, D. G. Watts: A relative offset orthogonality convergence
  criterion for nonlinear least squares (1981).
- **step**: the length of the undamped step relative to the parameters', both in units of the scale.

Iterative solvers have no undamped step; there the damped step counts, if the damping is below `LIGHT_DAMPING`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.least_squares.arguments import check_count, is_finite

LIGHT_DAMPING = 1e-3
LARGEST_DAMPING = 1e20


class Status(enum.Enum):
    """Why the loop ended. `converged` is true for the first five. The value is `LeastSquaresResult.status`."""

    ZERO = "zero residuals"
    GRADIENT = "gradient small"
    COST = "cost falls no more"
    STEP = "step small"
    PRECISION = "precision reached"
    FLAT = "flat"
    STALLED = "stalled"
    MAX_ITERATIONS = "max iterations"
    NOT_FINITE = "start not finite"
    STOPPED = "stopped"

    @property
    def converged(self) -> bool:
        """Whether the parameters are a minimum, or a saddle point, to the tolerances."""
        return self in (Status.ZERO, Status.GRADIENT, Status.COST, Status.STEP, Status.PRECISION)

    @property
    def code(self) -> int:
        return 1 + list(Status).index(self)

    @staticmethod
    def of_code(code: int) -> Status:
        return list(Status)[code - 1]


@dataclass(frozen=True)
class Tolerances:
    """When to stop: largest offset, relative step and relative reduction of the cost.

    `rounding` is the largest relative step and offset at which a point without a step that lowers the cost counts as the minimum.
    """

    gradient: float
    step: float
    cost: float
    rounding: float
    max_iterations: int


def tolerances_for(dtype: Any, gtol: float | None, xtol: float | None, ftol: float | None, max_iterations: int) -> Tolerances:
    """Complete the tolerances by the resolution of the type."""
    for name, value in (("gtol", gtol), ("xtol", xtol), ("ftol", ftol)):
        if value is not None and not (is_finite(value) and value >= 0.0):
            raise ArgumentError(f"{name}={value!r}", argument=name, remedy="give a number of at least 0, or None for the default")
    check_count("max_iterations", max_iterations)
    epsilon = float(np.finfo(dtype.as_numpy_dtype).eps)
    fine = epsilon ** (2.0 / 3.0)
    return Tolerances(
        gradient=fine if gtol is None else gtol,
        step=fine if xtol is None else xtol,
        cost=0.0 if ftol is None else ftol,
        rounding=math.sqrt(32.0 * epsilon),
        max_iterations=int(max_iterations),
    )
