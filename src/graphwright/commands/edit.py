"""The commands `graphwright edit ...`: load a model, do one job, write it again, say what changed.

`app.add_typer(edit, name="edit")` puts them into the command line, whose commands print errors.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from graphwright.commands.inputs import AsJson, Batch, Feeds, Mode, ModeOption, load_target, parse_feeds, unset
from graphwright.commands.output import Commands, echo, echo_json
from graphwright.errors import ArgumentError
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Value
from graphwright.plain import plain
from graphwright.report.diff import diff as diff_of
from graphwright.report.diff import print_diff
from graphwright.report.terminal_layout import Page
from graphwright.report.units import counted, printable
from graphwright.source.tensorflow_import import start_quietly

edit = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Change a model and write it again: MODEL is a .pb, .pbtxt or .keras file, a SavedModel, or module:name, which is imported; OUT "
    "is a .pb or .pbtxt file or a folder.",
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model to change.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Where the changed model goes.")]
Graft = Annotated[str, typer.Argument(metavar="GRAFT", help="The graph to graft, a file like MODEL.")]
First = Annotated[str, typer.Argument(metavar="FIRST", help="A model.")]
Second = Annotated[str, typer.Argument(metavar="SECOND", help="Another one.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at OUT.")]
SignatureName = Annotated[str | None, unset("The signature that is meant; all by default.", "--signature")]
Rows = Annotated[int, typer.Option(min=1, help="Lines per section.")]
Pairs = Annotated[list[str], typer.Argument(metavar="OLD=NEW...", help="The name and the new one, once per name.")]


@edit.command("add-preprocessing")
def add_preprocessing(model: Model, graft: Graft, out: Out, signature: SignatureName = None, overwrite: Overwrite = False) -> None:
    """Graft a graph before the inputs: a placeholder per input, a node <input>_preprocessed."""
    from graphwright.transform.preprocessing import add_preprocessing as job

    graph = _load(model, out, overwrite)
    _write(graph, out, f"inputs are now {_named(job(graph, _load(graft), signature=signature))}")


@edit.command("add-postprocessing")
def add_postprocessing(model: Model, graft: Graft, out: Out, signature: SignatureName = None, overwrite: Overwrite = False) -> None:
    """Graft a graph behind the outputs: a placeholder per output, a node <output>_postprocessed."""
    from graphwright.transform.preprocessing import add_postprocessing as job

    graph = _load(model, out, overwrite)
    _write(graph, out, f"outputs are now {_named(job(graph, _load(graft), signature=signature))}")


@edit.command("rename-inputs")
def rename_inputs(model: Model, out: Out, names: Pairs, signature: SignatureName = None, overwrite: Overwrite = False) -> None:
    """Rename inputs: keys of signatures, and placeholders."""
    from graphwright.transform.rename_interface import rename_inputs as job

    pairs = _pairs(names)
    graph = _load(model, out, overwrite)
    _write(graph, out, f"renamed {counted(job(graph, pairs, signature=signature), 'input')}")


@edit.command("rename-outputs")
def rename_outputs(model: Model, out: Out, names: Pairs, signature: SignatureName = None, overwrite: Overwrite = False) -> None:
    """Rename outputs: keys of signatures, and nodes."""
    from graphwright.transform.rename_interface import rename_outputs as job

    pairs = _pairs(names)
    graph = _load(model, out, overwrite)
    _write(graph, out, f"renamed {counted(job(graph, pairs, signature=signature), 'output')}")


@edit.command("batch-size")
def batch_size(
    model: Model,
    out: Out,
    size: Annotated[str, typer.Argument(metavar="SIZE", help="A number, or `free`.")],
    inputs: Annotated[list[str] | None, unset("An input; all by default.", "--input")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Change the batch size, or free it."""
    from graphwright.transform.batch_size import change_batch_size as job

    if size != "free" and not size.isdecimal():
        raise ArgumentError(f"{size!r} is not a batch size", where="argument SIZE", remedy="write a number, or free")
    graph = _load(model, out, overwrite)
    _write(graph, out, f"changed {counted(job(graph, None if size == 'free' else int(size), inputs=inputs), 'node')}")


@edit.command("strip-training")
def strip_training(
    model: Model,
    out: Out,
    outputs: Annotated[list[str] | None, unset("A value to keep, where the model states no outputs.", "--output")] = None,
    constants: Annotated[list[str] | None, unset("INPUT=VALUE, such as keep_prob=1.0.", "--constant")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Remove gradients, optimizers, summaries, and inputs that only training knows."""
    from graphwright.transform.strip_training import strip_training as job

    values = {name: _literal(text) for name, text in _pairs(constants or []).items()}
    graph = _load(model, out, overwrite)
    _write(graph, out, f"removed {counted(job(graph, outputs=outputs, constants=values), 'node')}")


@edit.command("freeze")
def freeze(
    model: Model,
    out: Out,
    checkpoint: Annotated[Path | None, unset("Where the values are, if MODEL is a graph: what a TF1 Saver wrote.", "--checkpoint")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Make constants of the variables of a SavedModel, or of a graph and its checkpoint."""
    from graphwright.source.join_checkpoints import stored_values
    from graphwright.transform.freeze_variables import freeze_variables as job

    graph = _load(model, out, overwrite)
    count = job(graph, None if checkpoint is None else stored_values(checkpoint))
    _write(graph, out, f"froze {counted(count, 'variable')}")


@edit.command("fold-batch-norms")
def fold_batch_norms(model: Model, out: Out, overwrite: Overwrite = False) -> None:
    """Fold batch norms into the convolutions before or behind them; freezes the variables of a SavedModel first."""
    from graphwright.transform.fold_batch_norms import fold_batch_norms as job

    graph = _load(model, out, overwrite)
    report = job(graph)
    _write(graph, out, f"folded {counted(len(report.folded), 'chain')}")
    for norm in report.left:
        echo(f"left {norm.name} ({norm.op_type}): {norm.reason}")


@edit.command("replace-op")
def replace_op(
    model: Model,
    out: Out,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The op type to replace.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The op type to put there.")],
    overwrite: Overwrite = False,
) -> None:
    """Replace a type of operation everywhere, in functions too."""
    from graphwright.transform.replace_op_type import replace_op_type as job

    graph = _load(model, out, overwrite)
    _write(graph, out, f"replaced {counted(job(graph, old, new), 'node')}")


@edit.command("extract")
def extract(
    model: Model,
    out: Out,
    inputs: Annotated[list[str], typer.Option("--input", help="A value to feed, NAME or KEY=NAME.")],
    outputs: Annotated[list[str], typer.Option("--output", help="A value to compute, NAME or KEY=NAME.")],
    overwrite: Overwrite = False,
) -> None:
    """Cut out the part of a model between tensors."""
    from graphwright.transform.extract_submodel import extract_submodel as job

    from_values, to_values = _ends(inputs), _ends(outputs)
    _write(job(_load(model, out, overwrite), from_values, to_values), out, "extracted the part")


@edit.command("merge")
def merge(
    first: First,
    second: Second,
    out: Out,
    connect: Annotated[list[str] | None, unset("INPUT=OUTPUT: an input of the second reads an output of the first.")] = None,
    keep_signatures: Annotated[bool, typer.Option("--keep-signatures", help="Keep the signatures of both that are still fed.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make one model of two, with the variables, tables and assets of both."""
    from graphwright.transform.merge_models import merge_models as job

    pairs = _pairs(connect or [])
    _write(job(_load(first, out, overwrite), _load(second), connect=pairs, keep_signatures=keep_signatures), out, "merged")


@edit.command("remove-debug")
def remove_debug(model: Model, out: Out, overwrite: Overwrite = False) -> None:
    """Cut out assertions, prints, numeric checks and chains of Identity."""
    from graphwright.transform.remove_debug_ops import remove_debug_ops as job

    graph = _load(model, out, overwrite)
    _write(graph, out, f"removed {counted(job(graph), 'node')}")


@edit.command("convert-weights")
def convert_weights(
    model: Model,
    out: Out,
    dtype: Annotated[Literal["bfloat16", "float16"], typer.Option(help="What to store weights as.")] = "bfloat16",
    overwrite: Overwrite = False,
) -> None:
    """Store weights in 16 bits; freezes the variables of a SavedModel first."""
    from graphwright.transform.convert_dtype import convert_weights as job

    graph = _load(model, out, overwrite)
    _write(graph, out, f"converted {counted(job(graph, dtype), 'constant')}")


@edit.command("inline")
def inline(model: Model, out: Out, overwrite: Overwrite = False) -> None:
    """Inline all calls of functions."""
    from graphwright.transform.inline_calls import inline_calls as job

    graph = _load(model, out, overwrite)
    _write(graph, out, f"inlined {counted(job(graph), 'call')}")


@edit.command("simplify")
def simplify(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Where the simplified model goes.")],
    no_inline: Annotated[bool, typer.Option("--no-inline", help="Leave the calls of functions as they are.")] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Take out what is computed twice, what is known before it runs, and what does nothing; proved equal."""
    from graphwright.reuse.simplify import simplify as job

    graph = _load(model, out, overwrite)
    report = job(graph, inline_functions=not no_inline)
    from graphwright.source.write import write

    write(graph, out, overwrite=True)  # what is there has been looked at
    if as_json:
        echo_json(plain(report))
    else:
        echo(str(report))
        echo(f"written to {out}")


@edit.command("show")
def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model to look at.")],
    nodes: Annotated[str | None, unset("List the nodes whose names it is found in; '' lists all.", metavar="REGEX")] = None,
    tags: Annotated[list[str] | None, unset("Of the graph of a SavedModel with several, once per tag.", "--tag")] = None,
    rows: Rows = 20,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "auto",
    as_json: AsJson = False,
) -> None:
    """What a model has: inputs, outputs, signatures, functions, op types; or the names of its nodes.

    With --batch or --feed it is a step of module:name that is shown, traced for these shapes.
    """
    from graphwright.report.listing import listing
    from graphwright.transform.interface import described, input_values, output_values

    graph = _load(model, tags=tags, **_shapes(feed, batch, mode))
    if nodes is not None:
        found = [node for node in graph if _regex(nodes).search(node.name)]
        if as_json:
            echo_json([{"name": n.name, "op_type": n.op_type, "outputs": [described(v) for v in n.outputs]} for n in found])
        else:
            for node in found:
                echo(printable(f"{node.name}  {node.op_type}  {', '.join(map(described, node.outputs))}".rstrip()))
        return
    result = listing(graph, inputs=input_values(graph), outputs=output_values(graph))
    if as_json:
        echo_json(plain(result))
    else:
        echo(result.text(rows))


@edit.command("diff")
def diff(
    before: First,
    after: Second,
    rows: Rows = 40,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "auto",
    as_json: AsJson = False,
) -> None:
    """What changed between two models, by name and by structure; exit code 1 where anything did.

    With --batch or --feed it is steps of module:name that are compared, traced for these shapes.
    """
    shapes = _shapes(feed, batch, mode)
    result = diff_of(_load(before, **shapes), _load(after, **shapes))
    if as_json:
        echo_json(plain(result))
    else:
        print_diff(result, Page(), rows=rows)
    if result:
        raise typer.Exit(1)


@edit.command("draw")
def draw(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model to draw.")],
    out: Annotated[Path | None, typer.Argument(metavar="PICTURE", help="An .html file.", show_default=False)] = None,
    scope: Annotated[str, typer.Option(help="Draw only this scope.")] = "",
    open_scopes: Annotated[list[str] | None, unset("A scope to show open.", "--open")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at PICTURE.")] = False,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "auto",
) -> None:
    """Draw a model as a page whose scopes open and close. Without PICTURE, into a file named after the model.

    With --batch or --feed it is a step of module:name that is drawn, traced for these shapes.
    """
    from graphwright.report.drawing import check_target, default_path
    from graphwright.report.drawing import draw as job

    if out is not None:
        check_target(out, overwrite=overwrite)
    graph = _load(model, **_shapes(feed, batch, mode))
    if out is None and not overwrite:
        check_target(default_path(graph))
    written = job(graph, out, scope=scope, open_scopes=tuple(open_scopes or ()))
    echo(f"picture written to {written}")


def _load(text: str, out: Path | None = None, overwrite: bool = False, tags: Sequence[str] | None = None, **shapes: Any) -> Graph:
    """Load a model, once it is known that what is made of it can be written to `out`; with shapes, the step that it is with these."""
    if out is not None:
        start_quietly()
        from graphwright.source.write import check_target

        check_target(out, overwrite=overwrite)
    found = load_target(text)
    if shapes and isinstance(found, Path):
        raise ArgumentError(
            "a file was given with shapes of inputs",
            where=f"options --feed and --batch, {text!r}",
            cause="what it holds is read as it is written; nothing of it is traced",
            remedy="leave them out",
        )
    from graphwright.source.load import load
    from graphwright.step.targets import trace

    return load(trace(found, **shapes).function if shapes else found, tags=tags)


def _shapes(feed: list[str] | None, batch: int | None, mode: Mode) -> dict[str, Any]:
    """What a step is traced with; nothing where no shapes are given."""
    return {} if feed is None and batch is None else {"feeds": parse_feeds(feed), "batch": batch, "mode": mode}


def _write(graph: Graph, out: Path, done: str) -> None:
    from graphwright.source.write import write

    write(graph, out, overwrite=True)  # what is there has been looked at
    echo(f"{done}; {counted(len(graph), 'node')} written to {out}")


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ArgumentError(f"{text!r} is not a regular expression: {error}", where="option --nodes") from error


def _named(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} ({value.dtype}{format_shape(value.shape)})" for name, value in values.items())


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise ArgumentError(f"{text!r} is not a pair", remedy="write OLD=NEW")
        if old in pairs:
            raise ArgumentError(f"{old!r} is given twice")
        pairs[old] = new
    return pairs


def _ends(texts: Sequence[str]) -> dict[str, str] | list[str]:
    return _pairs(texts) if any("=" in text for text in texts) else list(texts)


def _literal(text: str) -> Any:
    """A value as Python or JSON writes it."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ArgumentError(f"{text!r} is not a value", remedy="write a number, true, false, or a list") from error
