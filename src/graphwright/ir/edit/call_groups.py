"""Which functions and calls change together when the arguments or results of a function do.

A plain call has the arguments and results of its function. An If or Case hands the same values to all of its branches,
and a While hands its loop variables to its condition and its body, whose results are the next round's. So all functions
that a control-flow node names form a group, with all nodes that call one of them; the whole group follows an edit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.attributes import EMPTY_LIST, Attribute, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DType
from graphwright.ir.edit.library import bodies
from graphwright.ir.function_names import functions_of_node
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.control_flow import BRANCHES, CALL_TYPES, FUNCTION_ATTRIBUTES, LOOPS, called_functions, callee
from graphwright.ir.traits.values import hands_on_several

_EMPTY_LIST = SerializedAttribute(EMPTY_LIST)


@dataclass(frozen=True)
class CallSite:
    """A node that calls functions of a group.

    Attributes:
        node: the call, If, Case or While.
        functions: all that it calls.
        first: which input of the node is argument 0: a branch does not see what decides.
        condition: of a loop.
        body: of a loop.
    """

    node: Node
    functions: tuple[str, ...]
    first: int = 0
    condition: str | None = None
    body: str | None = None

    def set_arguments(self, values: Sequence[Value]) -> None:
        """Let the functions be handed these values; the attributes that list their dtypes follow."""
        self.node.graph.set_inputs(self.node, [*self.node.inputs[: self.first], *values])
        self._follow_types()

    def _follow_types(self) -> None:
        for key, listed in lists_of_types(self.node).items():
            self.node.graph.set_attr(self.node, key, types_attribute(listed))

    @property
    def arguments(self) -> tuple[Value, ...]:
        """What the functions are handed."""
        return self.node.inputs[self.first :]

    def follow_outputs(self) -> None:
        """Let the attributes that list dtypes and shapes of the outputs follow them."""
        self._follow_types()
        if isinstance(self.node.attrs.get("output_shapes"), tuple):
            shapes = tuple(ShapeAttribute(v.last_shape) for v in self.node.outputs)
            self.node.graph.set_attr(self.node, "output_shapes", shapes or _EMPTY_LIST)

    def follow_added(self) -> None:
        """What counts the original outputs counts a new one too, unless there are intermediate ones already."""
        count = self.node.attrs.get("_num_original_outputs")
        if isinstance(count, int) and count == len(self.node.outputs) - 1:
            self.node.graph.set_attr(self.node, "_num_original_outputs", count + 1)
        self.follow_outputs()

    def remove_argument(self, index: int) -> None:
        """Take away an argument, and what lists inputs by number follows."""
        node, place = self.node, index + self.first
        listed = node.attrs.get("_read_only_resource_inputs")
        if isinstance(listed, tuple):
            kept = tuple(k - (k > place) for k in listed if isinstance(k, int) and k != place)
            node.graph.set_attr(node, "_read_only_resource_inputs", kept or _EMPTY_LIST)
        values = self.arguments
        self.set_arguments([*values[:index], *values[index + 1 :]])

    def check_unneeded(self, index: int) -> None:
        """Refuse to take away an output that something needs."""
        output = self.node.outputs[index]
        held = any(output in values for _, values in self.node.graph.places_of_values(self.node))
        if output.uses or held:
            raise GraphError(
                f"{output.name} is {f'read by {output.uses[0]}' if output.uses else 'an output of the graph, or held by it'}",
                where=f"node {self.node.name!r}",
                remedy="reroute its uses first",
            )

    def check_retyped(self, index: int, dtype: DType) -> None:
        """Refuse another dtype of an output that nodes read."""
        output = self.node.outputs[index]
        if output.dtype != dtype and output.uses:
            raise GraphError(
                f"{output.name} of dtype {output.dtype} is read by {output.uses[0]}, and would become {dtype}",
                where=f"node {self.node.name!r}, read by {listed(output.consumers)}",
                remedy="reroute its uses first",
            )

    def remove_output(self, index: int) -> None:
        """Take away an output that nothing reads."""
        node = self.node
        count = node.attrs.get("_num_original_outputs")
        if isinstance(count, int) and index < count:
            node.graph.set_attr(node, "_num_original_outputs", count - 1)
        node.graph.remove_output(node.outputs[index])
        self.follow_outputs()


@dataclass(frozen=True)
class CallGroup:
    """Functions with the same arguments, and all nodes that call them."""

    functions: dict[str, Function]
    sites: tuple[CallSite, ...]

    @property
    def loop_bodies(self) -> frozenset[str]:
        """The functions whose results are the loop variables of the next round."""
        return frozenset(site.body for site in self.sites if site.body is not None)

    @property
    def conditions(self) -> frozenset[str]:
        """The functions that say whether a loop goes on."""
        return frozenset(site.condition for site in self.sites if site.condition is not None)

    @property
    def loop(self) -> Node | None:
        """A loop, where one is among the calls."""
        return next((site.node for site in self.sites if site.body is not None), None)

    def carries(self, site: CallSite) -> bool:
        """Whether argument k of the node comes back as output k: of a loop, and of a plain call of the body of one."""
        return site.body is not None or not self.loop_bodies.isdisjoint(site.functions)


def call_group(graph: Graph, name: str) -> CallGroup:
    """The functions and calls that follow an edit of a function; looks at every node.

    Args:
        graph: the main graph, whose library has the function: calls are looked for there and in all bodies.

    Raises:
        GraphError: there is no such function, or a call does not fit it.
        UnsupportedError: a node that is not a call, If, Case or While names it, or the body of a loop is something else too.
    """
    if name not in graph.functions:
        raise GraphError(f"function {name!r} is not in the library", where=f"graph {graph.name!r}", remedy="look at list(graph.functions)")
    users: dict[str, list[Node]] = {}
    for body in bodies(graph):
        for node in body:
            for called in functions_of_node(node, graph.functions):
                users.setdefault(called, []).append(node)
    functions: dict[str, Function] = {}
    sites: dict[Node, CallSite] = {}
    waiting = [name]
    while waiting:
        called = waiting.pop()
        if called in functions:
            continue
        functions[called] = graph.functions[called]
        for node in users.get(called, ()):
            if node not in sites:
                sites[node] = _site(node, called, graph)
                waiting += sites[node].functions
    group = CallGroup({key: graph.functions[key] for key in graph.functions if key in functions}, tuple(sites.values()))
    for site in group.sites:
        _check_fits(site, group)
    _check_roles(group)
    return group


def listed(nodes: Sequence[Node]) -> str:
    """Names for a message."""
    return ", ".join(repr(node.name) for node in nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")


def lists_of_types(node: Node) -> dict[str, tuple[Value, ...]]:
    """The attributes that list dtypes of inputs and outputs, with the values whose dtypes they list."""
    kind = node.op_type
    if kind in CALL_TYPES:
        return {"Tin": node.inputs, "Tout": node.outputs}
    if kind in BRANCHES:
        return {"Tin": node.inputs[1:], "Tout": node.outputs}
    return {"T": node.inputs} if kind in LOOPS or hands_on_several(node) else {}


def types_attribute(values: Sequence[Value]) -> Attribute:
    """The dtypes of values as an attribute such as `Tin`."""
    return tuple(v.dtype for v in values) if values else _EMPTY_LIST


def _site(node: Node, name: str, graph: Graph) -> CallSite:
    kind = node.op_type
    keys = FUNCTION_ATTRIBUTES.get(kind)
    named = list(called_functions(node, *keys) if keys else (callee(node),) if kind in CALL_TYPES or kind == name else ())
    expected = len(named) == len(keys) if kind in LOOPS and keys else bool(named)
    if not expected or set(named) != set(functions_of_node(node, graph.functions)) or (kind in BRANCHES and not node.inputs):
        raise UnsupportedError(
            f"function {name!r} belongs to {node.name!r} = {kind}, which fixes its arguments and results",
            where=f"graph {node.graph.name!r}",
            remedy="give that node a copy of the function first, or edit the body only",
        )
    if kind in LOOPS:
        return CallSite(node, tuple(named), 0, named[0], named[1])
    return CallSite(node, tuple(dict.fromkeys(named)), 1 if kind in BRANCHES else 0)


def _check_fits(site: CallSite, group: CallGroup) -> None:
    node = site.node
    for name in site.functions:
        body = group.functions[name].body
        results = 1 if name == site.condition else len(body.outputs)
        outputs = 1 if name == site.condition else len(node.outputs)
        if (len(site.arguments), outputs) != (len(body.inputs), results) or (name == site.condition and len(body.outputs) != 1):
            raise GraphError(
                f"{node.name!r} has {len(site.arguments)} arguments and {len(node.outputs)} outputs, "
                f"function {name!r} {len(body.inputs)} and {len(body.outputs)}",
                where=f"node {node.name!r}",
                cause="the call was edited by itself",
            )
    if site.body is not None and len(node.outputs) != len(node.inputs):
        raise GraphError(f"loop {node.name!r} has {len(node.inputs)} inputs and {len(node.outputs)} outputs", where=f"node {node.name!r}")


def _check_roles(group: CallGroup) -> None:
    both = group.loop_bodies & group.conditions
    branches = {name for site in group.sites if site.first for name in site.functions}
    wrong = next(iter(sorted(both | (group.loop_bodies & branches))), None)
    if wrong is not None:
        node = next(site.node for site in group.sites if site.body == wrong)
        raise UnsupportedError(
            f"function {wrong!r} belongs to {node.name!r} = {node.op_type} as its body, and to another node as something else",
            where=f"graph {node.graph.name!r}",
            remedy="give one of the nodes a copy of the function first",
        )
