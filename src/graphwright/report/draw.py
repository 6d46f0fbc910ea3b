"""Who draws the values that users get. A value names no drawer: it asks here, and the drawer is loaded when it is first needed.

So values stand below what draws them, and a result can be made, sent and compared without any of it.
"""

from __future__ import annotations

from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from graphwright.plain import Result

Form = Literal["text", "page", "verdict", "json", "annotations", "file"]
Part = Literal["layers", "chart", "all"]

DRAWERS: dict[Form, dict[str, str]] = {
    "text": {
        "Advice": "terminal_advice.print_advice",
        "CheckResult": "terminal_comparison.print_check",
        "Comparison": "terminal_comparison.print_comparison",
        "FlopCount": "terminal_flops.print_flop_count",
        "Inspection": "terminal.print_inspection",
        "MaxBatch": "terminal_batch.print_max_batch",
        "MemoryPlan": "terminal.print_plan",
        "OutOfMemory": "terminal_advice.print_out_of_memory",
        "ParameterTable": "terminal_parameters.print_parameters",
        "PeakPrediction": "terminal_peak.print_peak",
        "Profile": "terminal_profile.print_profile",
        "ProfileTree": "terminal_profile.print_tree",
        "ShapeReport": "terminal_shapes.print_shapes",
        "StepCosts": "terminal_comparison.print_costs",
        "SweepResult": "terminal_batch.print_sweep",
        "Timeline": "terminal.print_timeline",
    },
    "page": {
        "Comparison": "comparison_page.comparison_page",
        "Inspection": "inspection_page.inspection_page",
        "MemoryPlan": "inspection_page.plan_page",
        "SweepResult": "sweep_page.sweep_page",
    },
    "verdict": {"Inspection": "terminal.inspection_verdict", "MemoryPlan": "terminal.plan_verdict"},
    "file": {"MemoryPlan": "plan_file.writer"},
    "annotations": {"CheckResult": "terminal_comparison.github_annotations"},
    "json": {"Inspection": "json_form.inspection_json", "MemoryPlan": "json_form.plan_json"},
}
"""Form -> type of the value -> module of this package, and the function in it that takes the value; for text, and the page it goes to."""


def drawn(value: object, form: Form, *parts: Part) -> Any:
    """The value in a form; as text, its first screen and these parts."""
    drawers = DRAWERS[form]
    draw = _loaded(next(drawers[kind.__name__] for kind in type(value).__mro__ if kind.__name__ in drawers))
    return _loaded("terminal_layout.rendered")(draw, value, parts=parts) if form == "text" else draw(value)


def _loaded(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(import_module(f"graphwright.report.{module}"), function)


class Printed(Result):
    """A value that prints its first screen, at most 14 lines of 80 columns; notebooks show the same text."""

    __slots__ = ()

    def text(self, *parts: Part) -> str:
        """Return the text that `print` shows, with more parts of the result.

        Args:
            parts: "layers" for the table of layers, "chart" for memory over the step, where the result has them; "all" for every section,
                with how each figure was obtained.

        >>> import tensorflow as tf, graphwright as gw
        >>> report = gw.predict_peak(tf.function(lambda x: tf.nn.relu(x) + 1.0), {"x": (256, 256)})
        >>> "How each figure was obtained" in report.text("all"), "How each figure" in report.text()
        (True, False)
        """
        return drawn(self, "text", *parts)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class OnPage:
    """A value with a report of its own."""

    __slots__ = ()

    def write_html(self, path: str | Path) -> Path:
        """Write the report as one offline HTML file; a file that is there is replaced.

        Raises:
            ArgumentError: `path` is a folder, lies in no folder, or cannot be written.

        Returns:
            The path.
        """
        return _loaded("page.write_page")(Path(path), drawn(self, "page"))
