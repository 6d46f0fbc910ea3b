"""Parameters: variables and constants with their use, elements and bytes.

Terms
-----
trainable, non-trainable
    Weights that the model computes with. Moving statistics and frozen weights are non-trainable.
optimizer state
    Momentum, second moments, the optimizer's counter and its learning rate.
other state
    Metrics, states of random number generators, counters of steps.
constant
    A weight stored in the graph as a constant: a frozen graph has no variables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from graphwright.ir.dtypes import DType, Shape, byte_count, element_count

ParameterKind = Literal["trainable", "non-trainable", "optimizer state", "other state", "constant"]
KINDS: tuple[ParameterKind, ...] = ("trainable", "non-trainable", "optimizer state", "other state", "constant")
WEIGHTS: tuple[ParameterKind, ...] = KINDS[:2]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One variable, or one constant that is a weight.

    Attributes:
        name: of the variable; for a constant, of its node.
        dtype: of its elements, such as "float32".
        elements: None if the shape is unknown.
        nbytes: None if the shape is unknown, or elements have no fixed size.
        scope: the layer it belongs to.
        use: such as "embedding", "moving average", "metric", "random state", "int8 with scales"; "" if unknown.
        part_of: the partitioned variable that it is a part of, or "".
        aliases: other names of the same variable.
    """

    name: str
    kind: ParameterKind
    dtype: str
    shape: Shape
    elements: int | None
    nbytes: int | None
    scope: str = ""
    use: str = ""
    part_of: str = ""
    aliases: tuple[str, ...] = ()


def make_parameter(
    name: str,
    kind: ParameterKind,
    dtype: DType,
    shape: Shape,
    *,
    scope: str | None = None,
    use: str = "",
    part_of: str = "",
    aliases: tuple[str, ...] = (),
) -> Parameter:
    """Return a parameter with its elements and bytes counted; its scope is by default the name without its last part."""
    inside = scope_of(part_of or name) if scope is None else scope
    return Parameter(name, kind, dtype.name, shape, element_count(shape), byte_count(dtype, shape), inside, use, part_of, aliases)


def scope_of(name: str) -> str:
    """Return the name without its last part.

    >>> scope_of("unet/conv1/kernel"), scope_of("step")
    ('unet/conv1', '')
    """
    return name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class ParameterSums:
    """Elements and bytes by kind; parameters with an unknown shape are in no sum."""

    elements: Mapping[ParameterKind, int]
    nbytes: Mapping[ParameterKind, int]
    count: int
    unknown: int

    @property
    def weights(self) -> int:
        return self.elements["trainable"] + self.elements["non-trainable"] + self.elements["constant"]

    @property
    def total_bytes(self) -> int:
        return sum(self.nbytes.values())


def sum_parameters(parameters: Iterable[Parameter]) -> ParameterSums:
    """Add up elements and bytes by kind."""
    elements, nbytes = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    count = unknown = 0
    for parameter in parameters:
        count += 1
        if parameter.elements is None:
            unknown += 1
            continue
        elements[parameter.kind] += parameter.elements
        nbytes[parameter.kind] += parameter.nbytes or 0
    return ParameterSums(elements, nbytes, count, unknown)


def group_by_scope(parameters: Iterable[Parameter], depth: int | None) -> dict[str, list[Parameter]]:
    """Group parameters by the first `depth` parts of their scopes."""
    groups: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        parts = parameter.scope.split("/") if parameter.scope else []
        groups.setdefault("/".join(parts[:depth]), []).append(parameter)
    return groups
