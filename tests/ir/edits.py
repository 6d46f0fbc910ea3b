"""Every verb of `ir.edit`, and those of `Graph` around it, with random arguments, some of them wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from graphwright.ir import edit
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.call_types import types_attribute
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.signature import Collection, Signature

F32 = (DTYPES["float32"], (2,))


class Editor:
    """Draws a verb and its arguments.

    `graph` is what is edited; `other` is where clones go and come from, and where wrong arguments come from.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], graph: Graph, other: Graph) -> None:
        self._draw = draw
        self.graph = graph
        self.other = other

    def number(self, most: int) -> int:
        return self._draw(st.integers(0, most))

    def node(self) -> Node:
        home = self.other if self.number(14) == 0 and len(self.other) else self.graph
        nodes = home.nodes or self.other.nodes or (Graph().add_node("Const", "lone", output_types=[F32]),)
        return nodes[self.number(len(nodes) - 1)]

    def nodes(self) -> list[Node]:
        """Often neighbors, so that there are edges among them."""
        found = [self.node() for _ in range(self.number(3))]
        if found and self.number(1):
            found += [v.producer for v in found[0].inputs]
        return found

    def value(self, like: Value | None = None) -> Value:
        """Of the same dtype most of the time; of a node before it, so that cycles are rare."""
        candidates = [v for node in self.graph for v in node.outputs]
        if like is not None and self.number(7):
            candidates = [v for v in candidates if v.dtype == like.dtype]
            if like in candidates and self.number(7):
                candidates = candidates[: candidates.index(like) + 1]
        if not candidates or self.number(14) == 0:
            candidates = [v for node in self.other for v in node.outputs] or [
                *Graph().add_node("Const", "lone", output_types=[F32]).outputs
            ]
        return candidates[self.number(len(candidates) - 1)]

    def name(self) -> str:
        return ["fresh", self.node().name, "", "a:b", "scope/new", "^a"][self.number(5)]

    def function(self) -> str:
        names = [*self.graph.functions, "no such function"]
        return names[self.number(len(names) - 1)]

    def body(self) -> Graph:
        functions = list(self.graph.functions.values())
        return functions[self.number(len(functions) - 1)].body if functions else self.graph

    def call(self) -> Node:
        calls = [n for n in self.graph if n.op_type.endswith("PartitionedCall") or n.op_type in self.graph.functions]
        return calls[self.number(len(calls) - 1)] if calls else self.node()

    def apply(self) -> None:
        verbs = [
            self._wire,
            self._wire,
            self._remove,
            self._set_borders,
            self._reroute,
            self._control,
            lambda: edit.replace_node(self.node(), self.node()),
            self._replace_by_like,
            self._insert,
            self._clone_here,
            self._clone_there,
            self._clone_back,
            self._prune,
            self._rename,
            self._make_call,
            lambda: edit.inline(self.call()),
            lambda: edit.inline(self.call()),
            self._library,
            self._attributes,
            self._around,
            self._outputs,
            self._edit_body,
        ]
        verbs[self.number(len(verbs) - 1)]()

    def _wire(self) -> None:
        graph, node, value = self.graph, self.node(), self.value()
        verbs = [
            lambda: graph.add_node("Add", self.name(), inputs=[value, self.value()], control_inputs=[node], output_types=[F32]),
            lambda: graph.replace_input(node, self.number(3) - 1, value),
            lambda: graph.replace_inputs(node, [self.value() for _ in range(self.number(3))]),
            lambda: graph.append_input(node, value),
            lambda: graph.replace_uses(value, self.value(value), keep=self.nodes()),
            lambda: graph.replace_many_uses({value: self.value(value), self.value(): value}),
            lambda: graph.add_control_input(node, self.node()),
            lambda: graph.remove_control_input(node, next(iter(node.control_inputs), self.node())),
        ]
        verbs[self.number(len(verbs) - 1)]()

    def _remove(self) -> None:
        if self.number(1):
            self.graph.remove_node(self.node())
        else:
            self.graph.remove_nodes(self.nodes())

    def _set_borders(self) -> None:
        kind = self.number(3)
        if kind == 0:
            self.graph.inputs = [self.value()]
        elif kind == 1:
            self.graph.outputs = [self.value(), self.value()]
        elif kind == 2:
            self.graph.control_outputs = self.nodes()
        else:
            self.graph.sort_nodes([*self.graph.nodes[1:], *self.graph.nodes[: self.number(1)]])

    def _reroute(self) -> None:
        old = self.value()
        chosen = self.nodes() if self.number(2) == 0 else None
        edit.reroute(self.value(old), old, can_modify=chosen if self.number(1) else ())

    def _control(self) -> None:
        if self.number(1):
            edit.reroute_control(self.node(), self.node())
        else:
            edit.set_control_inputs(self.graph, self.node(), self.nodes())

    def _replace_by_like(self) -> None:
        old = self.node()
        types = [(v.dtype, v.shape) for v in old.outputs]
        inputs = [v for v in old.inputs if self.graph.owns(v.producer)]
        new = self.graph.add_node("Replacement", self.graph.unique_name("replacement"), inputs=inputs, output_types=types)
        edit.replace_node(old, new)

    def _insert(self) -> None:
        more = [self.value()] if self.number(2) == 0 else []
        if self.number(1):
            edit.insert_before(self.graph, self.node(), self.number(2), "Inserted", self.name(), more_inputs=more)
        else:
            edit.insert_after(self.value(), "Inserted", self.name(), more_inputs=more)

    def _clone_here(self) -> None:
        nodes = self.nodes()
        read = [v for node in nodes for v in node.inputs]
        mapping = {read[0]: self.value(read[0])} if read and self.number(1) else {}
        edit.clone(nodes, input_map=mapping, scope=["copy", "", ":"][self.number(2)])

    def _clone_there(self) -> None:
        nodes = self.nodes()
        theirs = {v.dtype: v for node in self.other for v in node.outputs}
        outside = [v for node in nodes for v in node.inputs if v.producer not in nodes]
        mapping = {v: theirs.get(v.dtype, v) for v in outside if self.number(9)}
        edit.clone(nodes, into=self.other, input_map=mapping)

    def _clone_back(self) -> None:
        nodes = [self.other.nodes[self.number(len(self.other) - 1)] for _ in range(self.number(2)) if len(self.other)]
        outside = [v for node in nodes for v in node.inputs if v.producer not in nodes]
        edit.clone(nodes, into=self.graph, input_map={v: self.value(v) for v in outside}, scope="back")

    def _prune(self) -> None:
        outputs = None if self.number(1) else [self.value()]
        edit.prune(self.graph, outputs, signatures=bool(self.number(3)), collections=bool(self.number(3)))

    def _rename(self) -> None:
        kind = self.number(2)
        if kind == 0:
            self.graph.rename_many({self.node(): self.name(), self.node(): self.name()})
        elif kind == 1:
            a, b = self.node(), self.node()
            self.graph.rename_many({a: b.name, b: a.name})
        else:
            self.graph.rename_many({node: f"all/{node.name}" for node in self.graph})

    def _make_call(self) -> None:
        name = self.function()
        if name not in self.graph.functions:
            return
        body = self.graph.functions[name].body
        inputs = [self.value(v) for v in body.inputs]
        kind = ["PartitionedCall", "StatefulPartitionedCall", name, "If", "Case", "While"][self.number(5)]
        reference, names = FunctionReference(name), list(self.graph.functions)
        other = FunctionReference(names[self.number(len(names) - 1)])
        attrs = {"f": reference, "Tin": types_attribute(inputs), "Tout": types_attribute(body.outputs)}
        if kind in ("If", "Case"):
            attrs = {"then_branch": reference, "else_branch": other} if kind == "If" else {"branches": (reference, other)}
            inputs.insert(0, self.value())
        elif kind == "While":
            attrs = {"body": reference, "cond": other}
        elif kind == name:
            attrs = {}
        types = [(v.dtype, v.shape) for v in body.outputs]
        call_name = self.graph.unique_name("call")
        call = self.graph.add_node(kind, call_name, inputs=inputs, control_inputs=self.nodes()[:1], attrs=attrs, output_types=types)
        if self.graph.nodes and call.outputs and self.number(1):
            self.graph.outputs = (*self.graph.outputs, call.outputs[0])

    def _library(self) -> None:
        kind = self.number(4)
        if kind == 0:
            edit.add_function(self.graph, Function(["added", self.function()][self.number(1)], Graph("added")))
        elif kind == 1:
            edit.remove_function(self.graph, self.function())
        elif kind == 2:
            edit.rename_functions(self.graph, {self.function(): ["renamed", self.function(), ""][self.number(2)]})
        elif kind == 3:
            edit.remove_unused_functions(self.graph)
        else:
            a, b = self.function(), self.function()
            edit.rename_functions(self.graph, {a: b, b: a})

    def _attributes(self) -> None:
        node = self.node()
        if self.number(1):
            self.graph.set_attr(node, "_class", (b"loc:@" + self.node().name.encode(), b"else") if self.number(2) else None)
        else:
            self.graph.set_attr(node, "T", [None, 3, DTYPES["int32"]][self.number(2)])

    def _around(self) -> None:
        """Signatures and collections are plain dictionaries and lists: what is put there must be right."""
        values = [v for node in self.graph for v in node.outputs]
        if not values:
            return
        chosen = values[self.number(len(values) - 1)]
        kind = self.number(4)
        if kind == 0:
            self.graph.signatures["serve"] = Signature({"x": chosen}, {"y": chosen})
        elif kind == 1:
            self.graph.signatures.clear()
        elif kind == 2:
            self.graph.collections.setdefault("losses", Collection("nodes")).items.append(chosen)
        elif kind == 3 and self.graph.signatures:
            next(iter(self.graph.signatures.values())).outputs["also"] = chosen
        else:
            self.graph.collections.pop("losses", None)

    def _outputs(self) -> None:
        kind = self.number(2)
        if kind == 0:
            self.graph.add_output(self.node(), *F32)
        elif kind == 1:
            self.graph.remove_output(self.value())
        else:
            self.graph.set_output_types(self.node(), [[], [F32], [F32, (DTYPES["int32"], None)]][self.number(2)])

    def _edit_body(self) -> None:
        body = self.body()
        inner = Editor(self._draw, body, self.other)
        [inner._reroute, inner._insert, inner._rename, inner._attributes][self.number(3)]()
