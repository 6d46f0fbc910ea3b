"""What While, If and Case nodes cost: trip counts, the bytes behind lists of tensors, memory inside, FLOPs.

TensorFlow keeps loops as nodes with functions. A loop that is differentiated pushes what its
gradient needs onto lists (dtype variant), one element per iteration, and the gradient's loop
pops them. How many bytes that is follows from the number of iterations, and from which elements
share storage: a list may hold the very tensors that another list, a variable or a loop state holds.

The figures come from executing the loop on *storages* (who holds which bytes) in place of numbers:
scalars that count are computed, everything else is only made, handed on and dropped.

Terms
-----
storage
    Bytes made by one node in one iteration. Lists hold storages; two lists may hold the same.
owner
    The value of the outer graph that a storage is counted with: the first that holds it. Other
    values *hold* that owner: while they live, so do its bytes.
partner
    A node whose output's storages end up inside the outputs of a loop (TensorListFromTensor, whose
    elements a loop pushes onto a list). It must be recomputed together with the loop, or the loop's
    output would hold on to the former version. Where that cannot be, the bytes are counted twice.

What is exact, and what is a bound: lists, trip counts of counted loops and FLOPs are exact. The memory
inside one iteration is the worst that any order of its nodes could need, because nothing fixes the order
inside a function. Iterations are taken one at a time, which holds where the loop has
`parallel_iterations=1` (`transform.loop_order` sets it); with more, temporaries of several iterations
may overlap, which is not counted. A condition that depends on data
gives `kind="at most"` where a counter limits it as well, else `kind="unknown"`, and then every figure is
that of a single iteration. An If or Case counts as its largest branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from graphwright.analyze.flops import node_flops
from graphwright.analyze.workspace import workspace_bytes
from graphwright.errors import UnknownShapeError
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.dtypes import DType, Shape, format_shape
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.traits import in_place_pairs, is_control_flow, is_view, resource_of, written_resources
from graphwright.ir.walk import topological_order

Constant = Callable[[Value], "np.ndarray[Any, Any] | None"]
InferBody = Callable[[Graph, Sequence[Shape], Sequence["tuple[DType, Shape] | None"]], None]
Scalar = int | float | bool

_LOOPS = frozenset({"While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LONGEST = 1_000_000  # iterations that are counted; a loop that counts further is taken as unknown
_EVALUATIONS = 200_000  # nodes executed on storages per loop; what a longer loop adds per iteration is scaled up
_NO_LARGER = frozenset("Sum Mean Max Min Prod All Any ArgMax ArgMin Slice StridedSlice Reshape BroadcastGradientArgs Shape".split())


@dataclass(frozen=True, slots=True)
class TripCount:
    """How often a loop's body runs.

    Attributes:
        count: iterations; 1 when unknown.
        kind: `exact`; `at most`, when the loop may also end earlier, by a condition on data; or `unknown`.
    """

    count: int
    kind: Literal["exact", "at most", "unknown"]


@dataclass(frozen=True)
class LoopCosts:
    """What `build_cost_graph` needs to know of control flow and lists.

    Attributes:
        variant_bytes: bytes counted with a value: lists, and all outputs of control-flow nodes.
        workspace: bytes that a control-flow node needs while it runs, beyond its inputs and outputs.
        flops: of one execution of a control-flow node with all its iterations; None when a node inside has no rule.
        trip_counts: by loop, those inside functions included.
        inside: by control-flow node, the nodes that it executes and how often.
        holds: by value, the other values whose bytes it keeps alive.
        partners: nodes that must run again whenever the loop runs again.
        in_place: by loop, pairs (input, output) of a state that the loop replaces as it goes.
        reads: by control-flow node, the variables (resource values of the graph) that it reads.
        writes: the same for variables it writes.
        notes: what is not exact, in words, one entry each.
    """

    variant_bytes: Mapping[Value, int] = field(default_factory=dict[Value, int])
    workspace: Mapping[Node, int] = field(default_factory=dict[Node, int])
    flops: Mapping[Node, float | None] = field(default_factory=dict[Node, float | None])
    trip_counts: Mapping[Node, TripCount] = field(default_factory=dict[Node, TripCount])
    inside: Mapping[Node, tuple[tuple[Node, float], ...]] = field(default_factory=dict[Node, tuple[tuple[Node, float], ...]])
    holds: Mapping[Value, tuple[Value, ...]] = field(default_factory=dict[Value, tuple[Value, ...]])
    partners: Mapping[Node, Node] = field(default_factory=dict[Node, Node])
    in_place: Mapping[Node, tuple[tuple[int, int], ...]] = field(default_factory=dict[Node, tuple[tuple[int, int], ...]])
    reads: Mapping[Node, tuple[Value, ...]] = field(default_factory=dict[Node, tuple[Value, ...]])
    writes: Mapping[Node, tuple[Value, ...]] = field(default_factory=dict[Node, tuple[Value, ...]])
    notes: tuple[str, ...] = ()


def loop_costs(graph: Graph, constant: Constant, *, infer_body: InferBody | None = None) -> LoopCosts:
    """What the control-flow nodes and lists of a flat graph cost.

    Args:
        graph: flat, with static shapes.
        constant: the array of a value whose producer is a `Const`, or None.
        infer_body: sets the shapes in a function's body from the shapes of its arguments, and the dtype and
            shape of the elements of those that are lists, or of the values of variables. Called where a body has unknown shapes.

    Raises:
        UnknownShapeError: the size of a tensor inside a loop is not known.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32, variant = DTYPES["float32"], DTYPES["variant"]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(f32, (8, 256))]).outputs[0]
    >>> g.inputs = [x]
    >>> rows = g.add_node("TensorListFromTensor", "rows", inputs=[x], output_types=[(variant, ())]).outputs[0]
    >>> loop_costs(g, lambda value: None).variant_bytes[rows]
    8192
    """
    if not any(is_control_flow(n) or any(v.dtype.name == "variant" for v in n.outputs) for n in graph.nodes):
        return LoopCosts()
    return _Interpreter(graph, constant, infer_body).costs()


# States: what a value is while the graph is executed on storages


class _Storage:
    """Bytes with an identity. `owner` is the value of the outer graph they are counted with, None for residents and for bytes
    made inside a function and not handed out yet."""

    __slots__ = ("nbytes", "owner", "resident", "shape")

    def __init__(self, nbytes: int, shape: Shape, owner: Value | None = None, resident: bool = False) -> None:
        self.nbytes = nbytes
        self.shape = shape
        self.owner = owner
        self.resident = resident


@dataclass(frozen=True, slots=True)
class _Dense:
    """A tensor: its storage, and its number where it is a scalar that could be computed."""

    storage: _Storage
    number: Scalar | None = None


@dataclass(frozen=True, slots=True)
class _List:
    """A list of tensors; an element that was never set is None."""

    items: tuple[_Dense | None, ...]
    dtype: DType | None = None


_State = _Dense | _List


@dataclass(slots=True)
class _Frame:
    """What one execution of a function did."""

    created: dict[_Storage, Value] = field(default_factory=dict[_Storage, Value])
    ahead: dict[_Storage, None] = field(default_factory=dict[_Storage, None])
    workspace: int = 0
    executed: list[tuple[Node, float]] = field(default_factory=list[tuple[Node, float]])


class _Interpreter:
    def __init__(self, graph: Graph, constant: Constant, infer_body: InferBody | None) -> None:
        self.graph = graph
        self.constant = constant
        self.infer_body = infer_body
        self.numbers: dict[Value, Scalar | None] = {}  # of constants
        self.inferred: set[str] = set()
        self.trips: dict[Node, TripCount] = {}
        self.workspace: dict[Node, int] = {}
        self.inside: dict[Node, tuple[tuple[Node, float], ...]] = {}
        self.arguments: dict[Node, list[_State]] = {}
        self.peaks: dict[Node, tuple[int, int]] = {}
        self.states: dict[Value, _State] = {}
        self.variables: dict[_Storage, Variable] = {}
        self.notes: dict[str, None] = {}

    # The outer graph

    def costs(self) -> LoopCosts:
        inputs = {v.producer for v in self.graph.inputs}
        order = topological_order(self.graph)
        for node in order:
            self._execute_outer(node, node in inputs)
        counted = [v for node in order if _is_special(node) for v in node.outputs]
        self._assign_owners(counted)
        holders = self._holders(counted)
        partners = self._find_partners(counted, holders)
        own: dict[Value, int] = {}
        holds: dict[Value, tuple[Value, ...]] = {}
        for value in counted:
            own[value], holds[value] = self._share(value, partners)
        reads, writes = self._effects(order)
        return LoopCosts(
            variant_bytes=own,
            workspace={n: self._workspace(n, own) for n in order if n in self.peaks},
            flops={n: _flops(items) for n, items in self.inside.items()},
            trip_counts=self.trips,
            inside=self.inside,
            holds={v: held for v, held in holds.items() if held},
            partners=partners,
            in_place={n: pairs for n in order if n.op_type in _LOOPS and (pairs := self._in_place(n, own))},
            reads=reads,
            writes=writes,
            notes=tuple(self.notes),
        )

    def _execute_outer(self, node: Node, is_input: bool) -> None:
        if is_input or node.op_type in ("Const", "ReadVariableOp"):
            for value in node.outputs:
                storage = _Storage(value.nbytes or 0, value.shape, resident=True)
                self.states[value] = _Dense(storage, self._constant_number(value))
                if value in self.graph.variables:
                    self.variables[storage] = self.graph.variables[value]
            return
        frame = _Frame()
        arguments = [self.states[v] for v in node.inputs]
        outputs = self._execute(node, arguments, frame)
        for value, state in zip(node.outputs, outputs, strict=True):
            self.states[value] = state
        if not is_control_flow(node):
            for value in node.outputs:
                for storage in _storages([self.states[value]]):
                    if storage in frame.created and storage.owner is None:
                        storage.owner = value
        else:
            self.inside[node] = tuple(frame.executed)
            self.arguments[node] = arguments
            self.peaks.setdefault(node, (0, frame.workspace))

    def _assign_owners(self, counted: Iterable[Value]) -> None:
        """A dense output owns its storage before a list does: a list that lives on must not be kept by one element."""
        for dense in (True, False):
            for value in counted:
                state = self.states[value]
                if isinstance(state, _Dense) is dense and not (dense and value.dtype.name in ("resource", "variant")):
                    for storage in _storages([state]):
                        if storage.owner is None and not storage.resident:
                            storage.owner = value

    def _holders(self, counted: Iterable[Value]) -> dict[Node, set[Node]]:
        """Per node that made storages: the other nodes whose read outputs hold them."""
        holders: dict[Node, set[Node]] = {}
        for value in counted:
            if not value.uses and value not in self.graph.outputs:
                continue
            for storage in _storages([self.states[value]]):
                if storage.owner is not None and storage.owner.producer is not value.producer:
                    holders.setdefault(storage.owner.producer, set()).add(value.producer)
        return holders

    def _find_partners(self, counted: Iterable[Value], holders: Mapping[Node, set[Node]]) -> dict[Node, Node]:
        partners: dict[Node, Node] = {}
        for node in dict.fromkeys(v.producer for v in counted):
            holding = holders.get(node, set())
            if node.op_type == "TensorListFromTensor" and len(holding) == 1:
                loop = next(iter(holding))
                if loop.op_type in _LOOPS and _all_paths_end(node, loop):
                    partners[node] = loop
        return partners

    def _share(self, value: Value, partners: Mapping[Node, Node]) -> tuple[int, tuple[Value, ...]]:
        """Bytes counted with the value, and the owners of the other bytes that it holds."""
        own = 0
        held: dict[Value, None] = {}
        is_read = bool(value.uses) or value in self.graph.outputs
        for storage in _storages([self.states[value]]):
            if storage.resident:
                continue
            owner = storage.owner
            if owner is value or owner is None:
                own += storage.nbytes
            elif owner.producer is value.producer or partners.get(owner.producer) is value.producer:
                held[owner] = None
            elif is_read:
                own += storage.nbytes  # also counted with its owner: which of the two lives longer is not known
        return own, tuple(held) if is_read else ()

    def _workspace(self, node: Node, own: Mapping[Value, int]) -> int:
        """What the loop needs beyond the inputs and outputs that are counted at its step anyhow."""
        peak, extra = self.peaks[node]
        if node.op_type not in _LOOPS:
            return extra
        inputs = _total(_storages(self.arguments[node]))
        outputs = sum(own[v] for v in node.outputs)
        saved = sum(own[node.outputs[o]] for _, o in self._in_place(node, own))
        return max(0, peak - (inputs + outputs - saved), extra)

    def _in_place(self, node: Node, own: Mapping[Value, int]) -> tuple[tuple[int, int], ...]:
        """States that the loop replaces, where the new one is no larger: the old one goes as the new one comes."""
        pairs: list[tuple[int, int]] = []
        for k, (argument, output) in enumerate(zip(self.arguments[node], node.outputs, strict=True)):
            storages = _storages([argument])
            size = own[output]
            if size and _total(storages) >= size and not storages & _storages([self.states[output]]):
                pairs.append((k, k))
        return tuple(pairs)

    def _effects(self, order: Sequence[Node]) -> tuple[dict[Node, tuple[Value, ...]], dict[Node, tuple[Value, ...]]]:
        reads: dict[Node, tuple[Value, ...]] = {}
        writes: dict[Node, tuple[Value, ...]] = {}
        for node in order:
            if not is_control_flow(node):
                continue
            read, written = resource_effects(node, self.graph)
            reads[node] = tuple(dict.fromkeys(resource_of(node.inputs[k]) for k in read))
            writes[node] = tuple(dict.fromkeys(resource_of(node.inputs[k]) for k in written))
        return reads, writes

    # One node

    def _execute(self, node: Node, arguments: Sequence[_State], frame: _Frame) -> list[_State]:
        op = node.op_type
        if op in _LOOPS:
            return self._loop(node, arguments, frame)
        if op in _BRANCHES:
            return self._branches(node, arguments, frame)
        if op in _CALLS or op in self.graph.functions:
            function = self._function(node, "f") or self.graph.functions.get(op)
            if function is not None:
                return self._call(function, arguments, frame)
        frame.executed.append((node, 1.0))
        if op == "Const":
            return [_Dense(_Storage(v.nbytes or 0, v.shape, resident=True), self._constant_number(v)) for v in node.outputs]
        if op == "ReadVariableOp":
            return [_Dense(_Storage(node.outputs[0].nbytes or 0, node.outputs[0].shape, resident=True))]
        if op == "IdentityN":
            return list(arguments)
        if is_view(node):
            return [arguments[0]]
        if "TensorList" in op or op.startswith("Optional") or (op in ("ZerosLike", "AddN") and isinstance(arguments[0], _List)):
            outputs = self._list_operation(node, arguments, frame)
            if outputs is not None:
                return outputs
        frame.workspace = max(frame.workspace, workspace_bytes(node))
        number = _compute(node, arguments)
        return [self._make(v, arguments, frame, number) for v in node.outputs]

    def _make(self, value: Value, arguments: Sequence[_State], frame: _Frame, number: Scalar | None = None) -> _State:
        if value.dtype.name == "resource":
            return _Dense(_Storage(0, (), resident=True))
        if value.dtype.name == "variant":
            self.notes[f"the bytes behind {value.name} ({value.producer.op_type}) are not known and count as those of its inputs"] = None
            return _List(tuple(_Dense(_Storage(s.nbytes, s.shape)) for s in _storages(arguments)))
        source = self._forwarded(value, arguments, frame)
        if source is not None:
            return _Dense(source, number)
        storage = _Storage(self._size(value, arguments), value.shape)
        frame.created[storage] = value
        return _Dense(storage, number)

    def _forwarded(self, value: Value, arguments: Sequence[_State], frame: _Frame) -> _Storage | None:
        """The storage of an input that the kernel surely writes into: nobody else can hold it."""
        node = value.producer
        for i, o in in_place_pairs(node):
            state = arguments[i]
            if o != value.index or not isinstance(state, _Dense) or state.storage not in frame.created:
                continue
            source = node.inputs[i]
            if source.dtype == value.dtype and source.nbytes is not None and source.nbytes == value.nbytes and _has_single_reader(source):
                return state.storage
        return None

    def _size(self, value: Value, arguments: Sequence[_State]) -> int:
        if value.dtype.itemsize is None:
            return 0
        size = value.nbytes
        if size is not None:
            return size
        node = value.producer
        if node.op_type in _NO_LARGER or in_place_pairs(node):
            return max((s.nbytes for a in arguments for s in _storages([a], resident=True)), default=0)
        raise UnknownShapeError(
            f"the size of {value.name} is not known: {value.dtype}{format_shape(value.shape)}",
            where=f"node {node.name!r} ({node.op_type}) in function {node.graph.name!r}",
            cause="it is inside a loop or a branch, and its shape depends on an unknown dimension or on data",
            remedy="give the full shape of the step's inputs (feeds={name: shape}), or example inputs (inputs=...)",
        )

    def _constant_number(self, value: Value) -> Scalar | None:
        if value not in self.numbers:
            array = self.constant(value) if value.producer.op_type == "Const" and (value.nbytes or 9) <= 8 else None
            self.numbers[value] = array.item() if array is not None and array.size == 1 and array.dtype.kind in "iufb" else None
        return self.numbers[value]

    # Lists

    def _list_operation(self, node: Node, arguments: Sequence[_State], frame: _Frame) -> list[_State] | None:
        """Execute an operation on lists; None for one that is not known."""
        first = arguments[0] if arguments else None
        match node.op_type:
            case "EmptyTensorList":
                return [_List(())]
            case "TensorListReserve":
                count = _number(arguments[1])
                return [_List((None,) * int(count or 0))]
            case "TensorListFromTensor" if isinstance(first, _Dense):
                shape = first.storage.shape if node.inputs[0].shape is None else node.inputs[0].shape
                count = (shape[0] if shape else None) or 1
                element = None if shape is None else shape[1:]
                size = self._size(node.inputs[0], arguments) // count
                items = tuple(_Storage(size, element) for _ in range(count))
                frame.created.update(dict.fromkeys(items, node.outputs[0]))
                return [_List(tuple(_Dense(s) for s in items), node.inputs[0].dtype)]
            case "TensorListPushBack" if isinstance(first, _List) and isinstance(arguments[1], _Dense):
                return [_List((*first.items, arguments[1]), node.inputs[1].dtype)]
            case "TensorListSetItem" if isinstance(first, _List) and isinstance(arguments[2], _Dense):
                return [self._set_item(first, _number(arguments[1]), arguments[2], node.inputs[2].dtype)]
            case "TensorListPopBack" if isinstance(first, _List):
                last = first.items[-1] if first.items else None
                element = last if last is not None else self._make(node.outputs[1], arguments, frame)
                return [_List(first.items[:-1], first.dtype), element]
            case "TensorListGetItem" if isinstance(first, _List):
                index = _number(arguments[1])
                item = first.items[int(index or 0)] if first.items and int(index or 0) < len(first.items) else None
                return [item if item is not None else self._make(node.outputs[0], arguments, frame)]
            case "TensorListResize" if isinstance(first, _List):
                count = int(_number(arguments[1]) or len(first.items))
                return [_List((*first.items, *([None] * count))[:count], first.dtype)]
            case "TensorListLength" if isinstance(first, _List):
                return [_Dense(_Storage(4, ()), len(first.items))]
            case "OptionalNone":
                return [_List(())]
            case "OptionalFromValue":
                return [_List(tuple(a for a in arguments if isinstance(a, _Dense)))]
            case "OptionalGetValue" if isinstance(first, _List):
                items = (*first.items, *([None] * len(node.outputs)))
                pairs = zip(node.outputs, items, strict=False)
                return [item if item is not None else self._make(v, arguments, frame) for v, item in pairs]
            case "ZerosLike" if isinstance(first, _List):
                return [self._copy(first.items, first, node.outputs[0], frame)]
            case "AddN" if isinstance(first, _List):
                return [self._add(arguments, node.outputs[0], frame)]
            case _:
                return None

    def _set_item(self, target: _List, index: Scalar | None, element: _Dense, dtype: DType) -> _List:
        items = list(target.items)
        if index is None:  # the worst: no two writes fall on one element
            index = next((k for k, item in enumerate(items) if item is None), 0)
        if int(index) >= len(items):
            items += [None] * (int(index) + 1 - len(items))
        items[int(index)] = element
        return _List(tuple(items), dtype)

    def _add(self, arguments: Sequence[_State], value: Value, frame: _Frame) -> _List:
        """Element by element; an element that only one list has is handed on."""
        lists = [a for a in arguments if isinstance(a, _List)]
        rows = [[e for e in row if e is not None] for row in itertools.zip_longest(*(a.items for a in lists))]
        sums = self._copy([row[0] if len(row) > 1 else None for row in rows], lists[0], value, frame).items
        dtype = next((a.dtype for a in lists if a.dtype is not None), None)
        return _List(tuple(new or (row[0] if row else None) for new, row in zip(sums, rows, strict=True)), dtype)

    def _copy(self, items: Sequence[_Dense | None], like: _List, value: Value, frame: _Frame) -> _List:
        copies = tuple(None if s is None else _Dense(_Storage(s.storage.nbytes, s.storage.shape)) for s in items)
        frame.created.update({s.storage: value for s in copies if s is not None})
        return _List(copies, like.dtype)

    # Functions

    def _function(self, node: Node, attribute: str) -> Function | None:
        reference = node.attrs.get(attribute)
        return self.graph.functions.get(reference.name) if isinstance(reference, FunctionReference) else None

    def _call(self, function: Function, arguments: Sequence[_State], frame: _Frame) -> list[_State]:
        body = function.body
        self._ensure_shapes(function, arguments)
        states: dict[Value, _State] = dict(zip(body.inputs, arguments, strict=True))
        parameters = {v.producer for v in body.inputs}
        for node in body.nodes:
            if node in parameters:
                continue
            outputs = self._execute(node, [states[v] for v in node.inputs], frame)
            states.update(zip(node.outputs, outputs, strict=True))
        return [states[v] for v in body.outputs]

    def _ensure_shapes(self, function: Function, arguments: Sequence[_State]) -> None:
        body = function.body
        if self.infer_body is None or function.name in self.inferred:
            return
        self.inferred.add(function.name)
        unknown = (v for n in body.nodes for v in n.outputs if v.dtype.itemsize is not None and v.nbytes is None)
        if next(unknown, None) is None:
            return
        shapes: list[Shape] = []
        handles: list[tuple[DType, Shape] | None] = []
        for value, state in zip(body.inputs, arguments, strict=True):
            item = next((s for s in state.items if s is not None), None) if isinstance(state, _List) else None
            item_shape = item.storage.shape if item is not None else None
            shapes.append(state.storage.shape if isinstance(state, _Dense) and value.dtype.itemsize is not None else value.shape)
            handle = (state.dtype, item_shape) if isinstance(state, _List) and item is not None and state.dtype else None
            if isinstance(state, _Dense) and state.storage in self.variables:
                variable = self.variables[state.storage]
                handle = (variable.dtype, variable.shape)
            handles.append(handle)
        self.infer_body(body, shapes, handles)

    # Control flow

    def _branches(self, node: Node, arguments: Sequence[_State], frame: _Frame) -> list[_State]:
        names = [a for key in ("then_branch", "else_branch", "branches") for a in _as_tuple(node.attrs.get(key))]
        results: list[tuple[int, list[_State], _Frame]] = []
        for reference in names:
            function = self.graph.functions.get(reference.name) if isinstance(reference, FunctionReference) else None
            if function is None:
                continue
            inner = _Frame()
            outputs = self._call(function, arguments[1:], inner)
            results.append((_total(inner.created) + inner.workspace, outputs, inner))
        if not results:
            return [self._make(v, arguments, frame) for v in node.outputs]
        peak, outputs, largest = max(results, key=lambda r: r[0])
        kept = _storages(outputs)
        largest_flops = max((r[2] for r in results), key=lambda f: _flops(f.executed) or 0.0)
        frame.executed += largest_flops.executed
        frame.created.update({s: v for s, v in largest.created.items() if s in kept})
        frame.workspace = max(frame.workspace, peak - _total(s for s in kept if s in largest.created))
        if len({tuple(_number(s) for s in r[1]) for r in results}) > 1:
            outputs = [_Dense(s.storage) if isinstance(s, _Dense) else s for s in outputs]
        return outputs

    def _loop(self, node: Node, arguments: Sequence[_State], frame: _Frame) -> list[_State]:
        condition, body = self._function(node, "cond"), self._function(node, "body")
        if condition is None or body is None:
            return [self._make(v, arguments, frame) for v in node.outputs]
        trip = self._trip_count(condition, body, arguments)
        self._note_trip(node, trip)
        executed = min(trip.count, max(16, _EVALUATIONS // max(len(body.body), 1)))
        state = list(arguments)
        before = state
        inner = _Frame()
        worst = 0
        first: _Frame | None = None
        for k in range(executed):
            inner = _Frame()
            before, state = state, self._call(body, state, inner)
            first = first or inner
            if k in (0, executed - 1):
                worst = max(worst, _worst_live(body.body, inner, state) + inner.workspace)
        made = _storages(state) - _storages(arguments)
        if executed < trip.count:
            for storage in _storages(v for v in state if isinstance(v, _List)) & made:
                storage.nbytes = storage.nbytes * trip.count // executed
        if first is not None:
            check = _Frame()
            self._call(condition, arguments, check)
            frame.executed += [(n, c * trip.count) for n, c in first.executed] + [(n, c * (trip.count + 1)) for n, c in check.executed]
        frame.created.update({s: node.outputs[0] for s in made if not s.resident})
        inputs = _storages(arguments)
        ends = (_total(inputs) + worst, _total(_storages(before)) + worst, _total(_storages(state)))
        held = (_total(inputs) + worst, _total(inputs | _storages(before)) + worst, _total(inputs | _storages(state)))
        extra = max(0, max(held) - _total(inputs | _storages(state)))  # where others hold the inputs throughout
        self.peaks[node] = (max(ends), extra)
        frame.workspace = max(frame.workspace, max(held) - _total(inputs | _storages(state)))
        if trip.kind != "exact":
            state = [_Dense(s.storage) if isinstance(s, _Dense) else s for s in state]
        return state

    def _note_trip(self, node: Node, trip: TripCount) -> None:
        former = self.trips.get(node)
        if former is not None and former != trip:
            trip = max(former, trip, key=lambda t: t.count)
            trip = TripCount(trip.count, "at most" if trip.kind == "exact" else trip.kind)
        self.trips[node] = trip
        if trip.kind == "unknown":
            self.notes[f"how often {node.name} runs depends on data; its figures are those of one iteration"] = None
        elif trip.kind == "at most":
            self.notes[f"{node.name} runs at most {trip.count} times; its figures are for that many"] = None

    def _trip_count(self, condition: Function, body: Function, arguments: Sequence[_State]) -> TripCount:
        """Count by computing the scalars that the condition depends on."""
        needed = _needed_positions(condition.body, body.body)
        numbers: list[Scalar | None] = [_number(a) if k in needed else None for k, a in enumerate(arguments)]
        certain = True
        for count in range(_LONGEST):
            goes_on = self._evaluate(condition.body.outputs[0], dict(zip(condition.body.inputs, numbers, strict=True)))
            if goes_on is not None and not goes_on:
                return TripCount(count, "exact" if certain else "at most")
            certain = certain and goes_on is not None
            known = dict(zip(body.body.inputs, numbers, strict=True))
            following = [self._evaluate(v, known) if k in needed else None for k, v in enumerate(body.body.outputs)]
            if following == numbers:
                break  # nothing that is known changes any more
            numbers = following
        return TripCount(1, "unknown")

    def _evaluate(self, value: Value, known: dict[Value, Scalar | None]) -> Scalar | None:
        if value in known:
            return known[value]
        node = value.producer
        result = self._constant_number(value)
        if node.op_type == "Identity":
            result = self._evaluate(node.inputs[0], known)
        elif node.op_type in _SCALAR_OPERATIONS:
            result = _apply(node.op_type, [self._evaluate(v, known) for v in node.inputs])
        known[value] = result
        return result


# Helpers


def resource_effects(node: Node, graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Positions of the inputs of a control-flow or call node whose variables its functions read, and those they write.

    A resource that an op without a rule takes counts as both.
    """
    read: set[int] = set()
    written: set[int] = set()
    offset = 1 if node.op_type in _BRANCHES else 0
    references = [a for attribute in node.attrs.values() for a in _as_tuple(attribute) if isinstance(a, FunctionReference)]
    for name in dict.fromkeys(r.name for r in references):
        function = graph.functions.get(name)
        if function is None:
            continue
        position = {v: k + offset for k, v in enumerate(function.body.inputs) if v.dtype.name == "resource"}
        for inner in function.body.nodes:
            resources = {k: position[r] for k, v in enumerate(inner.inputs) if (r := _resource(v)) in position}
            if not resources or inner.op_type in ("Identity", "IdentityN"):
                continue
            if any(isinstance(a, FunctionReference) for attribute in inner.attrs.values() for a in _as_tuple(attribute)):
                inner_read, inner_written = resource_effects(inner, graph)
                read |= {resources[k] for k in inner_read if k in resources}
                written |= {resources[k] for k in inner_written if k in resources}
                continue
            writes = written_resources(inner)
            if inner.op_type != "VariableShape":
                read |= set(resources.values())
            if writes or not _only_reads(inner):
                written |= set(resources.values())
    return frozenset(read), frozenset(written)


def _only_reads(node: Node) -> bool:
    return node.op_type in ("ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd")


def _resource(value: Value) -> Value:
    return resource_of(value) if value.dtype.name == "resource" else value


def _is_special(node: Node) -> bool:
    """Whether its outputs are counted by this module: control flow and lists, and what takes an element out of a list."""
    if is_view(node):
        return False
    return (
        is_control_flow(node)
        or any(v.dtype.name == "variant" for v in node.outputs)
        or node.op_type in ("TensorListGetItem", "TensorListPopBack", "OptionalGetValue")
    )


def _all_paths_end(first: Node, loop: Node) -> bool:
    """Whether `first` reaches `loop` by its own outputs only: grouping the two then makes no cycle."""
    position = {node: k for k, node in enumerate(topological_order(first.graph))}
    limit = position[loop]
    stack = [c for v in first.outputs for c in v.consumers] + list(first.control_consumers)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node is loop or node in seen or position[node] > limit:
            continue
        seen.add(node)
        after = [c for v in node.outputs for c in v.consumers] + list(node.control_consumers)
        if loop in after:
            return False
        stack += after
    return True


def _storages(states: Iterable[_State], *, resident: bool = False) -> set[_Storage]:
    found: set[_Storage] = set()
    for state in states:
        if isinstance(state, _Dense):
            found.add(state.storage)
        else:
            found.update(s.storage for s in state.items if s is not None)
    return found if resident else {s for s in found if not s.resident}


def _total(storages: Iterable[_Storage]) -> int:
    return sum(s.nbytes for s in storages if not s.resident)


def _number(state: _State) -> Scalar | None:
    return state.number if isinstance(state, _Dense) else None


def _flops(executed: Iterable[tuple[Node, float]]) -> float | None:
    total = 0.0
    for node, times in executed:
        flops = node_flops(node)
        if flops is None:
            return None
        total += times * flops
    return total


def _as_tuple(attribute: Any) -> tuple[Any, ...]:
    return attribute if isinstance(attribute, tuple) else () if attribute is None else (attribute,)  # pyright: ignore[reportUnknownVariableType]


def _has_single_reader(value: Value) -> bool:
    """Whether one node alone reads the storage of the value, through views."""
    while True:
        if len(value.uses) != 1 or any(v is value for v in value.producer.graph.outputs):
            return False
        node = value.producer
        if not is_view(node) or not node.inputs:
            return True
        value = node.inputs[value.index if node.op_type == "IdentityN" else 0]


def _worst_live(body: Graph, frame: _Frame, state: Sequence[_State]) -> int:
    """The most that one iteration can hold of what it makes, whatever the order of its nodes: all of it."""
    del body, state
    return _total(frame.created)


def _needed_positions(condition: Graph, body: Graph) -> set[int]:
    """Positions of the loop's values that the condition depends on, over any number of iterations."""
    argument = {v: k for k, v in enumerate(body.inputs)}
    needed: set[int] = set()
    stack = [condition.inputs.index(v) for v in _scalar_sources(condition.outputs[0], set(condition.inputs))]
    while stack:
        k = stack.pop()
        if k not in needed:
            needed.add(k)
            stack += [argument[v] for v in _scalar_sources(body.outputs[k], set(body.inputs))]
    return needed


def _scalar_sources(value: Value, arguments: set[Value]) -> set[Value]:
    """The arguments that a value depends on through operations on scalars."""
    found: set[Value] = set()
    stack, seen = [value], {value}
    while stack:
        v = stack.pop()
        if v in arguments:
            found.add(v)
        elif v.producer.op_type == "Identity" or v.producer.op_type in _SCALAR_OPERATIONS:
            for source in v.producer.inputs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
    return found


_SCALAR_OPERATIONS: Mapping[str, np.ufunc] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Neg": np.negative,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalNot": np.logical_not,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}


def _apply(op_type: str, numbers: Sequence[Scalar | None]) -> Scalar | None:
    """The result on numbers of which some may be unknown; False and anything is False."""
    if op_type in ("LogicalAnd", "LogicalOr"):
        decisive = op_type == "LogicalOr"
        if any(n is not None and bool(n) is decisive for n in numbers):
            return decisive
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers) or (op_type in ("FloorDiv", "FloorMod") and not known[1]):
        return None
    return _SCALAR_OPERATIONS[op_type](*known).item()


def _compute(node: Node, arguments: Sequence[_State]) -> Scalar | None:
    if node.op_type not in _SCALAR_OPERATIONS:
        return None
    return _apply(node.op_type, [_number(a) for a in arguments])
