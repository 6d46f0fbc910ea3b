"""`TrainingCheckpoints`: all variables of a training, replica by replica, in files that are complete or not there.

TensorFlow's own checkpoints keep the first replica's value of a mirrored variable. That is enough for weights, which are
equal everywhere, but Keras' moving averages, and what metrics have summed up, differ from replica to replica: a training
that goes on from such a checkpoint is another one. Here each process writes what its own replicas hold, and a restart goes
on from the newest step that all processes have: one may have died before or while it wrote the last one.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError, FileFormatError
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
        """Write the state after a step. Older ones than those to keep are removed, and later ones: of a training that was given up.

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
        self._remove_halves()
        with replaced_file(path) as stream:
            np.savez(stream.buffer, **arrays)
            stream.flush()
            os.fsync(stream.fileno())  # or the name could be on disk before the content, and the machine go down in between
        steps = self._steps()
        for other in set(steps) - set(sorted(s for s in steps if s <= step)[-self._keep :]):
            self._path(other).unlink(missing_ok=True)
        return path

    def newest(self) -> int | None:
        """The newest step that every process has on disk. All processes must ask together.

        Raises:
            ArgumentError: the files are of a training with another number of processes, or some processes have lost theirs.
        """
        mine = sorted(self._steps())[-self._keep :]
        of_all = self._steps_of_all(mine) if spans_workers(self._strategy) else [set(mine)]
        common = set[int].intersection(*of_all)
        # The very first one may be missing where a process died; whoever has two was sure that all had the first of them.
        if not common and max(len(steps) for steps in of_all) > 1:
            raise ArgumentError(
                f"no step is on disk in all {self._processes} processes",
                where=str(self.directory),
                cause="; ".join(f"process {k} has {sorted(steps) or 'none'}" for k, steps in enumerate(of_all)),
                remedy="bring back the files that are missing, or remove all of them to begin anew",
            )
        return max(common, default=None)

    def restore(self, names: Iterable[str] | None = None, *, step: int | None = None) -> dict[str, Any] | None:
        """Put the variables back to the newest step that all processes have; returns its notes, or None where there is none.

        Args:
            names: of the variables to put back, all without it.
            step: another step than the newest one; then the processes need not ask together.

        Raises:
            ArgumentError: there is no such step or variable, or the file does not hold a variable, or in another shape or dtype or for
                another number of replicas. Then no variable is changed.
            FileFormatError: the file is damaged.
        """
        step = self.newest() if step is None else step
        if step is None:
            return None
        variables = self._variables()
        wanted = list(variables if names is None else names)
        strange = [name for name in wanted if name not in variables]
        if strange:
            raise ArgumentError(f"there is no variable {strange[0]!r}", where="argument 'names'", remedy=f"one of {', '.join(variables)}")
        arrays = self._read(step, set(wanted))
        found = [pair for name in wanted for pair in self._pairs(name, variables[name], arrays, step)]
        for replica, array in found:
            replica.assign(array.view(replica.dtype.as_numpy_dtype))
        return dict(json.loads(arrays[_NOTES].tobytes().decode()))

    def clear(self) -> None:
        """Remove this process' files."""
        for step in self._steps():
            self._path(step).unlink(missing_ok=True)
        self._remove_halves()

    def _read(self, step: int, wanted: set[str]) -> dict[str, Any]:
        """The arrays of these variables, and the notes."""
        path = self._path(step)
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files if key == _NOTES or key.rpartition("@")[0] in wanted}
        except FileNotFoundError as error:
            kept = ", ".join(map(str, sorted(self._steps()))) or "none"
            raise ArgumentError(f"there is no checkpoint of step {step}", where=str(path), remedy=f"there are: {kept}") from error
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise FileFormatError(
                f"the checkpoint of step {step} cannot be read: {error}",
                where=str(path),
                cause="the disk has damaged it, or something else wrote it: an unfinished checkpoint has another name",
                remedy="remove it in all processes, to go on from the one before",
            ) from error

    def _pairs(self, name: str, variable: Any, arrays: Mapping[str, Any], step: int) -> list[tuple[Any, Any]]:
        """Each replica of a variable with what it held."""
        replicas = self._replicas(variable)
        found = [arrays.get(f"{name}@{k}") for k in range(len(replicas))]
        fit = all(array is not None and _fits(array, replica) for replica, array in zip(replicas, found, strict=True))
        if not fit or f"{name}@{len(replicas)}" in arrays:
            raise ArgumentError(
                f"the checkpoint of step {step} does not fit variable {name!r}",
                where=str(self._path(step)),
                cause="the model, the optimizer or the number of devices is another one than when it was written",
                remedy="give another directory, or make the training as it was",
            )
        return list(zip(replicas, found, strict=True))

    def _remove_halves(self) -> None:
        """Remove what this process had begun to write when it was killed."""
        for path in self.directory.glob(f".step-*.process-{self._process}-of-{self._processes}.npz.*.tmp"):
            path.unlink(missing_ok=True)

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

    def _steps_of_all(self, mine: list[int]) -> list[set[int]]:
        """The steps of each process, in the order of their numbers."""
        tf = import_tensorflow()
        padded = [mine + [-1] * (self._keep - len(mine))]
        here = self._strategy.run(tf.autograph.experimental.do_not_convert(lambda: tf.constant(padded, tf.int64)))
        rows = self._strategy.gather(here, axis=0).numpy().reshape(self._processes, -1)
        return [{int(step) for step in row if step >= 0} for row in rows]


def _fits(array: Any, replica: Any) -> bool:
    dtype = np.dtype(replica.dtype.as_numpy_dtype)
    same = array.dtype == dtype or (array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize)  # bfloat16 is stored without a name
    return same and array.shape == tuple(replica.shape)


def _place(strategy: Any) -> tuple[int, int]:
    """Number of this process, and how many there are."""
    if not spans_workers(strategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec()
    jobs = [job for job in ("chief", "worker") if job in cluster.jobs]
    before = sum(cluster.num_tasks(job) for job in jobs[: jobs.index(resolver.task_type)])
    return before + int(resolver.task_id), sum(cluster.num_tasks(job) for job in jobs)
