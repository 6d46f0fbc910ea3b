"""The commands about costs: parse, call, print. `add_to(app)` puts them into the command line, whose commands print errors."""

from __future__ import annotations

import typer

from graphwright.commands.costs.guards import check, compare
from graphwright.commands.costs.measured import profile
from graphwright.commands.costs.static import flops, formulas, max_batch, params, peak, shapes, sweep


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the command line, listed in this panel of its help."""
    for command in (flops, params, shapes, peak, formulas, sweep, max_batch, profile, compare, check):
        app.command(command.__name__.replace("_", "-"), rich_help_panel=panel)(command)
