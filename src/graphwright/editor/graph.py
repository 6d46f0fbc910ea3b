"""`Graph`, the view of an `ir.Graph` with its functions, collections and signatures, and `FunctionGraph`, the view of a function's body."""

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
from graphwright.source.package import Package
from graphwright.source.saved_model import parse_saved_model
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_placeholder


class FunctionGraph(BaseGraph):
    """The body of a function; edits are written with the graph. Get it from `Graph.get_function_graph_by_name`."""

    def __init__(self, function: Function, parent_graph: Graph) -> None:
        super().__init__(function.body, function.name)
        self._function = function
        self._parent = parent_graph
        inference.follow_shapes(function.body, infer_unknown=True)

    @property
    def parent_graph(self) -> Graph:
        """The graph whose library contains the function."""
        return self._parent

    @property
    def input_nodes(self) -> list[Node]:
        """The nodes of the arguments, of op type `_Arg`."""
        return [self.view_of(v.producer) for v in self._ir.inputs]

    @property
    def output_nodes(self) -> list[Node]:
        """The nodes that produce the results."""
        return [self.view_of(v.producer) for v in self._ir.outputs]

    def to_function_graph_def(self, add_shapes: bool = True) -> Any:
        """Return the function as a `FunctionDef`; `add_shapes` writes the shapes of outputs as attribute `_output_shapes`."""
        self.settle_removals()
        result = import_tensorflow().compat.v1.GraphDef().library.function.add()
        write_function(self._function, result)
        if add_shapes:
            for node_def in result.node_def:
                write_shapes(self._ir[node_def.name], node_def, True)
        return result

    def to_tf_function_graph(self) -> Any:
        """Return the body as a new `tf.Graph`, with a placeholder per argument."""
        self.settle_removals()
        tf = import_tensorflow()
        graph_def = to_graph_def(self._ir)
        for node_def in graph_def.node:
            if node_def.op in ARGUMENTS:
                argument = self._ir[node_def.name].outputs[0]
                _ = argument.shape  # infers it
                write_placeholder(argument, node_def.name, node_def)
        result = tf.Graph()
        with result.as_default():
            tf.import_graph_def(graph_def, name="")
        return result


class Graph(BaseGraph):
    """A graph in the words of graph_def_editor: a view of an `ir.Graph`.

    Args:
        g: a `GraphDef`, a `tf.Graph`, an `ir.Graph` (not copied), or None for an empty graph.
        name: for humans.
        collections: `CollectionDef` by name; by default the collections of the `tf.Graph`.
        saver_info: the location of the values of the variables.
        signature_info: the signatures.

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
        super().__init__(_read(g, name), name)
        self.originals: dict[ir.Node, ir.Node] = {}  # nodes of a gradient, and the nodes that they are the gradient of
        self._function_views: dict[str, FunctionGraph] = {}
        collections = _collections_of(g) if collections is None else collections
        signatures = {} if signature_info is None else signature_info.signature_defs
        if collections or signatures:
            collecting.read(self._ir, collections=collections, signatures=signatures)
        self.adopt_variables()
        if saver_info is not None:
            self._ir.collections[SAVER] = Collection("any", [read_refs(self._ir, saver_info.saver_def)])  # its nodes follow renames
        self._saver_info = saver_info

    # Writing

    def to_graph_def(self, add_shapes: bool = True) -> Any:
        """Return the graph as a `GraphDef`, or raise a ValueError if a node reads a removed one.

        `add_shapes` writes the shapes of outputs as attribute `_output_shapes`.
        """
        self.settle_removals()
        result = to_graph_def(self._ir, every_function=True)
        for node_def in result.node:
            write_shapes(self._ir[node_def.name], node_def, add_shapes)
        return result

    def as_graph_def(self, add_shapes: bool = False) -> Any:
        """Return the graph as a `GraphDef`, like `tf.Graph`."""
        return self.to_graph_def(add_shapes=add_shapes)

    def to_tf_graph(self) -> Any:
        """Return the graph as a new `tf.Graph`, with its variables and their collections."""
        tf = import_tensorflow()
        result = tf.Graph()
        with result.as_default():
            tf.import_graph_def(self.to_graph_def(), name="")
            collecting.load_variables(self._ir)
        return result

    def to_saved_model(self, saved_model_path: str, tags: Iterable[str] | None = None) -> Any:
        """Write the graph as a SavedModel into a new folder, and return the `SavedModel` message.

        The tags are by default those of the loaded MetaGraph, or `serve`.

        Raises:
            ValueError: the folder exists, its parent does not, or a node reads a removed one.
        """
        self.settle_removals()
        variables = None if self._saver_info is None else self._saver_info.path
        if not isinstance(self._ir.package, Package) and variables is None and self.variable_names:
            raise NotImplementedError("Can't generate a SaverDef.")
        return write_saved_model(self._ir, str(saved_model_path), tags, variables, self.name)

    # Functions

    @property
    def function_names(self) -> list[str]:
        """The functions of the library."""
        return list(self._ir.functions)

    def get_function_graph_by_name(self, function_name: str) -> FunctionGraph:
        """Return the body of a function, to read and to edit, or raise a ValueError."""
        function = self._ir.functions.get(function_name)
        if function is None:
            raise ValueError(f"Function '{function_name}' is not found in graph")
        if is_template(function):
            raise ValueError(f"Function '{function_name}' is a template, whose types follow from each call")
        view = self._function_views.get(function_name)
        if view is None or view.ir is not function.body:  # the IR may have another function of this name
            inference.infer_argument_shapes(self._ir, function)
            view = self._function_views[function_name] = FunctionGraph(function, self)
        return view

    # Collections and signatures

    @property
    def has_passthrough_saver(self) -> bool:
        """Whether the values of variables come from a checkpoint that is copied unchanged."""
        return getattr(self, "_saver_info", None) is not None or self._ir.package is not None

    @property
    def signatures(self) -> collecting.Signatures:
        """The signatures as `SignatureDef` by name. They follow renames; assign to change one."""
        return collecting.Signatures(self._ir)

    def get_all_collection_keys(self) -> list[str]:
        """Return the names of all collections."""
        return collecting.keys(self._ir)

    def get_collection_by_name(self, name: str) -> Any:
        """Return the nodes, tensors or variables in a collection, or the `CollectionDef` of other items."""
        if name not in collecting.keys(self._ir):
            raise ValueError(f"No collection with name '{name}'")
        collection = self._ir.collections[name]
        if {type(item) for item in collection.items} >= {ir.Node, ir.Value}:
            raise TypeError(f"Node collections cannot be Nodes and Tensors for: {name}")
        if any(not isinstance(item, ir.Node | ir.Value) and not collecting.is_variable(item) for item in collection.items):
            return collecting.written(self._ir).collection_def[name]
        return [self.view_item(item) for item in collection.items]

    def get_collection(self, name: str) -> list[Any]:
        """Return the items of a collection, which may not exist, like `tf.Graph`."""
        return list(self.get_collection_by_name(name)) if name in collecting.keys(self._ir) else []

    def add_to_collection(self, name: str, value: Any) -> None:
        """Add a node, tensor or variable to a collection, like `tf.Graph`."""
        value.add_to_collection(name)

    def add_collection_from_collection_def(self, collection_name: str, collection_def: Any, validate_name: bool = True) -> None:
        """Add a collection under a new name."""
        if validate_name and collection_name in collecting.keys(self._ir):
            raise ValueError(f"Collection '{collection_name}' already exists")
        if collection_def.WhichOneof("kind") is None:
            raise ValueError(f"Unknown collection with name: {collection_name}")
        self.increment_version_counter()
        collecting.read(self._ir, collections={collection_name: collection_def})
        self.adopt_variables()

    # Walks

    def nodes_iterator(self, predicate: Callable[[Node], Any] = lambda _: True, iterate_functions: bool = False) -> Iterator[Node]:
        """Yield the nodes for which the predicate is true, optionally with the nodes of functions."""
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
        """Visit the starting nodes and all nodes that depend on them; return whether the walk ended early.

        Args:
            visitor: called with each node; a true result ends the walk.
            starting_nodes: by default the nodes without inputs.
            visited_nodes: nodes to skip; visited nodes are added.
            escape_functions: whether to continue after the calls of a function in which the walk started.
            max_depth: the largest number of edges.
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
        """Visit the starting nodes, which must be given, and all nodes that they depend on; otherwise like `breadth_first_visitor`."""
        starts = list(starting_nodes or ())
        if not starts:
            raise ValueError("starting_nodes is not provided")
        visited = set[Node]() if visited_nodes is None else visited_nodes
        return Walk(self, visitor, visited, iterate_functions, escape_functions, forward=False).go(starts, max_depth)

    def infer_shapes_and_dtypes(self, starting_nodes: Iterable[Node] | None = None) -> None:
        """Let TensorFlow infer the shapes of the starting nodes and of their dependents, by default of all nodes, or raise a ValueError."""
        self.settle_removals()
        self.increment_version_counter()
        nodes = self._ir.nodes if starting_nodes is None else forward_reachable([n.ir for n in starting_nodes], control=False)
        inference.infer_graph(self._ir, nodes)


def _read(g: Any, name: str) -> ir.Graph:
    tf = import_tensorflow()
    if isinstance(g, tf.Graph):
        graph = from_graph_def(g.as_graph_def(add_shapes=True), name=name, file_order=True)
        drop_shape_attributes(graph)
    elif isinstance(g, ir.Graph):
        graph = g
    elif g is None:
        graph = ir.Graph(name=name)
    elif isinstance(g, tf.compat.v1.GraphDef):
        graph = from_graph_def(g, name=name, file_order=True)
    else:
        raise TypeError(f"Graph is of type {type(g)}. Expected a tf.Graph or GraphDef proto")
    inference.follow_shapes(graph, infer_unknown=not isinstance(g, ir.Graph | tf.Graph))
    return graph


def _collections_of(g: Any) -> Mapping[str, Any]:
    tf = import_tensorflow()
    if not isinstance(g, tf.Graph) or not any(g.get_all_collection_keys()):
        return {}
    with g.as_default():
        return dict(tf.compat.v1.train.export_meta_graph(graph=g).collection_def)


def saved_model_to_graph(
    saved_model_path: str,
    tag: str | Sequence[str] | None = None,
    include_saver: bool = True,
    include_signatures: bool = True,
    fallback_to_default_graph: bool = False,
) -> Graph:
    """Load a SavedModel of TF1 or TF2; `get_function_graph_by_name` shows the functions that signatures of TF2 call.

    Args:
        tag: of the MetaGraph, one or several; by default the only MetaGraph, or the one tagged `serve`. If none has exactly these tags,
            one with additional tags is taken.
        include_saver: whether to keep the operations that restore the variables. Otherwise the graph has initializers only.
        fallback_to_default_graph: whether to take the only MetaGraph if none has the tags.

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
    available = [sorted(m.meta_info_def.tags) for m in parse_saved_model(folder).meta_graphs]
    if sorted(tags) in available:
        return tags
    wider = [own for own in available if set(tags) <= set(own)]
    if len(wider) == 1:
        return wider[0]
    return available[0] if fallback and not wider and len(available) == 1 else tags
