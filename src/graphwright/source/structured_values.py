"""`StructuredValue` messages: how a SavedModel writes nested arguments and results of functions."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import FullArgSpec
from typing import Any

from graphwright.ir.graph import Value
from graphwright.source.attributes import shape_from_proto, shape_to_proto
from graphwright.source.private_tensorflow import encoded_structure
from graphwright.source.tensorflow_import import import_tensorflow


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


def spec_of(value: Value, name: str | None = None) -> Any:
    tf = import_tensorflow()
    return tf.TensorSpec(value.shape, tf.as_dtype(value.dtype.number), name)


def _specs_of_values(values: Mapping[str, Value]) -> dict[str, Any]:
    return {name: spec_of(value, name) for name, value in values.items()}


def signature_structure(positional: Mapping[str, Value], keywords: Mapping[str, Value]) -> Any:
    """Return `((spec, ...), {name: spec})`: the positional arguments and keywords of a function."""
    return encoded_structure((tuple(_specs_of_values(positional).values()), _specs_of_values(keywords)))


def result_structure(values: Mapping[str, Value]) -> Any:
    return encoded_structure(_specs_of_values(values))


def full_argument_spec(names: Sequence[str]) -> Any:
    """Return the `FullArgSpec` of a function that takes keywords only, with names that TensorFlow makes of the keys of a signature."""
    texts = ["".join(c if (c.isalnum() and c.isascii()) or c == "_" else "_" for c in name) for name in names]
    keywords = [text if text and not text[0].isdigit() else f"arg_{text}" for text in texts]
    return encoded_structure(FullArgSpec([], None, None, None, keywords, None, {}))
