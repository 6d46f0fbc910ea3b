"""Steps on disk: everything that a fresh process needs to run them, without pickle.

A directory holds `steps.json` (written last), a `<number>.pb` per step with its `GraphDef` and function library, and `values/<number>.npy`
per variable, captured constant and argument. Steps that share a variable share its file. dtypes that NumPy does not know (bfloat16, float8)
are kept by their bits; strings as serialized tensors.
"""

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import FileFormatError, GraphError, UnsupportedError
from graphwright.ir.traits.effects import CALLS_PYTHON
from graphwright.source.graph_def import nodes_of
from graphwright.source.rebuild import is_jit_compiled, rebuild_concrete_function, variable_behind
from graphwright.source.tensorflow_import import import_tensorflow

tf: Any = import_tensorflow()
_DecodeError: Any = importlib.import_module("google.protobuf.message").DecodeError

_FORMAT = "graphwright steps"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step read from disk, with the tensors to call it with and its variables; its outputs are a flat tuple."""

    concrete: Any
    arguments: tuple[Any, ...]
    variables: tuple[Any, ...]


def write_steps(steps: Mapping[str, tuple[Any, Sequence[Any]]], directory: str | Path) -> None:
    """Write steps, each a `ConcreteFunction` with the flat tensors of its arguments, and the values of their captures. Refuse steps that
    call Python or capture a resource that is not a variable.
    """
    for name, (concrete, arguments) in steps.items():
        _check_portable(name, concrete, arguments)
    target = Path(directory)
    (target / "values").mkdir(parents=True, exist_ok=True)
    (target / "steps.json").unlink(missing_ok=True)
    values = _ValueWriter(target / "values")
    described: list[dict[str, Any]] = []
    for number, (name, (concrete, arguments)) in enumerate(steps.items()):
        _replace(target / f"{number}.pb", concrete.graph.as_graph_def().SerializeToString())
        count = len(arguments)
        described.append(
            {
                "name": name,
                "graph": f"{number}.pb",
                "inputs": [
                    {"tensor": inner.name, "value": values.add(outer)}
                    for outer, inner in zip(arguments, concrete.inputs[:count], strict=True)
                ],
                "captures": [{"tensor": inner.name, "value": values.add(outer)} for outer, inner in concrete.graph.captures],
                "outputs": [tensor.name for tensor in concrete.outputs],
                "control_outputs": [operation.name for operation in concrete.graph.control_outputs],
                "jit_compile": is_jit_compiled(concrete),
            }
        )
    document = {"format": _FORMAT, "version": _VERSION, "steps": described, "values": values.described}
    _replace(target / "steps.json", json.dumps(document, indent=1).encode())


def read_steps(directory: str | Path) -> dict[str, StoredStep]:
    """Read what `write_steps` wrote; variables are created again, and shared as they were.

    Raises:
        FileFormatError: the directory is not what `write_steps` leaves.
    """
    source = Path(directory)
    try:
        document = json.loads((source / "steps.json").read_text())
        if document["format"] != _FORMAT or document["version"] != _VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']!r}")
        values = [_read_value(source / "values", entry) for entry in document["values"]]
        return {step["name"]: _read_one(source, step, values) for step in document["steps"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError, GraphError, _DecodeError) as error:
        raise FileFormatError(
            f"no steps can be read: {error}", where=str(source), cause="the directory was not written by write_steps, or not to its end"
        ) from error


def _read_one(source: Path, step: Mapping[str, Any], values: Sequence[Any]) -> StoredStep:
    graph_def = tf.compat.v1.GraphDef.FromString((source / step["graph"]).read_bytes())
    used = {entry["value"] for entry in (*step["inputs"], *step["captures"])}
    concrete = rebuild_concrete_function(
        graph_def,
        inputs=[entry["tensor"] for entry in step["inputs"]],
        captures=[(_as_tensor(values[entry["value"]]), entry["tensor"]) for entry in step["captures"]],
        outputs=step["outputs"],
        control_outputs=step["control_outputs"],
        name=step["name"],
        jit_compile=step["jit_compile"],
    )
    return StoredStep(
        concrete,
        tuple(_as_tensor(values[entry["value"]]) for entry in step["inputs"]),
        tuple(values[index] for index in sorted(used) if isinstance(values[index], tf.Variable)),
    )


def _as_tensor(value: Any) -> Any:
    return value.handle if isinstance(value, tf.Variable) else value


class _ValueWriter:
    """Writes each distinct tensor once; `described[k]` tells how to read value `k`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._index: dict[int, int] = {}
        self.described: list[dict[str, Any]] = []

    def add(self, tensor: Any) -> int:
        if id(tensor) not in self._index:  # whoever holds the step keeps the tensor alive, so the identity stays its own
            self._index[id(tensor)] = len(self.described)
            self.described.append(self._write(tensor, len(self.described)))
        return self._index[id(tensor)]

    def _write(self, tensor: Any, number: int) -> dict[str, Any]:
        variable = variable_behind(tensor)
        value = tensor if variable is None else tf.raw_ops.ReadVariableOp(resource=tensor, dtype=variable[1])
        entry: dict[str, Any] = {"kind": "constant" if variable is None else "variable", "dtype": value.dtype.name}
        if variable is not None:
            entry["shape"] = variable[0].as_list() if variable[0].rank is not None else None
        entry["device"] = "GPU" if "GPU" in str(tensor.device) else "CPU"
        if value.dtype == tf.string:
            entry["file"] = f"{number}.tensor"
            _replace(self._directory / entry["file"], tf.io.serialize_tensor(value).numpy())
            return entry
        entry["file"] = f"{number}.npy"
        array = np.asarray(value.numpy())
        if array.dtype.isbuiltin != 1:  # a dtype that NumPy does not define
            array = array.view(f"u{array.dtype.itemsize}")
        path = self._directory / f"{number}.npy.new"
        with path.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
        path.replace(self._directory / entry["file"])
        return entry


def _read_value(directory: Path, entry: Mapping[str, Any]) -> Any:
    dtype = tf.dtypes.as_dtype(entry["dtype"])
    if entry["file"].endswith(".tensor"):
        value = tf.io.parse_tensor((directory / entry["file"]).read_bytes(), dtype)
        return tf.Variable(value, shape=entry["shape"]) if entry["kind"] == "variable" else value
    array = np.load(directory / entry["file"], allow_pickle=False)
    if array.dtype != dtype.as_numpy_dtype:
        array = array.view(dtype.as_numpy_dtype)
    # An int32 tensor stays on the host when TensorFlow may choose, as it did in the process that wrote it.
    with tf.device(None if entry["device"] == "GPU" else "/CPU:0"):
        if entry["kind"] == "variable":
            return tf.Variable(array, dtype=dtype, shape=tf.TensorShape(entry["shape"]))
        return tf.constant(array, dtype=dtype)


def _check_portable(name: str, concrete: Any, arguments: Sequence[Any]) -> None:
    graph_def = concrete.graph.as_graph_def()
    collectives = [node for node in nodes_of(graph_def) if node.op.startswith("Collective")]
    if collectives or concrete.graph.deferred_external_captures:
        raise UnsupportedError(
            f"the step {name!r} exchanges values between devices (tf.distribute), which another process cannot take part in",
            where=f"node {collectives[0].name!r} ({collectives[0].op})" if collectives else "values that the step requests at each call",
            remedy="measure the step of one replica, without the strategy; a plan says the peak of each device: plan.how['devices']",
        )
    check_needs_nothing(name, graph_def, [*concrete.graph.captures, *zip(arguments, concrete.inputs, strict=False)], "process")


def check_needs_nothing(name: str, graph_def: Any, tensors: Iterable[tuple[Any, Any]], place: str) -> None:
    """Raise where a step needs more than its graph and the values of tensors and variables. `tensors` holds its captures and arguments with
    their inner tensors; `place` is where it is to run, in a word.
    """
    for node in nodes_of(graph_def):
        if node.op in CALLS_PYTHON:
            raise UnsupportedError(
                f"the step {name!r} calls Python (tf.py_function or tf.numpy_function), which cannot be taken to another {place}",
                where=f"node {node.name!r} ({node.op})",
                remedy="compute this part outside the step and pass it as an argument",
            )
    for outer, inner in tensors:
        if outer.dtype in (tf.resource, tf.variant) and variable_behind(outer) is None:
            users = sorted({consumer.type for consumer in inner.consumers()}) or ["nothing"]
            raise UnsupportedError(
                f"the step {name!r} uses a {outer.dtype.name} that is not a variable, which cannot be taken to another {place}",
                where=f"node {inner.op.name!r}, used by {', '.join(users)}",
                cause="a table, an iterator or a queue is used inside the step",
                remedy="pass its elements to the step as arguments",
            )


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)
