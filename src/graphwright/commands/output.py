"""What commands print: results as text or JSON, errors in a frame, in the words of the command line."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import typer
from rich.markup import escape
from rich.panel import Panel

from graphwright.errors import GraphwrightError, InfeasibleError, printable
from graphwright.report.safe_console import SafeConsole

_FEED = re.compile(r"(?:feeds=|it to feeds: )\{'([^']+)': \(\.\.\.\)\}")
_FEED_OF = re.compile(r"feeds\['([^']+)'\]")
_ARGUMENT = re.compile(r"argument '(\w+)'")
_NAMED = re.compile(r"argument '(\w+)'(?= of )")
_FEEDS = "argument 'feeds'"
_OPTIONS = {"order_by": "sort"}
_ARGUMENTS = {"target": "argument TARGET", "path": "the file"}
"""Words of the library that the command line says otherwise."""


def print_result(result: Any, *, as_json: bool) -> None:
    """Print a result: its text, or what its `to_json` gives."""
    if not as_json:
        echo(str(result))
        return
    echo_json(to_plain(result.to_json() if hasattr(result, "to_json") else result))


def echo(text: str) -> None:
    """Print lines."""
    typer.echo(printable(text, lines=True))


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON, in ASCII."""
    typer.echo(json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f"))  # the one control character that JSON leaves


def write_html(result: Any, path: Path | None, *, quiet: bool) -> None:
    """Write the page of a result, where a path was given."""
    if path is None:
        return
    written = result.write_html(path)
    if not quiet:
        echo(f"report written to {written}")


def to_plain(value: object) -> Any:
    """A result as JSON can hold it: dataclasses as objects, tuples as lists, nan and infinity as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def print_error(error: GraphwrightError) -> None:
    """Print an error on standard error: what happened, where, the likely cause and the remedy."""
    body = [escape(error.what)]
    body += [
        f"[bold]{label}:[/bold] {escape(in_options(text))}"
        for label, text in (("where", error.where), ("likely cause", error.cause), ("remedy", error.remedy))
        if text
    ]
    title = "no plan fits the budget" if isinstance(error, InfeasibleError) else "error"
    SafeConsole(stderr=True).print(Panel("\n".join(body), title=title, title_align="left", border_style="red"))


def in_options(text: str) -> str:
    """What the library says of arguments, in the words of the command line.

    >>> in_options("bind it: feeds={'x': (...)}, or give example inputs")
    'bind it: --feed x=SIZES'
    >>> in_options("argument 'max_peak'"), in_options("feeds['y']")
    ('option --max-peak', 'option --feed y')
    """
    text = (
        _FEED.sub(r"--feed \1=SIZES", text)
        .replace("feeds={name: shape}", "--feed NAME=SIZES")
        .replace("batch=...", "--batch N")
        .replace(" (on the command line: --batch N)", "")
        .replace(", or give example inputs", "")
        .replace(", or example inputs (inputs=...)", "")
    )
    text = _NAMED.sub(r"input '\1'", text)
    text = _FEED_OF.sub(r"option --feed \1", text).replace(_FEEDS, "option --feed")
    return _ARGUMENT.sub(
        lambda found: _ARGUMENTS.get(found[1], f"option --{_OPTIONS.get(found[1], found[1]).replace('_', '-')}"),
        text,
    )
