"""`ResumeTraining`: `fit` goes on where a killed process stopped, within an epoch too.

Keras' `BackupAndRestore`, saving within an epoch, starts that epoch over with the weights that the epoch had already changed;
it keeps one value of a variable that differs per replica, processes that share a folder write the same file, and one that
is killed while it writes leaves half a file. Here the batches that were trained are skipped, everything is put back as it was, metrics
and history too, and files are complete or not there.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.source.private_keras import set_first_epoch
from graphwright.source.tensorflow_import import import_keras, import_tensorflow
from graphwright.step.keras_model import strategy_of
from graphwright.step.keras_step import build_for_training, build_optimizer
from graphwright.workers.checkpoints import TrainingCheckpoints

keras: Any = import_keras()


class ResumeTraining(keras.callbacks.Callback):
    """A callback for `fit`: saves the training now and then, and goes on from there when the program is started again.

    For any Keras model, `LMModel` too. Under a strategy with several processes, give it to `fit` in all of them. Put it last among the
    callbacks, so that the history it keeps has what the others add to the logs.

    The result is that of an uninterrupted training when the data come in the same order again: no shuffling, or one that
    depends on the epoch alone. Not kept is what other callbacks remember (`EarlyStopping`, `ReduceLROnPlateau`), nor
    TensorFlow's global random generator; Keras' own seed generators are.

    Args:
        directory: of the checkpoints; the processes may share it or have one each.
        every: save after so many batches, and after each epoch; or "epoch", after each epoch alone.
        keep: how many checkpoints stay on disk.
        remove: whether the checkpoints go when the training is complete, so that the next one starts over.

    Attributes:
        skipping: whether the batch at hand was trained before the interruption and is passed over. Keras calls the
            callbacks for it all the same, with the logs of the checkpoint.

    Raises:
        ArgumentError: `every` is not a positive number; in `fit`, the model is not built, a checkpoint does not fit it or the data, the
            folder cannot be written to, or another training writes to it.

    >>> import tempfile, keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = model.fit(np.ones((8, 2)), np.ones(8), verbose=0, callbacks=[ResumeTraining(folder, every=100)])
    >>> len(history.history["loss"])
    1
    """

    def __init__(self, directory: str | Path, every: int | Literal["epoch"] = "epoch", *, keep: int = 2, remove: bool = True) -> None:
        keras.callbacks.Callback.__init__(self)
        batches: Any = None if every == "epoch" else every
        if batches is not None and (isinstance(batches, bool) or not isinstance(batches, numbers.Integral) or batches < 1):
            raise ArgumentError(f"every={every!r} was given", argument="every", remedy='give a number of batches, or "epoch"')
        self.directory = Path(directory)
        self.every: int | None = None if batches is None else int(batches)
        self.keep = keep
        self.remove = remove
        self.skipping = False
        self._skip = 0  # batches of the epoch at hand that were trained before
        self._epoch = 0
        self._steps = 0
        self._saved_at = 0
        self._batches = 0  # of the epoch at hand
        self._logs: list[dict[str, Any]] = []  # of each epoch
        self._epochs: list[int] = []  # their numbers
        self._before = 0  # how many of them were trained before the interruption
        self._last_logs: dict[str, Any] = {}
        self._accepted = 0  # steps that an `LMModel` took in the epoch at hand
        self._train_function: Any = None
        self._checkpoints: Any = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - as Keras calls it
        """Put everything back, when there is a checkpoint."""
        model = self.model
        if not model.built:
            raise ArgumentError(
                "the model is not built", where=f"model {model.name!r}", remedy="give it an Input, or call it on a batch before fit"
            )
        build_optimizer(model)
        self._checkpoints = TrainingCheckpoints(self.directory, self._variables, strategy=strategy_of(model), keep=self.keep)
        self._logs, self._epochs, self._steps, self._skip, self.skipping = [], [], 0, 0, False
        self._checkpoints.check_writable()
        step = self._checkpoints.newest()
        if step is not None:
            notes = self._checkpoints.restore(_is_state, step=step)
            self._logs, self._epochs, self._steps, self._skip = notes["logs"], notes["epochs"], step, notes["batches"]
            self._last_logs, self._accepted = notes["last_logs"], notes["accepted"]
            set_first_epoch(model, notes["epoch"])
        self._before = len(self._logs)
        self._saved_at = self._steps
        self.skipping = self._skip > 0
        steps = self.params.get("steps")  # None where nobody knows yet
        if steps is not None and self._skip >= steps + model.steps_per_execution:
            raise self._too_short()
        if getattr(model.train_function, "__func__", None) is ResumeTraining._pass_over:  # an exception ended the `fit` before
            model.make_train_function(force=True)
        self._train_function = model.train_function
        if self.skipping:
            model.train_function = self._pass_over

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch, self._batches = epoch, 0
        set_first_epoch(self.model, None)  # it was for this `fit`

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        made = batch + 1 - self._batches
        self._batches = batch + 1
        if self.skipping:
            self.skipping = self._skip > 0
            return
        self._steps += made
        self._last_logs = _as_json(logs)
        if self.every is not None and self._steps - self._saved_at >= self.every:
            self._save(self._epoch, self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._logs.append(_as_json(logs))
        self._epochs.append(epoch)
        self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Give the history of all epochs, those before the interruption too."""
        model = self.model
        model.train_function = self._train_function
        set_first_epoch(model, None)
        history = getattr(model, "history", None)
        if history is not None and self._before:
            earlier = [_from_json(entry) for entry in self._logs[: self._before]]
            history.epoch = [*self._epochs[: self._before], *history.epoch]
            keys = dict.fromkeys(key for entry in (*earlier, history.history) for key in entry)
            history.history = {key: [e[key] for e in earlier if key in e] + history.history.get(key, []) for key in keys}
        if self.remove:
            self._checkpoints.clear()

    def _pass_over(self, iterator: Any) -> dict[str, Any]:
        """Stands for the model's `train_function` until the batches that were trained are taken from the iterator."""
        data: Any = None
        for number in range(min(self.model.steps_per_execution, self._skip)):
            try:
                data = next(iterator)
            except (StopIteration, import_tensorflow().errors.OutOfRangeError):
                if not number:
                    raise self._too_short() from None
                self._skip = 0  # the epoch ends within these steps, which Keras counts in full
                break
            self._skip -= 1
        if not self._skip:
            build_for_training(self.model, data)
            # Metrics, which were not there before; and all else again: a schedule of the learning rate has begun the epoch a second time.
            self._checkpoints.restore(step=self._steps)
            self.model.train_function = self._train_function
            if hasattr(self.model, "accepted_in_epoch"):
                self.model.accepted_in_epoch = self._accepted
        return _from_json(self._last_logs)

    def _too_short(self) -> ArgumentError:
        return ArgumentError(
            f"the epoch is shorter than what was trained of it: {self._skip} batches are still to be passed over",
            where=str(self.directory),
            cause="the data are not those of the training that was interrupted",
            remedy="give the same data, or another directory",
        )

    def _save(self, epoch: int, batches: int) -> None:
        accepted = getattr(self.model, "accepted_in_epoch", 0)
        notes = {"epoch": epoch, "batches": batches, "logs": self._logs, "epochs": self._epochs}
        self._checkpoints.save(self._steps, notes | {"last_logs": self._last_logs, "accepted": accepted})
        self._saved_at = self._steps

    def _variables(self) -> dict[str, Any]:
        model = self.model
        # By position: Keras numbers the names of layers through, so a second model of the same kind has others.
        optimizer = model.optimizer.variables if model.optimizer is not None else getattr(model, "step_variables", ())
        kinds = {"model": model.variables, "optimizer": optimizer, "metrics": model.metrics_variables}
        return {f"{kind}/{k}": variable for kind, variables in kinds.items() for k, variable in enumerate(variables)}


def _is_state(name: str) -> bool:
    """Whether a variable is there before the first batch, as metrics are not."""
    return not name.startswith("metrics/")


def _as_json(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Logs, in which a metric may have a number per class."""
    return {str(key): np.asarray(value).tolist() for key, value in (logs or {}).items()}


def _from_json(logs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value if isinstance(value, int | float) else np.asarray(value) for key, value in logs.items()}
