"""The result of a least-squares fit."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphwright.errors import UnsupportedError
from graphwright.least_squares.covariance import inverse_gram
from graphwright.least_squares.linear_systems import MethodName
from graphwright.least_squares.parameters import ParameterLayout
from graphwright.least_squares.stopping import Status
from graphwright.plain import Result, fields_json, plain

tf: Any = importlib.import_module("tensorflow")

_LISTED = 20
"""Largest number of parameters that the text lists."""


@dataclass(frozen=True, eq=False)
class LeastSquaresResult(Result):
    """The solution of a fit, and its properties.

    Attributes:
        params: a structure of tensors like the start.
        cost: half the sum of squared residuals, or of their losses.
        status: why the fit ended, such as `"gradient small"`.
        message: the status in a sentence, with its figures.
        converged: whether the parameters are a minimum to the tolerances. Steps that are small only by damping never count.
        iterations: steps tried, refused ones included.
        evaluations: of the residuals, without those for Jacobians.
        jacobian_evaluations: Jacobians, or linearizations where none is formed.
        gradient_norm: largest element of the gradient, of parameters that are not held at a bound.
        offset: the share of the residuals' length that lies in directions in which the model can move, 0 at a minimum where the Jacobian
            has full rank and the residuals are not zero; NaN for `cg`.
        damping: of the last step, relative to squared column norms.
        method: the linear solver.
        method_reason: why it was chosen.
        jacobian_mode: how Jacobians were computed.
        residuals: at the solution, (m,), not weighted by the loss.
    """

    params: Any
    cost: float
    status: str
    message: str
    converged: bool
    iterations: int
    accepted_steps: int
    evaluations: int
    jacobian_evaluations: int
    gradient_norm: float
    offset: float
    damping: float
    method: MethodName
    method_reason: str
    jacobian_mode: str
    residuals: Any
    layout: ParameterLayout = field(repr=False)
    free: NDArray[np.bool_] = field(repr=False)
    factor: NDArray[Any] | None = field(repr=False)

    @cached_property
    def covariance(self) -> NDArray[Any] | None:
        """The covariance of the parameters (n, n), in the order of `tf.nest.flatten`, with the residual variance estimated from the fit.

        Parameters held at a bound count as constants. Variances that the data do not determine are infinite. None if it is not available;
        `covariance_note` gives the reason.
        """
        return None if self._unscaled is None else self.residual_variance * self._unscaled[0]

    @cached_property
    def unscaled_covariance(self) -> NDArray[Any]:
        """The inverse of the Gram matrix (n, n): the covariance if residuals are in units of their standard deviation.

        Raises:
            UnsupportedError: it is not available; `covariance_note` gives the reason.
        """
        if self._unscaled is None:
            raise UnsupportedError(self.covariance_note, where="property 'unscaled_covariance'", remedy='method="qr", or more residuals')
        return self._unscaled[0]

    @property
    def residual_variance(self) -> float:
        """Twice the cost over the degrees of freedom; NaN if there are none."""
        freedom = self.degrees_of_freedom
        return 2.0 * self.cost / freedom if freedom > 0 else math.nan

    @property
    def degrees_of_freedom(self) -> int:
        """Residuals less free parameters."""
        return int(self.residuals.shape[0]) - int(self.free.sum())

    @property
    def rank(self) -> int | None:
        """Number of directions that the data determine; None if it is not known."""
        return None if self._unscaled is None else self._unscaled[1]

    @property
    def standard_errors(self) -> NDArray[Any] | None:
        """The standard deviations of the parameters (n,); None if the covariance is not known."""
        return None if self.covariance is None else np.sqrt(np.diag(self.covariance))

    @property
    def covariance_note(self) -> str:
        """Remarks about the covariance; empty if there are none."""
        if self.factor is None:
            if self.method in ("qr", "cholesky"):
                return f"{self.layout.size} parameters are too many for a covariance"
            return f"the method {self.method} forms no matrix from which a covariance could be computed"
        if self.degrees_of_freedom <= 0:
            return f"{self.residuals.shape[0]} residuals leave no degree of freedom for {int(self.free.sum())} parameters"
        assert self._unscaled is not None
        inverse, rank = self._unscaled
        notes: list[str] = []
        if rank < self.free.sum():
            lost = [self.layout.element_name(int(i)) for i in np.flatnonzero(np.isinf(np.diag(inverse)))]
            notes.append(f"the Jacobian has rank {rank} of {int(self.free.sum())}: the data do not determine {_listed(lost)}")
        if not self.free.all():
            held = [self.layout.element_name(int(i)) for i in np.flatnonzero(~self.free)]
            notes.append(f"held at a bound and taken for constant: {_listed(held)}")
        return "; ".join(notes)

    @cached_property
    def _unscaled(self) -> tuple[NDArray[Any], int] | None:
        if self.factor is None or self.degrees_of_freedom <= 0:
            return None
        return inverse_gram(self.factor, is_gram=self.method == "cholesky", free=self.free)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text, parameters and standard errors by name, without the residuals."""
        values = self.layout.join(tf.nest.flatten(self.params)).numpy().tolist()
        names = [self.layout.element_name(i) for i in range(len(values))]
        errors = None if self.standard_errors is None else dict(zip(names, self.standard_errors.tolist(), strict=True))
        fields = fields_json(self, "params", "residuals", "layout", "free", "factor")
        return {**fields, "params": plain(dict(zip(names, values, strict=True))), "standard_errors": plain(errors)}

    def __str__(self) -> str:
        word = "Converged" if self.converged else "Not converged"
        lines = [f"{word}: {self.message}.", ""]
        lines.append(f"  cost          {self.cost:.10g}")
        lines.append(f"  steps         {self.accepted_steps} taken of {self.iterations} tried")
        lines.append(
            f"  evaluations   {self.evaluations} of the residuals, {self.jacobian_evaluations} of the Jacobian ({self.jacobian_mode})"
        )
        lines.append(f"  linear solver {self.method}: {self.method_reason}")
        values = self.layout.join(tf.nest.flatten(self.params)).numpy()
        if len(values) > _LISTED:
            return "\n".join([*lines, f"  parameters    {len(values):,}"])
        errors = self.standard_errors
        names = [self.layout.element_name(i) for i in range(len(values))]
        width = max(map(len, names))
        lines.append("")
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            lines.append(f"  {name:<{width}}  {value:>17.10g}" + ("" if errors is None else f"  ± {errors[i]:.4g}"))
        if self.covariance_note:
            lines += ["", f"  {self.covariance_note}"]
        return "\n".join(lines)


class LeastSquaresTensors(NamedTuple):
    """The result of a fit inside a graph: tensors, named as in `LeastSquaresResult`, which a `tf.function` can return.

    They have no gradient: differentiating through them is an error (`tf.stop_gradient` makes them constants).

    Attributes:
        params: a structure like the start.
        status: a number, int32; `LeastSquaresTensors.STATUSES[status]` is its text.
        residuals: at the solution, (m,), not weighted by the loss.
    """

    params: Any
    cost: Any
    status: Any
    converged: Any
    iterations: Any
    accepted_steps: Any
    evaluations: Any
    gradient_norm: Any
    offset: Any
    damping: Any
    residuals: Any

    STATUSES = ("", *(status.value for status in Status))


def explain(status: Status, *, offset: float, iterations: int, flat: list[str]) -> str:
    """Return the status in a sentence, with its figures."""
    share = f"{offset:.2g} of the residuals lies in directions in which the model can move"
    known = math.isfinite(offset)
    return {
        Status.ZERO: "all residuals are zero",
        Status.GRADIENT: "the gradient is zero to the tolerance" + (f": {share}" if known else ""),
        Status.COST: "the cost falls no more, and an undamped step would not lower it either" + (f": {share}" if known else ""),
        Status.STEP: "the undamped step is smaller than the tolerance",
        Status.PRECISION: "the precision of the numbers is reached: the minimum is nearer than rounding lets the cost tell",
        Status.FLAT: f"the gradient is zero, but of no influence on the residuals are {_listed(flat)}: perhaps a plateau, not a minimum",
        Status.STALLED: "no step lowers the cost, however short, but nothing shows a minimum: perhaps a kink, wrong derivatives, "
        "or too few digits" + (f"; {share}" if known else ""),
        Status.MAX_ITERATIONS: f"{iterations} steps were not enough to meet a tolerance" + (f"; {share}" if known else ""),
        Status.NOT_FINITE: "the residuals are not finite at the start",
        Status.STOPPED: f"the callback ended it after {iterations} steps" + (f"; {share}" if known else ""),
    }[status]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
