"""Files of costs: the figures of a step, kept for a later comparison. JSON of a stated version, checked field by field."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import file_for_user
from graphwright.plain import from_plain
from graphwright.plan.json_file import read_json
from graphwright.report.comparison import FIGURES, StepCosts

FORMAT = "graphwright costs"
VERSION = 2
_WRITE = "write it: graphwright check TARGET --write-baseline FILE"
_WRITE_AGAIN = _WRITE.replace("write it", "write it again")
_OF_UNKNOWN_DIRECTION = ("forward_flops", "backward_flops", "optimizer_flops")


def is_costs_file(target: Any) -> bool:
    return isinstance(target, str | Path) and Path(target).suffix == ".json"


def write_costs(costs: StepCosts, path: str | Path) -> Path:
    """Write the costs of a step to a file, which is replaced as a whole; return the path.

    Raises:
        ArgumentError: the name does not end in `.json`, or the folder does not exist.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ArgumentError(f"{path.name!r} does not end in .json", argument="path", remedy=f"call it {path.with_suffix('.json').name}")
    with file_for_user(path) as stream:
        json.dump({"format": FORMAT, "version": VERSION, **costs.to_json()}, stream, indent=1)
    return path


def read_costs(path: str | Path) -> StepCosts:
    """Read a file of `write_costs`.

    Raises:
        FileFormatError: it is missing, of another kind or version, or a field is missing or wrong; the message names file and field.

    >>> import tempfile
    >>> from graphwright.report.comparison import LayerFigures
    >>> layer = LayerFigures("model/conv", 3, 10, 100.0, 200.0, 10.0, 40, 40)
    >>> costs = StepCosts("step", {"x": (8, 3)}, dict.fromkeys(FIGURES, 1.0), (layer,), (), {}, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_costs(write_costs(costs, Path(folder) / "costs.json")) == costs
    True
    """
    path = Path(path)
    if not path.exists():
        raise FileFormatError("there is no such file", where=str(path), remedy=_WRITE.replace("FILE", path.name))
    file = read_json(path)
    for field, wanted, cause in (
        ("format", FORMAT, "the file holds something else"),
        ("version", VERSION, "it was written by another version of graphwright"),
    ):
        if file.data.get(field) != wanted:
            what = f"field {field!r} must be {wanted!r}, it is {file.data.get(field)!r:.60}"
            raise FileFormatError(what, where=str(path), cause=cause, remedy=_WRITE_AGAIN)
    try:
        costs = from_plain(StepCosts, {key: value for key, value in file.data.items() if key not in ("format", "version")}, "costs")
    except TypeError as error:
        raise FileFormatError(str(error), where=str(path), remedy=_WRITE_AGAIN) from error
    for name in FIGURES:
        amount = costs.figures.get(name, -1.0)
        if not (amount >= 0 or (math.isnan(amount) and name in _OF_UNKNOWN_DIRECTION)):
            raise FileFormatError(f"field costs.figures.{name} is missing or no amount", where=str(path), remedy=_WRITE_AGAIN)
    return costs
