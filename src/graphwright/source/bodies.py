"""What TensorFlow must answer about the functions of loops and branches: constants, and shapes inside their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Graph, Value
from graphwright.source.attributes import shape_to_proto, tensor_from_attribute
from graphwright.source.graph_def import to_graph_def
from graphwright.source.tensorflow_import import import_tensorflow


def constant_array(value: Value) -> np.ndarray[Any, Any] | None:
    """The array of a `Const`, or None for any other value.

    >>> import numpy as np
    >>> from graphwright.ir.constants import constant_types, tensor_attribute
    >>> g = Graph()
    >>> array = np.array([2, 3], np.int32)
    >>> constant_array(g.add_node("Const", "c", attrs={"value": tensor_attribute(array)}, output_types=[constant_types(array)]).outputs[0])
    array([2, 3], dtype=int32)
    """
    attribute = value.producer.attrs.get("value")
    if value.producer.op_type != "Const" or attribute is None:
        return None
    return tensor_from_attribute(attribute)


def infer_body_shapes(body: Graph, shapes: Sequence[Shape], handles: Sequence[tuple[DType, Shape] | None]) -> None:
    """Set the shapes in the body of a function from those of its arguments, by TensorFlow's own inference.

    A dimension that inference leaves open keeps what tracing found.

    Args:
        shapes: per argument.
        handles: per argument that is a list or a variable, the dtype and shape of its elements or of its value.
    """
    tf = import_tensorflow()
    # Private modules: only a FuncGraph and handle data carry the shapes behind lists and variables.
    from tensorflow.core.framework import cpp_shape_inference_pb2, full_type_pb2  # pyright: ignore[reportMissingTypeStubs]
    from tensorflow.python.framework import func_graph as func_graph_module  # pyright: ignore[reportMissingTypeStubs]
    from tensorflow.python.ops import handle_data_util  # pyright: ignore[reportMissingTypeStubs]

    protos: Any = cpp_shape_inference_pb2
    types: Any = full_type_pb2
    module: Any = func_graph_module
    handle_data: Any = handle_data_util
    parameters = {v.producer for v in body.inputs}
    func_graph = module.FuncGraph(body.name)
    with func_graph.as_default():
        input_map: dict[str, Any] = {}
        for k, (value, shape, handle) in enumerate(zip(body.inputs, shapes, handles, strict=True)):
            tensor = tf.compat.v1.placeholder(tf.as_dtype(value.dtype.number), shape, name=f"graphwright_input_{k}")
            if handle is not None:
                data = protos.CppShapeInferenceResult.HandleData(is_set=True)
                entry = data.shape_and_type.add()
                entry.dtype = handle[0].number
                shape_to_proto(handle[1], entry.shape)
                if value.dtype.name == "variant":
                    entry.type.type_id = types.TFT_ARRAY  # inference takes it for a list by this mark
                handle_data.set_handle_data(tensor, data)
            if value.uses:
                input_map[value.name] = tensor
        tf.graph_util.import_graph_def(to_graph_def(body, keep=lambda node: node not in parameters), input_map=input_map, name="")
    for value, shape in zip(body.inputs, shapes, strict=True):
        value.shape = _merged(shape, value.shape)
    operations: Any = func_graph.get_operation_by_name
    for node in body.nodes:
        if node in parameters:
            continue
        for value, tensor in zip(node.outputs, operations(node.name).outputs, strict=True):
            inferred = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
            value.shape = _merged(inferred, value.shape)


def _merged(shape: Shape, traced: Shape) -> Shape:
    """The dimensions of `shape`, and where they are open those of `traced`."""
    if shape is None or traced is None or len(shape) != len(traced):
        return traced if shape is None else shape
    return tuple(t if s is None else s for s, t in zip(shape, traced, strict=True))
