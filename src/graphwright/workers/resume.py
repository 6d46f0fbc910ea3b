"""`ResumeTraining`: `fit` continues where a killed process stopped, within an epoch too.

Keras' `BackupAndRestore`, saving within an epoch, restarts that epoch with weights that the epoch has already changed. It stores one value
of a variable that differs per replica, and processes that share a folder write the same file.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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

Logs = dict[str, Any]


@dataclass
class _Progress:
    """The notes of a checkpoint: where a training is."""

    epoch: int = 0
    batches: int = 0  # of the epoch that are trained
    logs: list[Logs] = field(default_factory=list[Logs])  # of each complete epoch
    epochs: list[int] = field(default_factory=list[int])  # the numbers of these
    last_logs: Logs = field(default_factory=dict[str, Any])  # of the last batch
    accepted: int = 0  # steps that an `LMModel` accepted in the epoch


class ResumeTraining(keras.callbacks.Callback):
    """A callback for `fit`: saves the training at intervals, and continues from there when the program is started again.

    It works for any Keras model, `LMModel` included. Under a strategy with several processes, pass it to `fit` in all of them. Put it last
    among the callbacks, so that its history includes what others add to the logs.

    The result equals that of an uninterrupted training if the data come in the same order again: no shuffling, or a shuffling that depends
    on the epoch only. It does not restore the state of other callbacks (`EarlyStopping`, `ReduceLROnPlateau`) and of TensorFlow's global
    random generator. It restores Keras' own seed generators.

    Args:
        directory: of the checkpoints; the processes may share it or have one each.
        every: save after so many batches, and after each epoch; or "epoch", after each epoch only.
        keep: how many checkpoints stay on disk.
        remove: whether to remove the checkpoints when the training is complete, so that the next one starts over.

    Attributes:
        skipping: whether the current batch was trained before the interruption and is skipped. Keras calls the callbacks for it
            nevertheless, with the logs of the checkpoint.

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
        self._progress = _Progress()
        self._earlier_epochs = 0  # trained before the interruption
        self._skip = 0  # batches that are still to be skipped
        self._steps = 0
        self._saved_at = 0
        self._train_function: Any = None
        self._checkpoints: Any = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - as Keras calls it
        """Restore the training if there is a checkpoint."""
        model = self.model
        if not model.built:
            raise ArgumentError(
                "the model is not built", where=f"model {model.name!r}", remedy="give it an Input, or call it on a batch before fit"
            )
        build_optimizer(model)
        self._checkpoints = TrainingCheckpoints(self.directory, self._variables, strategy=strategy_of(model), keep=self.keep)
        self._checkpoints.check_writable()
        self._progress = _Progress()
        step = self._checkpoints.newest()
        if step is not None:
            self._progress = _Progress(**self._checkpoints.restore(_exists_before_training, step=step))
            set_first_epoch(model, self._progress.epoch)
        self._steps = self._saved_at = step or 0
        self._earlier_epochs = len(self._progress.logs)
        self._skip = self._progress.batches
        self.skipping = self._skip > 0
        steps_per_epoch = self.params.get("steps")  # None if it is unknown
        if steps_per_epoch is not None and self._skip >= steps_per_epoch + model.steps_per_execution:
            raise self._too_short()
        if getattr(model.train_function, "__func__", None) is ResumeTraining._skip_batches:  # an exception ended the last `fit`
            model.make_train_function(force=True)
        self._train_function = model.train_function
        if self.skipping:
            model.train_function = self._skip_batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._progress.epoch, self._progress.batches = epoch, 0
        set_first_epoch(self.model, None)  # it was for this `fit`

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        progress = self._progress
        new_batches = batch + 1 - progress.batches
        progress.batches = batch + 1
        if self.skipping:
            self.skipping = self._skip > 0
            return
        self._steps += new_batches
        progress.last_logs = _as_json(logs)
        if self.every is not None and self._steps - self._saved_at >= self.every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        progress = self._progress
        progress.logs.append(_as_json(logs))
        progress.epochs.append(epoch)
        progress.epoch, progress.batches = epoch + 1, 0
        self._save()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Complete the history with the epochs before the interruption."""
        model = self.model
        model.train_function = self._train_function
        set_first_epoch(model, None)
        history = getattr(model, "history", None)
        if history is not None and self._earlier_epochs:
            earlier = [_from_json(entry) for entry in self._progress.logs[: self._earlier_epochs]]
            history.epoch = [*self._progress.epochs[: self._earlier_epochs], *history.epoch]
            keys = dict.fromkeys(key for entry in (*earlier, history.history) for key in entry)
            history.history = {key: [e[key] for e in earlier if key in e] + history.history.get(key, []) for key in keys}
        if self.remove:
            self._checkpoints.clear()

    def _skip_batches(self, iterator: Any) -> Logs:
        """Replace the model's `train_function` until the trained batches are taken from the iterator."""
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
            # Restore metrics, which exist now, and all else again: a learning rate schedule has begun the epoch a second time.
            self._checkpoints.restore(step=self._steps)
            self.model.train_function = self._train_function
            if hasattr(self.model, "accepted_in_epoch"):
                self.model.accepted_in_epoch = self._progress.accepted
        return _from_json(self._progress.last_logs)

    def _too_short(self) -> ArgumentError:
        return ArgumentError(
            f"the epoch is shorter than the part that was already trained: {self._skip} batches remain to be skipped",
            where=str(self.directory),
            cause="the data differ from the data of the interrupted training",
            remedy="give the same data, or another directory",
        )

    def _save(self) -> None:
        self._progress.accepted = getattr(self.model, "accepted_in_epoch", 0)
        self._checkpoints.save(self._steps, asdict(self._progress))
        self._saved_at = self._steps

    def _variables(self) -> dict[str, Any]:
        model = self.model
        # By position: Keras numbers the names of layers per process, so a second model of the same kind has other names.
        optimizer = model.optimizer.variables if model.optimizer is not None else getattr(model, "step_variables", ())
        kinds = {"model": model.variables, "optimizer": optimizer, "metrics": model.metrics_variables}
        return {f"{kind}/{k}": variable for kind, variables in kinds.items() for k, variable in enumerate(variables)}


def _exists_before_training(name: str) -> bool:
    return not name.startswith("metrics/")


def _as_json(logs: Mapping[str, Any] | None) -> Logs:
    return {str(key): np.asarray(value).tolist() for key, value in (logs or {}).items()}


def _from_json(logs: Mapping[str, Any]) -> Logs:
    return {key: value if isinstance(value, int | float) else np.asarray(value) for key, value in logs.items()}
