"""`LevenbergMarquardt`: a Keras model, a loss, and compiled steps on batches."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from graphwright.errors import ArgumentError, UnsupportedError, first_line
from graphwright.least_squares.arguments import check_choice, check_count, check_positive, is_finite
from graphwright.least_squares.damping import SCALE_FADES_BY, eased_damping, first_scale, raised_damping
from graphwright.least_squares.jacobians import JacobianMode
from graphwright.least_squares.keras.batch_rows import ReplicatedRows, batch_of, local_rows, sample_count
from graphwright.least_squares.keras.compiled_losses import CompiledLosses
from graphwright.least_squares.keras.decisions import KRYLOV_ITERATIONS, Decisions, Problem, decide
from graphwright.least_squares.keras.model_function import ModelFunction, first_samples
from graphwright.least_squares.linear_systems import Linearization, LinearSystem, Method, linear_system
from graphwright.step.keras_model import as_tensors, one_replica, strategy_of

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_SMALLEST_SCALE = 1e-3
"""Relative to the root mean square of column norms."""
_ROUNDING = 8.0
"""A predicted reduction below this many units in the loss's last place says nothing about the damping."""
_HARM = 2.0
"""A step that raises the loss of the next batch by more than this factor is undone."""


class StepResult(NamedTuple):
    """The result of a step on a batch. Tensors, all scalars but for the outputs.

    Attributes:
        loss: of the batch before the step, as Keras defines it.
        new_loss: of the batch after the step; equal to `loss` if no step was accepted.
        attempts: steps tried.
        damping: for the next batch, relative to squared column norms of the Jacobian.
        gain: actual over predicted reduction of the loss; 0 if no step was accepted.
        outputs: of the model before the step, flat, per replica.
    """

    loss: Any
    new_loss: Any
    accepted: Any
    attempts: Any
    damping: Any
    gain: Any
    outputs: Any


class LevenbergMarquardt(tf.Module):
    """Train a Keras model by one damped Gauss-Newton step per batch (K. Levenberg 1944; D. W. Marquardt 1963).

    For each batch the model is linearized, and steps are tried at growing damping until one lowers the loss of that batch, all in one
    compiled function. Damping follows the gain ratio (H. B. Nielsen 1999) and is kept between batches. Every step gains on its own batch,
    so the next batch has a say: the damping is eased only if the step lowered the loss there too, and a step that doubles it is undone.
    Steps are measured in units of the Jacobian's column norms. `LMModel` uses these steps in `fit`.

    Args:
        model: a built Keras model, its variables float32 or float64.
        loss: as for `compile`: a name, a Keras loss, or a list or dict of them by output. Keras' squared errors, cross-entropies, `Huber`
            and `LogCosh`; `LeastSquaresLoss`, `ReducedMeanSquaredError`, `SquareRootLoss`.
        loss_weights: as for `compile`.
        method: the linear solver; `"auto"` chooses by sizes, and `decisions` gives the reason. `"qr"` for small models, `"dual"` (J J')
            for more parameters than residuals, `"cholesky"` (Gram matrix, summed over chunks), `"cg"` (matrix-free).
        chunk_size: samples whose Jacobian is in memory at a time; None for some MiB.
        jacobian_mode: `"per_sample"`, `"reverse"`, `"forward"`, or `"auto"` for the fewest passes.
        first_damping: relative to squared column norms.
        smallest_damping: lower limit. Larger values suit small batches, which a nearly undamped step would fit too well.
        largest_damping: upper limit.
        attempts: limit of steps tried per batch.
        solve_dtype: `"float64"` to sum and solve with more digits than the model has.
        krylov_tolerance: relative tolerance of `"cg"` for a step.
        krylov_iterations: limit of its products per step.
        jit_compile: let XLA compile the step; on several replicas, the sums of each.

    Raises:
        ArgumentError: an argument that is out of range, or losses that do not match the outputs.
        UnsupportedError: a model without trainable variables, of other types, or not built; a loss without known Hessian.

    Example:
        >>> keras.utils.set_random_seed(1)
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        >>> trainer = LevenbergMarquardt(model, "mse")
        >>> x = np.linspace(-1.0, 1.0, 50, dtype=np.float32)[:, np.newaxis]
        >>> losses = [float(trainer.step(x, np.sin(3.0 * x)).new_loss) for _ in range(30)]
        >>> losses[-1] < 0.01
        True
        >>> print(trainer.decisions[0])
        qr: 25 parameters: small enough for the most exact solver; 50 residuals of 50 samples; Jacobian per sample, all at once
    """

    def __init__(
        self,
        model: Any,
        loss: Any,
        *,
        loss_weights: Any = None,
        method: Method = "auto",
        chunk_size: int | None = None,
        jacobian_mode: JacobianMode = "auto",
        first_damping: float = 1e-3,
        smallest_damping: float = 0.0,
        largest_damping: float = 1e10,
        attempts: int = 10,
        solve_dtype: str | None = None,
        krylov_tolerance: float = 1e-2,
        krylov_iterations: int = KRYLOV_ITERATIONS,
        jit_compile: bool = False,
    ) -> None:
        tf.Module.__init__(self, name="levenberg_marquardt")
        counts = {"chunk_size": 1 if chunk_size is None else chunk_size, "attempts": attempts, "krylov_iterations": krylov_iterations}
        for name, count in counts.items():
            check_count(name, count)
        for name, number in (
            ("krylov_tolerance", krylov_tolerance),
            ("first_damping", first_damping),
            ("largest_damping", largest_damping),
        ):
            check_positive(name, number)
        check_choice("method", method, Method)
        check_choice("jacobian_mode", jacobian_mode, JacobianMode)
        if not is_finite(smallest_damping) or not 0.0 <= smallest_damping <= largest_damping:
            raise ArgumentError(
                f"smallest_damping={smallest_damping!r}",
                argument="smallest_damping",
                remedy="give at least 0, at most largest_damping",
            )
        if solve_dtype not in (None, "float32", "float64"):
            raise ArgumentError(f"solve_dtype={solve_dtype!r}", argument="solve_dtype", remedy='"float32", "float64" or None')
        if not isinstance(model, keras.Model):
            raise ArgumentError(f"a {type(model).__name__} in place of a Keras model", argument="model")
        if not model.built:
            raise UnsupportedError(
                "the model is not built", where=f"model {model.name!r}", remedy="call it once on a batch, or model.build(shape)"
            )
        self._model = model
        self._compile_arguments = (loss, loss_weights)
        self._method: Method = method
        self._chunk_size = None if chunk_size is None else int(chunk_size)
        self._jacobian_mode: JacobianMode = jacobian_mode
        self._first_damping = float(first_damping)
        self._limits = (float(smallest_damping), float(largest_damping))
        self._attempts = int(attempts)
        self._krylov: Any = {"krylov_tolerance": float(krylov_tolerance), "krylov_iterations": int(krylov_iterations)}
        self._strategy = strategy_of(model)
        self._replicas = 1 if self._strategy is None else int(self._strategy.num_replicas_in_sync)
        self._function = ModelFunction(model, solve_dtype)
        self._losses: CompiledLosses | None = None
        self._structure: Any = None
        self._residuals_per_sample = 0
        self._decided: dict[Decisions, None] = {}
        self._jit_compile = jit_compile
        self._steps = self.compiled(self.traced_step)
        with (tf.distribute.get_strategy() if self._strategy is None else self._strategy).scope():
            dtype = self._function.layout.dtype
            self.damping = tf.Variable(self._first_damping, trainable=False, dtype=dtype, name="damping")
            self._growth = tf.Variable(2.0, trainable=False, dtype=dtype, name="growth")
            self._gain = tf.Variable(0.0, trainable=False, dtype=dtype, name="gain")
            self._before = tf.Variable(tf.zeros([self._function.layout.size], dtype), trainable=False, name="before")
            self._scale = tf.Variable(tf.zeros([self._function.layout.size], dtype), trainable=False, name="scale")

    @property
    def decisions(self) -> tuple[Decisions, ...]:
        """Solver and reason, Jacobian mode and chunks of the steps; one entry per shape of batch so far."""
        return tuple(self._decided)

    @property
    def step_variables(self) -> tuple[Any, ...]:
        """The state of the trainer between steps. To resume a training, restore it besides the model's variables."""
        return (self.damping, self._growth, self._gain, self._before, self._scale)

    def reset(self) -> None:
        """Start over with the first damping, and forget all scales."""
        self.damping.assign(self._first_damping)
        self._growth.assign(2.0)
        self._gain.assign(0.0)
        self._scale.assign(tf.zeros_like(self._scale))

    def step(self, x: Any, y: Any, sample_weight: Any = None) -> StepResult:
        """Make one step on one batch, and update the model's variables in place.

        Args:
            x: inputs, as the model takes them, the first dimension counting samples. Under a strategy, values per replica.
            y: targets: one, or by output a list or dict.
            sample_weight: per sample, or per element of the loss; one, or by output a list or dict.

        Raises:
            ArgumentError: data that do not match the model.
        """
        data = tuple(None if part is None else as_tensors(part) for part in (x, y, sample_weight))
        self.prepare(data)
        return self._steps(data)

    def prepare(self, data: Any) -> None:
        """Examine the model once, on a few samples of a first batch (inputs, targets, sample weights).

        Raises:
            ArgumentError: losses, targets or weights that do not match the outputs.
            UnsupportedError: the model adds losses of its own, or masks its outputs.
        """
        if self._losses is not None:
            return
        if not tf.executing_eagerly():
            raise UnsupportedError(
                "a first step while a graph is built",
                where=f"model {self._model.name!r}",
                cause="the model is run once on a few samples to examine it",
                remedy="call prepare((x, y, sample_weight)) outside of tf.function first",
            )
        here = one_replica(self._strategy, data)
        _check_samples(here)
        few = tf.nest.map_structure(first_samples(8), here)
        if not sample_count(few[0]):
            raise ArgumentError("a batch without samples", argument="x")
        outputs = self._function.examine(few[0])
        flat_outputs = tf.nest.flatten(outputs)
        losses = CompiledLosses.of(*self._compile_arguments, outputs, getattr(self._model, "output_names", None))
        dtype = self._function.layout.dtype
        batch = batch_of(losses, few, dtype)
        factors = losses.factors([tf.zeros([], dtype)] * len(losses.names))
        try:
            roots = losses.roots(batch.targets, flat_outputs, batch.weights, factors, dtype)
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise ArgumentError(
                f"targets of shape {_shapes(batch.targets)} for outputs of shape {_shapes(flat_outputs)}",
                argument="y",
                cause=first_line(error),
                remedy="give targets that the loss can compare with the outputs",
            ) from error
        self._residuals_per_sample = int(roots.shape[1])
        self._structure = tf.nest.pack_sequence_as(outputs, range(len(losses.names)))
        self._losses = losses

    def packed(self, outputs: Any) -> Any:
        return tf.nest.pack_sequence_as(self._structure, outputs)

    def compiled(self, function: Any) -> Any:
        """Return a compiled function of one step; XLA compiles it as a whole if it contains no sums over replicas."""
        step = tf.function(function, autograph=False, jit_compile=self._jit_compile and self._replicas == 1)
        return partial(step)  # a `tf.function` as an attribute would become a part of SavedModels

    def traced_step(self, data: Any) -> StepResult:
        """Make one step on a batch of static shape inside a `tf.function` of your own, after `prepare`."""
        assert self._losses is not None, "prepare first"
        function = self._function
        point, state = function.point(), function.state()
        rows: Any
        if self._replicas == 1:
            data = one_replica(self._strategy, data)
            decisions = self._decide(sample_count(data[0]))
            rows = local_rows(function, self._losses, data, state, decisions)
            # In three places of the step, but once in the graph.
            cost_of = tf.function(rows.cost, autograph=False, experimental_attributes={"_noinline": True})
        else:
            rows = ReplicatedRows(self._strategy, function, self._losses, data, state, self._decide, jit_compile=self._jit_compile)
            cost_of, decisions = rows.cost, rows.decisions
        system = linear_system(decisions.method, rows, **self._krylov)
        before = _Before(*(tf.convert_to_tensor(variable) for variable in self.step_variables))
        point, cost, damping = _judge(cost_of, before, point)
        at = system.linearize(point)
        if self._replicas == 1:
            outputs, state_after = function.outputs(function.layout.split(point), state, data[0])
        else:
            outputs, state_after = rows.forward(point)
        scale = first_scale(tf.maximum(SCALE_FADES_BY * before.scale, at.column_norms))
        # Parameters without influence, such as a bias before batch normalization, must not move without limit.
        scale = tf.maximum(scale, _SMALLEST_SCALE * tf.sqrt(tf.reduce_mean(tf.square(at.column_norms))))
        result = _attempt(cost_of, system, point, cost, at, scale, damping, before.growth, limits=self._limits, attempts=self._attempts)
        function.assign(result.point, function.state_after(result.accepted, state, state_after))
        rounding = _ROUNDING * float(np.finfo(function.layout.dtype.as_numpy_dtype).eps) * cost
        significant = result.accepted | (result.predicted > rounding)
        damping = tf.where(significant, result.damping, damping)
        self.damping.assign(damping)
        self._growth.assign(tf.where(significant, result.growth, before.growth))
        self._gain.assign(result.gain)
        self._before.assign(point)
        self._scale.assign(tf.where(tf.reduce_all(tf.math.is_finite(scale)), scale, before.scale))
        return StepResult(cost, result.cost, result.accepted, result.attempts, damping, result.gain, outputs)

    def _decide(self, samples: int) -> Decisions:
        function = self._function
        problem = Problem(
            parameters=function.layout.size,
            samples=samples,
            residuals_per_sample=self._residuals_per_sample,
            itemsize=function.layout.dtype.size,
            replicas=self._replicas,
            coupled=function.couples_samples,
            random=function.is_random,
            einsum=function.has_einsum,
            squares=self._losses is None or self._losses.are_squares,
        )
        decisions = decide(problem, self._method, self._chunk_size, self._jacobian_mode)
        self._decided[decisions] = None
        return decisions


class _Before(NamedTuple):
    damping: Any
    growth: Any
    gain: Any
    start: Any
    scale: Any


def _judge(cost_of: Callable[[Any], Any], before: _Before, point: Any) -> tuple[Any, Any, Any]:
    """Judge the last step by a new batch; return the point (n,) to continue from, its loss, and the damping.

    The damping is eased by Nielsen's rule if the step lowered the loss of this batch, and raised otherwise.
    """
    cost = cost_of(point)
    moved = before.gain > 0.0
    earlier = tf.cond(moved, lambda: cost_of(before.start), lambda: cost)
    harmed = moved & ~(cost <= _HARM * earlier)
    # Other samples are noise to a step: a loss there raises the damping, but losses in a row do not raise it ever faster.
    next_damping = tf.where(cost < earlier, eased_damping(before.damping, before.gain), 2.0 * before.damping)
    return tf.where(harmed, before.start, point), tf.where(harmed, earlier, cost), tf.where(moved, next_damping, before.damping)


class _Attempts(NamedTuple):
    """Steps tried so far on one batch: the end (n,), its loss, and the predicted reduction of the first step. Tensors.

    `damping` belongs to an accepted step, otherwise to the next one; `growth` is the factor of the next refusal.
    """

    point: Any
    cost: Any
    predicted: Any
    gain: Any
    damping: Any
    growth: Any
    attempts: Any
    accepted: Any


def _attempt(
    cost_of: Callable[[Any], Any],
    system: LinearSystem,
    point: Any,
    cost: Any,
    at: Linearization,
    scale: Any,
    damping: Any,
    growth: Any,
    *,
    limits: tuple[float, float],
    attempts: int,
) -> _Attempts:
    smallest, largest = max(limits[0], system.smallest_damping), limits[1]
    free = tf.ones_like(point)

    def continues(state: _Attempts) -> Any:
        return ~state.accepted & (state.attempts < attempts)

    def attempt(state: _Attempts) -> tuple[_Attempts]:
        step, _ = system.step(point, at, scale, state.damping, free)
        predicted = -tf.reduce_sum(at.gradient * step) - system.half_square(point, at, step)
        target = point + step
        reached = cost_of(target)
        accepted = (reached < cost) & (predicted > 0.0)  # false if one of them is NaN
        raised, growth = raised_damping(state.damping, state.growth)
        return (
            _Attempts(
                point=tf.where(accepted, target, point),
                cost=tf.where(accepted, reached, cost),
                predicted=tf.maximum(predicted, state.predicted),  # largest for the first step, whose damping is smallest
                gain=tf.where(accepted, (cost - reached) / predicted, tf.zeros_like(cost)),
                damping=tf.where(accepted, state.damping, tf.minimum(raised, largest)),
                growth=tf.where(accepted, tf.constant(2.0, growth.dtype), growth),
                attempts=state.attempts + 1,
                accepted=accepted,
            ),
        )

    start = _Attempts(
        point=point,
        cost=cost,
        predicted=tf.zeros_like(cost),
        gain=tf.zeros_like(cost),
        damping=tf.clip_by_value(damping, smallest, largest),
        growth=tf.convert_to_tensor(growth),
        attempts=tf.constant(0),
        accepted=tf.constant(False),
    )
    return tf.while_loop(continues, attempt, (start,), parallel_iterations=1)[0]


def _shapes(tensors: Any) -> str:
    return ", ".join(str((None, *tensor.shape[1:])) for tensor in tensors)


def _check_samples(data: Any) -> None:
    counts: dict[str, set[Any]] = {}
    for name, part in zip(("x", "y", "sample_weight"), data, strict=True):
        shapes = [tensor.shape for tensor in tf.nest.flatten(part) if tensor is not None]
        if any(not shape.rank for shape in shapes):
            raise ArgumentError(
                f"{name} without a dimension of samples",
                argument=name,
                cause="a single number, or a list of numbers, each of which counts as an input of its own",
                remedy="give arrays whose first dimension counts samples (np.asarray of a list)",
            )
        counts[name] = {shape[0] for shape in shapes}
    for name, sizes in counts.items():
        if sizes - counts["x"]:
            raise ArgumentError(
                f"{min(sizes - counts['x'])} samples in {name} for {min(counts['x'])} in x",
                argument=name,
                remedy="give as many as there are inputs",
            )
