"""Files that hold a model: `.keras`, SavedModel folders, frozen graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.source.keras_file import KERAS_SUFFIXES, read_keras_file
from graphwright.source.protobuf_files import read_graph_def
from graphwright.source.tensorflow_import import import_tensorflow


def load_callable(path: Path) -> Any:
    """What a file holds, as something that can be traced.

    A `.keras` or `.h5` file gives the Keras model, a SavedModel folder its default signature (or its only one), a
    `.pb` or `.pbtxt` file a function from all placeholders to all values that nothing reads.

    Raises:
        ArgumentError: there is no such file.
        FileFormatError: it is none of these, or damaged.
    """
    tf = import_tensorflow()
    if not path.exists():
        raise ArgumentError(f"there is no file or folder {str(path)!r}", where="argument 'target'")
    try:
        if path.suffix in KERAS_SUFFIXES:
            return read_keras_file(path, compiled=True)
        if path.is_dir():
            loaded: Any = tf.saved_model.load(str(path))
            return _signature(loaded, path)
        return _frozen_graph(path)
    except (ArgumentError, FileFormatError):
        raise
    except Exception as error:
        raise FileFormatError(
            f"the file cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            where=str(path),
            cause="it is damaged, or needs ops that are not loaded",
            remedy="load it yourself and hand in the object",
        ) from error


def _signature(loaded: Any, path: Path) -> Any:
    signatures = dict(getattr(loaded, "signatures", {}) or {})
    if "serving_default" in signatures:
        function = signatures["serving_default"]
    elif len(signatures) == 1:
        function = next(iter(signatures.values()))
    else:
        raise FileFormatError(
            f"the SavedModel has {len(signatures)} signatures and no default one: {', '.join(sorted(signatures))}",
            where=str(path),
            remedy="load it with tf.saved_model.load and hand in the signature that you mean",
        )
    function.graphwright_keeps_alive = loaded  # the variables live as long as the loaded object
    function.__name__ = path.resolve().name
    return function


def _frozen_graph(path: Path) -> Any:
    tf = import_tensorflow()
    graph_def = read_graph_def(path)
    read = {text.lstrip("^").split(":")[0] for node in graph_def.node for text in node.input}
    inputs = [f"{n.name}:0" for n in graph_def.node if n.op == "Placeholder"]
    names = [n.name for n in graph_def.node if n.name not in read and n.op not in ("Placeholder", "NoOp", "Const")]

    def imported() -> None:
        tf.graph_util.import_graph_def(graph_def, name="")

    wrapped: Any = tf.compat.v1.wrap_function(imported, [])
    graph = wrapped.graph
    outputs = [t for name in names for t in graph.get_operation_by_name(name).outputs]
    function = wrapped.prune([graph.get_tensor_by_name(name) for name in inputs], outputs)
    function.__name__ = path.stem
    return function
