"""Plans as files: all that a report of them shows, and what it takes to follow them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from graphwright.errors import FileFormatError, in_words
from graphwright.files import file_for_user
from graphwright.plain import from_plain, plain
from graphwright.plan.json_file import read_json
from graphwright.report.draw import drawn
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.results import MemoryPlan

_FORMAT = "graphwright memory plan"
_VERSION = 1


def load_plan(path: str | Path) -> MemoryPlan:
    """Read a plan that `MemoryPlan.save` wrote: it is shown as it was, and `optimize_memory(step, plan=plan)` follows it without a search.

    Raises:
        FileFormatError: the file is not there, or holds no such plan; the message names what is wrong.

    >>> import tempfile, tensorflow as tf
    >>> from graphwright import optimize_memory
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.tanh(x)))
    >>> fast = optimize_memory(step, "64KiB", inputs=tf.ones((64, 64)), cache_dir=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load_plan(fast.plan.save(f"{folder}/plan.json"))
    >>> again == fast.plan
    True
    >>> optimize_memory(step, plan=again, inputs=tf.ones((64, 64))).plan.peak_bytes == fast.plan.peak_bytes
    True
    """
    file = read_json(Path(path))
    if file.data.get("format") != _FORMAT:
        raise FileFormatError("holds no plan", where=str(path), remedy="give a file that plan.save(path) wrote")
    if file.data.get("version") != _VERSION:
        raise file.fail("version", f"must be {_VERSION}, it is {file.data.get('version')!r:.60}")
    try:
        plan = from_plain(MemoryPlan, file.value("plan"), "plan", PeakPrediction=PeakPrediction)
        for form in ("text", "page", "json"):
            drawn(plan, form)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        cause = "the file was edited, or written by another version"
        raise FileFormatError(f"holds a plan that nothing can show: {in_words(error)}", where=str(path), cause=cause) from error
    return plan


def writer(plan: MemoryPlan) -> Callable[[Path], Path]:
    """What writes a plan to a path."""
    return partial(_write, plan)


def _write(plan: MemoryPlan, path: Path) -> Path:
    with file_for_user(path) as stream:
        json.dump({"format": _FORMAT, "version": _VERSION, "plan": plain(plan, whole=True)}, stream, separators=(",", ":"))
    return path
