"""Merge nodes that compute the same.

Value numbering (Alpern, Wegman and Zadeck, "Detecting Equality of Variables in Programs", POPL 1988), in one pass: a node is removed if an
earlier node has the same op, attributes, inputs, control inputs and device. Constants are compared by value, inputs of commutative ops in
either order. Two reads of a variable are equal if the same writes come before both, and all others after both. Functions are compared by
what they compute, as TensorFlow traces each loop and branch into its own functions.

Not merged: nodes that have effects, are random, fed, or in a collection; handles, lists and other variants; reference variables; loops and
branches of TF1; recomputed nodes; nodes with a custom gradient.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from graphwright.analyze.effect_order import EffectOrder, Order, Place, Same
from graphwright.analyze.variable_access import run_nodes
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute
from graphwright.ir.constants import array_of
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import COMMUTES, commutes
from graphwright.ir.traits.control_flow import CONTROL_FLOW_OF_TF1, ENTERS
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import ARGUMENTS, COMPUTES_NOTHING, EXECUTION, MAY_BE_FED, RECOMPUTED_FROM, is_constant
from graphwright.ir.traits.variables import MAKES_BY_REFERENCE, READS_OF_VALUES, reads_resource, written_resources
from graphwright.ir.walk import backward_reachable, fetched_values, order_of
from graphwright.transform.body_numbers import BodyNumbers

_ON_PURPOSE = (RECOMPUTED_FROM, EXECUTION, "_gradient_op_type")
_SAYS_NOTHING = frozenset({"_output_shapes", "_user_specified_name", "_has_manual_control_dependencies"})
_OPAQUE = ("resource", "variant", "string")
_BY_NAME = (b"_noinline", b"implements", b"_XlaMustCompile", b"ward_function_name")
"""Attributes of a function that its body does not show: such a function equals only itself."""


def merge_equal(graph: Graph, purity: Purity, *, kept: Container[Node] = ()) -> dict[str, int]:
    """Merge nodes of a graph, but not of its functions; returns the counts of "constants", "reads of variables" and others ("merged").

    Nodes in `kept` stay, such as those that are fetched by name; others may be merged into them. Raises `GraphError` for a cycle.
    """
    order = order_of(graph)
    reads, functions = _Reads(graph, order, purity), _Functions(graph, purity)
    first: dict[object, Node] = {}
    same_as: dict[Node, Node] = {}
    value_of: dict[Value, Value] = {}
    counts: dict[str, int] = {}
    for node in order:
        version = reads.version(node)
        if version is None and not _may_merge(node, purity):
            continue
        inputs = [value_of.get(value, value) for value in node.inputs]
        controls = frozenset(same_as.get(control, control) for control in node.control_inputs)
        other = first.setdefault(_key(node, inputs, controls if version is None else version, functions), node)
        if other is node or node in kept or graph.collections_of(node):
            continue
        if version is not None and not all(c in other.control_inputs or reads.is_access(c, purity) for c in controls):
            continue
        same_as[node] = other
        value_of.update(zip(node.outputs, other.outputs, strict=True))
        kind = "merged" if version is None and not is_constant(node) else "reads of variables" if version is not None else "constants"
        counts[kind] = counts.get(kind, 0) + 1
    graph.replace_many_uses(value_of)
    for node, other in same_as.items():
        reroute_control([other, *(same_as.get(c, c) for c in node.control_inputs)], node)
    graph.remove_nodes(same_as)
    return counts


def _may_merge(node: Node, purity: Purity) -> bool:
    if any(name in node.attrs for name in _ON_PURPOSE) or node.op_type in MAY_BE_FED or node.op_type in CONTROL_FLOW_OF_TF1:
        return False
    if is_constant(node):
        return True
    if node.op_type in COMPUTES_NOTHING or "Random" in node.op_type or not node.inputs or not purity.is_pure(node):
        return False
    values = (*node.inputs, *node.outputs)
    return all(v.dtype.name not in _OPAQUE and v.producer.op_type not in MAKES_BY_REFERENCE for v in values)


def _key(node: Node, inputs: list[Value], waits: object, functions: _Functions) -> object:
    if is_constant(node):
        return node.op_type, _constant(node.attrs.get("value")), node.device, waits, node.attrs.get("_class")
    named: list[object] = [(value.producer.name, value.index) for value in inputs]
    if commutes(node) or (node.op_type in COMMUTES and len(inputs) > 2 and node.inputs[0].dtype.name[:3] == "int"):
        named.sort(key=str)
    attributes = tuple((name, _plain(node.attrs[name], functions)) for name in sorted(node.attrs) if name not in _SAYS_NOTHING)
    return node.op_type, tuple(named), attributes, node.device, waits


def _plain(attribute: Attribute, functions: _Functions) -> object:
    if isinstance(attribute, tuple):
        return tuple(_plain(item, functions) for item in attribute)
    if isinstance(attribute, FunctionReference) and not attribute.serialized:
        return functions.meaning(attribute.name)
    return type(attribute).__name__, attribute.hex() if isinstance(attribute, float) else attribute


def _constant(attribute: Attribute | None) -> object:
    array: Any = array_of(attribute) if isinstance(attribute, SerializedAttribute) else None
    if array is None or array.dtype.kind not in "biuf" or _is_bfloat16(attribute):
        return attribute
    return str(array.dtype), array.shape, array.tobytes()


def _is_bfloat16(attribute: Attribute | None) -> bool:
    return isinstance(attribute, SerializedAttribute) and b"\x08\x0e" in attribute.data[:8]


class _Functions:
    def __init__(self, graph: Graph, purity: Purity) -> None:
        self._graph, self._purity = graph, purity
        self._numbers = BodyNumbers()
        self._known: dict[str, object] = {}

    def meaning(self, name: str) -> object:
        """Return equal objects for functions that compute the same; the name of a function with effects or with a custom gradient."""
        if name not in self._known:
            self._known[name] = self._meaning(name)
        return self._known[name]

    def _meaning(self, name: str) -> object:
        library = self._graph.functions
        if name not in library:
            return name
        body = library[name].body
        within = [library[other] for other in {name, *reached_functions(body, body)}]
        nodes = [node for function in within for node in function.body if node.op_type not in ARGUMENTS]
        if any(word in function.definition for function in within for word in _BY_NAME) or not all(map(self._only_computes, nodes)):
            return name
        places = [("value", k) for k in range(len(body.inputs))]
        return tuple(self._numbers.of(body, places, body.outputs)), len(places), frozenset(node.device for node in nodes)

    def _only_computes(self, node: Node) -> bool:
        stays = any(name in node.attrs for name in _ON_PURPOSE) or node.op_type in CONTROL_FLOW_OF_TF1 or "Random" in node.op_type
        return not stays and self._purity.is_pure(node) and not reads_resource(node)


class _Reads:
    def __init__(self, graph: Graph, order: list[Node], purity: Purity) -> None:
        self._graph, self._purity = graph, purity
        self._bits: dict[str, int] = {}
        self._inside: dict[tuple[str, Same], Mapping[Place, bool] | None] = {}
        self._order: EffectOrder | None = None
        reads = sum(node.op_type in READS_OF_VALUES for node in order)
        if reads > 1 and not any(node.op_type in ENTERS for node in order):
            fetched = [*(value.producer for value in fetched_values(graph)), *graph.control_outputs]
            runs = backward_reachable(fetched) if fetched else set(order)
            self._runs = runs
            self._order = EffectOrder(graph, [n for n in order if n in runs], purity, self._touched, self._bit)

    def version(self, node: Node) -> tuple[tuple[Place, Order], ...] | None:
        """Return the writes before and after a read of a variable; None for other nodes, or if the order is not fixed."""
        if self._order is None or node.op_type not in READS_OF_VALUES or node not in self._runs:
            return None
        if any(name in node.attrs for name in _ON_PURPOSE) or not self._order.is_fixed(node):
            return None
        return tuple(self._order.orders(node).items()) or None

    def is_access(self, node: Node, purity: Purity) -> bool:
        """Whether a node only writes variables or has no effects, so that waiting for it orders nothing else."""
        return bool(written_resources(node)) or purity.is_pure(node)

    def _bit(self, name: str) -> int:
        return self._bits.setdefault(name, len(self._bits))

    def _touched(self, name: str, same: Same) -> Mapping[Place, bool] | None:
        key = name, same
        if key not in self._inside:
            self._inside[key] = None  # for recursion
            function = self._graph.functions.get(name)
            if function is not None:
                body = function.body
                runs = run_nodes(body) | backward_reachable(node for node in body.nodes if not self._purity.is_pure(node))
                nodes = order_of([node for node in body.nodes if node in runs])
                self._inside[key] = EffectOrder(body, nodes, self._purity, self._touched, self._bit, name, same).touched
        return self._inside[key]
