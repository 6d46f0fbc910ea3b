"""The table of layers that an inspection begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphwright.errors import ArgumentError
from graphwright.report.cost_rows import LayerCost, LayerRow, layer_rows, layer_tree
from graphwright.report.inspection import Inspection
from tests.report.samples import full_inspection


def made(*layers: str) -> Inspection:
    """Each layer has 1 parameter and 2 FLOPs, and hands on as many values as there were layers before it."""
    costs = tuple(LayerCost(layer, 1, 1, 2.0, 0.0, 0, 0, activation_bytes=4.0) for layer in sorted(layers))
    return replace(full_inspection(), layers=costs, output_shapes={layer: (k,) for k, layer in enumerate(layers) if layer != "adam"})


def rows_of(inspection: Inspection, depth: int | None = None) -> list[LayerRow]:
    return layer_rows(inspection.layers, inspection.output_shapes, depth)


def total_of(inspection: Inspection) -> LayerCost:
    return layer_tree(inspection.layers, inspection.output_shapes, {}, None).items[-1].cost


def test_layers_add_up_to_what_they_lie_in_in_the_order_in_which_they_run() -> None:
    rows = rows_of(made("stem", "encoder/b", "encoder/a", "head", "adam"))
    assert [row.path for row in rows] == [("stem",), ("encoder",), ("encoder", "b"), ("encoder", "a"), ("head",), ("adam",)]
    assert [row.cost.parameter_count for row in rows] == [1, 2, 1, 1, 1, 1]
    assert [row.shape for row in rows][2:] == [(1,), (2,), (3,), None]
    top = rows_of(made("stem", "encoder/b", "encoder/a", "head", "adam"), depth=1)
    assert [row.path for row in top] == [("stem",), ("encoder",), ("head",), ("adam",)]
    assert sum(row.cost.flops for row in top) == 10


def test_a_flat_model_of_many_layers_is_folded_by_its_blocks() -> None:
    inspection = made("stem", *(f"block_{k}_{part}" for k in range(20) for part in ("conv", "norm", "relu")), "head")
    folded = rows_of(inspection)
    assert [row.path[0] for row in folded] == ["stem", *(f"block_{k}" for k in range(20)), "head"]
    assert {row.cost.parameter_count for row in folded[1:-1]} == {3}
    assert folded[1].shape == inspection.output_shapes["block_0_relu"]
    assert len(rows_of(inspection, depth=2)) == 82


def test_of_many_layers_in_no_block_the_largest_have_rows() -> None:
    inspection = made(*(f"part{chr(97 + k % 26)}{chr(97 + k // 26)}" for k in range(300)), "adam")
    large = {"partaa", "partbb", "partzk"}
    costs = tuple(replace(row, parameter_count=50) if row.layer in large else row for row in inspection.layers)
    inspection = replace(inspection, layers=costs)
    rows = rows_of(inspection)
    assert large <= {row.path[0] for row in rows}
    assert sum(row.path[0].endswith(" layers") for row in rows) > 1
    assert len(rows) <= 41
    assert total_of(inspection).parameter_count == sum(row.parameter_count for row in inspection.layers)
    assert len(rows_of(inspection, depth=1)) == 301


def test_blocks_that_are_alike_have_one_row_with_the_figures_of_each() -> None:
    names = [f"{block}_{k}/{part}" for block in ("block", "other") for k in range(12) for part in ("conv", f"norm_{k}")]
    inspection = replace(made("stem", *names, "head"), output_shapes=dict.fromkeys(("stem", *names, "head"), (1,)))
    odd = [replace(row, parameter_count=5) if row.layer == "block_3/conv" else row for row in inspection.layers]
    inspection = replace(inspection, layers=tuple(odd))
    rows = rows_of(inspection)
    assert [row.label for row in rows if row.depth == 1] == [
        "stem",
        "3 × block_0…2",
        "block_3",
        "8 × block_4…11",
        "12 × other_0…11",
        "head",
    ]
    assert [row.path[-1] for row in rows if row.depth == 2] == [part for k in (0, 3, 4, 0) for part in ("conv", f"norm_{k}")]
    assert [row.cost.parameter_count for row in rows if row.alike] == [2, 2, 2]
    assert total_of(inspection).parameter_count == 2 + 2 * 24 + 4
    assert len(rows_of(inspection, depth=1)) == 6


def test_depth_and_columns_are_chosen() -> None:
    inspection = made("stem", "encoder/a", "encoder/b")
    text = inspection.with_table(depth=1, columns=("shape", "flops")).text("all").split("\n\n")[1].splitlines()
    assert text[0] == "Layers"
    assert [line.split() for line in text[1:]] == [
        ["layer", "output", "shape", "FLOPs"],
        ["stem", "0", "2", "FLOP"],
        ["encoder", "4", "FLOP"],
        ["total", "6", "FLOP"],
    ]
    for wrong in ({"depth": 0}, {"columns": ("shape", "bogus")}):
        with pytest.raises(ArgumentError):
            inspection.with_table(**wrong)
    assert "table" not in inspection.to_json()
