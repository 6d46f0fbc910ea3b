"""`TrainingCheckpoints`: all variables of a training, replica by replica, in files that are complete or absent.

TensorFlow's own checkpoints store the first replica's value of a mirrored variable, but Keras' moving averages and the sums of metrics
differ between replicas. Here each process writes the values of its own replicas.
"""

from __future__ import annotations

import json
import numbers
import re
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import replaced_file
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.keras_model import spans_workers

_NAME = re.compile(r"step-(\d+)\.process-(\d+)-of-(\d+)\.npz")
_NOTES = "notes"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile)
"""Exceptions of readers of damaged files."""


class TrainingCheckpoints:
    """Saves and restores the variables of a training; all processes of a strategy do so at the same steps.

    Args:
        directory: created if necessary. The processes may share it or have one each.
        variables: returns the variables by unique names, TensorFlow's or Keras'. It is called each time, since optimizers and metrics
            create variables late.
        strategy: of the training; None for one device.
        keep: how many steps stay on disk, at least two: a process may die before it has written the newest one.

    Raises:
        ArgumentError: `keep` is not a whole number of at least 2.

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
        if not isinstance(keep, numbers.Integral) or keep < 2:
            raise ArgumentError(f"keep={keep} was given", argument="keep", remedy="give 2 or more: processes may die between two")
        self.directory = Path(directory)
        self._variables = variables
        self._strategy = strategy
        self._keep = int(keep)
        self._known: set[int] | None = None  # the steps on disk as of the last look
        self._process, self._processes = _place(strategy)

    def save(self, step: int, notes: Mapping[str, Any] | None = None) -> Path:
        """Write the state after a step. Remove older steps beyond `keep`, and later steps, which belong to an abandoned training.

        Args:
            step: a whole number, 0 or more.
            notes: further values for the restart, as JSON can hold them.

        Raises:
            ArgumentError: JSON cannot hold the notes, a variable holds strings, or another training has written to the folder meanwhile.
            OSError: the folder cannot be written to.
        """
        number = _whole(step)
        self._refuse_other_trainings()
        self.directory.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for name, variable in self._variables().items():
            for k, replica in enumerate(self._replicas(variable)):
                arrays[f"{name}@{k}"] = array = np.asarray(replica.numpy())
                if array.dtype.kind in "OSU":
                    raise ArgumentError(f"variable {name!r} holds strings", where="checkpoints", remedy="leave it out of the variables")
        arrays[_NOTES] = np.frombuffer(_as_json(notes or {}), dtype=np.uint8)
        path = self._path(number)
        self._remove_unfinished()
        with replaced_file(path) as stream:
            np.savez(stream.buffer, **arrays)
        steps = self._steps()
        self._known = set(sorted(s for s in steps if s <= number)[-self._keep :])
        for other in set(steps) - self._known:
            self._path(other).unlink(missing_ok=True)
        return path

    def newest(self) -> int | None:
        """Return the newest step that every process has undamaged on disk. All processes must call this together.

        A checkpoint that is damaged in one process is skipped by all of them, with a `RuntimeWarning` that names it.

        Raises:
            ArgumentError: the files belong to a training with another number of processes, or some processes have lost theirs.
            FileFormatError: each of the steps that all processes have is damaged somewhere.
        """
        self._known = set(self._steps())
        of_all = self._steps_of_all(sorted(self._known)[-self._keep :])
        common = set[int].intersection(*of_all)
        # The very first step may be missing where a process died; a process with two steps knew that all had the first.
        if not common and max(len(steps) for steps in of_all) > 1:
            raise ArgumentError(
                f"no step is on disk in all {self._processes} processes",
                where=str(self.directory),
                cause="; ".join(f"process {k} has {sorted(steps) or 'none'}" for k, steps in enumerate(of_all)),
                remedy="bring back the files that are missing, or remove all of them to start over",
            )
        damage = ""
        while common:
            step = max(common)
            error: FileFormatError | None = None
            try:
                self._load(step)
            except FileFormatError as unreadable:
                error = unreadable
            undamaged = self._steps_of_all([] if error else [step])
            if all(undamaged):
                if damage:
                    warnings.warn(f"{damage}; the training continues from step {step}", RuntimeWarning, stacklevel=2)
                return step
            common.remove(step)
            places = ", ".join(str(k) for k, steps in enumerate(undamaged) if not steps)
            damage = f"the checkpoint of step {step} is damaged in process {places} ({self.directory})"
            if not common:
                raise error or FileFormatError(damage, remedy="bring the file back, or remove all of them to start over")
        return None

    def restore(self, names: Iterable[str] | Callable[[str], bool] | None = None, *, step: int | None = None) -> dict[str, Any] | None:
        """Restore the variables of the newest step that all processes have; return its notes, or None if there is none.

        Args:
            names: of the variables to restore, or a function that selects them; None for all.
            step: another step than the newest; then the processes need not call this together.

        Raises:
            ArgumentError: there is no such step or variable, a variable does not fit the file, or the file holds a variable that does not
                exist, such as the state of an optimizer that is not built yet. Then no variable is changed.
            FileFormatError: the file is damaged.
        """
        step = self.newest() if step is None else _whole(step)
        if step is None:
            return None
        variables = self._variables()
        selects: Callable[[str], Any] = names if callable(names) else lambda _: names is None
        selected = [name for name in variables if selects(name)] if names is None or callable(names) else list(names)
        unknown = [name for name in selected if name not in variables]
        if unknown:
            raise ArgumentError(f"there is no variable {unknown[0]!r}", argument="names", remedy=f"one of {', '.join(variables)}")
        arrays, notes = self._load(step)
        pairs = [pair for name in selected for pair in self._pairs(name, variables[name], arrays, step)]
        stored = [key.rpartition("@")[0] for key in arrays]
        missing = [name for name in stored if name not in variables and selects(name)]
        if missing:
            raise ArgumentError(
                f"the checkpoint of step {step} holds {missing[0]!r}, and there is no such variable",
                where=str(self._path(step)),
                cause="the model or the optimizer has changed since it was written, or is not built yet",
                remedy="build it first, restore the former model and optimizer, give names, or use another directory",
            )
        for replica, array in pairs:
            replica.assign(array.view(replica.dtype.as_numpy_dtype))
        return notes

    def check_writable(self) -> None:
        """Raise an `ArgumentError` if files cannot be written, before a training has something to lose."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise ArgumentError(
                f"checkpoints cannot be written: {error}", where=str(self.directory), remedy="give a folder that can be written to"
            ) from error

    def clear(self) -> None:
        """Remove this process' files."""
        for step in self._steps():
            self._path(step).unlink(missing_ok=True)
        self._remove_unfinished()

    def _refuse_other_trainings(self) -> None:
        steps = set(self._steps())
        strange = set[int]() if self._known is None else steps - self._known
        if strange:
            raise ArgumentError(
                f"another training has written the checkpoint of step {max(strange)} meanwhile",
                where=str(self.directory),
                cause="two trainings run with the same folder, and each would remove and restore the other's checkpoints",
                remedy="give each training a folder of its own",
            )
        self._known = steps

    def _load(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        path = self._path(step)
        try:
            with path.open("rb") as stream, zipfile.ZipFile(stream):  # NumPy would accept other formats too
                stream.seek(0)
                with np.load(stream, allow_pickle=False) as archive:
                    arrays = {key: archive[key] for key in archive.files}
            return arrays, dict(json.loads(arrays.pop(_NOTES).tobytes().decode()))
        except FileNotFoundError as error:
            steps = ", ".join(map(str, sorted(self._steps()))) or "none"
            raise ArgumentError(f"there is no checkpoint of step {step}", where=str(path), remedy=f"there are: {steps}") from error
        except _UNREADABLE as error:
            raise FileFormatError(
                f"the checkpoint of step {step} cannot be read: {error}",
                where=str(path),
                cause="the disk has damaged it, or something else wrote it: an unfinished checkpoint has another name",
                remedy="remove it in all processes, to go on from the one before",
            ) from error

    def _pairs(self, name: str, variable: Any, arrays: Mapping[str, Any], step: int) -> list[tuple[Any, Any]]:
        replicas = self._replicas(variable)
        values = [arrays.get(f"{name}@{k}") for k in range(len(replicas))]
        fit = all(value is not None and _fits(value, replica) for replica, value in zip(replicas, values, strict=True))
        if not fit or f"{name}@{len(replicas)}" in arrays:
            raise ArgumentError(
                f"the checkpoint of step {step} does not fit variable {name!r}",
                where=str(self._path(step)),
                cause="the model, the optimizer or the number of devices has changed since it was written",
                remedy="use another directory, or restore the former model, optimizer and devices",
            )
        return list(zip(replicas, values, strict=True))

    def _remove_unfinished(self) -> None:
        for path in self.directory.glob(f".step-*.process-{self._process}-of-{self._processes}.npz.*.tmp"):
            path.unlink(missing_ok=True)

    def _replicas(self, variable: Any) -> tuple[Any, ...]:
        value = getattr(variable, "value", variable)
        value = variable if callable(value) else value  # Keras' variables wrap TensorFlow's, where `value` is a method
        return tuple(self._strategy.experimental_local_results(value)) if self._strategy is not None else (value,)

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:012d}.process-{self._process}-of-{self._processes}.npz"

    def _steps(self) -> list[int]:
        names = [match for path in self.directory.glob("step-*.npz") if (match := _NAME.fullmatch(path.name))]
        foreign = {int(match[3]) for match in names} - {self._processes}
        if foreign:
            raise ArgumentError(
                f"the checkpoints are of a training in {foreign.pop()} processes, this one has {self._processes}",
                where=str(self.directory),
                remedy="start as many processes, or give another directory",
            )
        return [int(match[1]) for match in names if int(match[2]) == self._process]

    def _steps_of_all(self, mine: list[int]) -> list[set[int]]:
        """Exchange steps between all processes; return them in the order of the processes."""
        if not spans_workers(self._strategy):
            return [set(mine)]
        tf = import_tensorflow()
        padded = [mine + [-1] * (self._keep - len(mine))]
        here = self._strategy.run(tf.autograph.experimental.do_not_convert(lambda: tf.constant(padded, tf.int64)))
        rows = self._strategy.gather(here, axis=0).numpy().reshape(self._processes, -1)
        return [{int(step) for step in row if step >= 0} for row in rows]


def _whole(step: Any) -> int:
    try:
        number = int(step)
        fits = bool(number == step) and number >= 0
    except (TypeError, ValueError):
        number, fits = 0, False
    if not fits:
        raise ArgumentError(f"{step!r} is not a step", argument="step", remedy="give a whole number, 0 or more")
    return number


def _as_json(notes: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(notes)).encode()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"JSON cannot hold the notes: {error}", argument="notes", remedy="give plain numbers and texts") from error


def _fits(array: Any, replica: Any) -> bool:
    dtype = np.dtype(replica.dtype.as_numpy_dtype)
    same = array.dtype == dtype or (array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize)  # bfloat16 is stored without a name
    return same and array.shape == tuple(replica.shape)


def _place(strategy: Any) -> tuple[int, int]:
    if not spans_workers(strategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec()
    jobs = [job for job in ("chief", "worker") if job in cluster.jobs]
    before = sum(cluster.num_tasks(job) for job in jobs[: jobs.index(resolver.task_type)])
    return before + int(resolver.task_id), sum(cluster.num_tasks(job) for job in jobs)
