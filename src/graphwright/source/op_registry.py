"""What TensorFlow's op registry says of an op type: its definition, and whether it is stateful."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


def op_definition(op_type: str) -> Any:
    """The `OpDef` of a registered op type, or None. The registry keeps its answers; one that is None may change with the next library."""
    return _registry().get(op_type)


@cache
def _registry() -> Any:
    # Private module: there is no public way to ask for an OpDef by its name.
    return importlib.import_module("tensorflow.python.framework.op_def_registry")


def registered_ops() -> tuple[str, ...]:
    """The names of all registered op types, for what may have been meant by another."""
    c_api: Any = importlib.import_module("tensorflow.python.client.pywrap_tf_session")
    listed: Any = importlib.import_module("tensorflow.core.framework.op_def_pb2").OpList()
    listed.ParseFromString(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    return tuple(definition.name for definition in listed.op)


def is_stateful(op_type: str) -> bool | None:
    """Whether the registry calls the op type stateful; None when it is not registered."""
    definition = op_definition(op_type)
    return None if definition is None else bool(definition.is_stateful)


def takes_reference(op_type: str) -> bool:
    """Whether the op changes what its first input refers to. Such an input cannot be inferred for, and is what the op returns."""
    definition = op_definition(op_type)
    return definition is not None and any(argument.is_ref for argument in definition.input_arg)
