"""`Graph`: the view of an `ir.Graph` with its library, collections, signatures and variables, and how it is loaded and written;
and `FunctionGraph`, the view of the body of a function in the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from graphwright.editor import collecting, inference
from graphwright.editor.base_graph import BaseGraph
from graphwright.editor.node import Node, write_shapes
from graphwright.editor.saved_model import SaverInfo, SignatureInfo, write_saved_model
from graphwright.editor.visitors import Visitor, Walk
from graphwright.errors import ArgumentError
from graphwright.ir import graph as ir
from graphwright.ir.graph import Function
from graphwright.ir.signature import Collection
from graphwright.ir.traits.values import ARGUMENTS
from graphwright.ir.walk import forward_reachable
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.function_def import is_template, write_function
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.load import load
from graphwright.source.meta_graph import SAVER
from graphwright.source.named_refs import read_refs
from graphwright.source.saved_model import parse_saved_model
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_placeholder


class FunctionGraph(BaseGraph):
    """The body of a function; edits of it are written with the graph. Get it from `Graph.get_function_graph_by_name`."""

    def __init__(self, function: Function, parent_graph: Graph) -> None:
        super().__init__(function.body, function.name)
        self._function = function
        self._parent = parent_graph
        inference.follow_shapes(function.body, anew=True)

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


class Graph(BaseGraph):
    """A graph in the words of graph_def_editor: a view of an `ir.Graph`.

    Args:
        g: a `GraphDef`, a `tf.Graph`, an `ir.Graph` (which is viewed, not copied), or None for an empty graph.
        name: for humans.
        collections: `CollectionDef` by name; those of a `tf.Graph` are taken over when this is not given.
        saver_info: where the values of the variables are.
        signature_info: the entry points.

    Raises:
        TypeError: `g` is something else.
        ValueError: the graph is damaged.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as tf_graph:
    ...     _ = tf.identity(tf.constant([1.0, 2.0], name="a"), name="b")
    >>> g = Graph(tf_graph.as_graph_def())
    >>> g["b"].inputs
    (Tensor 'a:0' (dtype <dtype: 'float32'>, shape (2,)),)
    >>> [node.name for node in g["a"].output(0).consumers()]
    ['b']
    """

    def __init__(
        self,
        g: Any = None,
        name: str | None = None,
        collections: Mapping[str, Any] | None = None,
        saver_info: SaverInfo | None = None,
        signature_info: SignatureInfo | None = None,
    ) -> None:
        if signature_info is not None and not isinstance(signature_info, SignatureInfo):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("signature_info argument must be a SignatureInfo object")
        if name is None:
            name = g.name if isinstance(g, ir.Graph) and g.name else f"GraphDef Editor Graph created {datetime.now().isoformat()}"
        graph, found = _read(g, name, collections is None)
        super().__init__(graph, name)
        self.originals: dict[ir.Node, ir.Node] = {}  # nodes of a gradient, and what they are the gradient of
        self._function_views: dict[str, FunctionGraph] = {}
        collections = found if collections is None else collections
        signatures = {} if signature_info is None else signature_info.signature_defs
        if collections or signatures:
            collecting.read(graph, collections=collections, signatures=signatures)
        self.adopt_variables()
        if saver_info is not None:
            graph.collections[SAVER] = Collection("any", [read_refs(graph, saver_info.saver_def)])  # its nodes follow renames
        self._saver_info = saver_info

    # Writing

    def to_graph_def(self, add_shapes: bool = True) -> Any:
        """The graph as a `GraphDef`.

        Args:
            add_shapes: whether to write the shapes of outputs as attribute `_output_shapes`.

        Raises:
            ValueError: something still reads a node that was removed.
        """
        self.settle_removals()
        result = to_graph_def(self._ir, every_function=True)
        for node_def in result.node:
            write_shapes(self._ir[node_def.name], node_def, add_shapes)
        return result

    def as_graph_def(self, add_shapes: bool = False) -> Any:
        """The same as `to_graph_def`, for code that was written for `tf.Graph`."""
        return self.to_graph_def(add_shapes=add_shapes)

    def to_tf_graph(self) -> Any:
        """The graph as a fresh `tf.Graph`, with its variables and their collections."""
        from graphwright.editor.util import load_variables_to_tf_graph

        tf = import_tensorflow()
        result = tf.Graph()
        with result.as_default():
            tf.import_graph_def(self.to_graph_def(), name="")
            load_variables_to_tf_graph(self)
        return result

    def to_saved_model(self, saved_model_path: str, tags: Iterable[str] | None = None) -> Any:
        """Write the graph as a SavedModel; returns the `SavedModel` message that was written.

        Args:
            saved_model_path: a folder that does not exist yet, in one that does.
            tags: of the MetaGraph; by default those that it was loaded with, or `serve`.

        Raises:
            ValueError: the folder exists, its parent does not, or something still reads a removed node.
        """
        self.settle_removals()
        return write_saved_model(self, str(saved_model_path), tags, None if self._saver_info is None else self._saver_info.path)

    # Functions

    @property
    def function_names(self) -> list[str]:
        """The functions of the library."""
        return list(self._ir.functions)

    def get_function_graph_by_name(self, function_name: str) -> FunctionGraph:
        """The body of a function, to look at and to edit.

        Raises:
            ValueError: there is no such function, or its types follow from each call, so that it has no body of its own.
        """
        function = self._ir.functions.get(function_name)
        if function is None:
            raise ValueError(f"Function '{function_name}' is not found in graph")
        if is_template(function):
            raise ValueError(f"Function '{function_name}' is a template, whose types follow from each call")
        view = self._function_views.get(function_name)
        if view is None or view.ir is not function.body:  # there may be another function of this name now
            inference.shapes_of_arguments(self._ir, function)
            view = self._function_views[function_name] = FunctionGraph(function, self)
        return view

    # Collections and signatures

    @property
    def has_passthrough_saver(self) -> bool:
        """Whether the values of variables come from a checkpoint that is passed on as it is."""
        return getattr(self, "_saver_info", None) is not None or self._ir.package is not None

    @property
    def signatures(self) -> collecting.Signatures:
        """The signatures as `SignatureDef` by name. They follow renames; what you read is a copy, so assign to change one."""
        return collecting.Signatures(self._ir)

    def get_all_collection_keys(self) -> list[str]:
        """The names of all collections."""
        return collecting.keys(self._ir)

    def get_collection_by_name(self, name: str) -> Any:
        """The nodes, tensors or variables in a collection; of one that holds plain items, its `CollectionDef`.

        Raises:
            ValueError: there is no such collection.
            TypeError: it holds nodes and tensors.
        """
        if name not in collecting.keys(self._ir):
            raise ValueError(f"No collection with name '{name}'")
        collection = self._ir.collections[name]
        if {type(item) for item in collection.items} >= {ir.Node, ir.Value}:
            raise TypeError(f"Node collections cannot be Nodes and Tensors for: {name}")
        plain = [item for item in collection.items if not isinstance(item, ir.Node | ir.Value) and not collecting.is_variable(item)]
        if plain:
            return collecting.written(self._ir).collection_def[name]
        return [self.view_item(item) for item in collection.items]

    def get_collection(self, name: str) -> list[Any]:
        """The items of a collection, none when it does not exist, for code that was written for `tf.Graph`."""
        return list(self.get_collection_by_name(name)) if name in collecting.keys(self._ir) else []

    def add_to_collection(self, name: str, value: Any) -> None:
        """Add a node, tensor or variable to a collection, for code that was written for `tf.Graph`."""
        value.add_to_collection(name)

    def add_collection_from_collection_def(self, collection_name: str, collection_def: Any, validate_name: bool = True) -> None:
        """Add a whole collection.

        Raises:
            ValueError: a collection has the name already, or the definition is empty.
        """
        if validate_name and collection_name in collecting.keys(self._ir):
            raise ValueError(f"Collection '{collection_name}' already exists")
        if collection_def.WhichOneof("kind") is None:
            raise ValueError(f"Unknown collection with name: {collection_name}")
        self.increment_version_counter()
        collecting.read(self._ir, collections={collection_name: collection_def})
        self.adopt_variables()

    # Walks

    def nodes_iterator(self, predicate: Callable[[Node], Any] = lambda _: True, iterate_functions: bool = False) -> Iterator[Node]:
        """The nodes of which the predicate is true, those of functions included where that is wanted."""
        yield from filter(predicate, self.nodes)
        for name in self.function_names if iterate_functions else ():
            if not is_template(self._ir.functions[name]):
                yield from filter(predicate, self.get_function_graph_by_name(name).nodes)

    def breadth_first_visitor(
        self,
        visitor: Visitor,
        starting_nodes: Iterable[Node] | None = None,
        visited_nodes: set[Node] | None = None,
        iterate_functions: bool = False,
        escape_functions: bool = False,
        max_depth: int | None = None,
    ) -> bool:
        """Visit the starting nodes and all that depends on them, in breadth.

        Args:
            visitor: called with each node; something true as its answer ends the walk.
            starting_nodes: by default those without inputs.
            visited_nodes: nodes to leave out; those that are visited are added.
            iterate_functions: whether to go into the functions that nodes call.
            escape_functions: whether to go on behind the calls of a function in which the walk started.
            max_depth: how far to go.

        Returns:
            Whether the walk ended early.
        """
        starts = [n for n in self.nodes if not n.ir.inputs] if starting_nodes is None else starting_nodes
        visited = set[Node]() if visited_nodes is None else visited_nodes
        return Walk(self, visitor, visited, iterate_functions, escape_functions, forward=True).go(starts, max_depth)

    def backwards_breadth_first_visitor(
        self,
        visitor: Visitor,
        starting_nodes: Iterable[Node] | None = None,
        visited_nodes: set[Node] | None = None,
        iterate_functions: bool = False,
        escape_functions: bool = False,
        max_depth: int | None = None,
    ) -> bool:
        """Visit the starting nodes and all that they depend on, in breadth; the arguments are those of `breadth_first_visitor`.

        Raises:
            ValueError: no starting nodes are given.
        """
        starts = list(starting_nodes or ())
        if not starts:
            raise ValueError("starting_nodes is not provided")
        visited = set[Node]() if visited_nodes is None else visited_nodes
        return Walk(self, visitor, visited, iterate_functions, escape_functions, forward=False).go(starts, max_depth)

    def infer_shapes_and_dtypes(self, starting_nodes: Iterable[Node] | None = None) -> None:
        """Let TensorFlow infer the shapes of the starting nodes and of all that depends on them; of all nodes by default.

        Raises:
            ValueError: TensorFlow refuses the graph.
        """
        self.settle_removals()
        self.increment_version_counter()
        nodes = self._ir.nodes if starting_nodes is None else forward_reachable([n.ir for n in starting_nodes], control=False)
        inference.infer_graph(self._ir, nodes)


def _read(g: Any, name: str, wants_collections: bool) -> tuple[ir.Graph, Mapping[str, Any]]:
    """The graph, and the collections that came with it."""
    if isinstance(g, ir.Graph):
        inference.follow_shapes(g, anew=False)
        return g, {}
    tf = import_tensorflow()
    if g is None or isinstance(g, tf.compat.v1.GraphDef):
        graph = ir.Graph(name=name) if g is None else from_graph_def(g, name=name, file_order=True)
        inference.follow_shapes(graph, anew=True)
        return graph, {}
    if not isinstance(g, tf.Graph):
        raise TypeError(f"Graph is of type {type(g)}. Expected a tf.Graph or GraphDef proto")
    graph = from_graph_def(g.as_graph_def(add_shapes=True), name=name, file_order=True)
    drop_shape_attributes(graph)
    inference.follow_shapes(graph, anew=False)
    if not wants_collections or not any(g.get_all_collection_keys()):
        return graph, {}
    with g.as_default():
        return graph, dict(tf.compat.v1.train.export_meta_graph(graph=g).collection_def)


def saved_model_to_graph(
    saved_model_path: str,
    tag: str | Sequence[str] | None = None,
    include_saver: bool = True,
    include_signatures: bool = True,
    fallback_to_default_graph: bool = False,
) -> Graph:
    """Load a SavedModel, of TF1 or TF2.

    Of one of TF2 this is the main graph, in which the signatures call functions; `get_function_graph_by_name` shows their bodies.

    Args:
        saved_model_path: its folder.
        tag: of the MetaGraph, one or several; by default the only one, or the one tagged `serve`. Where none has exactly these tags, one
            that has them among others is taken.
        include_saver: whether to keep what restores the variables. Without it the graph has initializers only.
        include_signatures: whether to keep the signatures.
        fallback_to_default_graph: whether to take the only MetaGraph when none has the tags.

    Raises:
        ValueError: there is no such folder, it is damaged, or no MetaGraph has the tags.
    """
    folder = Path(saved_model_path)
    if not folder.is_dir():
        raise ArgumentError(f"SavedModel root directory {str(folder)!r} not found", argument="saved_model_path")
    tags = None if tag is None else [tag] if isinstance(tag, str) else list(tag)
    graph = load(folder, tags=None if tags is None else _complete_tags(folder, tags, fallback_to_default_graph))
    if not include_signatures:
        graph.signatures = {}
    if not include_saver:
        graph.collections.pop(SAVER, None)
        graph.package = None
    return Graph(graph, name=graph.name)


def _complete_tags(folder: Path, tags: Sequence[str], fallback: bool) -> Sequence[str]:
    """All tags of the MetaGraph that has these among its own."""
    listed = [sorted(m.meta_info_def.tags) for m in parse_saved_model(folder).meta_graphs]
    if sorted(tags) in listed:
        return tags
    wider = [have for have in listed if set(tags) <= set(have)]
    if len(wider) == 1:
        return wider[0]
    return listed[0] if fallback and not wider and len(listed) == 1 else tags
