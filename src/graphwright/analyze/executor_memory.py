"""Simulate the buffers of kernels while TensorFlow's executor runs them, with reference counts as in TensorFlow.

Terms
-----
buffer
    Bytes that tensors share. It is freed when the last holder releases it: an input of a waiting node, a variable, a list, a result.
resident
    Allocated before the step starts: variables, inputs, constants. A variable that is assigned a new tensor takes over that tensor's
    buffer and frees its own.
forwarded
    An output written into an input's buffer without other holders (`ir.traits.in_place_pairs`).
number
    The value of a small scalar, computed so that loops know when to stop.

An update in place of a variable copies it first if somebody still holds a value read from it. A variable that is accessed by rows is always
copied (`analyze.variable_access.copied_variables`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from graphwright.analyze.batch_norms import is_gpu_scratch
from graphwright.analyze.storages import PLACE_BYTES, Scalar, allocated_bytes
from graphwright.analyze.trip_counts import compute, number_behind
from graphwright.analyze.variable_access import copied_bytes, copied_variables
from graphwright.ir.dtypes import byte_count, format_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import in_place_pairs
from graphwright.ir.traits.control_flow import CALL_TYPES, FORWARDS_IN_TF1, MERGES, SWITCHES, is_compiled_call, is_control_flow
from graphwright.ir.traits.values import GIVEN, SAME_BUT_FOR_TYPE, forwards_several, index_behind
from graphwright.ir.traits.variables import ASSIGNS_WHOLE_VALUE, is_read, updates_whole_value, written_references, written_resources
from graphwright.ir.traits.views import is_view
from graphwright.ops.pooling import hidden_output_bytes
from graphwright.ops.scratch import HOW_COMPILED

Constant = Callable[[Value], "np.ndarray[Any, Any] | None"]


@dataclass(eq=False, slots=True)
class Buffer:
    """Bytes with a count of holders. `items` are the elements of a list; `nbytes` are then the places for them."""

    value: Value | None
    nbytes: int
    born: int
    refs: int = 1
    died: int = -1
    last_reader: Node | None = None
    number: Scalar | None = None
    items: list[Buffer | None] | None = None
    forwarded: list[tuple[int, Value]] = field(default_factory=list["tuple[int, Value]"])  # whose bytes they became, and when

    def holdings(self, end: int) -> list[Holding]:
        """Return the values whose bytes they were, one after another; `end` is the end of a buffer that was not freed."""
        owners = [(self.born, self.value), *self.forwarded]
        ends = [*((tick, value.producer) for tick, value in self.forwarded), (self.died if self.died >= 0 else end, self.last_reader)]
        pairs = zip(owners, ends, strict=True)
        return [Holding(value, self.nbytes, first, last, reader) for (first, value), (last, reader) in pairs if value is not None]


@dataclass(frozen=True, slots=True)
class Holding:
    """The bytes of one value, from the kernel that makes it to the kernel that frees it, in ticks of the clock. Resident buffers that the
    step frees have only an end.
    """

    value: Value
    nbytes: int
    first: int
    end: int  # the first tick at which it is no longer held
    last_reader: Node | None = None


@dataclass(frozen=True, slots=True)
class KernelStart:
    """The state when a kernel starts, its outputs included."""

    node: Node
    tick: int
    total_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class PeakState:
    """The memory of one execution.

    Attributes:
        starts: of kernels, in order.
        peak: index of the start with the most bytes.
        holdings: values that the step makes.
        freed: resident buffers that the step frees.
        resident_bytes: bytes held from the start.
        notes: inexact parts, in words.
    """

    starts: tuple[KernelStart, ...]
    peak: int
    holdings: tuple[Holding, ...]
    freed: tuple[Holding, ...]
    resident_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at once, resident bytes included."""
        return self.starts[self.peak].total_bytes if self.starts else self.resident_bytes

    @property
    def live(self) -> tuple[Holding, ...]:
        tick = self.starts[self.peak].tick if self.starts else 0
        held = (holding for holding in self.holdings if holding.first <= tick < holding.end)
        return tuple(sorted(held, key=lambda holding: (-holding.nbytes, holding.value.name)))

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(start.node.name for start in self.starts)


class Memory:
    """Run kernels on buffers in place of numbers.

    Args:
        graph: its constants, inputs and variables are resident.
        workspace_of: returns the bytes that a kernel needs beyond its outputs.
        constant: returns the array of a constant, or None.
        resident_bytes: bytes at the start.
        computed_once: nodes that count as constants.
        branch: the branch to take where a condition depends on data; the last one where there are fewer branches.

    Attributes:
        open_branches: the most branches of a condition that depends on data.
    """

    def __init__(
        self,
        graph: Graph,
        workspace_of: Callable[[Node], int],
        constant: Constant,
        resident_bytes: int,
        computed_once: Container[Node] = (),
        branch: int = 0,
    ) -> None:
        self.branch = branch
        self.open_branches = 0
        self.computed_once = computed_once
        self.workspace_of = workspace_of
        self.constant = constant
        self.resident_bytes = resident_bytes
        self.live = resident_bytes
        self.workspace = 0
        self.clock = 0
        self.made: list[Buffer] = []
        self.freed: list[Holding] = []
        self.starts: list[KernelStart] = []
        self.variables: dict[Value, Buffer] = {v: Buffer(v, variable.nbytes or 0, -1) for v, variable in graph.variables.items()}
        self.copied = copied_variables(graph)[0]
        self.constants: dict[Value, Buffer] = {}
        for v, buffer in self.variables.items():
            buffer.number = self.constant_number(v)
        self.handles: dict[Buffer, Value] = {}
        self.sizes: dict[Value, int] = {}
        self.pairs: dict[Node, tuple[tuple[int, int], ...]] = {}
        self.views: dict[Node, bool] = {}
        self.workspaces: dict[Node, int] = {}
        self.notes: dict[str, None] = {}
        self.unknown: list[str] = []  # values whose sizes are not known

    def result(self) -> PeakState:
        if self.unknown:
            self.notes[f"of {len(self.unknown)} values the size is not known and not counted, the first is {self.unknown[0]}"] = None
        return PeakState(
            tuple(self.starts),
            max(range(len(self.starts)), key=lambda k: self.starts[k].total_bytes, default=0),
            tuple(holding for buffer in self.made for holding in buffer.holdings(self.clock + 1)),
            tuple(self.freed),
            self.resident_bytes,
            tuple(self.notes),
        )

    # One kernel

    def start(self, node: Node, inputs: Sequence[Buffer | None]) -> list[Buffer | None]:
        """Run a kernel and return its outputs, None for a dead one. Each output is held once, by the caller."""
        self.clock += 1
        if node not in self.workspaces:
            copies = updates_whole_value(node) and any(self.handles.get(b) in self.copied for b in inputs if b is not None)
            self.workspaces[node] = self.workspace_of(node) + (copied_bytes(node) if copies else 0)
        outputs = self._outputs(node, inputs)
        self.workspace += self.workspaces[node]
        self.starts.append(KernelStart(node, self.clock, self.live + self.workspace, self.workspace))
        return outputs

    def finish(self, node: Node, inputs: Iterable[Buffer | None]) -> None:
        """End a kernel and release its inputs."""
        self.workspace -= self.workspaces[node]
        self.clock += 1
        for buffer in inputs:
            if buffer is not None:
                self.release(buffer, node)

    def release(self, buffer: Buffer, reader: Node | None = None) -> None:
        """Release a buffer on behalf of one holder."""
        buffer.refs -= 1
        if buffer.refs:
            return
        self.live -= buffer.nbytes if buffer.born < 0 else allocated_bytes(buffer.nbytes)
        if buffer.born < 0 and buffer.nbytes and buffer.value is not None:
            self.freed.append(Holding(buffer.value, buffer.nbytes, -1, self.clock))
        buffer.died, buffer.last_reader = self.clock, reader
        for item in buffer.items or ():
            if item is not None:
                self.release(item, reader)

    # Buffers

    def _new(self, value: Value | None, nbytes: int) -> Buffer:
        buffer = Buffer(value, nbytes, self.clock)
        self.live += allocated_bytes(nbytes)
        if nbytes:
            self.made.append(buffer)
        return buffer

    @staticmethod
    def _held(buffer: Buffer) -> Buffer:
        buffer.refs += 1
        return buffer

    def _size(self, value: Value) -> int:
        if value not in self.sizes:
            size = value.nbytes if value.dtype.itemsize is not None else 0
            if size is None and value.dtype.name in ("int32", "int64") and len(value.shape or ()) == 1:
                size = 64  # a list of axes or sizes
            if size is None and is_gpu_scratch(value):
                size = 0
            if size is None:
                self.unknown.append(f"{value.name} ({value.producer.op_type}), {value.dtype}{format_shape(value.shape)}")
                size = 0
            self.sizes[value] = size + (hidden_output_bytes(value) if len(value.producer.outputs) == 1 else 0)
        return self.sizes[value]

    # Kernels

    def _outputs(self, node: Node, inputs: Sequence[Buffer | None]) -> list[Buffer | None]:
        op = node.op_type
        if op in GIVEN or node in self.computed_once:
            return [self._constant(value) for value in node.outputs]
        if op in FORWARDS_IN_TF1:
            return self._control_flow(node, inputs)
        first = inputs[0] if inputs else None
        if is_read(node) and first is not None and first in self.handles:
            variable = self.variables.get(self.handles[first])
            if variable is not None:
                copies = self.handles[first] in self.copied
                return [self._new(node.outputs[0], variable.nbytes) if copies else self._held(variable)]
        if op in ASSIGNS_WHOLE_VALUE and first in self.handles and inputs[1] is not None:
            if self.handles[first] in self.copied:
                return []  # the value is copied into a new buffer, in place of that which the variable had
            self._assign(self.handles[first], inputs[1])
            return []
        if written_resources(node):
            for buffer in inputs:
                if buffer in self.handles:
                    self._update_in_place(self.handles[buffer])
        if is_compiled_call(node):
            self.notes[HOW_COMPILED] = None
        elif op in CALL_TYPES or is_control_flow(node):
            self.notes[f"{node.name!r} calls a function that TensorFlow does not inline; its inner memory is not counted"] = None
        if forwards_several(node):
            return [None if b is None else self._held(b) for b in inputs]
        if node not in self.views:
            self.views[node] = is_view(node)
        # Assignments by reference hand the reference on. Grappler makes them of an `AddN` where memory is short.
        source = inputs[index_behind(node.outputs[0])] if self.views[node] else first
        if source is not None and (self.views[node] or op == "DestroyTemporaryVariable" or written_references(node)):
            return [self._held(source) for _ in node.outputs]
        outputs = self._list_kernel(node, inputs)
        return self._plain(node, inputs) if outputs is None else outputs

    def _constant(self, value: Value) -> Buffer:
        buffer = self.constants.get(value)
        if buffer is None:
            buffer = self.constants[value] = Buffer(value, 0, -1)
            if value.dtype.name == "resource":
                self.handles[buffer] = value
            buffer.number = self.constant_number(value)
        return self._held(buffer)

    def constant_number(self, value: Value) -> Scalar | None:
        """Return the number of a constant scalar, or of an input that one call gave; or None."""
        return number_behind(value, self.constant, value.producer.graph.example)

    def _control_flow(self, node: Node, inputs: Sequence[Buffer | None]) -> list[Buffer | None]:
        first = inputs[0]
        if node.op_type in SWITCHES:
            number, last = None if inputs[1] is None else inputs[1].number, len(node.outputs) - 1
            if number is None:
                self.open_branches = max(self.open_branches, last + 1)
                number = self.branch
            taken = int(number) if 0 <= number <= last else last
            return [self._held(first) if first is not None and k == taken else None for k in range(last + 1)]
        if node.op_type in MERGES:
            came = next((b for b in inputs if b is not None), None)
            return [None, None] if came is None else [self._held(came), self._new(None, 0)]
        return [None if first is None else self._held(first)]

    def _plain(self, node: Node, inputs: Sequence[Buffer | None]) -> list[Buffer | None]:
        if node not in self.pairs:
            self.pairs[node] = in_place_pairs(node)
        outputs: list[Buffer | None] = [None] * len(node.outputs)
        for i, o in self.pairs[node]:
            value = node.outputs[o]
            if value.nbytes is None and value not in self.sizes:  # computed element by element
                self.sizes[value] = max((b.nbytes for b in inputs if b is not None), default=0)
            buffer = inputs[i]
            if outputs[o] is None and buffer is not None and self._can_forward(node, i, o, buffer):
                buffer.forwarded.append((self.clock, node.outputs[o]))
                outputs[o] = self._held(buffer)
        for o, value in enumerate(node.outputs):
            if outputs[o] is None:
                outputs[o] = self._new(value, self._size(value))
        if len(outputs) == 1 and (out := outputs[0]) is not None and self._size(node.outputs[0]) <= 8:
            numbers = [None if b is None else b.number for b in inputs]
            out.number = numbers[0] if node.op_type in SAME_BUT_FOR_TYPE else compute(node.op_type, numbers)
        return outputs

    def _can_forward(self, node: Node, i: int, o: int, buffer: Buffer) -> bool:
        source, target = node.inputs[i], node.outputs[o]
        return (
            buffer.refs == 1
            and buffer.items is None
            and buffer.born >= 0
            and source.dtype == target.dtype
            and buffer.nbytes == self._size(target)
        )

    # Variables

    def _assign(self, handle: Value, buffer: Buffer) -> None:
        before = self.variables.get(handle)
        self.variables[handle] = self._held(buffer)
        if before is not None:
            self.release(before)

    def _update_in_place(self, handle: Value) -> None:
        buffer = self.variables.get(handle)
        if buffer is not None and buffer.refs > 1:
            self.variables[handle] = self._new(buffer.value, buffer.nbytes)
            self.release(buffer)

    # Lists of tensors

    def _list_kernel(self, node: Node, inputs: Sequence[Buffer | None]) -> list[Buffer | None] | None:
        """Return the outputs of an operation on lists; None for another one, or for an unknown list."""
        op = node.op_type
        if op == "EmptyTensorList":
            return [self._list(())]
        if op == "TensorListReserve":
            return [self._list([None] * self._count(inputs[1], node))]
        if op == "TensorListFromTensor":
            shape = node.inputs[0].shape
            count = (shape[0] if shape else None) or 0
            size = byte_count(node.inputs[0].dtype, None if shape is None else shape[1:]) or 0
            return [self._list([self._new(node.outputs[0], size) for _ in range(count)])]
        first = inputs[0] if inputs else None
        if first is None or first.items is None:
            return None
        if op == "TensorListPushBack":
            changed, items = self._writable(first, first.items)
            items.append(None if inputs[1] is None else self._held(inputs[1]))
            if len(items) * PLACE_BYTES > changed.nbytes:
                self.live -= allocated_bytes(changed.nbytes)
                changed.nbytes = 2 * changed.nbytes or PLACE_BYTES
                self.live += allocated_bytes(changed.nbytes)
            return [changed]
        if op == "TensorListPopBack":
            changed, items = self._writable(first, first.items)
            last = items.pop() if items else None
            return [changed, self._new(node.outputs[1], self._size(node.outputs[1])) if last is None else last]
        if op == "TensorListSetItem":
            changed, items = self._writable(first, first.items)
            index = self._count(inputs[1], node)
            items += [None] * (index + 1 - len(items))
            before, items[index] = items[index], None if inputs[2] is None else self._held(inputs[2])
            if before is not None:
                self.release(before)
            return [changed]
        if op == "TensorListGetItem":
            index = self._count(inputs[1], node)
            item = first.items[index] if index < len(first.items) else None
            return [self._new(node.outputs[0], self._size(node.outputs[0])) if item is None else self._held(item)]
        if op == "TensorListLength":
            length = self._new(None, 0)
            length.number = len(first.items)
            return [length]
        if op == "ZerosLike":
            return [self._list([None if b is None else self._new(node.outputs[0], b.nbytes) for b in first.items])]
        if op == "AddN":
            return [self._add([b for b in inputs if b is not None], node)]
        return None

    def _list(self, items: Iterable[Buffer | None]) -> Buffer:
        places = list(items)
        buffer = self._new(None, PLACE_BYTES * len(places))
        buffer.items = places
        return buffer

    def _writable(self, source: Buffer, items: list[Buffer | None]) -> tuple[Buffer, list[Buffer | None]]:
        """Return the list if nobody else holds it, else a copy that shares its elements; and its elements."""
        if source.refs == 1:
            return self._held(source), items
        copy = self._list([None if b is None else self._held(b) for b in items])
        assert copy.items is not None
        return copy, copy.items

    def _add(self, lists: Sequence[Buffer], node: Node) -> Buffer:
        items: list[Buffer | None] = []
        for row in zip_longest(*(b.items or () for b in lists)):
            present = [b for b in row if b is not None]
            items.append(self._new(node.outputs[0], present[0].nbytes) if len(present) > 1 else self._held(present[0]) if present else None)
        return self._list(items)

    def _count(self, buffer: Buffer | None, node: Node) -> int:
        if buffer is None or buffer.number is None:
            self.notes[f"a number that {node.name!r} needs is not known and counts as 0"] = None
            return 0
        return int(buffer.number)
