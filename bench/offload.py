"""Offloading to disk compared with recomputation: peak and time. `python -m bench.offload [--folder FOLDER]`.

Each step is planned for each budget, once with recomputation only and once with files. Each peak is measured in a fresh process.
Times are wall times of steps that take turns in one process, relative to the plain step in the same round. They include
the page cache, while the planner prices the disk without it. *Equal* compares all outputs and variables after three steps.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console

_COLUMNS = ("step", "budget", "how", "planned peak", "measured peak", "measured / planned", "resident", "offloaded", "time", "equal")
_MIB = 2**20


def products(dropout: bool = False, layers: int = 12, width: int = 512, batch: int = 8192) -> tuple[Any, Any]:
    """A chain of products, each with a dropout mask from a hidden counter, which cannot be drawn again."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    weights = [tf.Variable(tf.constant(rng.normal(0, 0.05, (width, width)), tf.float32)) for _ in range(layers)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
                y = tf.nn.dropout(y, 0.2) if dropout else y
            loss = tf.reduce_mean(y * y)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step, tf.constant(rng.normal(size=(batch, width)), tf.float32)


STEPS: dict[str, tuple[Callable[[], tuple[Any, Any]], tuple[float, ...]]] = {
    "12 products, batch 8192": (products, (0.3,)),
    "the same, stateful dropout": (lambda: products(dropout=True), (0.28, 0.2)),
}


def rows(name: str, make: Callable[[], tuple[Any, Any]], budgets: tuple[float, ...], folder: str) -> Iterator[list[str]]:
    """The lines of one step."""
    import graphwright as gw

    step, inputs = make()
    plain = gw.measure(step, inputs, steps=7)
    yield [name, "", "as it is", "", f"{plain.peak_bytes / _MIB:.1f}", "", f"{plain.resident_bytes / _MIB:.1f}", "", "1", ""]
    for share in budgets:
        for how, options in (("recompute", {}), ("and files", {"offload_to": folder})):
            start = [name, f"{share:.0%}", how]
            try:
                fast = gw.optimize_memory(step, share, inputs=inputs, cache_dir=None, **options)
            except gw.InfeasibleError as error:
                yield [*start, f"none; {error.smallest_budget_bytes / _MIB:.1f} at least", *[""] * 6]
                continue
            plan, measured = fast.plan, gw.measure(fast, inputs, steps=7)
            ratio = gw.measure_many({"plain": step, "planned": fast}, inputs, steps=7)["planned"].ratio
            equal = "bit for bit" if gw.verify(step, fast, inputs, steps=3).bitwise else "no"
            figures = [f"{nbytes / _MIB:.1f}" for nbytes in (plan.peak_bytes, measured.peak_bytes)]
            figures += [f"{measured.peak_bytes / plan.peak_bytes:.3f}", f"{measured.resident_bytes / _MIB:.1f}"]
            yield [*start, *figures, f"{plan.offloaded_bytes / _MIB:.1f}", f"{ratio:.2f}", equal]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=None, help="where files go; the system's folder of temporary files without it")
    parser.add_argument("--steps", nargs="*", default=list(STEPS), choices=list(STEPS))
    given = parser.parse_args()
    console = Console(width=200)
    console.print("| " + " | ".join(_COLUMNS) + " |", markup=False)
    console.print("|" + "---|" * len(_COLUMNS), markup=False)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name in given.steps:
            for row in rows(name, *STEPS[name], folder):
                console.print("| " + " | ".join(row) + " |", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
