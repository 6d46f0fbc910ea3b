"""Edited graphs, served by TensorFlow: what a session, a loaded SavedModel or a function makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.shapes import Shapes
from graphwright.ir.signature import Signature
from graphwright.ir.verify import verify
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.shape_inference import infer_output_shapes


def inferring(graph: Graph) -> Graph:
    """The graph, with TensorFlow's rule for shapes, as `load` gives it."""
    for body in bodies(graph):
        body.shapes = Shapes(body, infer_output_shapes)
    return graph


def built(build: Callable[[], None], *, inputs: Mapping[str, str] | None = None, outputs: Mapping[str, str] | None = None) -> Graph:
    """The graph that a function builds in TF1's way, with a signature of these tensors by key."""
    tf_graph: Any = tf.Graph()
    with tf_graph.as_default():
        build()
    return imported(tf_graph.as_graph_def(add_shapes=True), inputs or {}, outputs or {})


def imported(graph_def: Any, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Graph:
    graph = from_graph_def(graph_def, name="model")
    for node in graph:
        graph.set_attr(node, "_output_shapes", None)
    graph.inputs = [graph.value(name) for name in inputs.values()]
    graph.outputs = [graph.value(name) for name in outputs.values()]
    if inputs or outputs:
        graph.signatures["serving_default"] = Signature(
            {key: graph.value(name) for key, name in inputs.items()}, {key: graph.value(name) for key, name in outputs.items()}
        )
    return graph


def traced(function: Callable[..., Any], *specs: Any) -> Graph:
    """The graph of a `tf.function` as a SavedModel holds it: one call of the function between placeholders and results."""
    concrete = tf.function(function).get_concrete_function(*specs)
    tf_graph: Any = tf.Graph()
    with tf_graph.as_default():
        placeholders = [tf.compat.v1.placeholder(s.dtype, s.shape, name=f"serving_{s.name}") for s in specs]
        results = concrete(*placeholders)
        results = [results] if not isinstance(results, list | tuple) else results
        names = [tf.identity(r, name=f"result_{k}").name for k, r in enumerate(results)]
    inputs = {s.name: p.name for s, p in zip(specs, placeholders, strict=True)}
    return imported(tf_graph.as_graph_def(add_shapes=True), inputs, {f"output_{k}": name for k, name in enumerate(names)})


def serve(graph: Graph, feeds: Mapping[str, Any], *, signature: str = "serving_default", grappler: bool = False) -> dict[str, Any]:
    """Feed a signature by key with TensorFlow, after the graph was verified and written as bytes."""
    verify(graph)
    known = graph.signatures[signature]
    data = to_graph_def(graph).SerializeToString()
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not grappler
    tf_graph: Any = tf.Graph()
    with tf_graph.as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(data), name="")
    with tf.compat.v1.Session(graph=tf_graph, config=config) as session:
        tables = [session.graph.get_operation_by_name(n.name) for n in graph if n.op_type.startswith("LookupTableImport")]
        session.run(tables)
        assert set(feeds) == set(known.inputs)
        return session.run({key: v.name for key, v in known.outputs.items()}, {known.inputs[key].name: x for key, x in feeds.items()})


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
