"""`TrainingCheckpoints`: all variables of a training, replica by replica, in files that are complete or not there.

TensorFlow's own checkpoints keep the first replica's value of a mirrored variable. That is enough for weights, which are
equal everywhere, but Keras' moving averages, and what metrics have summed up, differ from replica to replica: a training
that goes on from such a checkpoint is another one. Here each process writes what its own replicas hold, and a restart goes
on from the newest step that all processes have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.replaced_file import replaced_file
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.train.distribution.keras_model import spans_workers

_NAME = re.compile(r"step-(\d+)\.process-(\d+)-of-(\d+)\.npz")
_NOTES = "notes"


class TrainingCheckpoints:
    """Saves and restores the variables of a training; all processes of a strategy do so at the same steps.

    Args:
        directory: made when it is not there. The processes may share one, or have one each.
        variables: a function that gives the variables by unique names, TensorFlow's or Keras'. It is asked at each call,
            since optimizers and metrics make theirs late.
        strategy: of the training; None for one device.
        keep: how many steps stay on disk, at least two: a process may die before it has written the newest one.

    Raises:
        ArgumentError: `keep` is below 2.

    >>> import tempfile, tensorflow as tf
    >>> weight = tf.Variable(1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = TrainingCheckpoints(folder, lambda: {"weight": weight})
    ...     _ = checkpoints.save(7, {"epoch": 2})
    ...     _ = weight.assign(5.0)
    ...     checkpoints.restore(), float(weight)
    ({'epoch': 2}, 1.0)
    """

    def __init__(self, directory: str | Path, variables: Callable[[], Mapping[str, Any]], *, strategy: Any = None, keep: int = 2) -> None:
        if keep < 2:
            raise ArgumentError(f"keep={keep} was given", where="argument 'keep'", remedy="give 2 or more: processes may die between two")
        self.directory = Path(directory)
        self._variables = variables
        self._strategy = strategy
        self._keep = keep
        self._process, self._processes = _place(strategy)

    def save(self, step: int, notes: Mapping[str, Any] | None = None) -> Path:
        """Write the state after a step; older ones than those to keep are removed.

        Args:
            notes: what else is to be known at the restart, as JSON can hold it.

        Raises:
            OSError: the folder cannot be written to.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for name, variable in self._variables().items():
            for k, replica in enumerate(self._replicas(variable)):
                arrays[f"{name}@{k}"] = replica.numpy()
        arrays[_NOTES] = np.frombuffer(json.dumps(dict(notes or {})).encode(), dtype=np.uint8)
        path = self._path(step)
        with replaced_file(path) as stream:
            np.savez(stream.buffer, **arrays)
        for old in sorted(self._steps())[: -self._keep]:
            self._path(old).unlink(missing_ok=True)
        return path

    def newest(self) -> int | None:
        """The newest step that every process has on disk. All processes must ask together.

        Raises:
            ArgumentError: the files are of a training with another number of processes.
        """
        steps = self._steps()
        newest = max(steps, default=-1)
        if spans_workers(self._strategy):
            newest = self._smallest_of_all(newest)
        return None if newest < 0 else newest

    def restore(self, names: Iterable[str] | None = None, *, step: int | None = None) -> dict[str, Any] | None:
        """Put the variables back to the newest step that all processes have; returns its notes, or None where there is none.

        Args:
            names: of the variables to put back, all without it.
            step: another step than the newest one; then the processes need not ask together.

        Raises:
            ArgumentError: the file does not hold a variable, or in another shape or for another number of replicas.
        """
        step = self.newest() if step is None else step
        if step is None:
            return None
        with np.load(self._path(step), allow_pickle=False) as arrays:
            variables = self._variables()
            for name in variables if names is None else names:
                self._put_back(name, variables[name], arrays, step)
            return dict(json.loads(arrays[_NOTES].tobytes().decode()))

    def clear(self) -> None:
        """Remove this process' files."""
        for step in self._steps():
            self._path(step).unlink(missing_ok=True)

    def _put_back(self, name: str, variable: Any, arrays: Mapping[str, Any], step: int) -> None:
        replicas = self._replicas(variable)
        for k, replica in enumerate(replicas):
            key = f"{name}@{k}"
            array = arrays.get(key)
            if array is None or array.shape != tuple(replica.shape) or f"{name}@{len(replicas)}" in arrays:
                raise ArgumentError(
                    f"the checkpoint of step {step} does not fit variable {name!r}",
                    where=str(self._path(step)),
                    cause="the model, the optimizer or the number of devices is another one than when it was written",
                    remedy="give another directory, or make the training as it was",
                )
            replica.assign(array.view(replica.dtype.as_numpy_dtype))  # NumPy stores bfloat16 as nameless bytes

    def _replicas(self, variable: Any) -> tuple[Any, ...]:
        value = getattr(variable, "value", variable)
        value = variable if callable(value) else value  # Keras' variables wrap TensorFlow's, where `value` is a method
        return tuple(self._strategy.experimental_local_results(value)) if self._strategy is not None else (value,)

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:012d}.process-{self._process}-of-{self._processes}.npz"

    def _steps(self) -> list[int]:
        """The steps that this process has on disk."""
        found = [match for path in self.directory.glob("step-*.npz") if (match := _NAME.fullmatch(path.name))]
        foreign = {int(match[3]) for match in found} - {self._processes}
        if foreign:
            raise ArgumentError(
                f"the checkpoints are of a training in {foreign.pop()} processes, this one has {self._processes}",
                where=str(self.directory),
                remedy="start as many processes, or give another directory",
            )
        return [int(match[1]) for match in found if int(match[2]) == self._process]

    def _smallest_of_all(self, number: int) -> int:
        tf = import_tensorflow()
        mine = self._strategy.run(tf.autograph.experimental.do_not_convert(lambda: tf.constant([number], tf.int64)))
        return int(tf.reduce_min(self._strategy.gather(mine, axis=0)))


def _place(strategy: Any) -> tuple[int, int]:
    """Number of this process, and how many there are."""
    if not spans_workers(strategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec()
    jobs = [job for job in ("chief", "worker") if job in cluster.jobs]
    before = sum(cluster.num_tasks(job) for job in jobs[: jobs.index(resolver.task_type)])
    return before + int(resolver.task_id), sum(cluster.num_tasks(job) for job in jobs)
