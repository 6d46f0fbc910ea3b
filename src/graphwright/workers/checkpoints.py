"""`TrainingCheckpoints`: all variables of a training, replica by replica, in files that are complete or not there.

TensorFlow's own checkpoints keep the first replica's value of a mirrored variable. That is enough for weights, which are
equal everywhere, but Keras' moving averages, and what metrics have summed up, differ from replica to replica: a training
that goes on from such a checkpoint is another one. Here each process writes what its own replicas hold, and a restart goes
on from the newest step that all processes have whole: one may have died before or while it wrote the last one.
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
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import replaced_file
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.keras_model import spans_workers

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
        self._known: set[int] | None = None  # the steps that were on disk when this looked last
        self._process, self._processes = _place(strategy)

    def save(self, step: int, notes: Mapping[str, Any] | None = None) -> Path:
        """Write the state after a step. Older ones than those to keep are removed, and later ones: of a training that was given up.

        Args:
            step: a whole number, 0 or more.
            notes: what else is to be known at the restart, as JSON can hold it.

        Raises:
            ArgumentError: the step is not such a number, the notes are not for JSON, a variable holds strings, or another training has
                written to the folder meanwhile.
            OSError: the folder cannot be written to.
        """
        number = _whole(step)
        self._refuse_strangers()
        self.directory.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for name, variable in self._variables().items():
            for k, replica in enumerate(self._replicas(variable)):
                arrays[f"{name}@{k}"] = array = np.asarray(replica.numpy())
                if array.dtype.kind in "OSU":
                    raise ArgumentError(f"variable {name!r} holds strings", where="checkpoints", remedy="leave it out of the variables")
        arrays[_NOTES] = np.frombuffer(_as_json(notes or {}), dtype=np.uint8)
        path = self._path(number)
        self._remove_halves()
        with replaced_file(path) as stream:
            np.savez(stream.buffer, **arrays)
        steps = self._steps()
        stay = set(sorted(s for s in steps if s <= number)[-self._keep :])
        for other in set(steps) - stay:
            self._path(other).unlink(missing_ok=True)
        self._known = stay
        return path

    def newest(self) -> int | None:
        """The newest step that every process has on disk, whole. All processes must ask together.

        A checkpoint that is damaged in one process is passed over by all of them, with a `RuntimeWarning` that says which it was.

        Raises:
            ArgumentError: the files are of a training with another number of processes, or some processes have lost theirs.
            FileFormatError: each of the steps that all have is damaged somewhere.
        """
        self._known = set(self._steps())
        mine = sorted(self._known)[-self._keep :]
        of_all = self._steps_of_all(mine) if spans_workers(self._strategy) else [set(mine)]
        common = set[int].intersection(*of_all)
        # The very first one may be missing where a process died; whoever has two was sure that all had the first of them.
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
            error = self._damage(step)
            whole = [not error] if len(of_all) == 1 else [bool(steps) for steps in self._steps_of_all([] if error else [step])]
            if all(whole):
                if damage:
                    warnings.warn(f"{damage}; the training goes on from step {step}", RuntimeWarning, stacklevel=2)
                return step
            common.remove(step)
            places = ", ".join(str(k) for k, fits in enumerate(whole) if not fits)
            damage = f"the checkpoint of step {step} is damaged in process {places} ({self.directory})"
            if not common:
                raise error or FileFormatError(damage, remedy="bring the file back, or remove all of them to start over")
        return None

    def restore(self, names: Iterable[str] | Callable[[str], bool] | None = None, *, step: int | None = None) -> dict[str, Any] | None:
        """Put the variables back to the newest step that all processes have; returns its notes, or None where there is none.

        Args:
            names: of the variables to put back, or a function that picks them; all without it.
            step: another step than the newest one; then the processes need not ask together.

        Raises:
            ArgumentError: there is no such step or variable, or the file does not hold a variable, or in another shape or dtype or for
                another number of replicas, or (without `names`, or among those that a function picks) it holds one that is not
                there, such as the state of an optimizer that has not been built yet. Then no variable is changed.
            FileFormatError: the file is damaged.
        """
        step = self.newest() if step is None else _whole(step)
        if step is None:
            return None
        variables = self._variables()
        picks: Callable[[str], Any] = (lambda _: True) if names is None else names if callable(names) else (lambda _: False)
        wanted = [name for name in variables if picks(name)] if names is None or callable(names) else [*names]
        strange = [name for name in wanted if name not in variables]
        if strange:
            raise ArgumentError(f"there is no variable {strange[0]!r}", argument="names", remedy=f"one of {', '.join(variables)}")
        arrays, notes, held = self._read(step, set(wanted))
        found = [pair for name in wanted for pair in self._pairs(name, variables[name], arrays, step)]
        lost = [name for name in held if name not in variables and picks(name)]
        if lost:
            raise ArgumentError(
                f"the checkpoint of step {step} holds {lost[0]!r}, and there is no such variable",
                where=str(self._path(step)),
                cause="the model or the optimizer is another one than when it was written, or has not been built yet",
                remedy="build it first, make the training as it was, give names, or give another directory",
            )
        for replica, array in found:
            replica.assign(array.view(replica.dtype.as_numpy_dtype))
        return notes

    def check_writable(self) -> None:
        """See that files can be written, before there is something to lose.

        Raises:
            ArgumentError: they cannot.
        """
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
        self._remove_halves()

    def _refuse_strangers(self) -> None:
        """Refuse to go on where files have come that this training did not write: two would remove each other's."""
        steps = set(self._steps())
        if self._known is None:
            self._known = steps
        if steps - self._known:
            raise ArgumentError(
                f"another training has written the checkpoint of step {max(steps - self._known)} meanwhile",
                where=str(self.directory),
                cause="two trainings run with the same folder, of which each would remove and restore the other's checkpoints",
                remedy="give each training a folder of its own",
            )

    def _damage(self, step: int) -> FileFormatError | None:
        """What is wrong with a checkpoint of this process; it is read to its end, with the sums of its content."""
        try:
            self._read(step, set())
            with self._opened(step) as stream, zipfile.ZipFile(stream) as archive:
                broken = archive.testzip()
                if broken is not None:
                    raise zipfile.BadZipFile(f"{broken!r} is damaged")
        except FileFormatError as error:
            return error
        return None

    def _read(self, step: int, wanted: set[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """The arrays of these variables, the notes, and the names of all variables in the file."""
        with self._opened(step) as stream, zipfile.ZipFile(stream):  # else NumPy takes it for something else
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as arrays:
                found = {key: arrays[key] for key in arrays.files if key.rpartition("@")[0] in wanted}
                notes = dict(json.loads(arrays[_NOTES].tobytes().decode()))
                return found, notes, [name for key in arrays.files if (name := key.rpartition("@")[0])]

    @contextmanager
    def _opened(self, step: int) -> Generator[BinaryIO]:
        """The file of a step; what its content lets readers raise becomes an error that names it."""
        path = self._path(step)
        try:
            with path.open("rb") as stream:
                yield stream
        except FileNotFoundError as error:
            kept = ", ".join(map(str, sorted(self._steps()))) or "none"
            raise ArgumentError(f"there is no checkpoint of step {step}", where=str(path), remedy=f"there are: {kept}") from error
        except (OSError, ValueError, EOFError, KeyError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile) as error:
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
    """Number of this process, and how many there are."""
    if not spans_workers(strategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec()
    jobs = [job for job in ("chief", "worker") if job in cluster.jobs]
    before = sum(cluster.num_tasks(job) for job in jobs[: jobs.index(resolver.task_type)])
    return before + int(resolver.task_id), sum(cluster.num_tasks(job) for job in jobs)
