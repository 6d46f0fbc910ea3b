"""`SubGraphView`: some nodes of a graph, with lists of inputs and outputs that can be remapped like the arguments of a function."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any, Self

from graphwright.editor.base_graph import BaseGraph
from graphwright.editor.node import Node
from graphwright.editor.select import compute_boundary_ts, get_name_scope_ops, get_walks_union_ops, select_ops_and_ts
from graphwright.editor.tensor import Tensor
from graphwright.editor.util import ListView, concatenate_unique, get_unique_graph, make_list_of_op, make_list_of_t


class SubGraphView:
    """A view of some nodes. It does not change the graph, and does not follow later edits.

    A *passthrough* tensor is neither read nor made by the nodes; it is an input and an output.

    Args:
        inside_ops: a graph, nodes, or a node.
        passthrough_ts: tensors; inputs and outputs of the nodes are ignored.
    """

    def __init__(self, inside_ops: Any = (), passthrough_ts: Any = ()) -> None:
        ops = make_list_of_op(inside_ops)
        through = make_list_of_t(passthrough_ts)
        self._graph: Any = get_unique_graph([*ops, *through], none_if_empty=True)
        self._ops = ops
        inputs, outputs, inside = compute_boundary_ts(ops)
        known = {*inputs, *outputs, *inside}
        self._passthrough_ts = [t for t in through if t not in known]
        self._input_ts = inputs + self._passthrough_ts
        self._output_ts = outputs + self._passthrough_ts

    def copy(self) -> Self:
        """Return another view of the same nodes."""
        return copy(self)

    def assign_from(self, other: SubGraphView) -> None:
        """Become a copy of another view."""
        if not isinstance(other, SubGraphView):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected SubGraphView, got: {type(other)}")
        self.assign(other.graph, other.ops, list(other.inputs), list(other.outputs), list(other.passthroughs))

    def assign(self, graph: Any, ops: list[Node], inputs: list[Tensor], outputs: list[Tensor], passthroughs: list[Tensor]) -> None:
        """Set all parts of the view."""
        self._graph = graph
        self._ops = list(ops)
        self._input_ts = inputs
        self._output_ts = outputs
        self._passthrough_ts = passthroughs

    @property
    def graph(self) -> Any:
        """The graph, or None if the view is empty."""
        return self._graph

    @property
    def ops(self) -> list[Node]:
        """The nodes."""
        return self._ops

    def op(self, op_id: int) -> Node:
        """Return a node by its place."""
        return self._ops[op_id]

    @property
    def inputs(self) -> ListView[Tensor]:
        """The inputs."""
        return ListView(self._input_ts)

    @property
    def outputs(self) -> ListView[Tensor]:
        """The outputs."""
        return ListView(self._output_ts)

    @property
    def passthroughs(self) -> ListView[Tensor]:
        """The tensors that are inputs and outputs, but not of the nodes."""
        return ListView(self._passthrough_ts)

    @property
    def connected_inputs(self) -> list[Tensor]:
        """The inputs that the nodes read."""
        through = set(self._passthrough_ts)
        return [t for t in self._input_ts if t not in through]

    @property
    def connected_outputs(self) -> list[Tensor]:
        """The outputs that the nodes make."""
        through = set(self._passthrough_ts)
        return [t for t in self._output_ts if t not in through]

    def is_passthrough(self, t: Tensor) -> bool:
        """Return whether a tensor is a passthrough."""
        return t in self._passthrough_ts

    def __bool__(self) -> bool:
        return self._graph is not None

    def __str__(self) -> str:
        if not self:
            return "SubGraphView: empty"
        through = set(self._passthrough_ts)
        lines = [f"SubGraphView (graphid={id(self._graph)}):"]
        for title, things in (("ops", self._ops), ("inputs", self._input_ts), ("outputs", self._output_ts)):
            lines.append(f"** {title}[{len(things)}]:" if things else f"** {title}: empty")
            lines += [f"  {thing.name}{' *' if thing in through else ''}" for thing in things]
        return "\n".join(lines) + "\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def find_op_by_name(self, op_name: str) -> Node:
        """Return the node with this name, or raise a ValueError."""
        node = next((op for op in self._ops if op.name == op_name), None)
        if node is None:
            raise ValueError(f"{op_name} not in subgraph.")
        return node

    def input_index(self, t: Tensor) -> int:
        """Return the place of a tensor among the inputs, or raise a ValueError."""
        return _index(self._input_ts, t, "inputs")

    def output_index(self, t: Tensor) -> int:
        """Return the place of a tensor among the outputs, or raise a ValueError."""
        return _index(self._output_ts, t, "outputs")

    def consumers(self) -> list[Node]:
        """Return the nodes outside that read an output, each once."""
        members = set(self._ops)
        return list(dict.fromkeys(op for t in self._output_ts for op in t.consumers() if op not in members))

    # Other views of the same nodes

    def remap_inputs(self, new_input_indices: Iterable[int | Tensor]) -> Self:
        """Return a view with some of the inputs, each at most once, given by place or as tensors."""
        return self._with(inputs=_picked(new_input_indices, self._input_ts, repetition=False))

    def remap_outputs(self, new_output_indices: Iterable[int | Tensor]) -> Self:
        """Return a view with some of the outputs, given by place or as tensors."""
        return self._with(outputs=_picked(new_output_indices, self._output_ts, repetition=True))

    def remap(
        self, new_input_indices: Iterable[int | Tensor] | None = None, new_output_indices: Iterable[int | Tensor] | None = None
    ) -> Self:
        """Apply `remap_inputs` and `remap_outputs`."""
        result = self.copy() if new_input_indices is None else self.remap_inputs(new_input_indices)
        return result if new_output_indices is None else result.remap_outputs(new_output_indices)

    def remap_default(self, remove_input_map: bool = True, remove_output_map: bool = True) -> Self:
        """Return a view with all current inputs, or all outputs, of the nodes."""
        inputs, outputs, _ = compute_boundary_ts(self._ops)
        through = self._passthrough_ts
        return self._with(inputs=inputs + through if remove_input_map else None, outputs=outputs + through if remove_output_map else None)

    def remap_outputs_make_unique(self) -> Self:
        """Return a view with each output once."""
        return self._with(outputs=concatenate_unique([], self._output_ts))

    def remap_outputs_to_consumers(self) -> Self:
        """Return a view with each output once per reader."""
        return self._with(outputs=[t for t in dict.fromkeys(self._output_ts) for _ in t.consumers()])

    def remove_unused_ops(self, control_inputs: bool = True) -> Self:
        """Return a view without nodes that do not depend on an input and that no output depends on."""
        used = set(get_walks_union_ops(self.connected_inputs, self.connected_outputs, within_ops=self._ops, control_inputs=control_inputs))
        return self._with(ops=[op for op in self._ops if op in used])

    def _with(self, ops: list[Node] | None = None, inputs: list[Tensor] | None = None, outputs: list[Tensor] | None = None) -> Self:
        result = self.copy()
        result._ops = result._ops if ops is None else ops
        result._input_ts = result._input_ts if inputs is None else inputs
        result._output_ts = result._output_ts if outputs is None else outputs
        return result


def _index(ts: list[Tensor], t: Tensor, role: str) -> int:
    if t not in ts:
        raise ValueError(f"Can't find {t.name} in {role} of the subgraph.")
    return ts.index(t)


def _picked(indices: Iterable[int | Tensor], ts: list[Tensor], repetition: bool) -> list[Tensor]:
    places = [i if isinstance(i, int) else ts.index(i) for i in indices]
    for place in places:
        if not 0 <= place < len(ts):
            raise ValueError(f"Out of [0, {len(ts)}[ range: {place}")
    if not repetition and len(set(places)) != len(places):
        raise ValueError(f"Found repetition in mapping: {places}")
    return [ts[place] for place in places]


def make_view(*args: Any, **kwargs: Any) -> SubGraphView:
    """Return a view of the result of `select_ops_and_ts`, or the view that is given. Also known as `sgv`.

    `graph` is required for regular expressions; the result must be in it.
    """
    graph = kwargs.get("graph")
    if len(args) == 1 and isinstance(args[0], SubGraphView):
        view = args[0]
    else:
        ops, ts = select_ops_and_ts(*args, **kwargs)
        view = SubGraphView(ops, ts)
    if graph is not None and not isinstance(graph, BaseGraph):
        raise TypeError(f"Expected a gde.Graph, got: {type(graph)}")
    if graph is not None and view.graph is not None and view.graph is not graph:
        raise ValueError("Graph mismatch.")
    return view


def make_view_from_scope(scope: str, graph: BaseGraph) -> SubGraphView:
    """Return a view of the nodes in a name scope. Also known as `sgv_scope`."""
    return SubGraphView(get_name_scope_ops(graph, scope))
