"""Execute a flat graph, its loops and branches on storages in place of numbers (see `graphwright.analyze.loops`)."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan

from graphwright.analyze.batch_norms import is_gpu_scratch
from graphwright.analyze.body_peak import peak_in_order
from graphwright.analyze.storages import (
    PLACE_BYTES,
    Dense,
    Frame,
    Scalar,
    State,
    Storage,
    TensorList,
    allocated_bytes,
    element_bytes,
    number_of,
    storages_of,
    total_bytes,
    without_number,
)
from graphwright.analyze.trip_counts import Constant, TripCount, compute, counted_loop, follow_loop, number_behind
from graphwright.analyze.variable_access import copied_bytes, copied_variables
from graphwright.errors import ErrorCode, UnknownShapeError
from graphwright.ir.dtypes import Argument, DType, Numbers, Shape, byte_count, format_shape
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.traits.arithmetic import NO_LARGER, in_place_pairs
from graphwright.ir.traits.control_flow import (
    BRANCHES,
    CALL_TYPES,
    FUNCTION_ATTRIBUTES,
    LOOPS,
    called_functions,
    function_at,
    is_compiled_call,
    runs_over_data,
)
from graphwright.ir.traits.values import index_behind, input_behind, is_constant, is_few_integers
from graphwright.ir.traits.variables import is_read
from graphwright.ir.traits.views import is_view
from graphwright.ops.flops import node_flops
from graphwright.ops.scratch import HOW_COMPILED, scratch_bytes

InferBody = Callable[[Graph, Sequence[Argument]], Mapping[Value, Numbers]]

_SHAPE_BYTES = 64  # of a tensor that holds the sizes of another one, whatever its rank
_EVALUATIONS = 200_000  # nodes executed on storages per loop; what a longer loop adds per iteration is scaled up


class Executor:
    """Execute nodes; trip counts, peaks inside loops and notes are collected in attributes."""

    def __init__(
        self,
        graph: Graph,
        constant: Constant,
        infer_body: InferBody | None,
        example: Mapping[str, Scalar] | None = None,
        without: Mapping[Node, TripCount] | None = None,
        compiled_bytes: Callable[[Node], int] = scratch_bytes,
    ) -> None:
        self.graph = graph
        self.compiled_bytes = compiled_bytes
        self.example = example or {}
        self.without = without or {}
        self.growing: Node | None = None
        self.constant = constant
        self.infer_body = infer_body
        self.numbers: dict[Value, Scalar | None] = {}  # of constants
        self.constants: dict[Value, Dense] = {}
        self.workspaces: dict[Node, int] = {}
        self.inferred: set[str] = set()
        self.unordered: set[str] = set()  # branches of which that is known
        self.sizes: dict[Value, Numbers] = {}  # of values inside functions
        self.trips: dict[Node, TripCount] = {}
        self.peaks: dict[Node, tuple[int, int]] = {}
        self.copying = copied_variables(graph)[1]
        self.variables: dict[Storage, Variable] = {}
        self.notes: dict[str, None] = {}
        self.stacked: dict[Value, Shape] = {}  # of tensors made of lists, as the elements have it

    # One node

    def execute(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State]:
        """Return the states of a node's outputs; the frame collects allocations and scratch."""
        op = node.op_type
        if op in LOOPS:
            return self._loop(node, arguments, frame)
        if op in BRANCHES:
            return self._branches(node, arguments, frame)
        if op in CALL_TYPES or op in self.graph.functions:
            function = function_at(node, "f", self.graph) or self.graph.functions.get(op)
            if function is not None:
                return (
                    self._compiled(node, function, arguments, frame) if is_compiled_call(node) else self._call(function, arguments, frame)
                )
        if runs_over_data(node):
            self.growing = self.growing or node
        frame.executed[node] += 1
        if is_constant(node):
            return [self._constant(v) for v in node.outputs]
        if is_read(node) and node not in self.copying:
            return [Dense(Storage(v.nbytes or 0, resident=True), v.shape, number_of(arguments[0])) for v in node.outputs]
        if is_view(node) and not is_read(node):
            return [_viewed(value, input_behind(value), arguments[index_behind(value)]) for value in node.outputs]
        outputs = self._list_operation(node, arguments, frame)
        if outputs is not None:
            return outputs
        if node not in self.workspaces:
            self.workspaces[node] = scratch_bytes(node) + (copied_bytes(node) if node in self.copying and not is_read(node) else 0)
        frame.workspace = max(frame.workspace, self.workspaces[node])
        number = compute(node.op_type, [number_of(a) for a in arguments])
        return [self._make(v, arguments, frame, number) for v in node.outputs]

    def _make(self, value: Value, arguments: Sequence[State], frame: Frame, number: Scalar | None = None) -> State:
        if value.dtype.name == "resource":
            return Dense(Storage(0, resident=True), ())
        if value.dtype.name == "variant":
            self.notes[f"the bytes behind {value.name} ({value.producer.op_type}) are unknown and count as the bytes of its inputs"] = None
            return TensorList(tuple(Dense(Storage(s.nbytes), None) for s in storages_of(arguments)))
        source = self._forwarded(value, arguments, frame)
        if source is not None:
            return Dense(source, value.shape, number)
        storage = Storage(element_bytes(self._size(value, arguments)))
        frame.created[storage] = value
        return Dense(storage, value.shape, number)

    def _forwarded(self, value: Value, arguments: Sequence[State], frame: Frame) -> Storage | None:
        """Return the storage of an input that the kernel surely writes into."""
        node = value.producer
        for i, o in in_place_pairs(node):
            state = arguments[i]
            if o != value.index or not isinstance(state, Dense) or state.storage not in frame.created:
                continue
            source = node.inputs[i]
            if source.dtype == value.dtype and source.nbytes is not None and source.nbytes == value.nbytes and _has_single_reader(source):
                return state.storage
        return None

    def _size(self, value: Value, arguments: Sequence[State]) -> int:
        if value.dtype.itemsize is None:
            return 0
        size = value.nbytes
        if size is not None:
            return size
        node = value.producer
        if node.op_type in NO_LARGER or in_place_pairs(node) or is_gpu_scratch(value):
            return max((s.nbytes for a in arguments for s in storages_of([a], resident=True)), default=0)
        raise UnknownShapeError(
            f"the size of {value.name} is not known: {value.dtype}{format_shape(value.shape)}",
            where=f"node {node.name!r} ({node.op_type}) in function {node.graph.name!r}",
            code=ErrorCode.UNKNOWN_SIZE,
            cause="its shape depends on an unknown dimension, or on data, and nothing bounds it",
            remedy="give the full shape of the step's inputs (feeds={name: shape}), or example inputs (inputs=...); for a size that "
            "depends on data, put tf.ensure_shape behind that node",
        )

    def constant_number(self, value: Value) -> Scalar | None:
        """Return the number of a constant scalar, or of an input that one call gave; or None."""
        if value not in self.numbers:
            self.numbers[value] = number_behind(value, self.constant, self.example)
        return self.numbers[value]

    def _constant(self, value: Value) -> Dense:
        if value not in self.constants:
            sizes = self.constant(value) if is_constant(value.producer) and is_few_integers(value) else None
            storage, known = Storage(value.nbytes or 0, resident=True), None if sizes is None else (sizes, sizes)
            self.constants[value] = Dense(storage, value.shape, self.constant_number(value), known)
        return self.constants[value]

    def with_sizes(self, value: Value, state: State) -> State:
        """Return the state of a value with the bounds that shape inference knows."""
        at_most = value.producer.graph.at_most
        if not isinstance(state, Dense) or (value not in self.sizes and value not in at_most):
            return state
        exact = (at_most[value] or (None,) * len(value.shape or ())) if value in at_most else state.exact
        return replace(state, sizes=self.sizes.get(value, state.sizes), exact=exact)

    # Lists

    def _list_operation(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State] | None:
        """Execute an operation on lists; None for an unknown one."""
        first = arguments[0] if arguments else None
        match node.op_type:
            case "EmptyTensorList":
                return [TensorList(())]
            case "TensorListReserve":
                count = number_of(arguments[1])
                return [TensorList((None,) * int(count or 0))]
            case "TensorListFromTensor" if isinstance(first, Dense):
                shape = first.shape if node.inputs[0].shape is None else node.inputs[0].shape
                count = (shape[0] if shape else None) or 1
                element = None if shape is None else shape[1:]
                size = allocated_bytes(self._size(node.inputs[0], arguments) // count) + PLACE_BYTES
                items = tuple(Dense(Storage(size), element) for _ in range(count))
                frame.created.update({item.storage: node.outputs[0] for item in items})
                return [TensorList(items, node.inputs[0].dtype)]
            case "TensorListPushBack" if isinstance(first, TensorList) and isinstance(arguments[1], Dense):
                return [TensorList((*first.items, self._placed(arguments[1])), node.inputs[1].dtype)]
            case "TensorListSetItem" if isinstance(first, TensorList) and isinstance(arguments[2], Dense):
                return [self._set_item(first, number_of(arguments[1]), arguments[2], node.inputs[2].dtype)]
            case "TensorListPopBack" if isinstance(first, TensorList):
                last = first.items[-1] if first.items else None
                element = last if last is not None else self._make(node.outputs[1], arguments, frame)
                return [TensorList(first.items[:-1], first.dtype), element]
            case "TensorListGetItem" if isinstance(first, TensorList):
                index = number_of(arguments[1])
                item = first.items[int(index or 0)] if first.items and int(index or 0) < len(first.items) else None
                return [item if item is not None else self._make(node.outputs[0], arguments, frame)]
            case "TensorListResize" if isinstance(first, TensorList):
                count = int(number_of(arguments[1]) or len(first.items))
                return [TensorList((*first.items, *([None] * count))[:count], first.dtype)]
            case "TensorListLength" if isinstance(first, TensorList):
                return [Dense(Storage(4), (), len(first.items))]
            case "TensorListStack" if isinstance(first, TensorList) and node.outputs[0].nbytes is None:
                element = next((item.shape for item in first.items if item is not None), None)
                shape = None if element is None else (len(first.items), *element)
                size = byte_count(node.outputs[0].dtype, shape)
                if size is None:
                    return None
                self.stacked[node.outputs[0]] = shape
                frame.created[storage := Storage(size)] = node.outputs[0]
                return [Dense(storage, shape)]
            case "TensorListElementShape":
                return [Dense(Storage(_SHAPE_BYTES), node.outputs[0].shape)]
            case "OptionalNone":
                return [TensorList(())]
            case "OptionalFromValue":
                return [TensorList(tuple(a for a in arguments if isinstance(a, Dense)))]
            case "OptionalGetValue" if isinstance(first, TensorList):
                items = (*first.items, *([None] * len(node.outputs)))
                pairs = zip(node.outputs, items, strict=False)
                return [item if item is not None else self._make(v, arguments, frame) for v, item in pairs]
            case "ZerosLike" if isinstance(first, TensorList):
                return [self._copy(first.items, first, node.outputs[0], frame)]
            case "AddN" if isinstance(first, TensorList):
                return [self._add(arguments, node.outputs[0], frame)]
            case _:
                return None

    def _placed(self, element: Dense) -> Dense:
        """Return an element of one more list: its place counts, and a scalar as malloc rounds it."""
        storage, owner = element.storage, element.storage.owner
        if not storage.resident and (owner is None or owner.dtype.name == "variant"):
            is_scalar = element_bytes(storage.nbytes) == storage.nbytes
            storage.nbytes = (allocated_bytes(storage.nbytes) if is_scalar else storage.nbytes) + PLACE_BYTES
        return element

    def _set_item(self, target: TensorList, index: Scalar | None, element: Dense, dtype: DType) -> TensorList:
        items = list(target.items)
        if index is None:  # the worst: no two writes fall on one element
            index = next((k for k, item in enumerate(items) if item is None), 0)
        if int(index) >= len(items):
            items += [None] * (int(index) + 1 - len(items))
        items[int(index)] = self._placed(element)
        return TensorList(tuple(items), dtype)

    def _add(self, arguments: Sequence[State], value: Value, frame: Frame) -> TensorList:
        lists = [a for a in arguments if isinstance(a, TensorList)]
        rows = [[e for e in row if e is not None] for row in itertools.zip_longest(*(a.items for a in lists))]
        sums = self._copy([row[0] if len(row) > 1 else None for row in rows], lists[0], value, frame).items
        dtype = next((a.dtype for a in lists if a.dtype is not None), None)
        return TensorList(tuple(new or (row[0] if row else None) for new, row in zip(sums, rows, strict=True)), dtype)

    def _copy(self, items: Sequence[Dense | None], like: TensorList, value: Value, frame: Frame) -> TensorList:
        copies = tuple(None if s is None else Dense(Storage(s.storage.nbytes), s.shape) for s in items)
        frame.created.update({s.storage: value for s in copies if s is not None})
        return TensorList(copies, like.dtype)

    # Functions

    def _call(self, function: Function, arguments: Sequence[State], frame: Frame) -> list[State]:
        states = self._run(function, arguments, frame)
        return [states[v] for v in function.body.outputs]

    def _compiled(self, node: Node, function: Function, arguments: Sequence[State], frame: Frame) -> list[State]:
        """Execute a call that XLA compiles as one operation with results of its own."""
        inner = Frame()
        self._call(function, arguments, inner)
        frame.add_runs(inner.executed)
        frame.workspace = max(frame.workspace, self.compiled_bytes(node))
        self.notes[HOW_COMPILED] = None
        return [self._make(v, arguments, frame) for v in node.outputs]

    def _run(self, function: Function, arguments: Sequence[State], frame: Frame) -> dict[Value, State]:
        body = function.body
        self._ensure_shapes(function, arguments)
        states: dict[Value, State] = dict(zip(body.inputs, arguments, strict=True))
        parameters = {v.producer for v in body.inputs}
        for node in body.nodes:
            if node in parameters:
                continue
            outputs = self.execute(node, [states[v] for v in node.inputs], frame)
            states.update((v, self.with_sizes(v, state)) for v, state in zip(node.outputs, outputs, strict=True))
        return states

    def _ensure_shapes(self, function: Function, arguments: Sequence[State]) -> None:
        body = function.body
        if self.infer_body is None or function.name in self.inferred:
            return
        self.inferred.add(function.name)
        unknown = (v for n in body.nodes for v in n.outputs if v.dtype.itemsize is not None and v.nbytes is None)
        if next(unknown, None) is None:
            return
        arguments_of_body: list[Argument] = []
        for value, state in zip(body.inputs, arguments, strict=True):
            item = next((s for s in state.items if s is not None), None) if isinstance(state, TensorList) else None
            handle = None
            if isinstance(state, TensorList) and item is not None and state.dtype:
                handle = (state.dtype, item.shape if item.exact is None else item.exact)
            if isinstance(state, Dense) and state.storage in self.variables:
                variable = self.variables[state.storage]
                handle = (variable.dtype, variable.shape)
            if isinstance(state, Dense) and value.dtype.itemsize is not None:
                arguments_of_body.append(Argument(state.shape, handle, state.sizes, state.exact))
            else:
                arguments_of_body.append(Argument(value.shape, handle, element=None if item is None else item.shape))
        self.sizes.update(self.infer_body(body, arguments_of_body))

    # Control flow

    def _branches(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State]:
        results: list[tuple[int, list[State], Frame]] = []
        for name in called_functions(node, *FUNCTION_ATTRIBUTES[node.op_type]):
            function = self.graph.functions.get(name)
            if function is None:
                continue
            inner = Frame()
            states = self._run(function, arguments[1:], inner)
            peak = self._made_at_once(function, states, inner) + inner.workspace
            results.append((peak, [states[v] for v in function.body.outputs], inner))
        if not results:
            return [self._make(v, arguments, frame) for v in node.outputs]
        created = {storage: value for r in results for storage, value in r[2].created.items()}

        def size(state: State) -> tuple[int, int]:
            held = storages_of([state])
            return total_bytes(held), total_bytes(s for s in held if s in created)

        outputs = [max(ways, key=size) for ways in zip(*(r[1] for r in sorted(results, key=lambda r: -r[0])), strict=True)]
        kept = storages_of(outputs)
        largest_flops = max((r[2] for r in results), key=lambda f: flops_of(f.executed) or 0.0)
        frame.add_runs(largest_flops.executed)
        frame.created.update({s: v for s, v in created.items() if s in kept})
        frame.workspace = max(frame.workspace, max(r[0] for r in results) - total_bytes(s for s in kept if s in created))
        if len({tuple(number_of(s) for s in r[1]) for r in results}) > 1:
            outputs = [without_number(s) for s in outputs]
        return outputs

    def _made_at_once(self, function: Function, states: Mapping[Value, State], frame: Frame) -> int:
        """Return the most bytes that a branch or a round makes and holds at once; all that it makes, if its nodes are unordered."""
        peak_bytes = None if function.name in self.unordered else peak_in_order(function.body, states, frame.created)
        if peak_bytes is not None:
            return peak_bytes
        self.unordered.add(function.name)
        return total_bytes(frame.created)

    def _loop(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State]:
        followed = self.follow(node, arguments)
        if followed is None:
            return [self._make(v, arguments, frame) for v in node.outputs]
        condition, body, trip, _ = followed
        is_known = trip.kind != "unknown"
        lengths = [len(s.items) for s in arguments if isinstance(s, TensorList)]
        rounds = trip.count if is_known else 2 + max(lengths, default=0)  # then what it holds is full, if it does not grow for ever
        executed = min(rounds, max(16, _EVALUATIONS // max(len(body.body), 1)))
        state = [replace(s, sizes=None) if isinstance(s, Dense) else s for s in arguments]  # they may change from round to round
        before = state
        inner = Frame()
        worst = 0
        rounds_run = Frame()  # rounds may differ: the last segment of a loop may be a short one
        for k in range(executed):
            inner = Frame()
            before, states = state, self._run(body, state, inner)
            state = [states[v] for v in body.body.outputs]
            rounds_run.add_runs(inner.executed)
            if k in (0, executed - 1):
                worst = max(worst, self._made_at_once(body, states, inner) + inner.workspace)
        if not is_known and _length(state) > _length(before):
            self.growing = self.growing or node
        self._note_trip(node, trip)
        made = storages_of(state) - storages_of(arguments)
        if is_known and executed < trip.count:
            for storage in storages_of(v for v in state if isinstance(v, TensorList)) & made:
                storage.nbytes = storage.nbytes * trip.count // executed
        if executed:
            check = Frame()
            self._call(condition, arguments, check)
            often = trip.count if is_known else nan
            frame.add_runs(rounds_run.executed, often / executed)
            frame.add_runs(check.executed, often + 1)
        frame.created.update({s: node.outputs[0] for s in made if not s.resident})
        inputs, last, left = storages_of(arguments), storages_of(before), storages_of(state)

        def most(held: set[Storage]) -> int:
            return max(total_bytes(inputs) + worst, total_bytes(held | last) + worst, total_bytes(held | left))

        after = total_bytes(inputs | left)
        self.peaks[node] = (most(set()), max(0, most(inputs) - after))  # the second where others hold the inputs throughout
        # Inside a function, the inputs that only this loop reads go as they are replaced: its caller counts both, the old and the new.
        alone = storages_of(s for v, s in zip(node.inputs, arguments, strict=True) if _has_single_reader(v)) - left
        frame.workspace = max(frame.workspace, most(inputs - alone) - after)
        if trip.kind != "exact":
            state = [without_number(s) for s in state]
        return state

    def follow(self, node: Node, arguments: Sequence[State]) -> tuple[Function, Function, TripCount, tuple[Scalar | None, ...]] | None:
        """Return the condition and the body of a loop, its rounds, and the numbers of its values at the end; None if one is unknown."""
        condition, body, loop = function_at(node, "cond", self.graph), function_at(node, "body", self.graph), counted_loop(node)
        if condition is None or body is None or loop is None:
            return None
        trip, numbers = follow_loop(loop, [number_of(a) for a in arguments], self.constant_number)
        if node.name in self.example and node.graph is self.graph:
            trip = TripCount(int(self.example[node.name]), "example")
        return condition, body, trip, numbers

    def _note_trip(self, node: Node, trip: TripCount) -> None:
        former = self.trips.get(node)
        if trip.kind == "exact" and node in self.without and self.without[node].kind == "unknown":
            trip = TripCount(trip.count, "example")
        if former is not None and former != trip:
            trip = max(former, trip, key=lambda t: t.count)
            kinds = {former.kind, trip.kind}
            trip = TripCount(trip.count, "unknown" if "unknown" in kinds else "example" if "example" in kinds else "at most")
        self.trips[node] = trip
        if trip.kind == "unknown":
            self.notes[f"how often {node.name} runs depends on data; its memory does not, and its time is not counted"] = None
        elif trip.kind == "example":
            self.notes[f"how often {node.name} runs depends on data: {trip.count} times in the given call, which is counted"] = None
        elif trip.kind == "at most":
            self.notes[f"{node.name} runs at most {trip.count} times; its figures are for that many"] = None


def _length(states: Iterable[State]) -> int:
    return sum(item is not None for state in states if isinstance(state, TensorList) for item in state.items)


def flops_of(executed: Mapping[Node, float]) -> float | None:
    """Return the FLOPs of nodes that run so many times; None if one has no rule."""
    total = 0.0
    for node, times in executed.items():
        flops = node_flops(node)
        if flops is None:
            return None
        total += times * flops if flops else 0.0
    return total


def _viewed(value: Value, source: Value, state: State) -> State:
    if not isinstance(state, Dense):
        return state
    is_same = value.shape == source.shape and (value.nbytes is not None or value.producer.op_type != "Reshape")
    return state if is_same else Dense(state.storage, value.shape, state.number)


def _has_single_reader(value: Value) -> bool:
    """Return whether one node only reads the storage of the value, through views."""
    while True:
        if len(value.uses) != 1 or any(v is value for v in value.producer.graph.outputs):
            return False
        node = value.producer
        if not is_view(node) or not node.inputs:
            return True
        value = input_behind(value)
