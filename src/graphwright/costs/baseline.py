"""Files of costs: what a step cost once, to hold a later one against. JSON of a stated version, checked field by field."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import file_for_user
from graphwright.plan.json_file import FieldReader, read_json
from graphwright.report.comparison import FIGURES, LayerFigures, StepCosts

FORMAT = "graphwright costs"
VERSION = 1
_WRITE = "write it: graphwright check TARGET --write-baseline FILE"
_WRITE_AGAIN = _WRITE.replace("write it", "write it again")
_FLOATS = frozenset({"forward_flops", "backward_flops", "optimizer_flops"})


def is_costs_file(target: Any) -> bool:
    """Whether a target is the path of such a file, by its name."""
    return isinstance(target, str | Path) and Path(target).suffix == ".json"


def write_costs(costs: StepCosts, path: str | Path) -> Path:
    """Write what a step costs to a file, which is replaced as a whole; returns the path.

    Raises:
        ArgumentError: the name does not end in `.json`, or the folder is not there.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ArgumentError(f"{path.name!r} does not end in .json", argument="path", remedy=f"call it {path.with_suffix('.json').name}")
    with file_for_user(path) as stream:
        json.dump({"format": FORMAT, "version": VERSION, **costs.to_json()}, stream, indent=1)
    return path


def read_costs(path: str | Path) -> StepCosts:
    """Read what `write_costs` wrote.

    Raises:
        FileFormatError: it is not there, is of another kind or version, or a field is missing or wrong; the message names file and field.

    >>> import tempfile
    >>> layer = LayerFigures("model/conv", 3, 10, 100.0, 200.0, 10.0, 40, 40)
    >>> costs = StepCosts("step", {"x": (8, 3)}, dict.fromkeys(FIGURES, 1.0), (layer,), (), {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_costs(write_costs(costs, Path(folder) / "costs.json")) == costs
    True
    """
    path = Path(path)
    if not path.exists():
        raise FileFormatError("there is no such file", where=str(path), remedy=_WRITE.replace("FILE", path.name))
    data = read_json(path)
    read = FieldReader(path)
    for field, wanted, cause in (
        ("format", FORMAT, "the file holds something else"),
        ("version", VERSION, "it was written by another version of graphwright"),
    ):
        if data.get(field) != wanted:
            what = f"field {field!r} must be {wanted!r}, it is {data.get(field)!r:.60}"
            raise FileFormatError(what, where=str(path), cause=cause, remedy=_WRITE_AGAIN)
    given = read.record(read.get(data, "figures", "figures"), "figures")
    figures = {name: read.number(read.get(given, name, f"figures.{name}"), f"figures.{name}") for name in FIGURES}
    feeds = read.record(read.get(data, "feeds", "feeds"), "feeds")
    how = read.record(read.get(data, "how", "how"), "how")
    unknown = read.items(read.get(data, "unknown_flop_ops", "unknown_flop_ops"), "unknown_flop_ops")
    return StepCosts(
        name=str(read.get(data, "name", "name")),
        feeds={
            name: tuple(read.integer(size, f"feeds.{name}[{k}]") for k, size in enumerate(read.items(shape, f"feeds.{name}")))
            for name, shape in feeds.items()
        },
        figures=figures,
        layers=tuple(
            _layer(read, read.record(row, f"layers[{k}]"), f"layers[{k}]")
            for k, row in enumerate(read.items(read.get(data, "layers", "layers"), "layers"))
        ),
        unknown_flop_ops=tuple(str(name) for name in unknown),
        how={key: str(text) for key, text in how.items()},
    )


def _layer(read: FieldReader, row: dict[str, Any], field: str) -> LayerFigures:
    values: dict[str, Any] = {}
    for own in fields(LayerFigures):
        name = f"{field}.{own.name}"
        given = read.get(row, own.name, name)
        values[own.name] = (
            str(given) if own.name == "layer" else read.number(given, name) if own.name in _FLOATS else read.integer(given, name)
        )
    return LayerFigures(**values)
