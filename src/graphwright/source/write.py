"""`write`: a `Graph` -> a file or folder that TensorFlow serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.files import replaced_file, replaced_folder
from graphwright.ir.graph import Graph
from graphwright.ir.jobs import as_graph
from graphwright.source.check_types import check_types
from graphwright.source.function_module import save_function
from graphwright.source.model_folder import check_target, is_graph_file
from graphwright.source.package import Package
from graphwright.source.protobuf_files import serialize, too_large
from graphwright.source.saved_model import fill_graph_def, write_saved_model
from graphwright.source.tensorflow_import import import_tensorflow


def write(graph: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a graph as its path says: `.pb` a `GraphDef`, `.pbtxt` one as text, anything else a SavedModel folder.

    A SavedModel gets the signatures and collections of the graph, and the variables and assets of its origin. `tf.saved_model.load` and a
    session (`saved_model_cli run`) serve the same: the object graph follows the edits. The target is replaced in one step when the new one
    is complete, so that one of them exists as a whole at any time (see `graphwright.files` for file systems that cannot exchange folders).

    Args:
        graph: a `Graph`, or whatever `load` reads; is not changed.
        overwrite: replace what exists.

    Raises:
        ArgumentError: something exists already (or, with `overwrite`, a folder without a model), the folder or disk takes no file, or the
            graph has no signature for a SavedModel.
        GraphError: the dtypes of an edge do not fit, or a signature needs something that the SavedModel does not hold.
        UnsupportedError: the graph is larger than a protobuf can hold.

    >>> import tempfile, tensorflow as tf
    >>> from graphwright.source.load import load
    >>> graph = load(tf.function(lambda x: {"y": x + x}).get_concrete_function(tf.TensorSpec([2], tf.float32, name="x")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(graph, folder + "/model")
    ...     served = tf.saved_model.load(folder + "/model")
    ...     served.signatures["serving_default"](x=tf.constant([1.0, 2.0]))["y"].numpy().tolist()
    [2.0, 4.0]
    """
    target = Path(path)
    check_target(target, overwrite=overwrite)
    graph = as_graph(graph)
    check_types(graph)
    package = graph.package
    try:
        if is_graph_file(target):
            content = _graph_file(graph, text=target.suffix == ".pbtxt")
            with replaced_file(target) as stream:
                stream.buffer.write(content)
            return
        with replaced_folder(target) as folder:
            if isinstance(package, Package) and package.is_live:
                save_function(graph, package, folder)
            else:
                write_saved_model(graph, folder)
    except OSError as error:
        raise ArgumentError(
            f"{str(target)!r} cannot be written: {error.strerror or error}", cause="the folder is read-only, or the disk is full"
        ) from error


def _graph_file(graph: Graph, *, text: bool) -> bytes:
    graph_def: Any = import_tensorflow().compat.v1.GraphDef()
    package = graph.package if isinstance(graph.package, Package) else Package()
    try:
        # Of a SavedModel, functions that nothing calls are there for its objects, which a GraphDef does not have.
        fill_graph_def(graph, package, graph_def, every_function=not package.saved_model)
    except (MemoryError, OverflowError) as error:
        raise too_large(f"graph {graph.name!r}") from error
    if not text:
        return serialize(graph_def, f"graph {graph.name!r}")
    from google.protobuf import text_format

    return str(text_format.MessageToString(graph_def)).encode()
