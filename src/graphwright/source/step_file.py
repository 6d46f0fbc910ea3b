"""Steps in a folder: everything that a fresh process needs to run them, without pickle.

The folder holds `steps.json`, a `<number>.pb` per step with its `GraphDef` and function library, and a checkpoint with the values of
variables, captured constants and arguments. Steps that share a variable share its value.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir.traits.effects import CALLS_PYTHON
from graphwright.source.graph_def import nodes_of
from graphwright.source.rebuild import is_jit_compiled, read_variable, rebuild_concrete_function, variable_behind
from graphwright.source.tensorflow_import import import_tensorflow

tf: Any = import_tensorflow()


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
    target, places = Path(directory), dict[int, int]()
    tensors: list[Any] = []

    def place_of(tensor: Any) -> int:
        if id(tensor) not in places:
            places[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return places[id(tensor)]

    described: list[dict[str, Any]] = []
    for number, (name, (concrete, arguments)) in enumerate(steps.items()):
        (target / f"{number}.pb").write_bytes(concrete.graph.as_graph_def().SerializeToString())
        described.append(
            {
                "name": name,
                "inputs": [(inner.name, place_of(outer)) for outer, inner in zip(arguments, concrete.inputs, strict=False)],
                "captures": [(inner.name, place_of(outer)) for outer, inner in concrete.graph.captures],
                "outputs": [tensor.name for tensor in concrete.outputs],
                "control_outputs": [operation.name for operation in concrete.graph.control_outputs],
                "jit_compile": is_jit_compiled(concrete),
            }
        )
    document = {"steps": described, "values": _write_values(tensors, str(target / "values"))}
    (target / "steps.json").write_text(json.dumps(document))


def read_steps(directory: str | Path) -> dict[str, StoredStep]:
    source = Path(directory)
    document = json.loads((source / "steps.json").read_text())
    values = _read_values(document["values"], str(source / "values"))
    tensors = [value.handle if isinstance(value, tf.Variable) else value for value in values]
    steps: dict[str, StoredStep] = {}
    for number, step in enumerate(document["steps"]):
        name, inputs, captures = step.pop("name"), step.pop("inputs"), step.pop("captures")
        concrete = rebuild_concrete_function(
            tf.compat.v1.GraphDef.FromString((source / f"{number}.pb").read_bytes()),
            inputs=[tensor for tensor, _ in inputs],
            captures=[(tensors[place], tensor) for tensor, place in captures],
            name=name,
            **step,
        )
        used = sorted({place for _, place in (*inputs, *captures)})
        variables = tuple(values[place] for place in used if isinstance(values[place], tf.Variable))
        steps[name] = StoredStep(concrete, tuple(tensors[place] for _, place in inputs), variables)
    return steps


def _write_values(tensors: Sequence[Any], prefix: str) -> list[dict[str, Any]]:
    """Write the values of tensors and of the variables behind handles to a checkpoint; return what `_read_values` needs to know."""
    described: list[dict[str, Any]] = []
    values: list[Any] = []
    for tensor in tensors:
        variable = variable_behind(tensor)
        shape = None if variable is None or variable[0].rank is None else variable[0].as_list()
        values.append(tensor if variable is None else read_variable(tensor))
        device = "GPU" if "GPU" in str(tensor.device) else "CPU"
        described.append({"dtype": values[-1].dtype.name, "is_variable": variable is not None, "shape": shape, "device": device})
    if values:
        names = [str(k) for k in range(len(values))]
        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
    return described


def _read_values(described: Sequence[Mapping[str, Any]], prefix: str) -> list[Any]:
    values: list[Any] = []
    for k, entry in enumerate(described):
        with tf.device("/CPU:0"):
            [value] = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[str(k)], shape_and_slices=[""], dtypes=[entry["dtype"]])
        # An int32 tensor stays on the host when TensorFlow may choose, as it did in the process that wrote it.
        with tf.device(None if entry["device"] == "GPU" else "/CPU:0"):
            values.append(tf.Variable(value, shape=tf.TensorShape(entry["shape"])) if entry["is_variable"] else tf.identity(value))
    return values


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
