"""The largest batch that fits a budget: predicted and measured.

    python -m bench.max_batch                      # small models, two budgets each
    python -m bench.max_batch --size full resnet50

Measured means that a training step with this batch stays within the budget in a fresh process, and that one with one more example
does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from graphwright.report.sheet import Column, Table
from graphwright.report.units import format_bytes

BUDGETS: dict[str, dict[str, tuple[str, str]]] = {
    "small": {"unet": ("24MiB", "48MiB"), "resnet50": ("20MiB", "60MiB"), "transformer": ("20MiB", "50MiB")},
    "full": {"unet": ("1.5GiB", "3GiB"), "resnet50": ("1GiB", "1.5GiB"), "transformer": ("2GiB", "3GiB")},
}
COLUMNS = ("model", "budget", "predicted", "measured", "needs", "one more", "settled")


def answers(name: str, size: Any, budgets: Sequence[str]) -> list[Any]:
    """A `MaxBatch` for each budget, measured."""
    import tensorflow as tf

    import graphwright as gw
    from bench import zoo

    reference = zoo.make(name, size=size)
    feeds = {key: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for key, value in zip("xy", reference.inputs, strict=True)}
    return [gw.max_batch(reference.step, budget, feeds, measure=True) for budget in budgets]


def rows(name: str, found: Sequence[Any]) -> list[tuple[str, ...]]:
    """A row for each answer."""
    made: list[tuple[str, ...]] = []
    for answer in found:
        needs = {m.batch: "killed" if m.peak_bytes is None else format_bytes(m.peak_bytes, digits=4) for m in answer.measured}
        made.append(
            (
                name,
                format_bytes(answer.budget_bytes, digits=4),
                str(answer.predicted_batch),
                str(answer.batch),
                needs.get(answer.batch, ""),
                needs.get(answer.batch + 1, ""),
                "yes" if answer.is_confirmed else "no",
            )
        )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names in bench.zoo; all that have budgets, without any")
    parser.add_argument("--size", choices=("small", "full"), default="small")
    given = parser.parse_args(arguments)
    budgets = BUDGETS[given.size]
    unknown = [name for name in given.models if name not in budgets]
    if unknown:
        parser.error(f"no budgets for {unknown[0]!r}; there are some for {', '.join(budgets)}")
    lines = [row for name in given.models or budgets for row in rows(name, answers(name, given.size, budgets[name]))]
    columns = [Column[tuple[str, ...]](name, lambda row, k=k: row[k], kind="number" if k else "name") for k, name in enumerate(COLUMNS)]
    print("\n".join(Table(lines, columns, limit=None, fixed=True).lines(80)))


if __name__ == "__main__":
    main()
