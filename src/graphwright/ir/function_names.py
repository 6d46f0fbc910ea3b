"""Names of functions and their renaming: in op types (the old calling convention), in attributes, in attributes *of* such references (a
`NameAttrList` may hold others), and in strings of a definition (`forward_function_name`). The last two are serialized messages.
"""

from collections.abc import Callable, Container, Iterator, Mapping

from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute
from graphwright.ir.node import Function, Node
from graphwright.ir.wire import Layout, replace_strings

# tensorflow/core/framework/attr_value.proto, function.proto, node_def.proto
_LAYOUT: Layout = {
    "NameAttrList": {1: None, 2: "NamedAttrValue"},
    "NamedAttrValue": {2: "AttrValue"},
    "AttrValue": {1: "ListOfAttrValue", 10: "NameAttrList"},
    "ListOfAttrValue": {9: "NameAttrList"},
    "FunctionDef": {3: "NodeDef", 5: "NamedAttrOfFunction"},
    "NodeDef": {2: None, 5: "NamedAttrValue"},
    "NamedAttrOfFunction": {2: "AttrOfFunction"},
    "AttrOfFunction": {1: "ListOfAttrValue", 2: None, 10: "NameAttrList"},
}
_LIST = b"\x0a"  # how an AttrValue that is a list starts


def functions_in(attribute: Attribute) -> Iterator[str]:
    if isinstance(attribute, FunctionReference):
        yield attribute.name
        if attribute.serialized:
            yield from _names(attribute.serialized, "NameAttrList")
    elif isinstance(attribute, tuple):
        for item in attribute:
            yield from functions_in(item)
    elif isinstance(attribute, SerializedAttribute) and attribute.data[:1] == _LIST:
        yield from _names(attribute.data, "AttrValue")


def functions_of_node(node: Node, library: Container[str]) -> dict[str, None]:
    """Return the functions of the library that a node names, as its op type or in its attributes; each once."""
    names: dict[str, None] = {node.op_type: None} if node.op_type in library else {}
    for attribute in node.attrs.values():
        if isinstance(attribute, FunctionReference | tuple | SerializedAttribute):
            names.update((name, None) for name in functions_in(attribute) if name in library)
    return names


def functions_of(function: Function, library: Container[str]) -> dict[str, None]:
    """Return the functions of the library that a function names, in its body and in its definition; each once."""
    names: dict[str, None] = {}
    for node in function.body:
        names.update(functions_of_node(node, library))
    if function.definition:
        names.update((name, None) for name in _names(function.definition, "FunctionDef") if name in library)
    return names


def with_functions(attribute: Attribute, new_of: Mapping[str, str]) -> Attribute:
    """Rename the functions in an attribute; return the same object where it names none of them."""
    if not new_of:
        return attribute
    if isinstance(attribute, FunctionReference):
        name, serialized = new_of.get(attribute.name, attribute.name), _renamed(attribute.serialized, "NameAttrList", new_of)
        return attribute if (name, serialized) == (attribute.name, attribute.serialized) else FunctionReference(name, serialized)
    if isinstance(attribute, tuple):
        items = tuple(with_functions(item, new_of) for item in attribute)
        return attribute if all(a is b for a, b in zip(items, attribute, strict=True)) else items
    if isinstance(attribute, SerializedAttribute) and attribute.data[:1] == _LIST:
        data = _renamed(attribute.data, "AttrValue", new_of)
        return attribute if data == attribute.data else SerializedAttribute(data)
    return attribute


def attributes_with_functions(attrs: Mapping[str, Attribute], new_of: Mapping[str, str]) -> Mapping[str, Attribute]:
    return {key: with_functions(attribute, new_of) for key, attribute in attrs.items()} if new_of else attrs


def definition_with_functions(definition: bytes, new_of: Mapping[str, str]) -> bytes:
    return _renamed(definition, "FunctionDef", new_of)


def _names(data: bytes, message: str) -> list[str]:
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return name

    _replaced(data, message, note)
    return names


def _renamed(data: bytes, message: str, new_of: Mapping[str, str]) -> bytes:
    return _replaced(data, message, lambda name: new_of.get(name, name)) if new_of else data


def _replaced(data: bytes, message: str, replaced: Callable[[str], str]) -> bytes:
    try:
        return replace_strings(data, _LAYOUT, message, replaced)
    except ValueError:  # bytes that are no such message name nothing
        return data
