"""Arguments of commands, from text: targets, feeds, batch sizes, amounts; and the options that commands share."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import CallbackParam

from graphwright.analyze.device_models import DEVICES, HERE, find_device
from graphwright.errors import ArgumentError, FileFormatError, located
from graphwright.files import check_file_for_user
from graphwright.plan.budget import Budget
from graphwright.report.progress import lines_every, lines_of_progress, shown, silent, tell
from graphwright.source.keras_file import check_keras_archive
from graphwright.source.model_folder import check_is_model, refuse_remote
from graphwright.source.tensorflow_import import import_tensorflow, start_quietly
from graphwright.source.tracebacks import user_code
from graphwright.source.trust import check_trusted, trust

_NAMED = 8
_OPTIONAL = ("jax", "sklearn")
_PACE_S = 10.0  # between lines of progress in a log
EXIT_ERROR = 2
EXIT_INFEASIBLE = 3
EXIT_CHECK_FAILED = 4

_TARGET_HELP = (
    "A .keras file, a SavedModel folder, a GraphDef .pb or MetaGraphDef .meta file, or module:name or file.py:name, which is imported: a "
    "tf.function, a Keras model, a tf.Graph, or a function without arguments that makes one."
)
_FEED_HELP = "Shape of one input: NAME=8,572,572,1 or, with a dtype, NAME=8:int32; its value: NAME==50. Once per input."


def unset(help: str, *names: str, **words: Any) -> Any:  # noqa: A002 - as typer calls it
    return typer.Option(*names, help=help, show_default=False, **words)


def checked(parameter: CallbackParam, path: Path | None) -> Path | None:
    """Return a path to write to, after checking that it can be written."""
    if path is not None:
        with located(f"option {parameter.opts[0]}"):
            if path.suffix in (".keras", ".h5", ".pb", ".py") and path.exists():
                raise ArgumentError(f"{path} is a model or a program, and would be overwritten", remedy="name another file")
            check_file_for_user(path)
    return path


def known_device(name: str) -> str:
    find_device(name)
    return name


def place_of_copies(text: str | None) -> str | None:
    """Return a device, or a folder that takes files."""
    if text is not None and not re.fullmatch(r"(CPU|GPU):\d+", text) and not os.access(text, os.W_OK | os.X_OK):
        what = f"the folder {text!r} takes no files" if Path(text).is_dir() else f"there is no folder {text!r}"
        raise ArgumentError(what, where="option --offload-to", remedy="give a folder on a disk with space, or a device such as CPU:1")
    return text


def written_file(help: str, name: str, **words: Any) -> Any:  # noqa: A002 - as typer calls it
    """Return an option for a file to write, which is checked before any work is done."""
    return unset(help, name, callback=checked, **words)


Mode = Literal["auto", "train", "infer"]
Order = Literal["traced", "executor"]
Target = Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET_HELP, show_default=False)]
ModeOption = Annotated[
    Mode, typer.Option("--mode", help="For a Keras model: its training step or its inference; auto: its training step if it is compiled.")
]
Batch = Annotated[int | None, unset("Batch size, where the inputs leave it open.", min=1)]
Feeds = Annotated[list[str] | None, unset(_FEED_HELP, "--feed")]
OpenFeeds = Annotated[list[str] | None, unset(f"{_FEED_HELP} The word batch leaves a size open.", "--feed")]
BatchFeeds = Annotated[list[str] | None, unset("Shape of one input; the word batch, or else the first dimension, is the batch.", "--feed")]
Outputs = Annotated[list[str] | None, unset("Of a graph: what is fetched, by name; once per name, or with commas.", "--outputs")]
OrderOption = Annotated[Order, typer.Option("--order", help="The order of operations: TensorFlow's executor's, or the traced one.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        callback=known_device,
        help=f"The device of predicted peaks: {', '.join((HERE, *DEVICES))}; the GPU may be absent, see docs/devices.md.",
    ),
]
Html = Annotated[Path | None, written_file("Write the report to this file.", "--html")]
Layers = Annotated[bool, typer.Option("--layers", help="Print the table of layers too.")]
Chart = Annotated[bool, typer.Option("--chart", help="Print memory over the step too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


_running: ContextVar[typer.Context | None] = ContextVar("command", default=None)
_WHOLE = Annotated[bool, typer.Option("--all", help="Print every section, and how each figure was obtained.")]
_ON_ALL = {
    "trust": Annotated[bool, typer.Option("--trust", help="Code in the files may run: Lambda layers, and the model itself.")],
    "imports": Annotated[list[str] | None, unset("A module, or file.py, that registers custom layers.", "--import", metavar="MODULE")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.")],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for each task, with its seconds.")],
}


def takes_trust(command: Callable[..., None], *, shows: bool) -> Callable[..., None]:
    """Add the options of all commands that read a model: `--trust`, progress, and `--all` for results."""

    @wraps(command)
    def run(context: typer.Context, **words: Any) -> None:
        before, options = _running.set(context), {name: words.pop(name) for name in shared}
        try:
            verbose = options["verbose"]
            at_once = verbose or sys.stderr.isatty()
            progress = shown(lines_of_progress() if verbose else None, after_s=0.0) if at_once else lines_every(_PACE_S)
            with silent() if options["quiet"] else progress:
                command(**words)
        finally:
            _running.reset(before)

    signature = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = _ON_ALL | ({"whole": _WHOLE} if shows else {})
    options = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in shared.items()]
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    run.__signature__ = signature.replace(parameters=[first, *signature.parameters.values(), *options])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {"context": typer.Context, **command.__annotations__, **shared}
    return run


def running() -> typer.Context | None:
    return _running.get()


def shared_option(name: str) -> Any:
    """Return the value of a shared option ("trust", "imports" or "whole"); None outside of a command."""
    context = _running.get()
    return None if context is None else context.params.get(name)


def load_target(text: str, *, runs: bool = False) -> Any:
    """Return the target of an argument: the path of a file or folder, or the imported object `module:name` or `file.py:name`."""
    path, module_name, attributes = _checked_target(text, runs=runs)
    tell("starting TensorFlow")
    of_user = not path.exists() or shared_option("imports")
    with nullcontext() if of_user else _without_optional():
        start_quietly()
    for name in shared_option("imports") or ():
        _imported(name, "option --import")
    if path.exists():
        tell(f"reading {path.name}")
        return path
    target = _imported(module_name, f"argument TARGET, {text!r}")
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            members: dict[str, Any] = getattr(target, "__dict__", {})  # no property is evaluated
            here = [name for name, value in members.items() if name[0] != "_" and not inspect.ismodule(value)]
            where = f"argument TARGET, {text!r}"
            raise ArgumentError(f"{module_name!r} has no {attribute!r}", where=where, remedy=_one_of(module_name, here) if here else "")
        target = getattr(target, attribute)
    from graphwright.source.load import made_by

    return made_by(target)


@contextmanager
def _without_optional() -> Generator[None]:
    """Keep packages out that TensorFlow and Keras import only if they are installed: a third of the time of their import.

    Not where a user's code runs, which may need TensorFlow's converter for jax, or Keras' wrappers for scikit-learn.
    """
    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))  # None makes their import fail
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def load_targets(*texts: str, runs: bool = False) -> list[Any]:
    for text in texts:
        _checked_target(text, runs=runs)
    return [load_target(text, runs=runs) for text in texts]


def _checked_target(text: str, *, runs: bool) -> tuple[Path, str, str]:
    """Return the path of a target, and else its module and name, before TensorFlow is loaded."""
    path = trust(text) if shared_option("trust") else Path(text)
    if not path.exists():
        refuse_remote(text)
    module_name, colon, attributes = ("", "", "") if path.exists() else text.rpartition(":")
    body, of_module, *_ = map(_statements, (text, module_name, *(shared_option("imports") or ())))
    if body is not None:
        raise ArgumentError("a Python file was given", where="argument TARGET", remedy=_one_of(text, _names(body)))
    is_module = of_module is not None or re.fullmatch(r"(?!.*\.py$)\w+(\.\w+)*", module_name)
    if not path.exists() and (not colon or not is_module or not re.fullmatch(r"\w+(\.\w+)*", attributes)):
        raise ArgumentError(
            f"there is no file or folder {module_name if module_name.endswith('.py') else text!r}",
            where="argument TARGET",
            remedy="give the path of a model, file.py:name or module:name, for example my_project.training:train_step",
        )
    if path.exists() and runs:
        check_trusted(path, "running the model")
    if path.is_dir():
        check_is_model(path)
    elif path.suffix == ".keras":
        check_keras_archive(path)
    elif path.is_file() and not path.stat().st_size:
        raise FileFormatError("the file is empty", where=text)
    return path, module_name, attributes


def _statements(text: str) -> list[ast.stmt] | None:
    """Return the statements of a Python file, before TensorFlow is loaded; None for anything else."""
    if not text.endswith(".py") or not Path(text).is_file():
        return None
    try:
        return ast.parse(Path(text).read_bytes()).body
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ArgumentError(f"the file is not Python: {error.msg}", where=f"{text}, line {error.lineno}: {line}") from error


def _imported(name: str, where: str) -> Any:
    if "" not in sys.path:  # the installed command does not look into the current folder by itself; `python -m` does
        sys.path.insert(0, "")
    tell(f"importing {name}")
    try:
        with user_code(f"importing {name}"):
            return _run(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except SystemExit as error:
        raise ArgumentError(
            f"{name} ends the process when it is imported: sys.exit({error.code!r})",
            where=where,
            remedy='put its main part under `if __name__ == "__main__":`',
        ) from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the user's module imports is missing: the traceback says where
        raise ArgumentError(
            f"there is no module {error.name!r}", where=where, cause="it is neither installed nor in this folder"
        ) from error


def _names(body: Sequence[ast.stmt]) -> list[str]:
    names: list[str] = []
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            names.append(statement.name)
        elif isinstance(statement, ast.Assign):
            names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return [name for name in names if name[0] != "_"]


def _one_of(module: str, names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _NAMED else ""
    return f"give {module}:NAME with one of {', '.join(names[:_NAMED])}{more}" if names else f"{module} defines nothing that could be read"


def _run(file: Path) -> Any:
    """Import a Python file as a module, so that others find it under its name, and it finds the files beside it."""
    name = file.stem if file.stem not in sys.modules else f"{file.stem}_py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # of a file that ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    spec.loader.exec_module(module)
    return module


def parse_feeds(texts: list[str] | None, *, open_sizes: bool = False) -> dict[str, Any] | None:
    """Return feeds from `NAME=8,572,572,1` or `NAME=8:int32`; `NAME=` is a scalar, `NAME==50` one with its value. None without texts."""
    return _parsed_feeds(texts, lambda sizes: [open_sizes and size in ("batch", "?") for size in sizes])


def parse_open_feeds(texts: list[str] | None) -> Callable[[int], dict[str, Any]] | None:
    """Return feeds by batch size, which replaces the word `batch`, or else the first dimension."""
    feeds = _parsed_feeds(texts, lambda sizes: [size == "batch" if "batch" in sizes else k == 0 for k, size in enumerate(sizes)])
    if feeds is None:
        return None
    from graphwright.step.feeds import closed

    return lambda batch: {name: closed(feed, batch) for name, feed in feeds.items()}


def _parsed_feeds(texts: list[str] | None, are_open: Callable[[list[str]], list[bool]]) -> dict[str, Any] | None:
    if not texts:
        return None
    feeds: dict[str, Any] = {}
    for text in texts:
        name, equals, spec = (part.strip() for part in text.partition("="))
        listed, colon, dtype = (part.strip() for part in spec.partition(":"))
        if not name or not equals or (colon and not dtype):
            raise ArgumentError(
                f"{text!r} is not an input with its shape",
                where="option --feed",
                remedy="write NAME=8,572,572,1 or, with a dtype, NAME=8:int32",
            )
        if name in feeds:
            raise ArgumentError(f"the input {name!r} is given twice", where="option --feed")
        if spec.startswith("="):
            feeds[name] = _value(spec[1:], name)
            continue
        sizes = [size.strip() for size in listed.split(",")] if listed else []
        shape = tuple(None if is_open else _dimension(size, name) for size, is_open in zip(sizes, are_open(sizes), strict=True))
        feeds[name] = _spec(shape, dtype) if dtype else shape
    return feeds


def _spec(shape: tuple[int | None, ...], dtype: str) -> Any:
    tf = import_tensorflow()
    try:
        return tf.TensorSpec(shape, tf.as_dtype(dtype))
    except TypeError as error:
        raise ArgumentError(f"{dtype!r} is not a dtype", where="option --feed", remedy="write one such as int32 or bfloat16") from error


def _value(text: str, name: str) -> float:
    try:
        return {"true": True, "false": False}[text.lower()] if text.isalpha() else float(text) if set(text) & set(".eE") else int(text)
    except (KeyError, ValueError) as error:
        where = f"option --feed, input {name!r}"
        raise ArgumentError(f"{text!r} is not a number", where=where, remedy="write a number, true or false: NAME==50") from error


def _dimension(text: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise ArgumentError(
            f"{text!r} is not a size of a dimension", where=f"option --feed, input {name!r}", remedy="write whole numbers: NAME=8,572,572,1"
        )
    return int(text)


def parse_batches(text: str) -> list[int]:
    """Return batch sizes from a range `1..32` (both ends included) or a list `1,2,4,8`."""
    span = re.fullmatch(r"\s*([0-9]+)\s*\.\.\s*([0-9]+)\s*", text)
    if span:
        first, last = int(span[1]), int(span[2])
        sizes = list(range(first, last + 1))
    elif re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", text):
        sizes = [int(size) for size in text.split(",")]
    else:
        raise ArgumentError(f"{text!r} is not a range of batch sizes", where="option --batch", remedy="write 1..32, or 1,2,4,8")
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"{text!r} holds no batch size, or one below 1", where="option --batch", remedy="write 1..32, or 1,2,4,8")
    return sizes


def parse_amount(text: str, option: str = "budget") -> int | float | str:
    """Return a budget as the library takes it: a number if the text is one, else the text. It is checked before anything is loaded."""
    amount: int | float | str = text
    for read in (float, int):
        with suppress(ValueError):
            amount = read(text)
    if text != "smallest":
        Budget.read(amount, option)
    return amount


def bytes_or_share(text: str, option: str = "budget") -> int | float | str:
    """Return a budget that may be a share. A bare number up to 100 is refused, since a percentage was meant."""
    amount = parse_amount(text, option)
    if isinstance(amount, int) and amount <= 100:
        what, remedy = f"{amount} bytes were given", f"write {text}%, or a unit: {text}MiB"
        raise ArgumentError(what, argument=option, cause=f"{text}% was meant", remedy=remedy)
    return amount


def names_in(texts: Sequence[str] | None) -> list[str] | None:
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if not all(names):
        raise ArgumentError(f"{','.join(texts or ())!r} holds an empty name", where="option --outputs")
    return names or None


def bytes_in(text: str, option: str = "budget") -> int:
    try:
        return Budget.read(parse_amount(text, option)).nbytes
    except ArgumentError as error:
        error.argument = option
        raise
