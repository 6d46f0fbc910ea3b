"""The peak of one or several steps against the batch size, as one HTML file that needs no network."""

from __future__ import annotations

from graphwright.report.page import page_data, render_page
from graphwright.report.sweep import SweepResult


def sweep_page(sweep: SweepResult) -> str:
    top = max((point.peak_bytes for other in sweep.all.values() for point in other.points), default=0)
    return render_page(
        "sweep.html",
        scripts=("sweep.js",),
        name=sweep.name or "sweep",
        feeds={},
        tabs=[],
        verdict=sweep.verdict,
        tone="neutral" if not sweep.budget_bytes else "good" if sweep.largest_batch else "bad",
        summary=sweep.summary,
        planned=bool(sweep.others),
        table=sweep.table(),
        origins=sweep.origins(),
        data=page_data(
            top,
            sweep.budget_bytes or None,
            sweep=[
                {
                    "name": name,
                    "batches": [p.batch for p in other.points],
                    "peaks": [p.peak_bytes for p in other.points],
                    "residents": [p.resident_bytes for p in other.points],
                }
                for name, other in sweep.all.items()
            ],
        ),
    )
