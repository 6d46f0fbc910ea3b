"""The table and the JSON of a sweep over batch sizes."""

from __future__ import annotations

from graphwright.report.sweep import SweepPoint, SweepResult


def test_a_sweep_tells_what_fits() -> None:
    points = tuple(SweepPoint(b, 1000 * b, 500, 600, fits=True) for b in (1, 2, 4))
    leaner = SweepResult((SweepPoint(1, 10, 5, 5, fits=True),), 0, None, "")
    sweep = SweepResult(points, 2500, 4, "step", "step").beside(leaner=leaner)
    table = sweep.table()
    assert [row[-1].text for row in table.rows] == ["both", "step", "none"]
    assert [column.label for column in table.columns][1:3] == ["peak, step", "peak, leaner"]
    assert sweep.to_json()["others"].keys() == {"leaner"}  # type: ignore[attr-defined]
