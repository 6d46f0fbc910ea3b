"""Nodes that copy a tensor out of the memory of a device, and back, without Python.

`SpillFiles` writes a file. A checkpoint of one tensor takes the least memory, measured on TensorFlow 2.21: writing takes a buffer of 8 MiB,
reading none, and all numeric dtypes come back unchanged. `SerializeTensor` with `WriteFile`, and `ReadFile` with `ParseTensor`, take about
two more copies each way. `ImmutableConst` maps a file, but its name is fixed in the graph, so two concurrent steps would share it.

Each run of a step draws 128 bits from the system for its file names, so no two runs collide. A file that was read for the last time is
renamed to one common name, which replaces the file before it, so one tensor stays on disk until the folder is removed.

`HostCopies` copies to another device and back, both by an `Identity` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from graphwright.ir.attributes import Attribute, ShapeAttribute
from graphwright.ir.constants import add_constant, text_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape
from graphwright.ir.edit.insert import add_op
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import OFFLOADED

WRITE_BUFFER_BYTES = 8 << 20
"""What TensorFlow's writer of checkpoints holds, of small tensors too (`tensor_bundle.cc`, the size of its buffer)."""
_DRAWN_SHAPE = (2, 2)
"""Of the 128 bits in int32."""
_TEXT = DTYPES["string"]


class Carrier(Protocol):
    """Adds the nodes that make copies to one graph."""

    def write(self, value: Value) -> Node: ...

    def read(self, value: Value) -> Node: ...

    def finish(self) -> None:
        """Add the cleanup after all reads."""
        ...


@dataclass
class HostCopies:
    """Copies in the memory of another device, such as "CPU:1"."""

    graph: Graph
    device: str
    _copies: dict[Value, Node] = field(default_factory=dict[Value, Node])

    def write(self, value: Value) -> Node:
        self._copies[value] = self._identity(f"{OFFLOADED}/{value.producer.name}/write", value, value, f"/device:{self.device}")
        return self._copies[value]

    def read(self, value: Value) -> Node:
        name = f"{OFFLOADED}/{value.producer.name}"
        return self._identity(name, self._copies[value].outputs[0], value, value.producer.device)

    def finish(self) -> None:
        pass

    def _identity(self, name: str, source: Value, like: Value, device: str) -> Node:
        return add_op(self.graph, "Identity", name, [source], like.dtype, like.shape, device=device, T=like.dtype).producer


class SpillFiles:
    """Copies in files of an existing folder, given by its absolute path."""

    def __init__(self, graph: Graph, folder: str) -> None:
        self.graph, self.folder = graph, folder.rstrip("/") + "/"
        self._texts = _FileTexts(graph, self.folder)
        self._run: Value | None = None
        self._files: dict[Value, tuple[Value, Node, list[Node]]] = {}  # the file's name, what writes it, what reads it

    def write(self, value: Value) -> Node:
        name = f"{OFFLOADED}/{value.producer.name}"
        if self._run is None:
            self._run = self._texts.drawn_digits(f"{OFFLOADED}/run")
        file = self._texts.file(name, self._run, f".{len(self._files)}")
        node = self._texts.save(f"{name}/write", file, value)
        self._files[value] = file, node, []
        return node

    def read(self, value: Value) -> Node:
        file, written, readers = self._files[value]
        node = self._texts.restore(f"{OFFLOADED}/{value.producer.name}", file, value.dtype, value.shape)
        self.graph.add_control_input(node, written)
        readers.append(node)
        return node

    def finish(self) -> None:
        over = [
            self._texts.give_up(f"{OFFLOADED}/{value.producer.name}/over", file, readers)
            for value, (file, _, readers) in self._files.items()
        ]
        self.graph.control_outputs = [*self.graph.control_outputs, *over]


class _FileTexts:
    def __init__(self, graph: Graph, folder: str) -> None:
        self.graph = graph
        self.folder = self.text(f"{OFFLOADED}/folder", folder)
        self.over = self.text(f"{OFFLOADED}/over", f"{folder}over")
        self._names = self.text(f"{OFFLOADED}/names", ["tensor"])
        self._slices = self.text(f"{OFFLOADED}/slices", [""])

    def text(self, name: str, text: str | Sequence[str]) -> Value:
        if name in self.graph:
            self.graph.set_attr(self.graph[name], "value", text_attribute(text))
            return self.graph[name].outputs[0]
        shape: Shape = () if isinstance(text, str) else (len(text),)
        return add_op(self.graph, "Const", name, [], _TEXT, shape, dtype=_TEXT, value=text_attribute(text))

    def file(self, name: str, digits: Value, suffix: str) -> Value:
        """Return the name of a file: the folder, random digits, and a suffix."""
        parts = [self.folder, digits, self.text(f"{name}/number", suffix)]
        return add_op(self.graph, "StringJoin", f"{name}/file", parts, _TEXT, (), N=3, separator=b"")

    def save(self, name: str, file: Value, value: Value) -> Node:
        inputs, attrs = [file, self._names, self._slices, value], {"dtypes": (value.dtype,)}
        return self.graph.add_node("SaveV2", self.graph.unique_name(name), inputs=inputs, attrs=attrs)

    def restore(self, name: str, file: Value, dtype: DType, shape: Shape) -> Node:
        shapes = (ShapeAttribute(shape),)
        inputs = [file, self._names, self._slices]
        return add_op(self.graph, "RestoreV2", name, inputs, dtype, shape, dtypes=(dtype,), _output_shapes=shapes).producer

    def give_up(self, name: str, file: Value, readers: Sequence[Node]) -> Node:
        names = add_op(self.graph, "Pack", f"{name}/names", [file], _TEXT, (1,), N=1, T=_TEXT, axis=0)
        attrs: dict[str, Attribute] = {"delete_old_dirs": False, "allow_missing_files": False}
        name = self.graph.unique_name(name)
        return self.graph.add_node("MergeV2Checkpoints", name, inputs=[names, self.over], attrs=attrs, control_inputs=readers)

    def drawn_digits(self, name: str) -> Value:
        """Return 128 bits that the system draws in each run, as text."""
        graph, int32 = self.graph, DTYPES["int32"]
        shape = add_constant(graph, f"{name}/shape", np.array(_DRAWN_SHAPE, np.int32))
        drawn = add_op(graph, "NonDeterministicInts", f"{name}/drawn", [shape], int32, _DRAWN_SHAPE, dtype=int32, shape_dtype=int32)
        axis = add_constant(graph, f"{name}/axis", np.array([1, 0], np.int32))
        text = add_op(graph, "AsString", f"{name}/digits", [drawn], _TEXT, _DRAWN_SHAPE, T=int32)
        return add_op(graph, "ReduceJoin", name, [text, axis], _TEXT, (), keep_dims=False, separator=b"_")
