"""What TensorFlow's op registry says of an op type: its outputs and whether it is stateful."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DType, dtype_from_number


@cache
def op_definition(op_type: str) -> Any:
    """The `OpDef` of a registered op type, or None."""
    # Private module: there is no public way to ask for an OpDef by its name.
    registry: Any = importlib.import_module("tensorflow.python.framework.op_def_registry")
    return registry.get(op_type)


def output_arguments(definition: Any, attrs: Mapping[str, Attribute]) -> list[tuple[str, list[DType]]]:
    """Name and dtypes of each output argument of an `OpDef`, with the node's attributes applied (defaults where it has none)."""
    if any(a.HasField("default_value") and a.name not in attrs for a in definition.attr):
        from graphwright.source.attributes import from_attr_value

        attrs = {**{a.name: from_attr_value(a.default_value) for a in definition.attr if a.HasField("default_value")}, **attrs}
    return [(argument.name, _argument_types(argument, attrs)) for argument in definition.output_arg]


def _argument_types(argument: Any, attrs: Mapping[str, Attribute]) -> list[DType]:
    if argument.type_list_attr:
        types = attrs.get(argument.type_list_attr, ())
        return [t for t in types if isinstance(t, DType)] if isinstance(types, tuple) else []
    if argument.type:
        dtype = dtype_from_number(argument.type)
    else:
        found = attrs.get(argument.type_attr)
        if not isinstance(found, DType):
            raise UnsupportedError(f"attribute {argument.type_attr!r} of output {argument.name!r} is no dtype, got {found!r}")
        dtype = found
    if argument.number_attr:
        count = attrs.get(argument.number_attr)
        if not isinstance(count, int):
            raise UnsupportedError(f"attribute {argument.number_attr!r} of output {argument.name!r} is no number, got {count!r}")
        return [dtype] * count
    return [dtype]


@cache
def is_stateful(op_type: str) -> bool | None:
    """Whether the registry calls the op type stateful; None when it is not registered."""
    definition = op_definition(op_type)
    return None if definition is None else bool(definition.is_stateful)
