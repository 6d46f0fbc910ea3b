"""What carries a copy of a tensor out of the memory of a device, and back: the nodes that do it, in the graph, without Python.

`SpillFiles` writes it to a file. Of what TensorFlow can do without calling Python, a checkpoint of one tensor is what takes least memory,
measured on TensorFlow 2.21: writing takes a buffer of 8 MiB however large the tensor is, reading takes none, and all dtypes of numbers
come back as they were. `SerializeTensor` with `WriteFile`, and `ReadFile` with `ParseTensor`, take about two more copies each way.
`ImmutableConst` maps a file, but its name stands in the graph, so that two steps at once would meet in one file.

Each run of a step draws 128 bits from the system for the names of its files, so no two runs meet, in whatever processes they are. A file
that was read for the last time is renamed to one name that all have in common, and replaces the one before: of what was written, the one
tensor that was read last stays on disk until the folder is removed.

`HostCopies` hands it to another device and takes it back, both by an `Identity` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from graphwright.ir.attributes import Attribute, ShapeAttribute
from graphwright.ir.constants import add_constant, text_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape
from graphwright.ir.graph import Graph, Node, Value

WRITE_BUFFER_BYTES = 8 << 20
"""What TensorFlow's writer of checkpoints holds at most (`tensor_bundle.cc`, the size of its buffer)."""
OFFLOADED = "offloaded"
"""What the names of all nodes begin with that carry copies."""
_TEXT = DTYPES["string"]


class Carrier(Protocol):
    """Adds the nodes that carry copies to one graph."""

    def write(self, value: Value) -> Node:
        """What writes a copy; when it has run, the value is no longer needed."""
        ...

    def read(self, value: Value) -> Node:
        """What reads the copy back, after it was written; its output stands for the value."""
        ...

    def finish(self) -> None:
        """Add what clears up, once all is read."""
        ...


@dataclass
class HostCopies:
    """Copies in the memory of another device, named as in TensorFlow, "CPU:1"."""

    graph: Graph
    device: str
    _copies: dict[Value, Node] = field(default_factory=dict[Value, Node])

    def write(self, value: Value) -> Node:
        self._copies[value] = self._identity(f"{OFFLOADED}/{value.producer.name}/write", value, value, f"/device:{self.device}")
        return self._copies[value]

    def read(self, value: Value) -> Node:
        name = f"{OFFLOADED}/{value.producer.name}"
        return self._identity(name, self._copies[value].outputs[0], value, value.producer.device or "/device:CPU:0")

    def finish(self) -> None:
        pass

    def _identity(self, name: str, source: Value, like: Value, device: str) -> Node:
        return _add(self.graph, "Identity", name, [source], (like.dtype, like.shape), device, T=like.dtype)


class SpillFiles:
    """Copies in files of a folder, which exists.

    Args:
        folder: as the graph names it, so an absolute path if the working directory may change.
    """

    def __init__(self, graph: Graph, folder: str) -> None:
        self.graph, self.folder = graph, folder.rstrip("/") + "/"
        self._files: dict[Value, tuple[Value, Node, list[Node]]] = {}  # the file's name, what writes it, what reads it

    def write(self, value: Value) -> Node:
        name = f"{OFFLOADED}/{value.producer.name}"
        if not self._files:
            self._make_common()
        number = self._text(f"{name}/number", f".{len(self._files)}")
        file = self._join(f"{name}/file", [self._folder, self._run, number])
        attrs: dict[str, Attribute] = {"dtypes": (value.dtype,)}
        node = self.graph.add_node(
            "SaveV2", self.graph.unique_name(f"{name}/write"), inputs=[file, self._names, self._slices, value], attrs=attrs
        )
        self._files[value] = file, node, []
        return node

    def read(self, value: Value) -> Node:
        file, written, readers = self._files[value]
        node = _add(
            self.graph,
            "RestoreV2",
            f"{OFFLOADED}/{value.producer.name}",
            [file, self._names, self._slices],
            (value.dtype, value.shape),
            dtypes=(value.dtype,),
            _output_shapes=(ShapeAttribute(value.shape),),
        )
        self.graph.add_control_input(node, written)
        readers.append(node)
        return node

    def finish(self) -> None:
        over: list[Node] = []
        for value, (file, _, readers) in self._files.items():
            name = f"{OFFLOADED}/{value.producer.name}/over"
            names = _add(self.graph, "Pack", f"{name}/names", [file], (_TEXT, (1,)), N=1, T=_TEXT, axis=0).outputs[0]
            attrs: dict[str, Attribute] = {"delete_old_dirs": False, "allow_missing_files": False}
            inputs = [names, self._over]
            over.append(
                self.graph.add_node("MergeV2Checkpoints", self.graph.unique_name(name), inputs=inputs, attrs=attrs, control_inputs=readers)
            )
        self.graph.control_outputs = [*self.graph.control_outputs, *over]

    def _make_common(self) -> None:
        graph, int64 = self.graph, DTYPES["int64"]
        shape = add_constant(graph, f"{OFFLOADED}/run/shape", np.array([2], np.int32))
        axis = add_constant(graph, f"{OFFLOADED}/run/axis", np.array([0], np.int32))
        drawn = _add(
            graph, "NonDeterministicInts", f"{OFFLOADED}/run/drawn", [shape], (int64, (2,)), dtype=int64, shape_dtype=DTYPES["int32"]
        )
        digits = _add(graph, "AsString", f"{OFFLOADED}/run/digits", drawn.outputs, (_TEXT, (2,)), T=int64)
        inputs = [digits.outputs[0], axis]
        self._run = _add(graph, "ReduceJoin", f"{OFFLOADED}/run", inputs, (_TEXT, ()), keep_dims=False, separator=b"_").outputs[0]
        self._folder = self._text(f"{OFFLOADED}/folder", self.folder)
        self._over = self._text(f"{OFFLOADED}/over", f"{self.folder}over")
        self._names = self._text(f"{OFFLOADED}/names", ["tensor"])
        self._slices = self._text(f"{OFFLOADED}/slices", [""])

    def _text(self, name: str, text: str | Sequence[str]) -> Value:
        shape: Shape = () if isinstance(text, str) else (len(text),)
        return _add(self.graph, "Const", name, [], (_TEXT, shape), dtype=_TEXT, value=text_attribute(text)).outputs[0]

    def _join(self, name: str, parts: Sequence[Value]) -> Value:
        return _add(self.graph, "StringJoin", name, parts, (_TEXT, ()), N=len(parts), separator=b"").outputs[0]


def _add(
    graph: Graph, op_type: str, name: str, inputs: Sequence[Value], output: tuple[DType, Shape], device: str = "", **attrs: Attribute
) -> Node:
    return graph.add_node(op_type, graph.unique_name(name), inputs=inputs, attrs=attrs, output_types=[output], device=device)
