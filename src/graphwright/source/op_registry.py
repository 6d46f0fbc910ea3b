"""What TensorFlow's op registry says of an op type: its definition, and whether it is stateful."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def op_definition(op_type: str) -> Any:
    """The `OpDef` of a registered op type, or None."""
    # Private module: there is no public way to ask for an OpDef by its name.
    registry: Any = importlib.import_module("tensorflow.python.framework.op_def_registry")
    return registry.get(op_type)


@cache
def is_stateful(op_type: str) -> bool | None:
    """Whether the registry calls the op type stateful; None when it is not registered."""
    definition = op_definition(op_type)
    return None if definition is None else bool(definition.is_stateful)
