"""`load`: anything that holds a TensorFlow graph -> a `Graph` to edit and write again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from graphwright.errors import ArgumentError, ErrorCode, GraphwrightError, first_line
from graphwright.files import path_before
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.names import free_name
from graphwright.ir.shapes import Shapes
from graphwright.ir.signature import Signature
from graphwright.source.concrete_function import set_ends, set_variables
from graphwright.source.function_module import LivePackage
from graphwright.source.graph_def import from_graph_def
from graphwright.source.join import OpenPackage
from graphwright.source.keras_file import read_keras_file
from graphwright.source.meta_graph import read_meta_graph
from graphwright.source.model_folder import KERAS_SUFFIXES, refuse_remote
from graphwright.source.package import Package, TemporaryFolder
from graphwright.source.private_keras import call_with_specs, called_specs
from graphwright.source.private_tensorflow import traces_of
from graphwright.source.protobuf_files import read_graph_def, read_message
from graphwright.source.registry_rule import REGISTRY_RULE
from graphwright.source.saved_model import graph_rest, read_saved_model
from graphwright.source.shape_inference import infer_output_shapes
from graphwright.source.tensorflow_import import import_keras, import_tensorflow
from graphwright.source.tracebacks import user_code
from graphwright.source.trust import as_path

_DEFAULT_SIGNATURE = "serving_default"


def load(x: Any, *, tags: str | Iterable[str] | None = None) -> Graph:
    """Read a graph of any origin, to edit it and write it again with `write`.

    Args:
        x: a path: to a `GraphDef` in binary (`.pb`) or as text (`.pbtxt`), a `MetaGraphDef` (`.meta`), a SavedModel folder of TF1 or TF2, a
            `.keras` or `.h5` file; none of it runs (but see `trust`). Or an object: a `GraphDef`, `MetaGraphDef`, `tf.Graph`,
            `ConcreteFunction`, `tf.function` with one trace, Keras model, `tf.Module` that can be saved, or a `Graph`, which is returned.
        tags: of a MetaGraph of a SavedModel; by default its only one, or the one tagged `serve`.

    Returns:
        The graph in the order of the file, with its library of functions, signatures and collections. Shapes are inferred when they are
        first read, and follow edits. A TF2 SavedModel gives its main graph, which calls the functions; variables and assets stay in their
        folder until the graph is written. A function's graph has its arguments and captures as inputs.

    Raises:
        FileFormatError: a file is damaged, or something else.
        GraphError: the graph breaks an invariant (a missing input or function, a wrong dtype, a cycle, a name taken twice).
        UnsupportedError: an op type is unknown, or the file is larger than a protobuf can be.
        ArgumentError: there is no such file or it is not on this machine (`gs://...`), or `x` is none of these.

    >>> import tensorflow as tf
    >>> function = tf.function(lambda x: {"y": x + x}).get_concrete_function(tf.TensorSpec([2], tf.float32, name="x"))
    >>> graph = load(function)
    >>> graph.signatures["serving_default"].inputs
    {'x': <Value x:0 float32[2]>}
    """
    x = made_by(x)
    if isinstance(x, Graph):
        return x
    if isinstance(x, str | Path):
        refuse_remote(x)
    graph = _load_path(as_path(x), tags) if isinstance(x, str | Path) else _load_object(x, tags)
    for body in bodies(graph):
        body.op_rule = REGISTRY_RULE
        body.shapes = Shapes(body, infer_output_shapes, infer_unknown=True)
    return graph


def made_by(target: Any) -> Any:
    """Call a factory, a function or class without required arguments; return anything else as it is. Refuse a plain function with
    arguments.
    """
    factory: Any = target
    if not isinstance(factory, FunctionType | MethodType | type | partial):
        return target
    optional = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # of a class that is not Python's own, which nobody takes for a model
        return target
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    name = getattr(target, "__name__", "partial")
    if not needed:
        with user_code(f"calling {name!r} to get a model or a step"):
            product = target()
        return made_by(product)
    raise ArgumentError(
        f"{name!r} is a plain Python {'class' if inspect.isclass(target) else 'function'} of {', '.join(needed)}",
        argument="target",
        cause="it has no graph before it is called",
        remedy="decorate the step with @tf.function, or give a function without arguments that makes the model or the step",
    )


def _load_path(path: Path, tags: str | Iterable[str] | None) -> Graph:
    if not path.exists():
        before = path_before(path)
        raise ArgumentError(
            f"there is no file or folder {str(path)!r}",
            cause="writing there was stopped" if before.exists() else "",
            remedy=f"the model that was there is {str(before)!r}: rename it" if before.exists() else "",
        )
    if path.is_dir():
        return read_saved_model(path, tags)
    if path.suffix in KERAS_SUFFIXES:
        return _load_keras_model(read_keras_file(path, compiled=False))
    if path.name in ("saved_model.pb", "saved_model.pbtxt"):
        return read_saved_model(path.parent, tags)
    if path.suffix == ".meta":
        graph = _load_object(read_message(path, import_tensorflow().compat.v1.MetaGraphDef()), tags)
        graph.name = path.stem
        return graph
    return _from_graph_def(read_graph_def(path), path.stem)


def _from_graph_def(graph_def: Any, name: str) -> Graph:
    graph = from_graph_def(graph_def, name=name, file_order=True)
    rest = type(graph_def)()
    for field, content in graph_def.ListFields():
        if field.name == "library":
            rest.library.gradient.extend(content.gradient)
            rest.library.registered_gradients.extend(content.registered_gradients)
        elif field.name in ("versions", "debug_info"):
            getattr(rest, field.name).CopyFrom(content)
        elif field.name == "version":
            rest.version = content
    graph.package = OpenPackage(graph_rest=graph_rest(rest))
    return graph


def _load_keras_model(model: Any) -> Graph:
    def export(folder: Path) -> None:
        if getattr(model, "inputs", None) is None and model.built and (specs := called_specs(model)) is not None:
            call_with_specs(model, specs)  # one from a file was not called in this process, and is not exported then
        model.export(folder, format="tf_saved_model", verbose=False)

    code = None if model.built else ErrorCode.OPEN_INPUT
    remedy = "build it (call it once), or export it yourself"
    return _load_saved(export, model.name or "model", "Keras cannot export the model", remedy, code)


def _load_saved(save: Callable[[Path], None], name: str, failure: str, remedy: str, code: ErrorCode | None = None) -> Graph:
    keep = TemporaryFolder()
    folder = keep.path / re.sub(r"[^\w-]", "_", name)  # the name may come from a file, and must not lead out of the folder
    try:
        save(folder)
    except Exception as error:  # Keras and TensorFlow raise anything
        what = first_line(error)
        raise ArgumentError(f"{failure}: {what}", where=f"{name!r}", remedy=f"{remedy}, and pass the folder", code=code) from error
    return read_saved_model(folder, None, keep=keep)


def _load_object(x: Any, tags: str | Iterable[str] | None) -> Graph:
    tf = import_tensorflow()
    if isinstance(x, tf.compat.v1.GraphDef):
        return _from_graph_def(x, "graph")
    if isinstance(x, tf.compat.v1.MetaGraphDef):
        graph = _from_graph_def(x.graph_def, "graph")
        read_meta_graph(graph, x)
        return graph
    if hasattr(x, "structured_input_signature") and hasattr(x, "captured_inputs"):
        return _load_function(x)
    if hasattr(x, "get_concrete_function"):
        return _load_function(_only_trace(x))
    if isinstance(x, tf.Graph):
        with x.as_default():
            meta_graph = tf.compat.v1.train.export_meta_graph(graph=x)
        meta_graph.graph_def.CopyFrom(x.as_graph_def(add_shapes=True))
        graph = _load_object(meta_graph, tags)
        if isinstance(graph.package, Package):
            graph.package.made_in = x
        return graph
    if isinstance(x, import_keras().Model):
        return _load_keras_model(x)
    if isinstance(x, tf.Module):
        remedy = "save it yourself with tf.saved_model.save"
        return _load_saved(
            lambda folder: tf.saved_model.save(x, str(folder)), x.name or "module", "TensorFlow cannot save the module", remedy
        )
    raise ArgumentError(
        f"{type(x).__name__} holds no graph that can be read",
        argument="x",
        remedy="give a path, a GraphDef, a tf.Graph, a ConcreteFunction, a Keras model or a tf.Module",
    )


def _only_trace(function: Any) -> Any:
    traces = traces_of(function)
    if len(traces) == 1:
        return traces[0]
    if not traces and getattr(function, "input_signature", None) is not None:
        return function.get_concrete_function()
    raise ArgumentError(
        f"the function has {len(traces)} traces, and one is needed",
        argument="x",
        remedy="give function.get_concrete_function(tf.TensorSpec(...), ...)",
        code=ErrorCode.OPEN_INPUT,
    )


def _load_function(function: Any) -> Graph:
    func_graph = function.graph
    graph = _from_graph_def(func_graph.as_graph_def(add_shapes=True), str(func_graph.name))
    try:
        set_ends(graph, func_graph)
    except GraphwrightError as error:
        raise ArgumentError(f"the function is inconsistent: {error.what}", where=f"function {func_graph.name!r}") from error
    captured = list(function.captured_inputs)
    set_variables(graph, func_graph, captured)
    package = graph.package
    if isinstance(package, Package):
        first_capture = len(graph.inputs) - len(captured)
        captures = dict(zip(graph.inputs[first_capture:], captured, strict=True))
        graph.package = LivePackage(graph_rest=package.graph_rest, captures=captures, keep_function=function)
        arguments = graph.inputs[:first_capture]
        names: list[str] = []
        for value in arguments:
            user_name = value.producer.attrs.get("_user_specified_name")
            names.append(free_name(user_name.decode() if isinstance(user_name, bytes) else value.producer.name, names))
        graph.signatures[_DEFAULT_SIGNATURE] = Signature(
            dict(zip(names, arguments, strict=True)), _named_outputs(func_graph, graph), "tensorflow/serving/predict"
        )
    return graph


def _named_outputs(func_graph: Any, graph: Graph) -> dict[str, Any]:
    structured: Any = func_graph.structured_outputs
    keys: list[Any] = list(structured) if isinstance(structured, dict) else []  # pyright: ignore[reportUnknownArgumentType]
    if keys and all(isinstance(key, str) for key in keys) and len(keys) == len(graph.outputs):
        return dict(zip(sorted(keys), graph.outputs, strict=True))
    return {f"output_{k}": value for k, value in enumerate(graph.outputs)}
