"""Marks operations of a graph that is only read, so that TensorFlow does not run them.

TensorFlow runs parts of a graph while it infers shapes: it evaluates what depends only on constants, by any kernel that the registry does
not call stateful. That would open files and addresses, call Python functions by token, and run serialized graphs. An attribute `_kernel`
asks for a kernel of that label. No kernel has this label, so such a node cannot run; its registered shape rule still works.
"""

from functools import cache
from typing import Any

from graphwright.source.graph_def import nodes_of
from graphwright.source.op_types import is_stateful
from graphwright.source.private_tensorflow import op_definition

_LABEL = b"graphwright_reads_and_never_runs"
_STRING = 7  # tensorflow/core/framework/types.proto
_WORDS = frozenset(
    "container shared_name debug_name allowed_devices stack_name tensor_array_name var_name frame_name bad_indices_policy message equation "
    "src_format dst_format data_format padding dimension_numbers row_partition_types kernel_type interpolation fill_mode noise "
    "activation_mode fused_ops config config_proto executor_type communication_hint summarize op_names".split()
)
"""Attributes that are text, and name nothing outside of the graph."""


@cache
def reaches_outside(op_type: str) -> bool:
    """Return whether an op may do more than compute: it takes text, which may name a file, an address, a Python function, a graph."""
    definition = op_definition(op_type)
    if definition is None:
        return True
    texts = (attr for attr in definition.attr if attr.type in ("string", "list(string)") and not attr.allowed_values.list.s)
    return any(arg.type == _STRING and not arg.is_ref for arg in definition.input_arg) or any(a.name not in _WORDS for a in texts)


@cache
def only_computes(op_type: str) -> bool:
    """Return whether an op may run on constants: it is registered, stateless, and reaches nothing outside."""
    return is_stateful(op_type) is False and not reaches_outside(op_type)


def forbid_to_run(graph_def: Any) -> Any:
    library = {function.signature.name for function in graph_def.library.function}
    for node in nodes_of(graph_def):
        if reaches_outside(node.op) and node.op not in library:
            node.attr["_kernel"].s = _LABEL
    return graph_def
