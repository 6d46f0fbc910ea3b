"""What TensorFlow's op registry says of an op type: whether it is stateful, what it changes."""

from __future__ import annotations

from graphwright.source.private_tensorflow import op_definition


def is_stateful(op_type: str) -> bool | None:
    """Whether the registry calls the op type stateful; None when it is not registered."""
    definition = op_definition(op_type)
    return None if definition is None else bool(definition.is_stateful)


def takes_reference(op_type: str) -> bool:
    """Whether the op changes what its first input refers to. Such an input cannot be inferred for, and is what the op returns."""
    definition = op_definition(op_type)
    return definition is not None and any(argument.is_ref for argument in definition.input_arg)
