"""A step in a graph of TensorFlow 1, which a session runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.files import replaced_file
from graphwright.ir.traits.control_flow import CALL_TYPES
from graphwright.ir.traits.variables import REFERENCE_VARIABLES
from graphwright.source.graph_def import to_graph_def
from graphwright.source.load import load
from graphwright.source.private_tensorflow import call_flat
from graphwright.source.protobuf_files import serialize
from graphwright.source.tensorflow_import import import_tensorflow


def session_graph(target: Any) -> Any:
    """Return a `tf.Graph` as it is, or make one from a file or message with its collections; refuse variables without handles."""
    tf = import_tensorflow()
    graph: Any = target if isinstance(target, tf.Graph) else tf.Graph()
    with graph.as_default():
        if isinstance(target, tf.compat.v1.MetaGraphDef) or Path(str(target)).suffix == ".meta":
            tf.compat.v1.train.import_meta_graph(target if isinstance(target, tf.compat.v1.MetaGraphDef) else str(target))
        elif graph is not target:
            tf.graph_util.import_graph_def(to_graph_def(load(target)), name="")
    without = next((operation.name for operation in graph.get_operations() if operation.type in REFERENCE_VARIABLES), None)
    if without is not None:
        raise UnsupportedError(
            "a variable of TF1 without a handle is written by reference, which a planned step cannot do",
            where=f"variable {without!r}",
            remedy="build the graph with resource variables: tf.compat.v1.enable_resource_variables(); checkpoints stay the same",
        )
    return graph


def write_session_graph(graph: Any, path: Path) -> None:
    with graph.as_default(), replaced_file(path) as stream:
        stream.buffer.write(serialize(import_tensorflow().compat.v1.train.export_meta_graph(), "the graph"))


def add_step(graph: Any, function: Any, like: Any, shapes: Sequence[Any], fetches: Sequence[str]) -> list[Any]:
    """Add a call of a function to a graph, for the step that it holds; return the new tensor or operation of each fetch, in a name scope.

    `function` has the arguments and captures of `like`, which was read from the graph; other `shapes` of arguments are refused when they
    are fed.
    """
    tf = import_tensorflow()
    outer = [graph.get_tensor_by_name(tensor.name) for tensor in like.inputs]
    with graph.as_default(), tf.name_scope("optimized"):
        arguments = [tf.ensure_shape(tensor, shape) for tensor, shape in zip(outer, shapes, strict=False)]
        before = set(graph.get_operations())
        call_flat(function, arguments, outer[len(arguments) :])
        call = next(op for op in graph.get_operations() if op not in before and op.type in CALL_TYPES)
        values = iter(call.outputs)
        names = [name.partition(":")[0] for name in fetches]
        gives = [bool(graph.get_operation_by_name(name).outputs) for name in names]
        return [tf.identity(next(values), n) if has else tf.group(call, name=n) for n, has in zip(names, gives, strict=True)]
