"""`StructuredValue` messages: how a SavedModel writes nested arguments and results of functions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphwright.ir.graph import Value
from graphwright.source.attributes import shape_from_proto, shape_to_proto
from graphwright.source.private_tensorflow import message_class


def _new() -> Any:
    return message_class("protobuf.struct", "StructuredValue")()


def specs_of(structure: Any) -> Iterator[Any]:
    match structure.WhichOneof("kind"):
        case "tuple_value":
            for item in structure.tuple_value.values:
                yield from specs_of(item)
        case "list_value":
            for item in structure.list_value.values:
                yield from specs_of(item)
        case "dict_value":
            for key in sorted(structure.dict_value.fields):
                yield from specs_of(structure.dict_value.fields[key])
        case "named_tuple_value":
            for pair in structure.named_tuple_value.values:
                yield from specs_of(pair.value)
        case "tensor_spec_value" | "bounded_tensor_spec_value" | "type_spec_value":
            yield structure
        case _:
            return


def spec_count(structure: Any) -> int | None:
    """Return the number of tensors in the structure; None where a composite (ragged, sparse, ...) hides it."""
    specs = list(specs_of(structure))
    return None if any(s.WhichOneof("kind") == "type_spec_value" for s in specs) else len(specs)


def fill_specs(structure: Any, values: Sequence[Value]) -> None:
    """Write dtypes and shapes of the values where the structure differs. Composites are left as they are."""
    if spec_count(structure) != len(values):
        return
    for leaf, value in zip(specs_of(structure), values, strict=True):
        spec = leaf.tensor_spec_value if leaf.WhichOneof("kind") == "tensor_spec_value" else leaf.bounded_tensor_spec_value
        same = spec.dtype % 100 == value.dtype.number
        spec.dtype = spec.dtype if same else value.dtype.number
        if not same or (value.shape is not None and shape_from_proto(spec.shape) != value.shape):
            spec.ClearField("shape")
            shape_to_proto(value.shape, spec.shape)


def _spec(value: Value, name: str) -> Any:
    leaf = _new()
    leaf.tensor_spec_value.name = name
    leaf.tensor_spec_value.dtype = value.dtype.number
    shape_to_proto(value.shape, leaf.tensor_spec_value.shape)
    return leaf


def signature_structure(positional: Mapping[str, Value], keywords: Mapping[str, Value]) -> Any:
    """Return `((spec, ...), {name: spec})`: the positional arguments and keywords of a function."""
    structure = _new()
    by_place, by_name = structure.tuple_value.values.add().tuple_value, structure.tuple_value.values.add().dict_value
    by_place.SetInParent()
    by_name.SetInParent()
    for name, value in positional.items():
        by_place.values.add().CopyFrom(_spec(value, name))
    for name, value in keywords.items():
        by_name.fields[name].CopyFrom(_spec(value, name))
    return structure


def result_structure(values: Mapping[str, Value]) -> Any:
    structure = _new()
    structure.dict_value.SetInParent()
    for name, value in values.items():
        structure.dict_value.fields[name].CopyFrom(_spec(value, name))
    return structure


def full_argument_spec(names: Sequence[str]) -> Any:
    """Return the `FullArgSpec` of a function that takes keywords only."""
    structure = _new()
    fields = structure.named_tuple_value
    fields.name = "FullArgSpec"
    for key in ("args", "varargs", "varkw", "defaults", "kwonlyargs", "kwonlydefaults", "annotations"):
        pair = fields.values.add(key=key)
        if key == "annotations":
            pair.value.dict_value.SetInParent()
        elif key in ("args", "kwonlyargs"):
            pair.value.list_value.SetInParent()
            for name in names if key == "kwonlyargs" else ():
                pair.value.list_value.values.add().string_value = _argument_name(name)
        else:
            pair.value.none_value.SetInParent()
    return structure


def _argument_name(name: str) -> str:
    """Convert the key of a signature to a Python name as TensorFlow does."""
    text = "".join(c if (c.isalnum() and c.isascii()) or c == "_" else "_" for c in name)
    return text if text and not text[0].isdigit() else f"arg_{text}"
