"""`FunctionGraph`: the view of the body of a function in the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphwright.editor.base_graph import BaseGraph
from graphwright.editor.inference import follow_shapes
from graphwright.editor.node import Node, write_shapes
from graphwright.ir.graph import Function
from graphwright.ir.traits.values import ARGUMENTS
from graphwright.source.function_def import write_function
from graphwright.source.graph_def import to_graph_def
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_placeholder

if TYPE_CHECKING:
    from graphwright.editor.graph import Graph


class FunctionGraph(BaseGraph):
    """The body of a function; edits of it are written with the graph. Get it from `Graph.get_function_graph_by_name`."""

    def __init__(self, function: Function, parent_graph: Graph) -> None:
        super().__init__(function.body, function.name)
        self._function = function
        self._parent = parent_graph
        follow_shapes(function.body, anew=True)

    @property
    def parent_graph(self) -> Graph:
        """The graph whose library holds the function."""
        return self._parent

    @property
    def input_nodes(self) -> list[Node]:
        """The nodes that stand for the arguments, of op type `_Arg`."""
        return [self.view_of(v.producer) for v in self._ir.inputs]

    @property
    def output_nodes(self) -> list[Node]:
        """The nodes that make the results."""
        return [self.view_of(v.producer) for v in self._ir.outputs]

    def to_function_graph_def(self, add_shapes: bool = True) -> Any:
        """The function as a `FunctionDef`.

        Args:
            add_shapes: whether to write the shapes of outputs as attribute `_output_shapes`.
        """
        self.settle_removals()
        result = import_tensorflow().compat.v1.GraphDef().library.function.add()
        write_function(self._function, result)
        if add_shapes:
            for node_def in result.node_def:
                write_shapes(self._ir[node_def.name], node_def, True)
        return result

    def to_tf_function_graph(self) -> Any:
        """The body as a fresh `tf.Graph`, with a placeholder per argument."""
        self.settle_removals()
        tf = import_tensorflow()
        graph_def = to_graph_def(self._ir)
        for node_def in graph_def.node:
            if node_def.op in ARGUMENTS:
                argument = self._ir[node_def.name].outputs[0]
                _ = argument.shape  # asks, where nobody has
                write_placeholder(argument, node_def.name, node_def)
        result = tf.Graph()
        with result.as_default():
            tf.import_graph_def(graph_def, name="")
        return result
