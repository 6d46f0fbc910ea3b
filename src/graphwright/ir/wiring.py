"""Who reads whom: data and control edges, kept on both sides. A layer of `Graph`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from graphwright.errors import GraphError
from graphwright.ir.borders import Borders
from graphwright.ir.calls import Calls
from graphwright.ir.node import Node, Value
from graphwright.ir.settle import ShapeRule


class Wiring(Borders):
    """The verbs that change what nodes read and wait for."""

    __slots__ = ("_calls", "shape_rule", "stale", "touched", "unasked", "unasked_edited")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.shape_rule: ShapeRule | None = None
        self.stale: dict[Node, None] = {}
        self.unasked: dict[Node, None] = {}
        self.unasked_edited: bool = False
        self.touched: dict[Node, None] | None = None
        self._calls: Calls | None = None  # made when it is first needed

    def take_rules(self, other: Wiring) -> None:
        """Ask what another graph asks about shapes and ops, as the bodies of its functions and its copies do."""
        self.shape_rule, self.op_rule = other.shape_rule, other.op_rule

    # Inputs of nodes

    def replace_input(self, node: Node, index: int, value: Value) -> None:
        """Let `node.inputs[index]` read `value`.

        Raises:
            GraphError: the index is out of range, the dtypes differ, or the node or the value belongs to another graph.
        """
        self.check_owned(node, node.name)
        if not 0 <= index < len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got index {index}", where=f"node {node.name!r}")
        self._check_fits(node, index, value)
        self._set_inputs(node, {index: value})

    def replace_inputs(self, node: Node, values: Sequence[Value]) -> None:
        """Let the node read these values instead of its inputs: one per input, in time linear in their number.

        Raises:
            GraphError: there are more or fewer values than inputs, dtypes differ, or something belongs to another graph.
        """
        self.check_owned(node, node.name)
        if len(values) != len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got {len(values)} values", where=f"node {node.name!r}")
        changed = {k: new for k, (old, new) in enumerate(zip(node.inputs, values, strict=True)) if old is not new}
        for index, value in changed.items():
            self._check_fits(node, index, value)
        self._set_inputs(node, changed)

    def append_input(self, node: Node, value: Value) -> None:
        """Add one more data input at the end (for ops with a variable number of inputs; their attributes are the caller's).

        Raises:
            GraphError: the node or the value belongs to another graph.
        """
        self.check_owned(node, node.name)
        self.check_owned(value.producer, node.name)
        links = self._links[node]
        self._uses_of(value)[node, len(links.inputs)] = None
        links.inputs = (*links.inputs, value)
        self._note(node)

    def set_inputs(self, node: Node, values: Sequence[Value]) -> None:
        """Let the node read exactly these values, however many it read before; its attributes are the caller's.

        Raises:
            GraphError: the node or a value belongs to another graph.
        """
        values = tuple(values)
        self.check_owned(node, node.name)
        for value in values:
            self.check_owned(value.producer, node.name)
        links = self._links[node]
        for k, value in enumerate(links.inputs):
            del self._uses_of(value)[node, k]
        links.inputs = values
        for k, value in enumerate(values):
            self._uses_of(value)[node, k] = None
        self._note(node)

    # Uses of values

    def replace_uses(self, old: Value, new: Value, *, keep: Container[Node] = ()) -> int:
        """Let every reader of `old`, outputs of the graph and of signatures included, read `new`; returns how many changed.

        Args:
            keep: nodes that go on reading `old`, for example the one that makes `new` of it.

        Raises:
            GraphError: the dtypes differ, a value belongs to another graph, or the node of `new` would read itself.
        """
        return self.replace_many_uses({old: new}, keep=keep)

    def replace_many_uses(self, new_of: Mapping[Value, Value], *, keep: Container[Node] = (), borders: bool = True) -> int:
        """`replace_uses` of many values at once, in time linear in the inputs of their readers; returns how many uses changed.

        All are replaced at the same time: where a new value is to be replaced itself, its new readers go on reading it.

        Args:
            keep: nodes that go on reading the old values; anything that answers `in`.
            borders: whether outputs of the graph and of its signatures change too.

        Raises:
            GraphError: as `replace_uses`; nothing is changed then.
        """
        readers: dict[Node, dict[int, Value]] = {}
        for old, new in new_of.items():
            self.check_owned(old.producer, old.name)
            self.check_owned(new.producer, old.name)
            if old.dtype != new.dtype:
                raise GraphError(
                    f"{old.name} has dtype {old.dtype}, got {new.name} of dtype {new.dtype}", remedy="insert a Cast between them"
                )
            for node, index in self._uses_of(old) if old is not new else ():
                if node in keep:
                    continue
                if node is new.producer and node is not old.producer:
                    raise GraphError(
                        f"{node.name!r} reads {old.name}, and would then read itself",
                        where=f"node {node.name!r}",
                        remedy="name it in the argument keep",
                    )
                readers.setdefault(node, {})[index] = new
        for node, changed in readers.items():
            self._set_inputs(node, changed)
        in_outputs = 0
        if not borders:
            return sum(len(changed) for changed in readers.values())
        if any(old.producer in self._borders for old in new_of):
            in_outputs = sum(new_of.get(value, value) is not value for value in self._outputs)
            self.outputs = [new_of.get(value, value) for value in self._outputs]
        if self._signatures:
            in_outputs += self._holdings.replace_outputs(new_of)
        return sum(len(changed) for changed in readers.values()) + in_outputs

    # Control edges

    def add_control_input(self, node: Node, control: Node) -> None:
        """Let `node` run after `control`; adding it again changes nothing.

        Raises:
            GraphError: a node belongs to another graph, or both are the same.
        """
        self.check_owned(node, node.name)
        self.check_owned(control, node.name)
        if control is node:
            raise GraphError(f"{node.name!r} cannot be its own control input", where=f"node {node.name!r}")
        self._links[node].control_inputs[control] = None
        self._links[control].control_consumers[node] = None
        if self.touched is not None:
            self.touched[node] = None

    def remove_control_input(self, node: Node, control: Node) -> None:
        """Remove a control edge.

        Raises:
            GraphError: there is no such edge.
        """
        self.check_owned(node, node.name)
        if control not in self._links[node].control_inputs:
            raise GraphError(f"{control.name!r} is not a control input of {node.name!r}", where=f"node {node.name!r}")
        del self._links[node].control_inputs[control]
        del self._links[control].control_consumers[node]
        if self.touched is not None:
            self.touched[node] = None

    # For the layers above

    def _check_fits(self, node: Node, index: int, value: Value) -> None:
        self.check_owned(value.producer, node.name)
        old = node.inputs[index]
        if old.dtype != value.dtype:
            raise GraphError(
                f"{node.name}.inputs[{index}] has dtype {old.dtype}, got {value.name} of dtype {value.dtype}",
                where=f"node {node.name!r}",
                remedy="insert a Cast between them",
            )

    def _uses_of(self, value: Value) -> dict[tuple[Node, int], None]:
        return self._links[value.producer].uses[value.index]

    def _set_inputs(self, node: Node, changed: Mapping[int, Value]) -> None:
        links = self._links[node]
        inputs = list(links.inputs)
        for index, value in changed.items():
            del self._uses_of(inputs[index])[node, index]
            inputs[index] = value
            self._uses_of(value)[node, index] = None
        links.inputs = tuple(inputs)
        self._note(node)

    def _note(self, node: Node) -> None:
        if self.shape_rule is not None:
            self.stale[node] = None
            self._move_clock()
        if self._calls is not None:
            self._calls.note(node)
        if self.touched is not None:
            self.touched[node] = None
