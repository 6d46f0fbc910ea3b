"""`LevenbergMarquardt`: a Keras model, a loss, and compiled steps on batches."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from graphwright.errors import ArgumentError, UnsupportedError, first_line
from graphwright.least_squares.arguments import check_choice, check_count, check_positive, is_finite
from graphwright.least_squares.damping import SCALE_FADES_BY, first_scale
from graphwright.least_squares.jacobians import JacobianMode
from graphwright.least_squares.keras.attempts import Attempted, Judged, attempt_steps, judge_step
from graphwright.least_squares.keras.compiled_losses import CompiledLosses
from graphwright.least_squares.keras.compiled_steps import CompiledSteps
from graphwright.least_squares.keras.decisions import KRYLOV_ITERATIONS, Decisions, Problem, decide
from graphwright.least_squares.keras.model_function import ModelFunction, first_samples
from graphwright.least_squares.keras.model_rows import LocalBatch, ReplicatedBatch, batch_of, sample_count
from graphwright.least_squares.methods import Method, linear_system
from graphwright.step.keras_model import as_tensors, one_replica, strategy_of

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_SMALLEST_SCALE = 1e-3
"""Relative to the root mean square of column norms."""
_ROUNDING = 8.0
"""Steps that should lower the loss by less than this many units in its last place tell nothing about the damping."""


class StepResult(NamedTuple):
    """What came of a step on a batch. Tensors, all scalars but for the outputs.

    Attributes:
        loss: of the batch before the step, as Keras defines it.
        new_loss: of the batch after the step; the same as before where no step was taken.
        accepted: whether a step was taken.
        attempts: steps tried.
        damping: for the next batch, relative to squared column norms of the Jacobian.
        gain: by how much the step lowered the loss, over what the linear model predicted; 0 where none was taken.
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
    """Trains a Keras model by one damped Gauss-Newton step per batch (K. Levenberg 1944; D. W. Marquardt 1963).

    For each batch the model is linearized, and steps are tried at growing damping until one lowers the loss of that batch; all of it in
    one compiled function. Damping follows the gain ratio (H. B. Nielsen 1999) and is kept between batches. On its own batch every step
    gains, so the next batch has a say: the damping is eased only if the step lowered its loss too, and a step that doubles it is taken
    back. Steps are measured in units of the Jacobian's column norms (Marquardt's scaling). `LMModel` puts it into `fit`.

    Args:
        model: a built Keras model, its variables float32 or float64. Several inputs and outputs are fine.
        loss: as `compile` takes it: a name, a Keras loss, or a list or dict of them by output. `MeanSquaredError`,
            `MeanSquaredLogarithmicError`, `Huber`, `LogCosh`, `CategoricalCrossentropy`, `SparseCategoricalCrossentropy`,
            `BinaryCrossentropy`, `LeastSquaresLoss` with residuals of your own, `ReducedMeanSquaredError`, `SquareRootLoss`.
        loss_weights: as `compile` takes it.
        method: the linear solver; `"auto"` chooses by sizes, and `decisions` says what and why. `"qr"` for small models, `"dual"` (J J')
            for more parameters than residuals, `"cholesky"` (Gram matrix, summed over chunks), `"cg"` (matrix-free).
        chunk_size: samples whose Jacobian is in memory at a time; None for some MiB.
        jacobian_mode: `"per_sample"`, `"reverse"`, `"forward"`, or `"auto"` for what needs fewest passes.
        first_damping: relative to squared column norms.
        smallest_damping: below which it is never eased. Larger values suit small batches, which a nearly undamped step would fit too well.
        largest_damping: above which it is never raised.
        attempts: steps tried per batch.
        solve_dtype: `"float64"` to sum and solve with more digits than the model has.
        krylov_tolerance: how exactly `"cg"` solves for a step.
        krylov_iterations: its products per step, at most.
        jit_compile: let XLA compile the step; on several replicas, what each of them sums.

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
        given = {"chunk_size": 1 if chunk_size is None else chunk_size, "attempts": attempts, "krylov_iterations": krylov_iterations}
        for name, count in given.items():
            check_count(name, count)
        check_positive("krylov_tolerance", krylov_tolerance)
        check_choice("method", method, Method)
        check_choice("jacobian_mode", jacobian_mode, JacobianMode)
        check_positive("first_damping", first_damping)
        check_positive("largest_damping", largest_damping)
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
        self._given_losses = (loss, loss_weights)
        self._method: Method = method
        self._chunk_size = None if chunk_size is None else int(chunk_size)
        self._jacobian_mode: JacobianMode = jacobian_mode
        self._first_damping = float(first_damping)
        self._limits = (float(smallest_damping), float(largest_damping))
        self._attempts = int(attempts)
        self._krylov_tolerance, self._krylov_iterations = float(krylov_tolerance), int(krylov_iterations)
        self._strategy = strategy_of(model)
        self._replicas = 1 if self._strategy is None else int(self._strategy.num_replicas_in_sync)
        self._function = ModelFunction(model, solve_dtype)
        self._losses: CompiledLosses | None = None
        self._structure: Any = None
        self._residuals_per_sample = 0
        self._decided: dict[Decisions, None] = {}
        self._jit_compile = jit_compile
        self._steps = CompiledSteps(lambda: self.compiled(self.traced_step))
        with (tf.distribute.get_strategy() if self._strategy is None else self._strategy).scope():
            dtype = self._function.layout.dtype
            self.damping = tf.Variable(self._first_damping, trainable=False, dtype=dtype, name="damping")
            self._growth = tf.Variable(2.0, trainable=False, dtype=dtype, name="growth")
            self._gain = tf.Variable(0.0, trainable=False, dtype=dtype, name="gain")
            self._before = tf.Variable(tf.zeros([self._function.layout.size], dtype), trainable=False, name="before")
            self._scale = tf.Variable(tf.zeros([self._function.layout.size], dtype), trainable=False, name="scale")

    @property
    def decisions(self) -> tuple[Decisions, ...]:
        """How steps are computed: which solver and why, which Jacobian, which chunks; one entry per shape of batch so far."""
        return tuple(self._decided)

    @property
    def step_variables(self) -> tuple[Any, ...]:
        """What a step leaves for the next one besides the model's variables; a training that is to go on later needs them."""
        return (self.damping, self._growth, self._gain, self._before, self._scale)

    def reset(self) -> None:
        """Start over with the first damping, forgetting all scales."""
        self.damping.assign(self._first_damping)
        self._growth.assign(2.0)
        self._gain.assign(0.0)
        self._scale.assign(tf.zeros_like(self._scale))

    def step(self, x: Any, y: Any, sample_weight: Any = None) -> StepResult:
        """One step on one batch; the model's variables are updated in place.

        Args:
            x: inputs, as the model takes them, the first dimension counting samples. Under a strategy, values per replica.
            y: targets: one, or by output a list or dict.
            sample_weight: per sample, or per element of the loss; one, or by output a list or dict.

        Raises:
            ArgumentError: data that do not match the model.
            UnsupportedError: see `prepare`.
        """
        data = tuple(None if part is None else as_tensors(part) for part in (x, y, sample_weight))
        self.prepare(data)
        return self._steps(data)

    def prepare(self, data: Any) -> None:
        """Look at the model once, on a few samples of a first batch (inputs, targets, sample weights).

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
                cause="the model is run once on a few samples, to see what it is",
                remedy="call prepare((x, y, sample_weight)) outside of tf.function first",
            )
        here = one_replica(self._strategy, data)
        _check_samples(here)
        few = tf.nest.map_structure(first_samples(8), here)
        if not sample_count(few[0]):
            raise ArgumentError("a batch without samples", argument="x")
        outputs = self._function.examine(few[0])
        names = getattr(self._model, "output_names", None)
        losses = CompiledLosses.of(*self._given_losses, outputs, names)
        dtype = self._function.layout.dtype
        batch = batch_of(losses, few, dtype)
        try:
            roots = losses.roots(batch.targets, tf.nest.flatten(outputs), batch.weights, losses.weights, dtype)
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise ArgumentError(
                f"targets of shape {_shapes(batch.targets)} for outputs of shape {_shapes(tf.nest.flatten(outputs))}",
                argument="y",
                cause=first_line(error),
                remedy="give targets that the loss can compare with the outputs",
            ) from error
        self._residuals_per_sample = int(roots.shape[1])
        self._structure = tf.nest.pack_sequence_as(outputs, range(len(losses.names)))
        self._losses = losses

    def packed(self, outputs: Any) -> Any:
        """Flat outputs in the structure in which the model returns them."""
        return tf.nest.pack_sequence_as(self._structure, outputs)

    def compiled(self, function: Any) -> Any:
        """A `tf.function` of what makes one step; XLA compiles it as a whole where no sums over replicas are within."""
        return tf.function(function, autograph=False, jit_compile=self._jit_compile and self._replicas == 1)

    def traced_step(self, data: Any) -> StepResult:
        """One step on a batch of static shape, for use inside a `tf.function` of your own, after `prepare`."""
        assert self._losses is not None, "prepare first"
        function = self._function
        point, state = function.point(), function.state()
        decided: list[Decisions] = []

        def decide_here(samples: int) -> Decisions:
            decided.append(self._decide(samples))
            return decided[-1]

        batch: Any
        if self._replicas == 1:
            batch = LocalBatch(function, self._losses, one_replica(self._strategy, data), state, decide_here)
        else:
            batch = ReplicatedBatch(self._strategy, function, self._losses, data, state, decide_here, jit_compile=self._jit_compile)
        system = linear_system(
            decided[0].method, batch.rows, krylov_tolerance=self._krylov_tolerance, krylov_iterations=self._krylov_iterations
        )
        cost_of = batch.rows.cost
        if self._replicas == 1:  # in three places, but one part of the graph
            cost_of = tf.function(cost_of, autograph=False, experimental_attributes={"_noinline": True})
        damping, growth, gain, before, scale_so_far = (tf.convert_to_tensor(variable) for variable in self.step_variables)
        judged = judge_step(cost_of, before, point, gain, damping, growth)
        point, cost = judged.point, judged.cost
        at = system.linearize(point)
        outputs, state_after = batch.forward(point)
        scale = first_scale(tf.maximum(SCALE_FADES_BY * scale_so_far, at.column_norms))  # zero so far where there is none
        # Parameters that do not matter, such as a bias before batch normalization, must not count as free to run away.
        scale = tf.maximum(scale, _SMALLEST_SCALE * tf.sqrt(tf.reduce_mean(tf.square(at.column_norms))))
        found = attempt_steps(
            cost_of, system, point, cost, at, scale, judged.damping, judged.growth, attempts=self._attempts, limits=self._limits
        )
        function.assign(found.point, function.chosen_state(found.accepted, state, state_after))
        damping = self._remember(point, cost, tf.where(tf.reduce_all(tf.math.is_finite(scale)), scale, scale_so_far), judged, found)
        return StepResult(cost, found.cost, found.accepted, found.attempts, damping, found.gain, outputs)

    def _remember(self, point: Any, cost: Any, scale: Any, judged: Judged, found: Attempted) -> Any:
        """Keep for the next batch where the step came from, what it gained, and in which units; the damping for it."""
        epsilon = float(np.finfo(self._function.layout.dtype.as_numpy_dtype).eps)
        telling = found.accepted | (found.promised > _ROUNDING * epsilon * cost)
        damping = tf.where(telling, found.damping, judged.damping)
        self.damping.assign(damping)
        self._growth.assign(tf.where(telling, found.growth, judged.growth))
        self._scale.assign(scale)
        self._before.assign(point)
        self._gain.assign(found.gain)
        return damping

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


def _shapes(tensors: Any) -> str:
    """Those of some samples, the number of which is left out."""
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
    for name, found in counts.items():
        if found - counts["x"]:
            raise ArgumentError(
                f"{min(found - counts['x'])} samples in {name} for {min(counts['x'])} in x",
                argument=name,
                remedy="give as many as there are inputs",
            )
