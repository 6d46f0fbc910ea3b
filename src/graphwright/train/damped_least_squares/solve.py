"""`least_squares`: nonlinear least squares on TensorFlow, compiled as one loop."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.train.damped_least_squares.arguments import (
    Bounds,
    as_data,
    bound_vectors,
    check_choice,
    check_positive,
    check_start,
    start_error,
)
from graphwright.train.damped_least_squares.jacobians import JacobianMode
from graphwright.train.damped_least_squares.linear_systems import (
    CgSystem,
    CholeskySystem,
    DualSystem,
    LinearSystem,
    LsmrSystem,
    MethodName,
    QrSystem,
)
from graphwright.train.damped_least_squares.loop import LoopOptions, descent, flat_parameters, free_parameters, minimize, undamped_offset
from graphwright.train.damped_least_squares.parameters import ParameterLayout, flatten_parameters
from graphwright.train.damped_least_squares.result import LeastSquaresResult, explain
from graphwright.train.damped_least_squares.robust_losses import LossName, Rho, RobustLoss
from graphwright.train.damped_least_squares.rows import Rows, spec_of
from graphwright.train.damped_least_squares.stopping import Status, tolerances_for

tf: Any = importlib.import_module("tensorflow")

Method = Literal["auto", "qr", "cholesky", "dual", "cg", "lsmr"]

QR_PARAMETERS = 200
"""Most parameters that `"auto"` gives to QR."""
COVARIANCE_PARAMETERS = 5000
"""Most parameters whose covariance can be asked for."""
DENSE_BYTES = 2**30
"""Largest matrix that `"auto"` lets a method hold."""


def least_squares(
    residuals: Callable[..., Any],
    params: Any,
    *,
    data: Sequence[Any] = (),
    method: Method = "auto",
    chunk_size: int | None = None,
    bounds: Bounds | None = None,
    loss: LossName | Rho = "linear",
    loss_scale: float = 1.0,
    jacobian: Callable[..., Any] | None = None,
    jacobian_mode: JacobianMode = "auto",
    geodesic: bool | None = None,
    gtol: float | None = None,
    xtol: float | None = None,
    ftol: float | None = None,
    max_iterations: int = 1000,
    first_damping: float = 1e-3,
    krylov_tolerance: float = 1e-3,
    krylov_iterations: int = 200,
    jit_compile: bool = False,
) -> LeastSquaresResult:
    """The parameters that minimize the sum of squared residuals, by damped Gauss-Newton steps (Levenberg-Marquardt).

    The whole fit is one TensorFlow loop. To fit the same residuals many times, make a `LeastSquares` once and call it: it traces once.

    Args:
        residuals: `residuals(params, *data)` -> a tensor of any shape, or a structure of tensors, in TensorFlow operations; no Python
            control flow that depends on tensors, unless it is a `tf.function` itself. A residual is weighted by multiplying it: with one
            over its standard deviation, the cost is half of chi squared.
        params: where to start: a tensor, array or number, or a structure (dict, list, tuple) of them, float64 or float32. Python numbers
            count as float64.
        data: tensors whose first dimension counts samples. Giving them says that the residuals of a sample depend on that sample alone.
        method: the linear solver; `"auto"` chooses by sizes, and the result says what and why. `"qr"` for small and ill-conditioned
            problems, `"cholesky"` (Gram matrix), `"dual"` (more parameters than residuals), `"cg"` and `"lsmr"` (matrix-free).
        chunk_size: samples, or without data residuals, whose Jacobian is in memory at a time. None for all.
        bounds: lower and upper bounds, each a number or shaped like the parameters; infinite where there is none.
        loss: `"linear"`, `"huber"`, `"soft_l1"`, `"cauchy"`, `"arctan"` as in SciPy, or a function (see `RobustLoss`).
        loss_scale: residuals below it count as inliers.
        jacobian: `jacobian(params, *data)`, a matrix (m, n) or a structure like the parameters; otherwise differentiation finds it.
        jacobian_mode: `"forward"`, `"reverse"`, `"per_sample"`, or `"auto"` for what needs fewest passes.
        geodesic: bend steps by the second derivative along them (two more evaluations per step); by default with `"qr"` without bounds.
        gtol: stop when this share of the residuals' length lies in directions in which the model can move.
        xtol: stop when the undamped step is this small relative to the parameters.
        ftol: stop when neither the step nor an undamped one lowers the cost by more than this share.
        max_iterations: steps tried at most.
        first_damping: relative to squared column norms of the Jacobian.
        krylov_tolerance: how exactly `"cg"` and `"lsmr"` solve for a step.
        krylov_iterations: products at most per step for them.
        jit_compile: compile the loop with XLA, where it has kernels for all operations of the residuals.

    `gtol`, `xtol` and `ftol` default to what the type can resolve: eps**(2/3), eps**(2/3) and 0.

    Raises:
        ArgumentError: arguments that contradict each other, or residuals that are not finite at the start.

    Sources: K. Levenberg (1944), D. W. Marquardt (1963); damping by H. B. Nielsen (1999); the parts name their own.

    >>> import tensorflow as tf
    >>> t = tf.constant([0.0, 1.0, 2.0, 3.0], tf.float64)
    >>> seen = tf.constant([5.0, 3.1, 1.8, 1.1], tf.float64)
    >>> fit = least_squares(lambda p: p["height"] * tf.exp(-p["rate"] * t) - seen, {"height": 1.0, "rate": 1.0})
    >>> fit.converged, round(float(fit.params["rate"]), 4)
    (True, 0.5021)
    """
    solver = LeastSquares(
        residuals,
        method=method,
        chunk_size=chunk_size,
        bounds=bounds,
        loss=loss,
        loss_scale=loss_scale,
        jacobian=jacobian,
        jacobian_mode=jacobian_mode,
        geodesic=geodesic,
        gtol=gtol,
        xtol=xtol,
        ftol=ftol,
        max_iterations=max_iterations,
        first_damping=first_damping,
        krylov_tolerance=krylov_tolerance,
        krylov_iterations=krylov_iterations,
        jit_compile=jit_compile,
    )
    return solver(params, *data)


@dataclass(frozen=True)
class _Compiled:
    """A traced fit, and what was decided while it was traced."""

    run: Any
    decided: dict[str, Any]


class _Found(NamedTuple):
    """What the compiled fit returns: tensors, named as in `State` and `LeastSquaresResult`."""

    x: Any
    cost: Any
    status: Any
    iterations: Any
    accepted: Any
    evaluations: Any
    damping: Any
    free: Any
    factor: Any
    gradient_norm: Any
    offset: Any
    residuals: Any
    flat: Any


class LeastSquares:
    """A fit that is traced once and called often, with other starts and other data of the same shapes.

    Args:
        residuals: as all other arguments: see `least_squares`.

    Example:
        >>> line = LeastSquares(lambda p, x, y: p[0] * x + p[1] - y)
        >>> x = np.array([0.0, 1.0, 2.0])
        >>> [line(np.zeros(2), x, slope * x + 1.0).params.numpy().round(6).tolist() for slope in (2.0, 5.0)]
        [[2.0, 1.0], [5.0, 1.0]]
    """

    def __init__(
        self,
        residuals: Callable[..., Any],
        *,
        method: Method = "auto",
        chunk_size: int | None = None,
        bounds: Bounds | None = None,
        loss: LossName | Rho = "linear",
        loss_scale: float = 1.0,
        jacobian: Callable[..., Any] | None = None,
        jacobian_mode: JacobianMode = "auto",
        geodesic: bool | None = None,
        gtol: float | None = None,
        xtol: float | None = None,
        ftol: float | None = None,
        max_iterations: int = 1000,
        first_damping: float = 1e-3,
        krylov_tolerance: float = 1e-3,
        krylov_iterations: int = 200,
        jit_compile: bool = False,
    ) -> None:
        check_choice("method", method, get_args(Method))
        check_choice("jacobian_mode", jacobian_mode, get_args(JacobianMode))
        check_positive("first_damping", first_damping)
        check_positive("krylov_tolerance", krylov_tolerance)
        check_positive("krylov_iterations", krylov_iterations)
        if chunk_size is not None:
            check_positive("chunk_size", chunk_size)
        if geodesic and method in ("dual", "cg", "lsmr"):
            raise ArgumentError(f"geodesic acceleration with {method}", where="argument 'geodesic'", remedy='it needs "qr" or "cholesky"')
        if geodesic and bounds is not None:
            raise ArgumentError(
                "geodesic acceleration with bounds",
                where="argument 'geodesic'",
                cause="it evaluates the residuals on both sides of a point",
                remedy="leave out one of them",
            )
        if chunk_size is not None and method in ("dual", "lsmr"):
            raise ArgumentError(
                f"chunks with {method}",
                where="argument 'chunk_size'",
                cause="it needs all rows at once",
                remedy='"cholesky" or "cg" take chunks',
            )
        self._residuals = residuals
        self._method: Method = method
        self._chunk_size = chunk_size
        self._bounds = bounds
        self._loss = RobustLoss(loss, loss_scale)
        self._jacobian = jacobian
        self._jacobian_mode: JacobianMode = jacobian_mode
        self._geodesic = geodesic
        self._tolerances = (gtol, xtol, ftol, max_iterations)
        self._first_damping = first_damping
        self._krylov = (krylov_tolerance, int(krylov_iterations))
        self._jit_compile = jit_compile
        self._compiled: dict[Any, _Compiled] = {}
        tolerances_for(tf.float64, *self._tolerances)

    def __call__(self, params: Any, *data: Any) -> LeastSquaresResult:
        """Fit from `params`, with this data.

        Raises:
            ArgumentError: as `least_squares`.
        """
        layout, compiled, (start, tensors) = self._prepare(params, data)
        found = compiled.run(start, tensors)
        return self._result(layout, compiled.decided, found, start, tensors)

    def trace(self, params: Any, *data: Any) -> tuple[Any, tuple[Any, tuple[Any, ...]]]:
        """The whole fit as a `ConcreteFunction`, for `graphwright.measure`, `inspect` and the like, and its arguments.

        Raises:
            ArgumentError: as `least_squares`.
        """
        _, compiled, arguments = self._prepare(params, data)
        return compiled.run, arguments

    def _prepare(self, params: Any, data: tuple[Any, ...]) -> tuple[ParameterLayout, _Compiled, tuple[Any, tuple[Any, ...]]]:
        """The fit traced for these shapes, and its arguments: the start as a vector, and the data."""
        layout, start = flatten_parameters(params)
        tensors = tf.nest.map_structure(partial(as_data, dtype=layout.dtype), data)
        bounds = bound_vectors(self._bounds, layout)
        check_start(start, bounds, layout)
        key = repr(layout), repr(tf.nest.map_structure(spec_of, tensors))
        if key not in self._compiled:
            self._compiled[key] = self._compile(layout, bounds, tensors)
        return layout, self._compiled[key], (start, tensors)

    def _compile(self, layout: ParameterLayout, bounds: tuple[Any, Any] | None, data: tuple[Any, ...]) -> _Compiled:
        decided: dict[str, Any] = {}
        tolerances = tolerances_for(layout.dtype, *self._tolerances)

        def fit(start: Any, data: tuple[Any, ...]) -> _Found:
            rows = self._rows(layout, data)
            system, reason = self._system(rows)
            options = LoopOptions(
                tolerances=tolerances,
                first_damping=self._first_damping,
                geodesic=(system.name == "qr" and bounds is None) if self._geodesic is None else self._geodesic,
                guard_influence=system.name == "qr",
                bounds=bounds,
            )
            decided.update(method=system.name, reason=reason, mode=rows.mode if self._jacobian is None else "given")
            how = descent(rows, system, options)
            state = minimize(how, start)
            free = free_parameters(state, options)
            has_factor = system.name in ("qr", "cholesky") and layout.size <= COVARIANCE_PARAMETERS
            factor = state.at.factor[0] if has_factor else tf.zeros([0, 0], start.dtype)
            return _Found(
                x=state.x,
                cost=state.cost,
                status=state.status,
                iterations=state.iterations,
                accepted=state.accepted,
                evaluations=state.evaluations,
                damping=state.damping,
                free=free,
                factor=factor,
                gradient_norm=tf.reduce_max(tf.abs(free * state.at.gradient)),
                offset=undamped_offset(how, state),
                residuals=rows.residuals(state.x),
                flat=flat_parameters(state, options),
            )

        specs = tf.TensorSpec([layout.size], layout.dtype), tf.nest.map_structure(spec_of, data)
        return _Compiled(tf.function(fit, autograph=False, jit_compile=self._jit_compile).get_concrete_function(*specs), decided)

    def _rows(self, layout: ParameterLayout, data: tuple[Any, ...]) -> Rows:
        return Rows(
            self._residuals,
            layout,
            data=data,
            chunk_size=self._chunk_size,
            loss=self._loss,
            mode=self._jacobian_mode,
            jacobian=self._jacobian,
        )

    def _system(self, rows: Rows) -> tuple[LinearSystem, str]:
        method, reason = self._method, "as asked"
        if method == "auto":
            method, reason = choose_method(rows.layout.size, rows.count, rows.layout.dtype.size, chunked=rows.is_chunked)
        if method == "qr":
            return QrSystem(rows), reason
        if method == "cholesky":
            return CholeskySystem(rows), reason
        if method == "dual":
            return DualSystem(rows), reason
        tolerance, iterations = self._krylov
        kind = CgSystem if method == "cg" else LsmrSystem
        return kind(rows, tolerance=tolerance, max_iterations=iterations), reason

    def _result(
        self, layout: ParameterLayout, decided: dict[str, Any], found: _Found, start: Any, data: tuple[Any, ...]
    ) -> LeastSquaresResult:
        status = Status.of_code(int(found.status))
        if status is Status.NOT_FINITE:
            raise start_error(layout, self._residuals, start, data)
        offset, iterations = float(found.offset), int(found.iterations)
        flat = [layout.element_name(int(i)) for i in np.flatnonzero(found.flat.numpy())] if status is Status.FLAT else []
        return LeastSquaresResult(
            params=layout.pack(layout.split(found.x)),
            cost=float(found.cost),
            status=status.value,
            message=explain(status, offset=offset, iterations=iterations, flat=flat),
            converged=status.converged,
            iterations=iterations,
            accepted_steps=int(found.accepted),
            evaluations=int(found.evaluations),
            jacobian_evaluations=1 + int(found.accepted),
            gradient_norm=float(found.gradient_norm),
            offset=offset,
            damping=float(found.damping),
            method=decided["method"],
            method_reason=decided["reason"],
            jacobian_mode=decided["mode"],
            residuals=found.residuals,
            layout=layout,
            free=found.free.numpy() > 0.0,
            factor=found.factor.numpy() if found.factor.shape[0] else None,
        )


def choose_method(parameters: int, residuals: int, itemsize: int, *, chunked: bool) -> tuple[MethodName, str]:
    """The linear solver for a problem of this size, and why.

    Args:
        parameters: n.
        residuals: m.
        itemsize: bytes of a number.
        chunked: whether the Jacobian comes in chunks.

    >>> choose_method(4, 100, 8, chunked=False)
    ('qr', '4 parameters: small enough for the most exact solver')
    >>> choose_method(100_000, 50, 8, chunked=False)[0], choose_method(5000, 60_000, 8, chunked=True)[0]
    ('dual', 'cholesky')
    >>> choose_method(1_000_000, 60_000, 4, chunked=True)[0]
    'cg'
    """
    if parameters <= QR_PARAMETERS and (chunked or parameters * residuals * itemsize <= DENSE_BYTES):
        return "qr", f"{parameters} parameters: small enough for the most exact solver"
    if residuals < parameters and not chunked and parameters * residuals * itemsize <= DENSE_BYTES:
        return "dual", f"{parameters} parameters, but only {residuals} residuals"
    if parameters**2 * itemsize <= DENSE_BYTES and (chunked or parameters * residuals * itemsize <= DENSE_BYTES):
        return "cholesky", f"the Gram matrix of {parameters} parameters fits into memory"
    large = f"matrices of {parameters} parameters and {residuals} residuals are larger than {DENSE_BYTES >> 20} MiB"
    return ("cg" if chunked else "lsmr"), large
