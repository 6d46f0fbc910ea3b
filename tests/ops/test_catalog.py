"""The families of operations, joined."""

from __future__ import annotations

from collections import Counter

import pytest

from graphwright.ops.catalog import FAMILIES


@pytest.mark.parametrize("fact", ["splits", "scratch", "weights", "traffic", "bytes_per_s"])
def test_each_fact_about_an_op_type_stands_in_one_place(fact: str) -> None:
    counts = Counter(op_type for family in FAMILIES for names in getattr(family, fact) for op_type in names.split())
    assert [op_type for op_type, count in counts.items() if count > 1] == []


def test_each_op_type_has_one_count_of_flops() -> None:
    entries = [entry for family in FAMILIES for group in family.flops.values() for entry in group]
    counts = Counter(op_type for names, _, _ in entries for op_type in names.split())
    assert [op_type for op_type, count in counts.items() if count > 1] == []
