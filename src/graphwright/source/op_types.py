"""The dtypes that a node reads and makes, from the `OpDef` of its op type and its attributes, and other facts of the op registry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.attributes import Attribute, SerializedAttribute
from graphwright.ir.dtypes import DType, dtype_from_number
from graphwright.source.attributes import from_attr_value
from graphwright.source.private_tensorflow import op_definition
from graphwright.source.tensorflow_import import import_tensorflow

_MOST_VALUES = 100_000  # a count above this is damage, and would only fill memory


def damaged(what: str, where: str) -> GraphError:
    return GraphError(what, where=where, cause="the file is damaged, or was edited by hand")


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """The dtypes of the inputs and outputs of a node, and the first output of each output argument of the op."""

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    starts: dict[str, int]


class OpTypes:
    """Dtypes of the registered ops and of the functions of one library (`OpDef` by name), which may be called as ops. Each combination is
    computed once.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._definitions: dict[str, tuple[Any, tuple[str, ...], dict[str, Attribute]]] = {}
        self._known: dict[tuple[object, ...], NodeTypes] = {}

    def types_of(self, op_type: str, attrs: Mapping[str, Attribute], name: str) -> NodeTypes:
        entry = self._definitions.get(op_type)
        if entry is None:
            entry = self._definitions[op_type] = self._look_up(op_type, name)
        definition, names, defaults = entry
        key = (op_type, *[attrs.get(n) for n in names]) if names else op_type
        types = self._known.get(key)  # type: ignore[arg-type]
        if types is None:
            types = _work_out(definition, {**defaults, **attrs}, name, op_type)
            self._known[key] = types  # type: ignore[index]
        return types

    def _look_up(self, op_type: str, name: str) -> tuple[Any, tuple[str, ...], dict[str, Attribute]]:
        definition = op_definition(op_type)
        if definition is None:
            definition = self._functions.get(op_type)
        if definition is None:
            raise UnsupportedError(
                f"op type {op_type!r} is not known",
                where=f"node {name!r}",
                cause="it is misspelled, or a custom op whose library is not loaded, or the graph was made by another TensorFlow version",
                remedy="load the custom op library with tf.load_op_library first",
            )
        names: dict[str, None] = {}
        for argument in (*definition.input_arg, *definition.output_arg):
            names.update(dict.fromkeys(n for n in (argument.type_attr, argument.number_attr, argument.type_list_attr) if n))
        defaults = {a.name: from_attr_value(a.default_value) for a in definition.attr if a.name in names and a.HasField("default_value")}
        return definition, tuple(names), defaults


REGISTERED = OpTypes({})
"""Knows only the registered ops."""


def _work_out(definition: Any, attrs: Mapping[str, Attribute], name: str, op_type: str) -> NodeTypes:
    where = f"node {name!r} ({op_type})"
    inputs = [dtype for argument in definition.input_arg for dtype in _types(argument, attrs, where)]
    outputs: list[DType] = []
    starts: dict[str, int] = {}
    for argument in definition.output_arg:
        starts[argument.name] = len(outputs)
        outputs += _types(argument, attrs, where)
    return NodeTypes(tuple(inputs), tuple(outputs), starts)


def _types(argument: Any, attrs: Mapping[str, Attribute], where: str) -> list[DType]:
    if argument.type_list_attr:
        types = _listed_types(attrs.get(argument.type_list_attr, ()))
        if types is None:
            raise damaged(f"attribute {argument.type_list_attr!r} is not a list of dtypes", where)
        return types
    if argument.type:
        dtype = dtype_from_number(argument.type)
    else:
        attribute = attrs.get(argument.type_attr)
        if not isinstance(attribute, DType):
            attribute = _reference_type(attribute)
        if attribute is None:
            got = f"{attrs.get(argument.type_attr)!r:.80}"
            raise damaged(f"attribute {argument.type_attr!r} of argument {argument.name!r} is not a dtype, got {got}", where)
        dtype = attribute
    if argument.number_attr:
        count = attrs.get(argument.number_attr)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_VALUES:
            raise damaged(f"attribute {argument.number_attr!r} of argument {argument.name!r} is not a count, got {count!r:.80}", where)
        return [dtype] * count
    return [dtype]


def _listed_types(attribute: Attribute) -> list[DType] | None:
    if isinstance(attribute, SerializedAttribute):  # an empty list, or one with reference types
        value: Any = import_tensorflow().compat.v1.AttrValue.FromString(attribute.data)
        return [dtype_from_number(t) for t in value.list.type] if value.WhichOneof("value") == "list" else None
    if not isinstance(attribute, tuple):
        return None
    listed = [t for t in attribute if isinstance(t, DType)]
    return listed if len(listed) == len(attribute) else None


def _reference_type(attribute: Attribute | None) -> DType | None:
    """Return the base of a reference type, which attributes keep serialized (varint of field 6 of an `AttrValue`)."""
    data = getattr(attribute, "data", b"")
    if len(data) == 2 and data[0] == 0x30 and data[1] > 100:
        return dtype_from_number(data[1])
    return None


def is_stateful(op_type: str) -> bool | None:
    definition = op_definition(op_type)
    return None if definition is None else bool(definition.is_stateful)


def takes_reference(op_type: str) -> bool:
    """Return whether the op changes the variable that its first input refers to, and returns that reference."""
    definition = op_definition(op_type)
    return definition is not None and any(argument.is_ref for argument in definition.input_arg)
