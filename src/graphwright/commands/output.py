"""Print results as text or JSON, and errors in a frame, in the words of the command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.panel import Panel
from typer.core import TyperGroup

from graphwright.commands.inputs import EXIT_ERROR, EXIT_INFEASIBLE, running, shared_option
from graphwright.errors import ErrorCode, GraphwrightError, InfeasibleError, printable
from graphwright.plain import plain
from graphwright.report.progress import hide, tell
from graphwright.report.safe_console import SafeConsole
from graphwright.report.terminal_layout import PLAIN_WIDTH, continued
from graphwright.source.tensorflow_import import explaining_missing_tensorflow
from graphwright.source.tracebacks import raised_by_user, users_traceback

_REMEDIES = {
    ErrorCode.OPEN_INPUT: "give its shape: --feed {}=SIZES",
    ErrorCode.OPEN_BATCH: "give --batch N, or --feed {}=SIZES",
    ErrorCode.FIXED_BATCH: "say which size is open, --feed {}=batch,SIZES, or give a target that leaves it open",
    ErrorCode.UNKNOWN_SIZE: "give the full shapes of the inputs, --feed {}=SIZES; a size that depends on data is stated by tf.ensure_shape "
    "behind that node",
    ErrorCode.UNKNOWN_DTYPE: "give a shape that fits, and a dtype other than float32: --feed {}=SIZES:int32",
    ErrorCode.UNTRUSTED: "if you trust where it comes from, add --trust",
    ErrorCode.EXISTS: "add --overwrite",
}
"""By the code of an error, what to do about it on the command line; the braces stand for the name of an input."""
_PARAMETERS = {"feeds": "feed", "order_by": "sort", "batches": "batch", "values": "checkpoint"}
"""Arguments of the library that commands have under another name."""


def print_result(result: Any, *, as_json: bool, parts: Sequence[str] = (), then: str = "") -> None:
    """Print a result: its first screen with more parts, all of it under `--all`; or its JSON."""
    if as_json:
        echo_json(plain(result))
        return
    chosen = ("all",) if shared_option("whole") else parts
    echo(result.text(*chosen) if chosen else str(result))
    if then and not chosen:
        name, _, options = then.partition(" ")
        echo(continued(f"Next: {_next_command(name, options)}", PLAIN_WIDTH))


def _next_command(name: str, options: str) -> str:
    """Return a command on the same target, with the given options that both commands have."""
    context = running()
    assert context is not None
    commands: Any = context.find_root().command
    shared = {parameter.name for parameter in commands.commands[name].params} - {"verbose", "quiet"}
    words = ["graphwright", name]
    for parameter in sorted(context.command.params, key=lambda parameter: parameter.param_type_name):
        value: Any = context.params.get(parameter.name or "")
        counts = parameter.name in shared and value not in (None, (), [], parameter.default) and not isinstance(value, Path)
        items: list[Any] = [*value] if isinstance(value, list) else [value]
        for item in items if counts and parameter.opts[0] not in options.split() else []:
            words += [parameter.opts[0]] * (parameter.param_type_name == "option") + [shlex.quote(str(item))] * (item is not True)
    return " ".join([*words, options])


def echo(text: str) -> None:
    hide()
    typer.echo(printable(text, lines=True))


def echo_json(value: Any) -> None:
    hide()
    typer.echo(json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f"))  # the one control character that JSON leaves


def write_html(result: Any, path: Path | None, *, quiet: bool) -> None:
    """Write the page of a result, if a path was given."""
    if path is None:
        return
    tell("writing the report", 1.0)
    written = result.write_html(path)
    if not quiet:
        echo(f"report written to {written}")


class Commands(TyperGroup):
    """Commands whose errors are printed for a reader: no traceback, an exit code by kind of error."""

    def run(self, ctx: Any) -> Any:
        return super().invoke(ctx)

    def invoke(self, ctx: Any) -> Any:
        try:
            with explaining_missing_tensorflow():
                return self.run(ctx)
        except GraphwrightError as error:
            print_error(error, self.get_command(ctx, ctx.invoked_subcommand or "") or self)
            raise typer.Exit(EXIT_INFEASIBLE if isinstance(error, InfeasibleError) else EXIT_ERROR) from error
        except Exception as error:
            if not raised_by_user(error):
                raise
            hide()
            typer.echo(printable(users_traceback(error), lines=True), err=True)
            raise typer.Exit(EXIT_ERROR) from error


def print_error(error: GraphwrightError, command: Any) -> None:
    """Print an error on standard error: what happened, where, the likely cause and the remedy, in the words of a command."""
    where = ", ".join(filter(None, (_parameter(error, command), *error.places)))
    known = _REMEDIES.get(error.code) if error.code is not None else None
    takes_feeds = any(parameter.name == "feed" for parameter in command.params)
    if known is not None and "--feed" in known and (not takes_feeds or error.remedy.count("': (...)") > 1):
        known = None
    own = _in_options(_as_options(error.remedy) if takes_feeds else error.remedy, command)
    remedy = own if known is None else known.format(error.item or "NAME")
    parts = (("where", where), ("likely cause", error.cause), ("remedy", remedy))
    body = [escape(error.what), *(f"[bold]{label}:[/bold] {escape(text)}" for label, text in parts if text)]
    title = "no plan fits the budget" if isinstance(error, InfeasibleError) else "error"
    SafeConsole(stderr=True).print(Panel("\n".join(body), title=title, title_align="left", border_style="red"))


def _as_options(remedy: str) -> str:
    """Return a remedy that asks for shapes of inputs, as options."""

    def options(feeds: re.Match[str]) -> str:
        return " ".join(f"--feed {name}=SIZES" for name in re.findall(r"'([^']*)': \(", feeds[0]))

    plain = remedy.replace("batch=...", "--batch N").replace('allow="all"', "--allow all")
    return re.sub(r"feeds=\{(?:'[^']*': \(\.\.\.\)(?:, )?)+\}", options, plain)


def _in_options(remedy: str, command: Any) -> str:
    """Return a remedy with options of a command for arguments of a function: `--output NAME` for `outputs=[...]`."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            option = parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} NAME"
            remedy = re.sub(rf"\b{parameter.name}=(True|\[?\.\.\.\]?)?(?=[\s,;)]|$)", option, remedy)
    return remedy


def _parameter(error: GraphwrightError, command: Any) -> str:
    name = _PARAMETERS.get(error.argument, error.argument)
    for parameter in command.params if name else ():
        if parameter.name == name:
            called = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name.upper()
            return f"{parameter.param_type_name} {called} {error.item}".rstrip()
    if error.argument == "path":
        return "" if error.places else "the file"
    return f"argument {error.argument!r} {error.item}".rstrip() if name else ""
