"""`LMModel`: a Keras model whose `fit` takes Levenberg-Marquardt steps."""

from __future__ import annotations

import importlib
import inspect
import math
from functools import partial
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.least_squares.keras.batch_rows import sample_count
from graphwright.least_squares.keras.model_function import first_samples
from graphwright.least_squares.keras.trainer import LevenbergMarquardt
from graphwright.source.private_keras import loss_tracker_of
from graphwright.source.tensorflow_import import import_keras
from graphwright.step.keras_model import as_tensors, one_replica, repair_building, repair_evaluation, steps_of, strategy_of

tf: Any = importlib.import_module("tensorflow")
keras: Any = import_keras()


@keras.saving.register_keras_serializable(package="graphwright")
class LMModel(keras.Model):
    """A Keras model trained by Levenberg-Marquardt: `compile`, then `fit`, with all features of Keras.

    Callbacks, metrics, validation, history, `steps_per_epoch`, `tf.data`, sample and class weights, several inputs and outputs, and a
    last batch of another size work as usual. Each batch is one step. Larger batches give better steps; full batches converge fastest. The
    inner model holds the variables: save it, or call it, as usual.

    As always in Keras, the logs hold the loss and the metrics of the batches before their steps. They also hold

    - `damping`: for the next batch, relative to squared column norms of the Jacobian;
    - `attempts`: steps tried on the last batch;
    - `accepted`: 1 if the last batch's step was accepted, else 0.

    An epoch in which no step lowers the loss of its batch ends the training; `stopped_because` states the reason.

    Args:
        model: the model to train; it need not be compiled.

    Raises:
        ArgumentError: not a Keras model.

    Example:
        >>> import numpy as np
        >>> keras.utils.set_random_seed(1)
        >>> inner = keras.Sequential([keras.Input((1,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        >>> model = LMModel(inner)
        >>> model.compile("mse", metrics=["mae"])
        >>> x = np.linspace(-1.0, 1.0, 50, dtype=np.float32)[:, np.newaxis]
        >>> history = model.fit(x, np.sin(3.0 * x), batch_size=50, epochs=30, verbose=0)
        >>> history.history["loss"][-1] < 0.01
        True
        >>> sorted(history.history)
        ['accepted', 'attempts', 'damping', 'loss', 'mae']
    """

    def __init__(self, model: Any, **keywords: Any) -> None:
        if not isinstance(model, keras.Model):
            raise ArgumentError(f"a {type(model).__name__} in place of a Keras model", argument="model")
        keras.Model.__init__(self, **{"name": f"lm_{model.name}", **keywords})
        self.model = model
        self.trainer: LevenbergMarquardt | None = None
        """The maker of the steps; None before the first batch."""
        self.stopped_because = ""
        """Why training ended before its last epoch; empty if it did not."""
        self._options: dict[str, Any] = {}
        self.accepted_in_epoch = 0
        """Steps accepted since the epoch began."""
        self._compiled_step: Any = None
        self.built = bool(model.built)

    @property
    def output_names(self) -> Any:
        """The names of the inner model's outputs."""
        return getattr(self.model, "output_names", None)

    @property
    def decisions(self) -> tuple[Any, ...]:
        """How steps are computed, and why; one entry per shape of batch so far."""
        return () if self.trainer is None else self.trainer.decisions

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.model(inputs, training=training)

    def build(self, input_shape: Any) -> None:  # noqa: ARG002
        """Do nothing; the inner model is built on its first call."""
        self.built = True

    def compute_output_shape(self, *arguments: Any, **keywords: Any) -> Any:
        return self.model.compute_output_shape(*arguments, **keywords)

    def compile(
        self,
        loss: Any,
        *,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        steps_per_execution: int = 1,
        jit_compile: bool = False,
        **options: Any,
    ) -> None:
        """Set the loss, the metrics and the options of the steps.

        Args:
            loss: see `LevenbergMarquardt`.
            metrics: as of any Keras model.
            loss_weights: as of any Keras model.
            weighted_metrics: as of any Keras model.
            steps_per_execution: batches between callbacks.
            jit_compile: let XLA compile the step; on several replicas, the sums of each.
            options: options of `LevenbergMarquardt`: method, chunk_size, first_damping, attempts, ...

        Raises:
            ArgumentError: an option that does not exist; there is no optimizer.
        """
        known = set(inspect.signature(LevenbergMarquardt).parameters) - {"model", "loss", "loss_weights", "jit_compile"}
        for name in sorted(set(options) - known):
            remedy = "leave it out: there is no optimizer beside the steps" if name == "optimizer" else f"one of {', '.join(sorted(known))}"
            raise ArgumentError(f"{name}={options[name]!r}", argument=name, remedy=remedy)
        if isinstance(loss, keras.optimizers.Optimizer):
            raise ArgumentError(f"the optimizer {loss.name!r}", argument="loss", remedy="the first argument is the loss")
        keras.Model.compile(
            self,
            optimizer=None,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            steps_per_execution=steps_per_execution,
            jit_compile=False,  # of evaluate and predict
        )
        self._options = {"loss_weights": loss_weights, "jit_compile": jit_compile, **options}
        self.trainer = None
        self.stopped_because = ""
        strategy = strategy_of(self)
        if strategy is not None:  # Keras averages first batches over replicas, which need not have one size
            repair_building(self, strategy)
            repair_evaluation(self, strategy)

    def fit(self, *arguments: Any, callbacks: Any = None, **keywords: Any) -> Any:
        self.stopped_because = ""
        own = _StopWithoutProgress()
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(own)
        else:
            callbacks = [*(callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []), own]
        return keras.Model.fit(self, *arguments, callbacks=callbacks, **keywords)

    def make_train_function(self, force: bool = False) -> Any:
        """Return the function that Keras calls per batch; it takes batches one by one and compiles for each shape."""
        if self.train_function is None or force:
            self._compiled_step = None
            self.train_function = self._train_batches
        return self.train_function

    def _train_batches(self, iterator: Any) -> Any:
        return steps_of(self, iterator, self._train_on)

    def make_trainer(self) -> LevenbergMarquardt:
        """Return the maker of the steps; the inner model must be built."""
        if self.trainer is None:
            self.trainer = LevenbergMarquardt(self.model, self.loss, **self._options)
        return self.trainer

    @property
    def step_variables(self) -> tuple[Any, ...]:
        """The state between steps besides the model's variables: damping, scales. The inner model must be built."""
        return self.make_trainer().step_variables

    def train_step(self, data: Any) -> Any:  # noqa: ARG002
        """Raise: a step needs the whole batch at once."""
        raise UnsupportedError(
            "an LMModel has no train_step", where=f"model {self.name!r}", remedy="call fit, train_on_batch, or LevenbergMarquardt.step"
        )

    def export(self, *arguments: Any, **keywords: Any) -> Any:
        return self.model.export(*arguments, **keywords)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        inner = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(inner, name=config["name"])

    def get_compile_config(self) -> None:
        """Return None: `compile` again after loading."""

    def _train_on(self, data: Any) -> dict[str, Any]:
        parts = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_without_optional, data))
        data = tuple(None if part is None else as_tensors(part) for part in parts)
        if not self.model.built:
            self(tf.nest.map_structure(first_samples(1), one_replica(strategy_of(self), data[0])))
        trainer = self.make_trainer()
        trainer.prepare(data)
        if self._compiled_step is None:
            self._compiled_step = partial(trainer.compiled(self._step))  # a bare `tf.function` would become a part of SavedModels
        logs = self._compiled_step(data)
        self.accepted_in_epoch += int(logs["accepted"])
        return logs

    def _step(self, data: Any) -> dict[str, Any]:
        trainer = self.make_trainer()
        result = trainer.traced_step(data)
        strategy = strategy_of(self)

        def metrics(data: Any, outputs: Any) -> Any:
            x, y, sample_weight = data
            samples = sample_count(x)
            loss_tracker_of(self).update_state(tf.cast(result.loss, tf.float32), sample_weight=samples)
            if not samples:
                return self.get_metrics_result()
            return self.compute_metrics(x, y, trainer.packed(outputs), sample_weight)

        if strategy is None:
            logs = metrics(data, result.outputs)
        else:
            per_replica = strategy.run(metrics, args=(data, result.outputs))
            logs = {name: strategy.reduce("MEAN", value, axis=None) for name, value in per_replica.items()}
        return {**logs, "damping": result.damping, "attempts": result.attempts, "accepted": tf.cast(result.accepted, tf.int32)}


class _StopWithoutProgress(keras.callbacks.Callback):
    """Ends training after an epoch in which no step was accepted."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.model.accepted_in_epoch = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not logs or self.model.accepted_in_epoch:  # without logs there was no batch
            return
        self.model.stop_training = True
        if math.isfinite(float(logs["loss"])):
            self.model.stopped_because = f"no step of epoch {epoch + 1} lowered the loss of its batch, however damped"
        else:
            self.model.stopped_because = f"no step of epoch {epoch + 1} was taken: the loss is {float(logs['loss'])}"


def _without_optional(part: Any) -> Any:
    return None if isinstance(part, tf.experimental.Optional) else part
