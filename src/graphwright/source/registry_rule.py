"""The rule for ops of loaded graphs: TensorFlow's op registry checks nodes when they are made or changed."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, cast

import numpy as np

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.attributes import EMPTY_LIST, Attribute, FunctionReference, SerializedAttribute, ShapeAttribute, as_attribute
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.graph import Graph, Value
from graphwright.source.attributes import from_attr_value, tensor_to_attribute
from graphwright.source.op_types import REGISTERED
from graphwright.source.private_tensorflow import op_definition, registered_ops
from graphwright.source.tensorflow_import import import_tensorflow

_NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_./-]*(>[A-Za-z0-9.][A-Za-z0-9_./-]*)*")
_Types = Sequence[tuple[DType, Shape]] | None


class RegistryRule:
    """Knows the registered ops, the functions of the graph's library, and the ops that the graph holds already."""

    def check_name(self, graph: Graph, name: str) -> None:
        function = graph.functions.get(graph.name)
        if not _NODE_NAME.fullmatch(name.lstrip("_") if function is not None and function.body is graph else name):
            clean = re.sub(r"[^A-Za-z0-9_./-]", "_", name).lstrip("_/-") or "node"
            raise GraphError(
                f"TensorFlow takes no node called {name!r}",
                where=f"graph {graph.name!r}",
                cause="a name starts with a letter, digit or dot, and goes on with these and _ - / >, in ASCII",
                remedy=f"{clean!r} would do",
            )

    def check_op(self, graph: Graph, op_type: str, name: str) -> None:
        if op_definition(op_type) is None and op_type not in graph.functions and all(node.op_type != op_type for node in graph):
            raise GraphError(
                f"there is no op {op_type!r}",
                where=f"node {name!r}",
                cause="it is misspelled, or belongs to a library that is not loaded",
                remedy=_meant(op_type, [*registered_ops(), *graph.functions])
                + "load the library with tf.load_op_library, or set graph.op_rule = None to make what TensorFlow does not know",
            )

    def attribute(self, graph: Graph, op_type: str, name: str, key: str, value: Any) -> Attribute:
        """Convert an attribute to the kind that the op declares: dtypes, shapes, numbers, tensors, functions and text."""
        if isinstance(value, import_tensorflow().compat.v1.AttrValue):
            value = from_attr_value(value)
        kinds = _kinds(op_type)
        where = f"attribute {key!r} of {op_type} {name!r}"
        if kinds is None or key[:1] == "_" or key not in kinds:
            known = kinds is None or key[:1] == "_" or any(node.op_type == op_type and key in node.attrs for node in graph)
            if not known:
                remedy = _meant(key, kinds or ()) + f"{op_type} has {', '.join(kinds or ()) or 'none'}"
                raise GraphError(f"{op_type} has no attribute {key!r}", where=f"node {name!r}", remedy=remedy)
            return plain_attribute(value)
        definition = kinds[key]
        try:
            attribute = _converted(definition.type, value)
        except (ArgumentError, AttributeError, TypeError, ValueError) as error:
            remedy = error.remedy if isinstance(error, ArgumentError) else ""
            raise GraphError(f"a {definition.type} is expected, got {value!r:.80}", where=where, remedy=remedy) from error
        _check_allowed(definition, attribute, where)
        return attribute

    def completed(
        self, graph: Graph, op_type: str, name: str, inputs: Sequence[Value], attrs: Mapping[str, Any], types: _Types
    ) -> tuple[dict[str, Attribute], Sequence[tuple[DType, Shape]]]:
        """Complete a node with the attributes that follow from its inputs and outputs."""
        completed = {key: self.attribute(graph, op_type, name, key, given) for key, given in attrs.items()}
        definition = op_definition(op_type)
        if definition is None:
            return completed, _of_function(graph, op_type, name, inputs, types)
        where = f"node {name!r} ({op_type})"
        read = [value.dtype for value in inputs]
        for key, attribute in _implied(definition.input_arg, read, completed).items():
            completed[key] = self.attribute(graph, op_type, name, key, attribute)
        if types is not None:
            completed |= _implied(definition.output_arg, [dtype for dtype, _ in types], completed)
        for attr in definition.attr:
            if attr.name in completed:
                continue
            if not attr.HasField("default_value"):
                raise GraphError(f"attribute {attr.name!r} ({attr.type}) is missing", where=where, remedy="name it in the argument attrs")
            if types is None:
                completed[attr.name] = from_attr_value(attr.default_value)
        expected = REGISTERED.types_of(op_type, completed, name)
        _check_dtypes("inputs", [argument.name for argument in definition.input_arg], read, expected.inputs, where)
        if types is None:
            return completed, [(dtype, None) for dtype in expected.outputs]
        _check_dtypes("outputs", [argument.name for argument in definition.output_arg], [d for d, _ in types], expected.outputs, where)
        return completed, types


REGISTRY_RULE = RegistryRule()


def default_attributes(op_type: str) -> dict[str, Attribute]:
    """Return the default attributes of a registered op, which nodes of SavedModels leave out; nothing for other ops."""
    kinds = _kinds(op_type) or {}
    return {name: from_attr_value(kind.default_value) for name, kind in kinds.items() if kind.HasField("default_value")}


@cache
def _kinds(op_type: str) -> dict[str, Any] | None:
    definition = op_definition(op_type)
    return None if definition is None else {attr.name: attr for attr in definition.attr}


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, 3)
    return f"did you mean {', '.join(close)}? Else " if close else ""


def _of_function(graph: Graph, op_type: str, name: str, inputs: Sequence[Value], types: _Types) -> Sequence[tuple[DType, Shape]]:
    function = graph.functions.get(op_type)
    if function is None or not len(function.body):
        if types is None:
            raise GraphError(f"the outputs of {op_type} are unknown", where=f"node {name!r}", remedy="give the argument output_types")
        return types
    body = function.body
    _check_dtypes("inputs", (), [v.dtype for v in inputs], [v.dtype for v in body.inputs], f"node {name!r} ({op_type})")
    own_types = [(v.dtype, v.last_shape) for v in body.outputs]
    if types is not None:
        _check_dtypes("outputs", (), [dtype for dtype, _ in types], [dtype for dtype, _ in own_types], f"node {name!r} ({op_type})")
    return own_types if types is None else types


def _implied(arguments: Iterable[Any], dtypes: Sequence[DType], explicit: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the dtypes and numbers that follow from arguments of these types; a list takes what fixed arguments leave."""
    implied: dict[str, Attribute] = {}
    waiting = list(arguments)
    at = 0
    for k, argument in enumerate(waiting):
        rest = max(0, len(dtypes) - at - sum(not (a.number_attr or a.type_list_attr) for a in waiting[k + 1 :]))
        known = {**explicit, **implied}
        if argument.type_list_attr:
            listed = known.get(argument.type_list_attr)
            count = len(listed) if isinstance(listed, tuple) else 0 if listed is not None else rest
            if listed is None:
                implied[argument.type_list_attr] = tuple(dtypes[at : at + count]) or SerializedAttribute(EMPTY_LIST)
        elif argument.number_attr:
            number = known.get(argument.number_attr)
            count = number if isinstance(number, int) else rest
            implied[argument.number_attr] = count
        else:
            count = 1
        if argument.type_attr and argument.type_attr not in known and at < len(dtypes) and count:
            implied[argument.type_attr] = dtypes[at]
        at += count
    return {key: attribute for key, attribute in implied.items() if key not in explicit}


def _check_dtypes(role: str, names: Sequence[str], got: Sequence[DType], expected: Sequence[DType], where: str) -> None:
    if list(got) == list(expected):
        return
    raise GraphError(
        f"its {role} are {', '.join(map(str, expected)) or 'none'}, got {', '.join(map(str, got)) or 'none'}",
        where=where,
        cause=f"the arguments of the op are {', '.join(names)}" if names else "",
        remedy="give as many values as it takes, or insert a Cast",
    )


def _check_allowed(definition: Any, attribute: Attribute, where: str) -> None:
    items = attribute if isinstance(attribute, tuple) else (attribute,)
    allowed = definition.allowed_values.list
    names = [as_dtype(t).name for t in allowed.type if t < 100] or [s.decode() for s in allowed.s]
    for item in items:
        text = item.name if isinstance(item, DType) else item.decode(errors="replace") if isinstance(item, bytes) else None
        if names and text is not None and text not in names:
            raise GraphError(f"{text!r} is not allowed", where=where, remedy=f"{_meant(text, names)}one of {', '.join(names)} is")
    size = len(attribute) if isinstance(attribute, tuple) else attribute
    if definition.has_minimum and isinstance(size, int) and size < definition.minimum:
        raise GraphError(f"{size} is less than {definition.minimum}, the least that there can be", where=where)


def _converted(kind: str, value: Any) -> Attribute:
    """Convert a value to an attribute of a kind in the words of an `OpDef`: `type`, `list(int)`, ..."""
    if isinstance(value, SerializedAttribute):
        return value
    if not kind.startswith("list("):
        return _CONVERT[kind](value)
    if isinstance(value, str | bytes):
        raise ArgumentError(f"{value!r} is not a list", remedy="give a list of one")
    return tuple(_CONVERT[kind[5:-1]](item) for item in cast("Iterable[Any]", value)) or SerializedAttribute(EMPTY_LIST)


def _int(value: Any) -> Attribute:
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def _float(value: Any) -> Attribute:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    return float(value)


def _bool(value: Any) -> Attribute:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(cast("Any", value))


def _function(value: Any) -> Attribute:
    if isinstance(value, FunctionReference):
        return value
    if isinstance(value, str | bytes):
        return FunctionReference(value.decode() if isinstance(value, bytes) else value)
    return FunctionReference(value.name, value.SerializeToString(deterministic=True) if value.attr else b"")


def plain_attribute(value: Any) -> Attribute:
    """Convert as `as_attribute` does, also arrays and `NameAttrList`."""
    if isinstance(value, list | tuple):
        return tuple(map(plain_attribute, cast("list[Any]", value))) or SerializedAttribute(EMPTY_LIST)
    return (
        tensor_to_attribute(value) if isinstance(value, np.ndarray) else _function(value) if hasattr(value, "attr") else as_attribute(value)
    )


_CONVERT: dict[str, Callable[[Any], Attribute]] = {
    "type": lambda given: as_dtype(given.decode() if isinstance(given, bytes) else given),
    "shape": lambda given: given if isinstance(given, ShapeAttribute) else ShapeAttribute(as_shape(given)),
    "int": _int,
    "float": _float,
    "bool": _bool,
    "string": lambda given: given if isinstance(given, bytes) else cast("str", given).encode(),
    "func": _function,
    "tensor": tensor_to_attribute,
}
