"""`least_squares`: nonlinear least squares on TensorFlow, compiled as one loop."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.least_squares.arguments import (
    Bounds,
    as_data,
    bound_vectors,
    check_choice,
    check_chunks,
    check_count,
    check_positive,
    check_start,
    start_error,
)
from graphwright.least_squares.jacobians import JacobianMode
from graphwright.least_squares.linear_systems import Method, choose_method, linear_system
from graphwright.least_squares.loop import Descent, State
from graphwright.least_squares.parameters import ParameterLayout, flatten_parameters
from graphwright.least_squares.progress import Callback, watcher
from graphwright.least_squares.result import LeastSquaresResult, LeastSquaresTensors, explain
from graphwright.least_squares.robust_losses import LossName, Rho, RobustLoss
from graphwright.least_squares.rows import Rows, spec_of
from graphwright.least_squares.stopping import Status, Tolerances, tolerances_for
from graphwright.least_squares.symmetric_blocks import lower_half
from graphwright.source.private_tensorflow import is_traced_for_xla
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")

COVARIANCE_PARAMETERS = 5000
"""Most parameters for which a covariance is available."""

_NUMBERS = ("cost", "iterations", "accepted_steps", "evaluations", "gradient_norm", "offset", "damping")
"""Fields of a result that are scalars in `LeastSquaresTensors`."""


@left_alone
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
    callback: Callback | None = None,
) -> LeastSquaresResult:
    """Find the parameters that minimize the sum of squared residuals, by damped Gauss-Newton steps (Levenberg-Marquardt).

    The whole fit is one TensorFlow loop. To fit the same residuals many times, create a `LeastSquares` once and call it: it traces once.

    Called while a `tf.function` is traced, the loop becomes part of its graph, and the result is `LeastSquaresTensors`. Shapes, types,
    bounds and options are checked then; a start that is not finite is reported by the status, not by an error.

    Args:
        residuals: `residuals(params, *data)` -> a tensor of any shape, or a structure of tensors, in TensorFlow operations; no Python
            control flow that depends on tensors, unless it is a `tf.function`. To weight a residual, multiply it: with one over its
            standard deviation, the cost is half of chi squared.
        params: the start: a tensor, array or number, or a structure (dict, list, tuple) of them, float64 or float32. Python numbers
            count as float64.
        data: tensors whose first dimension counts samples. The residuals of a sample must depend on that sample only.
        method: the linear solver; `"auto"` chooses by sizes, and the result gives the reason. `"qr"` for small and ill-conditioned
            problems, `"cholesky"` (Gram matrix), `"dual"` (more parameters than residuals), `"cg"` (matrix-free).
        chunk_size: samples, or without data residuals, whose Jacobian is in memory at a time. None for all.
        bounds: lower and upper bounds, each a number or shaped like the parameters; infinite for none.
        loss: `"linear"`, `"huber"`, `"soft_l1"`, `"cauchy"`, `"arctan"` as in SciPy, or a function (see `RobustLoss`).
        loss_scale: residuals below it count as inliers.
        jacobian: `jacobian(params, *data)`, a matrix (m, n) or a structure like the parameters; it replaces differentiation.
        jacobian_mode: `"forward"`, `"reverse"`, `"per_sample"`, or `"auto"` for the fewest passes.
        geodesic: bend steps by the second derivative along them (two more evaluations per step); by default with `"qr"` without bounds.
        gtol: stop when this share of the residuals' length lies in directions in which the model can move.
        xtol: stop when the undamped step is this small relative to the parameters.
        ftol: stop when neither the step nor an undamped one lowers the cost by more than this share.
        max_iterations: limit of steps tried.
        first_damping: relative to squared column norms of the Jacobian.
        krylov_tolerance: relative tolerance of `"cg"` for a step.
        krylov_iterations: limit of its products per step.
        jit_compile: compile the loop with XLA, if it has kernels for all operations of the residuals.
        callback: called with a `LeastSquaresStep` after each step, accepted or refused; returns True to stop. It runs in Python, in this
            process, and costs each step a fraction of a millisecond. With `jit_compile` each step is compiled, but not the loop.

    `gtol`, `xtol` and `ftol` default to the resolution of the type: eps**(2/3), eps**(2/3) and 0.

    Raises:
        ArgumentError: arguments that contradict each other, or residuals that are not finite at the start.
        UnsupportedError: a callback within a function that XLA compiles.

    Sources: K. Levenberg (1944), D. W. Marquardt (1963); damping by H. B. Nielsen (1999); the parts name their own.

    >>> import tensorflow as tf
    >>> t = tf.constant([0.0, 1.0, 2.0, 3.0], tf.float64)
    >>> seen = tf.constant([5.0, 3.1, 1.8, 1.1], tf.float64)
    >>> fit = least_squares(lambda p: p["height"] * tf.exp(-p["rate"] * t) - seen, {"height": 1.0, "rate": 1.0})
    >>> fit.converged, round(float(fit.params["rate"]), 4)
    (True, 0.5021)
    """
    arguments = dict(locals())
    solver = LeastSquares(**{name: value for name, value in arguments.items() if name not in ("params", "data")})
    return solver(params, *data)


@dataclass(frozen=True)
class _Compiled:
    run: Any
    choices: dict[str, Any]
    raised: list[Exception]


class _Solution(NamedTuple):
    tensors: LeastSquaresTensors
    free: Any
    factor: Any
    flat: Any


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """A fit that is traced once and called often, with other starts and other data of the same shapes.

    Attributes:
        residuals: this and all other arguments are those of `least_squares`.

    Example:
        >>> line = LeastSquares(lambda p, x, y: p[0] * x + p[1] - y)
        >>> x = np.array([0.0, 1.0, 2.0])
        >>> [line(np.zeros(2), x, slope * x + 1.0).params.numpy().round(6).tolist() for slope in (2.0, 5.0)]
        [[2.0, 1.0], [5.0, 1.0]]
    """

    residuals: Callable[..., Any]
    _: KW_ONLY
    method: Method = "auto"
    chunk_size: int | None = None
    bounds: Bounds | None = None
    loss: LossName | Rho = "linear"
    loss_scale: float = 1.0
    jacobian: Callable[..., Any] | None = None
    jacobian_mode: JacobianMode = "auto"
    geodesic: bool | None = None
    gtol: float | None = None
    xtol: float | None = None
    ftol: float | None = None
    max_iterations: int = 1000
    first_damping: float = 1e-3
    krylov_tolerance: float = 1e-3
    krylov_iterations: int = 200
    jit_compile: bool = False
    callback: Callback | None = None
    _compiled: dict[Any, _Compiled] = field(default_factory=dict[Any, "_Compiled"], init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.residuals):
            raise ArgumentError(f"residuals={self.residuals!r}", argument="residuals", remedy="give a function of the parameters")
        check_choice("method", self.method, Method)
        check_choice("jacobian_mode", self.jacobian_mode, JacobianMode)
        check_positive("first_damping", self.first_damping)
        check_positive("krylov_tolerance", self.krylov_tolerance)
        check_count("krylov_iterations", self.krylov_iterations)
        if self.chunk_size is not None:
            check_count("chunk_size", self.chunk_size)
        if self.geodesic and self.method in ("dual", "cg"):
            raise ArgumentError(f"geodesic acceleration with {self.method}", argument="geodesic", remedy='it needs "qr" or "cholesky"')
        if self.geodesic and self.bounds is not None:
            raise ArgumentError(
                "geodesic acceleration with bounds",
                argument="geodesic",
                cause="it evaluates the residuals on both sides of a point",
                remedy="leave out one of them",
            )
        check_chunks(self.method, self.chunk_size)
        RobustLoss(self.loss, self.loss_scale)
        self._tolerances(tf.float64)

    @left_alone
    def __call__(self, params: Any, *data: Any) -> LeastSquaresResult:
        """Fit from `params`, with this data; the result and the errors are those of `least_squares`."""
        layout, compiled, (start, tensors) = self._prepare(params, data)
        if not tf.executing_eagerly():
            in_graph: Any = _without_gradients(compiled.run(start, tensors).tensors)
            return in_graph._replace(params=layout.pack(layout.split(in_graph.params)))
        compiled.raised.clear()
        try:
            solution = compiled.run(start, tensors)
        except tf.errors.OpError:
            if compiled.raised:
                raise compiled.raised[0] from None
            raise
        return self._result(layout, compiled.choices, solution, start, tensors)

    def trace(self, params: Any, *data: Any) -> tuple[Any, tuple[Any, tuple[Any, ...]]]:
        """Return the whole fit as a `ConcreteFunction`, for `graphwright.measure`, `inspect` and the like, and its arguments."""
        _, compiled, arguments = self._prepare(params, data)
        return compiled.run, arguments

    def _prepare(self, params: Any, data: tuple[Any, ...]) -> tuple[ParameterLayout, _Compiled, tuple[Any, tuple[Any, ...]]]:
        if self.callback is not None and is_traced_for_xla():
            raise UnsupportedError(
                "a callback within a function that XLA compiles",
                argument="callback",
                cause="XLA does not call Python",
                remedy="leave jit_compile to LeastSquares, which then compiles each step, or leave out the callback",
            )
        layout, start = flatten_parameters(params)
        tensors = tf.nest.map_structure(partial(as_data, dtype=layout.dtype), data)
        bounds = bound_vectors(self.bounds, layout)
        if not tf.executing_eagerly():  # the trace may hold tensors of this graph, so later calls cannot use it
            return layout, self._compile(layout, bounds, tensors), (start, tensors)
        check_start(start, bounds, layout)
        key = repr(layout), repr(tf.nest.map_structure(spec_of, tensors))
        if key not in self._compiled:
            self._compiled[key] = self._compile(layout, bounds, tensors)
        return layout, self._compiled[key], (start, tensors)

    def _compile(self, layout: ParameterLayout, bounds: tuple[Any, Any] | None, data: tuple[Any, ...]) -> _Compiled:
        choices: dict[str, Any] = {}
        raised: list[Exception] = []
        tolerances = self._tolerances(layout.dtype)

        def fit(start: Any, data: tuple[Any, ...]) -> _Solution:
            rows = Rows(
                self.residuals,
                layout,
                data=data,
                chunk_size=self.chunk_size,
                loss=RobustLoss(self.loss, self.loss_scale),
                mode=self.jacobian_mode,
                jacobian=self.jacobian,
            )
            method, reason = self.method, "as asked"
            if method == "auto":
                method, reason = choose_method(layout.size, rows.count, layout.dtype.size, chunked=rows.is_chunked)
            choices.update(method=method, method_reason=reason, jacobian_mode=rows.mode if self.jacobian is None else "given")
            system = linear_system(method, rows, krylov_tolerance=self.krylov_tolerance, krylov_iterations=self.krylov_iterations)
            descent = Descent(
                rows,
                system,
                tf.function(system.linearize, autograph=False),
                tolerances=tolerances,
                first_damping=self.first_damping,
                geodesic=(method == "qr" and bounds is None) if self.geodesic is None else self.geodesic,
                bounds=bounds,
                watch=None if self.callback is None else watcher(self.callback, layout, raised),
                jit_steps=self.jit_compile and self.callback is not None,
            )
            state = descent.minimize(start)
            tensors = LeastSquaresTensors(
                params=state.x,
                cost=state.cost,
                status=state.status,
                converged=tf.reduce_any([state.status == status.code for status in Status if status.converged]),
                iterations=state.iterations,
                accepted_steps=state.accepted,
                evaluations=state.evaluations,
                gradient_norm=descent.gradient_norm(state),
                offset=descent.undamped_offset(state),
                damping=state.damping,
                residuals=rows.residuals(state.x),
            )
            return _Solution(tensors, descent.free(state), _covariance_factor(method, state), descent.flat(state))

        specs = tf.TensorSpec([layout.size], layout.dtype), tf.nest.map_structure(spec_of, data)
        compiled = tf.function(fit, autograph=False, jit_compile=self.jit_compile and self.callback is None)
        return _Compiled(compiled.get_concrete_function(*specs), choices, raised)

    def _tolerances(self, dtype: Any) -> Tolerances:
        return tolerances_for(dtype, self.gtol, self.xtol, self.ftol, self.max_iterations)

    def _result(
        self, layout: ParameterLayout, choices: dict[str, Any], solution: _Solution, start: Any, data: tuple[Any, ...]
    ) -> LeastSquaresResult:
        tensors = solution.tensors
        status = Status.of_code(int(tensors.status))
        if status is Status.NOT_FINITE:
            raise start_error(layout, self.residuals, start, data)
        numbers = {name: getattr(tensors, name).numpy().item() for name in _NUMBERS}
        offset, iterations = numbers["offset"], numbers["iterations"]
        if status is Status.ZERO and not iterations and np.any(tensors.residuals):
            raise ArgumentError(
                f"the squares of the residuals, up to {np.abs(tensors.residuals).max():.3g}, are too small for {layout.dtype.name}",
                argument="residuals",
                remedy="give residuals in a smaller unit",
            )
        flat = [layout.element_name(int(i)) for i in np.flatnonzero(solution.flat.numpy())] if status is Status.FLAT else []
        return LeastSquaresResult(
            params=layout.pack(layout.split(tensors.params)),
            status=status.value,
            message=explain(status, offset=offset, iterations=iterations, flat=flat),
            converged=status.converged,
            jacobian_evaluations=1 + numbers["accepted_steps"],
            residuals=tensors.residuals,
            layout=layout,
            free=solution.free.numpy() > 0.0,
            factor=solution.factor.numpy() if solution.factor.shape[0] else None,
            **numbers,
            **choices,
        )


def _without_gradients(tensors: LeastSquaresTensors) -> LeastSquaresTensors:
    """Refuse gradients: they would be those of the steps, not of the minimum."""

    def constant(tensor: Any) -> Any:
        message = "a fit by least_squares has no gradient; see tf.stop_gradient"
        return tf.raw_ops.PreventGradient(input=tensor, message=message) if tensor.dtype.is_floating else tensor

    return LeastSquaresTensors(*map(constant, tensors))


def _covariance_factor(method: str, state: State) -> Any:
    """Return the factor for the covariance: a triangle or a Gram matrix (n, n); (0, 0) if there is none, or it is too large."""
    size = state.x.shape[0]
    if method not in ("qr", "cholesky") or size > COVARIANCE_PARAMETERS:
        return tf.zeros([0, 0], state.x.dtype)
    return state.at.factor[1][:size] if method == "qr" else lower_half(state.at.factor)
