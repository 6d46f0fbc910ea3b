"""Options that commands about costs share, and what they are read as."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from graphwright.commands.inputs import Mode, load_target, parse_amount, path_of
from graphwright.errors import ArgumentError
from graphwright.source.tensorflow_import import start_quietly

_FEED_HELP = "Shape of one input: NAME=8,572,572,1 or, with a dtype, NAME=8:int32. Once per input."


_OPEN_FEED_HELP = f"{_FEED_HELP} The word batch leaves a size open."


Feeds = Annotated[list[str] | None, typer.Option("--feed", help=_FEED_HELP, show_default=False)]


OpenFeeds = Annotated[list[str] | None, typer.Option("--feed", help=_OPEN_FEED_HELP, show_default=False)]


BatchFeeds = Annotated[
    list[str] | None,
    typer.Option("--feed", help="Shape of one input; the word batch, or else the first dimension, is the batch.", show_default=False),
]


Outputs = Annotated[
    list[str] | None,
    typer.Option("--outputs", help="Of a graph: what is fetched, by name; once per name, or with commas.", show_default=False),
]


ModeOption = Annotated[Mode, typer.Option("--mode", help="Of a Keras model: the training step, or the forward pass alone.")]


class Order(StrEnum):
    """In which order operations run."""

    TRACED = "traced"
    EXECUTOR = "executor"


OrderOption = Annotated[Order, typer.Option("--order", help="The order in which the step was traced, or that of TensorFlow's executor.")]


def names_in(texts: Sequence[str] | None) -> list[str] | None:
    """Names, each text holding one or several with commas between."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if not all(names):
        raise ArgumentError(f"{','.join(texts or ())!r} holds an empty name", where="option --outputs")
    return names or None


def path_or_loaded(target: str) -> Any:
    """A file stays a path, since it may hold what no signature reaches; else what `module:name` names."""
    start_quietly()
    return path_of(target) if Path(target).exists() else load_target(target)


def loaded_target(target: str, outputs: Sequence[str] | None = None, *, runs: bool = False) -> Any:
    """What TARGET names; a graph whose outputs are given, and a baseline, stay a path."""
    if Path(target).exists() and (outputs is not None or Path(target).suffix == ".json"):
        start_quietly()
        return path_of(target)
    return load_target(target, runs=runs)


def bytes_in(text: str) -> int | str:
    """An amount of bytes as the library takes it; a fraction stays text, which is refused there."""
    amount = parse_amount(text)
    return text if isinstance(amount, float) else amount
