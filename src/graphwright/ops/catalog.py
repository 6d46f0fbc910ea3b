"""All families of operations, joined into one table per fact."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from graphwright.ops import (
    contraction,
    control_flow,
    convolution,
    data,
    elementwise,
    images,
    linear_algebra,
    lists,
    movement,
    normalization,
    pooling,
    quantized,
    random,
    recurrent,
    reduction,
    variables,
)
from graphwright.ops.dimensions import SplitRule
from graphwright.ops.family import FlopRule, ScratchRules, Traffic

FAMILIES = tuple(
    module.FAMILY
    for module in (
        movement, lists, control_flow, variables, data, elementwise, reduction, random, contraction, convolution, pooling, images,
        normalization, linear_algebra, recurrent, quantized,
    )
)  # fmt: skip
_Fact = TypeVar("_Fact")


def _by_type(tables: Iterable[Mapping[str, _Fact]]) -> dict[str, _Fact]:
    return {op_type: fact for table in tables for names, fact in table.items() for op_type in names.split()}


def _types(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(op_type for text in texts for op_type in text.split())


FLOPS = _by_type(
    {names: FlopRule(group, formula, count)}
    for family in FAMILIES
    for group, entries in family.flops.items()
    for names, formula, count in entries
)
SPLITS: dict[str, SplitRule] = _by_type(family.splits for family in FAMILIES)
SCRATCH: dict[str, ScratchRules] = _by_type(family.scratch for family in FAMILIES)
WEIGHTS = _by_type(family.weights for family in FAMILIES)
WEIGHT_PASSES = _types(family.weight_passes for family in FAMILIES)
TRAFFIC: dict[str, Traffic] = _by_type(family.traffic for family in FAMILIES)
BYTES_PER_S = _by_type(family.bytes_per_s for family in FAMILIES)
PRODUCTS = _types(family.products for family in FAMILIES)
WIDENS = _types(family.widens for family in FAMILIES)
CHEAP = _types(family.cheap for family in FAMILIES)
ROWS_IN_DATA = {prefix: reason for family in FAMILIES for prefix, reason in family.rows_in_data.items()}
