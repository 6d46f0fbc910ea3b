"""A FLOP count as text and as JSON."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest

from graphwright.analyze.formula import Formula
from graphwright.report.flop_count import FlopCount, FlopRow, UnknownOps

LINE = Formula((Fraction(3), Fraction(2_000_000)))


def count(**changes) -> FlopCount:
    given = {
        "name": "step",
        "feeds": {"x": (8, 4)},
        "node_count": 40,
        "forward": 1e9,
        "backward": 2e9,
        "optimizer": 5e6,
        "bytes_moved": 1e8,
        "unknown": {"MyOp": UnknownOps(3, "no rule", 0.075, 0.5)},
        "per_op_type": {f"Op{k}": FlopRow(f"Op{k}", k, 1e6 * k, 0, 0, 1e5) for k in range(1, 20)},
        "per_layer": {"": FlopRow("", 2, 1e6, 2e6, 0.0, 0.0), "block/" + "deep/" * 30: FlopRow("block/" + "deep/" * 30, 2, 1.0, 0, 0, 8)},
        "how": {"FLOPs": "counted " * 30},
        "loops": {"while": "10 iterations"},
        "branches": {"cond": (1e6, 3e6)},
    }
    return FlopCount(**(given | changes))


def test_the_text_says_what_matters_in_80_columns():
    text = count().text("all")
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == "step: 3.00 GFLOP per step; 3 of 40 ops could not be counted."
    for part in ("1.00 GFLOP", "2.00 GFLOP", "5.00 MFLOP", "MyOp", "no rule", "10 iterations", "1.00 MFLOP or 3.00 MFLOP", "7 more"):
        assert part in text


def test_formulas_stand_where_figures_would():
    nan = math.nan
    row = FlopRow("MatMul", 1, nan, nan, nan, nan, 0, LINE)
    opened = count(forward=nan, backward=nan, optimizer=nan, bytes_moved=nan, unknown={}, feeds={"x": (None, 4)},
                   per_op_type={"MatMul": row}, formulas={"forward": LINE, "total": LINE})  # fmt: skip
    text = opened.text("all")
    assert text.startswith("step: 2,000,000 * batch + 3 FLOP per step.")
    assert "x (batch, 4)" in text
    assert "nan" not in text
    assert opened.formula(2) == 4_000_003


def test_json_holds_plain_numbers():
    data = json.loads(json.dumps(count(bytes_moved=math.nan).to_json(), allow_nan=False))
    assert data["total_flops"] == 3_005_000_000
    assert data["bytes_moved"] is None
    assert data["unknown"]["MyOp"] == {"count": 3, "reason": "no rule", "node_share": 0.075, "bytes_share": 0.5}
    assert data["per_op_type"]["Op2"]["forward_flops"] == 2_000_000


def test_shares_and_intensity():
    row = count().per_op_type["Op2"]
    assert row.arithmetic_intensity == pytest.approx(20)
    assert math.isnan(count().per_layer[""].arithmetic_intensity)
    assert count().arithmetic_intensity == pytest.approx(30.05)


def test_names_are_no_markup():
    text = count(name="[red]step", unknown={"[b]Op\n": UnknownOps(1, "no rule", 1.0, math.nan)}).text("all")
    assert "[red]step" in text
    assert "[b]Op" in text
