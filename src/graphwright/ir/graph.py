"""The graph: nodes, values and uses. Def-use is kept on both sides by every edit.

Edits go through verbs of the graph (`add_node`, `replace_input`, `add_control_input`,
`remove_node`, `rename`, ...). Each verb checks everything first and leaves the graph as it
was when it raises. What a node or value shows is read-only: `node.inputs` is a tuple, and
assigning to it raises.

No verb looks for cycles, which would cost a walk over the graph for every edge;
`ir.verify.verify` does, once for all edits.

>>> g = Graph()
>>> a = g.add_node("Placeholder", "a", attrs={}, output_types=[(DTYPES["float32"], (2, 3))])
>>> b = g.add_node("Relu", "b", inputs=[a.outputs[0]], output_types=[(DTYPES["float32"], (2, 3))])
>>> [str(use) for use in a.outputs[0].uses], g
(['b.inputs[0]'], <Graph: 2 nodes>)
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir import colocation
from graphwright.ir.attributes import Attribute, Attributes, as_attribute
from graphwright.ir.colocation import Colocations
from graphwright.ir.dtypes import DTYPES as DTYPES
from graphwright.ir.dtypes import Shape, as_dtype, as_shape
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.node import Function as Function
from graphwright.ir.node import Links, check_name
from graphwright.ir.node import Node as Node
from graphwright.ir.node import Use as Use
from graphwright.ir.node import Value as Value
from graphwright.ir.node import Variable as Variable
from graphwright.ir.op_rule import OutputTypes
from graphwright.ir.outputs import Outputs
from graphwright.ir.signature import Holdings
from graphwright.ir.transaction import Record


class Graph(Outputs):
    """Ordered nodes, inputs, outputs, control outputs, and a library of functions.

    Args:
        name: for messages, and of the function made of it.
        functions: the library, by name: that of another graph is shared, a plain dictionary copied.
        variables: what stands behind a resource input.
        versions: producer and min_consumer, as in the `GraphDef` that it was read from; None for a graph that is made here, which is
            written under the version of the TensorFlow at work. An old op runs under old versions alone.

    Attributes:
        at_most: of a value whose shape is the largest that it can have when it runs, what is the same in every run; this is written.
        example: what is known of one call: by name of an input its number, by name of a loop how often it runs.
        inlined: how many nodes there were once each call was replaced by its function; 0 before. What removes nodes leaves this number.
        package: what else a SavedModel holds; only the layer that read it looks inside.
        shape_rule: the output shapes of nodes that are given in topological order, where inputs from
            outside the list count as known. With a rule, shapes follow edits, those of functions that nodes call included;
            without one they are left as they are.
        op_rule: what is asked whether nodes can be written as they are made; graphs that are loaded have one, None asks nothing.
        stale: the nodes whose shapes are to be settled before anyone reads a shape.
        unasked: the nodes that the rule for shapes was never asked about, and all that read them: it is when their shapes are read.
        unasked_edited: whether an edit may have made wrong what is known of their shapes.
        touched: where it is a dictionary, the verbs note there which nodes they add or change.
    """

    __slots__ = ("at_most", "example", "inlined", "package", "versions")

    def __init__(
        self,
        name: str = "",
        *,
        functions: dict[str, Function] | None = None,
        variables: dict[Value, Variable] | None = None,
        versions: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(name, {} if functions is None else functions, {} if variables is None else variables)
        self.versions = versions
        self.package: object | None = None
        self.at_most: dict[Value, Shape] = {}
        self.inlined = 0
        self.example: dict[str, float] = {}

    def __repr__(self) -> str:
        counts = {"nodes": self.nodes, "functions": self.functions, "variables": self.variables, "signatures": self.signatures}
        counted = ", ".join(f"{len(held):,} {what if len(held) != 1 else what[:-1]}" for what, held in counts.items() if held)
        return f"<Graph{f' {self.name!r}' if self.name else ''}: {counted or 'empty'}>"

    # Nodes

    def add_node(
        self,
        op_type: str,
        name: str,
        *,
        inputs: Sequence[Value] = (),
        control_inputs: Iterable[Node] = (),
        attrs: Mapping[str, Any] | None = None,
        output_types: Sequence[tuple[Any, Any]] | None = None,
        device: str = "",
        extra: bytes = b"",
    ) -> Node:
        """Append a node.

        Args:
            attrs: in any usual form: dtypes as `tf.float32`, `np.float32` or `"float32"`, shapes as lists, text, arrays. Where the graph
                has a rule for ops, those that follow from the inputs and outputs may be left out.
            output_types: dtype and shape per output, in any usual form. Where a shape is unknown and the graph has a rule for shapes,
                the rule is asked. By default they, and all attributes with a default, are what the rule for ops says; without one
                there are no outputs.

        Raises:
            GraphError: the name is empty or taken, or an input belongs to another graph; where there is a rule for ops, no file can hold
                such a node, and the message names the attribute or input, and what may have been meant.
            ArgumentError: something is not a dtype, shape or attribute.
        """
        self._check_free(name)
        for value in inputs:
            self.check_owned(value.producer, name)
        attrs, types = self.completed(op_type, name, inputs, attrs or {}, output_types)
        return self.append_node(
            op_type, name, inputs=inputs, control_inputs=control_inputs, attrs=attrs, output_types=types, device=device, extra=extra
        )

    def completed(
        self, op_type: str, name: str, inputs: Sequence[Value], attrs: Mapping[str, Any], output_types: Sequence[tuple[Any, Any]] | None
    ) -> tuple[dict[str, Attribute], OutputTypes]:
        """The attributes and output types of a node that is to be made, converted, completed and checked as `add_node` does.

        Raises:
            GraphError, ArgumentError: as `add_node`.
        """
        types = None if output_types is None else [(as_dtype(dtype), as_shape(shape)) for dtype, shape in output_types]
        if self.op_rule is None:
            return {key: as_attribute(given) for key, given in attrs.items()}, types or ()
        self.op_rule.check_op(self, op_type, name)
        return self.op_rule.completed(self, op_type, name, inputs, attrs, types)

    def append_node(
        self,
        op_type: str,
        name: str,
        *,
        inputs: Sequence[Value] = (),
        control_inputs: Iterable[Node] = (),
        attrs: Mapping[str, Attribute] | None = None,
        output_types: OutputTypes = (),
        device: str = "",
        extra: bytes = b"",
    ) -> Node:
        """`add_node` of what a node or file says already, or of what is completed later: no rule for ops is asked.

        Raises:
            GraphError: the name is empty or taken, or an input belongs to another graph.
        """
        # Most of the time that it takes to read or copy a graph is spent here: no generators, and few calls.
        known = self._links
        check_name(name, self.name)
        self._check_not_taken(name)
        controls = dict.fromkeys(control_inputs)
        for value in inputs:
            if value.producer not in known:
                self.check_owned(value.producer, name)
        for control in controls:
            if control not in known:
                self.check_owned(control, name)
        links = Links(name, tuple(inputs), controls, {}, (), ())
        node = Node(self, op_type, Attributes(attrs) if attrs else Attributes(), device, extra, links)
        if output_types:
            uses: list[dict[tuple[Node, int], None]] = [{} for _ in output_types]
            links.uses = tuple(uses)
            links.outputs = tuple([Value(node, k, *of, uses[k]) for k, of in enumerate(output_types)])
        known[node] = links
        self._by_name[name] = node
        for k, value in enumerate(links.inputs):
            known[value.producer].uses[value.index][node, k] = None
        for control in controls:
            known[control].control_consumers[node] = None
        if self._colocations is not None:
            self._colocations.add(node)
        if self._calls is not None:
            self._calls.note(node)
        if self.touched is not None:
            self.touched[node] = None
        if self.shape_rule is not None and (
            any(shape is None for _, shape in output_types) or (self.unasked and any(v.producer in self.unasked for v in links.inputs))
        ):
            self.unasked[node] = None
        return node

    def remove_node(self, node: Node) -> None:
        """Remove a node that nothing reads. It leaves the collections; who was colocated with it, no longer is.

        Raises:
            GraphError: something still reads it, or it is an input or output of the graph or of a signature.
        """
        self.check_owned(node, node.name)
        readers = [str(use) for value in node.outputs for use in value.uses] + [f"{n.name} (control)" for n in node.control_consumers]
        if readers:
            raise GraphError(
                f"{node.name!r} is still read by {', '.join(readers[:3])}" + (f" and {len(readers) - 3} more" if len(readers) > 3 else ""),
                where=f"node {node.name!r}",
                remedy="reroute its uses first (graph.replace_uses)",
            )
        self._check_not_border(node)
        self._unlink_all({node: None})

    def remove_nodes(self, nodes: Iterable[Node]) -> None:
        """Remove a set of nodes that only read each other.

        Raises:
            GraphError: a node outside the set reads one inside, or one inside is an input or output of the graph;
                nothing is removed then.
        """
        doomed = dict.fromkeys(nodes)
        for node in doomed:
            self.check_owned(node, node.name)
            links = self._links[node]
            outside = next((c for uses in links.uses for c, _ in uses if c not in doomed), None)
            outside = outside or next((c for c in links.control_consumers if c not in doomed), None)
            if outside is not None:
                raise GraphError(f"{node.name!r} is still read by {outside.name!r}", where=f"node {node.name!r}")
            self._check_not_border(node)
        self._unlink_all(doomed)

    def set_op_type(self, node: Node, op_type: str) -> None:
        """Let the node be another operation, with the same inputs and outputs; its attributes are the caller's.

        Raises:
            GraphError: the op type is empty or not known to the rule for ops, or the node belongs to another graph.
        """
        self.check_owned(node, node.name)
        if not op_type:
            raise GraphError("an op type cannot be empty", where=f"node {node.name!r}")
        if self.op_rule is not None:
            self.op_rule.check_op(self, op_type, node.name)
        node.op_type = op_type
        self._note(node)

    def set_attr(self, node: Node, name: str, attribute: Any) -> None:
        """Set an attribute of a node, in any form that `add_node` takes; None removes it. Its shapes follow when one is next read.

        Raises:
            GraphError: the node belongs to another graph; or, says the rule for ops, its op has no such attribute or takes no such value.
            ArgumentError: it cannot be an attribute.
        """
        self.check_owned(node, node.name)
        if attribute is not None:
            rule = self.op_rule
            attribute = as_attribute(attribute) if rule is None else rule.attribute(self, node.op_type, node.name, name, attribute)
        constraint = name == colocation.ATTRIBUTE
        if constraint and self._colocations is not None:
            self._colocations.discard(node)
        node.attrs.record(name, attribute)
        if constraint and self._colocations is not None:
            self._colocations.add(node)
        if not constraint:
            self._note(node)

    def _unlink_all(self, doomed: Mapping[Node, object]) -> None:
        self._holdings.drop(doomed)
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        for node in doomed:
            self._colocations.discard(node)
        self._colocations.replace({node.name: None for node in doomed})
        for node in doomed:
            self._unlink(node)
            self.stale.pop(node, None)
            self.unasked.pop(node, None)
            if self._calls is not None:
                self._calls.discard(node)

    def _unlink(self, node: Node) -> None:
        links = self._links.pop(node)
        for k, value in enumerate(links.inputs):
            # What it read may have been removed before it, in the same set.
            before = self._links.get(value.producer)
            if before is not None:
                del before.uses[value.index][node, k]
        for control in links.control_inputs:
            if control in self._links:
                del self._links[control].control_consumers[node]
        for consumer in links.control_consumers:
            if consumer in self._links:
                del self._links[consumer].control_inputs[node]
        for value in links.outputs:
            self.variables.pop(value, None)
        self._free_name(links.name)

    # Undo

    @contextmanager
    def restored_on_error(self) -> Generator[None]:
        """Where the block raises, everything is put back as it was before it, and the error goes on.

        Back are the same objects in their old state: nodes, values, signatures, collections, the library of functions and all
        bodies in it. So what was held before the block stays valid; what the block added belongs to no graph any more. Blocks may
        be nested. A block that edits the body of a function restores the library, but not the graph that the body was
        reached from: open the block on that graph, which restores both.

        Takes time linear in the graph and its functions, also where nothing is raised; constants are not copied.

        >>> g = Graph()
        >>> a = g.add_node("Const", "a", output_types=[(DTYPES["float32"], ())])
        >>> with g.restored_on_error():
        ...     g.rename(a, "b")
        ...     g.rename(a, "not:allowed")
        Traceback (most recent call last):
            ...
        graphwright.errors.GraphError: 'not:allowed' cannot be the name of a node
          where: graph ''
          likely cause: `^` and `:` mark edges
        >>> a.name, g["a"] is a
        ('a', True)
        """
        graphs = dict.fromkeys((self, *(function.body for function in self.functions.values())))
        with garbage_collection_paused():
            record = Record()
            record.note(self.functions, *self.functions.values())
            for graph in graphs:
                record.note(graph, *graph._signatures.values())
                record.note(graph.package)  # with its tables where it is a data class
                record.note_collections(graph._collections.values())
                record.note_nodes(graph._links)
        try:
            yield
        except BaseException:
            record.restore()
            for graph in graphs:
                # What is computed from the rest is computed again.
                graph._calls = graph._colocations = None
                graph._suffixes, graph._free_suffixes = {}, {}
                graph._others = -1
                graph._holdings = Holdings(graph._signatures, graph._collections)
                graph._count_borders()
            raise

    # What leaves the IR. It knows neither files nor pictures: the package's public words do the work.

    def write(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the graph: `graphwright.write`, which see. The suffix says the format; without one it is a SavedModel.

        Raises:
            GraphwrightError: see `graphwright.write`.
        """
        public_words().write(self, path, overwrite=overwrite)

    def draw(self, path: Any = None, **options: Any) -> Any:
        """Draw the graph into an .svg or .html file: `graphwright.draw`, which see. Returns the file's path."""
        return public_words().draw(self, path, **options)


def public_words() -> Any:
    """The package, which loads a word when it is first used; a module of this package is only ever loaded after it."""
    return sys.modules["graphwright"]
