"""The command `graphwright edit MODEL OUT JOB ...`: load a model, run jobs on it, write it, and report the changes.

A job is a command that returns a `Step` for its arguments, before TensorFlow is loaded. `show`, `diff` and `draw` only read a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import graphwright as gw
from graphwright.commands.inputs import AsJson, Batch, Feeds, Mode, ModeOption, load_target, parse_feeds, unset
from graphwright.commands.output import Commands, echo, echo_json
from graphwright.errors import ArgumentError, located
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Value
from graphwright.plain import plain
from graphwright.report.diff import diff as diff_of
from graphwright.report.progress import tell
from graphwright.report.units import counted, printable
from graphwright.source.model_folder import check_target

Step = Callable[[Graph], tuple[Graph, str]]
"""A job with its arguments: takes a graph, returns the changed or new graph and a line of report."""
_JOBS = "graphwright.jobs"


class Jobs(Commands):
    """Jobs on one model in turn: `MODEL OUT JOB ... JOB ...`. The name of a job ends the arguments of the job before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = {"--help", *(name for parameter in self.params if parameter.param_type_name == "option" for name in parameter.opts)}
        words = [word for word in args if word not in options]
        if len(words) > 2 and words[0] in self.commands and not Path(words[0]).exists():  # one job may stand before the model
            words = [*words[1:3], words[0], *words[3:]]
        jobs: list[list[str]] = []
        for word in words[2:]:
            if word in self.commands or not jobs:
                jobs.append([])
            jobs[-1].append(word)
        name = jobs[-1][0] if jobs else next(iter(words), "")
        if "--help" in args and name in self.commands:
            self.commands[name].make_context(name, ["--help"], parent=ctx)  # prints it, and ends
        ctx.meta[_JOBS] = jobs
        return super().parse_args(ctx, [*(word for word in args if word in options), *words[:2]])

    def run(self, ctx: Any) -> Any:
        return ctx.invoke(self.callback, **ctx.params)


edit = typer.Typer(cls=Jobs, no_args_is_help=True, subcommand_metavar="JOB [ARGS]... [JOB [ARGS]...]...")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model to change.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Path of the changed model.")]
Graft = Annotated[str, typer.Argument(metavar="GRAFT", help="The graph to graft, a file like MODEL.")]
First = Annotated[str, typer.Argument(metavar="FIRST", help="A model.")]
Second = Annotated[str, typer.Argument(metavar="SECOND", help="The model to compare with.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite OUT if it exists.")]
SignatureName = Annotated[str | None, unset("The signature that is meant; all by default.", "--signature")]
Rows = Annotated[int, typer.Option(min=1, help="Lines per section.")]
Pairs = Annotated[list[str], typer.Argument(metavar="OLD=NEW...", help="Old and new name; repeatable.")]


@edit.callback()
def run(ctx: typer.Context, model: Model, out: Out, overwrite: Overwrite = False) -> None:
    """Change a model by one or more jobs, and write it; if a job fails, nothing is written.

    MODEL is a .pb, .pbtxt or .keras file, a SavedModel, or module:name, which is imported; OUT is a .pb or .pbtxt file or a folder.
    JOB --help says what a job takes.
    """
    group: Any = ctx.command
    jobs: list[list[str]] = ctx.meta[_JOBS]
    if model in group.commands and not Path(model).exists():
        raise ArgumentError(f"the job {model!r} comes before the model", remedy=f"write graphwright edit MODEL OUT {model} ...")
    if not jobs or jobs[0][0] not in group.commands:
        what = f"{jobs[0][0]!r} is no job" if jobs else "no job was given"
        raise ArgumentError(what, remedy=f"write one of these behind OUT: {', '.join(group.commands)}")
    steps: list[tuple[str, str, Step]] = []
    for k, (name, *words) in enumerate(jobs, 1):
        place = f"job {name}" if len(jobs) == 1 else f"job {name}, {k} of {len(jobs)}"
        ctx.invoked_subcommand = name
        command = group.commands[name]
        with located(place), command.make_context(name, words, parent=ctx) as inner:
            steps.append((name, place, command.invoke(inner)))
    ctx.invoked_subcommand = None
    graph = _load(model, out, overwrite)
    for name, place, step in steps:
        ctx.invoked_subcommand = name
        tell(name)
        with located(place):
            graph, done = step(graph)
        echo(done)
    ctx.invoked_subcommand = None
    gw.write(graph, out, overwrite=True)  # what is there has been looked at
    echo(f"{counted(len(graph), 'node')} written to {out}")


def _counted(verb: str, noun: str, job: Callable[[Graph], int]) -> Step:
    return lambda graph: (graph, f"{verb} {counted(job(graph), noun)}")


@edit.command("add-preprocessing")
def add_preprocessing(graft: Graft, signature: SignatureName = None) -> Step:
    """Graft a graph before the inputs: a placeholder per input, a node <input>_preprocessed."""
    return lambda graph: (graph, f"inputs are now {_named(gw.add_preprocessing(graph, _load(graft), signature=signature))}")


@edit.command("add-postprocessing")
def add_postprocessing(graft: Graft, signature: SignatureName = None) -> Step:
    """Graft a graph behind the outputs: a placeholder per output, a node <output>_postprocessed."""
    return lambda graph: (graph, f"outputs are now {_named(gw.add_postprocessing(graph, _load(graft), signature=signature))}")


@edit.command("rename-inputs")
def rename_inputs(names: Pairs, signature: SignatureName = None) -> Step:
    """Rename inputs: keys of signatures, and placeholders."""
    pairs = _pairs(names)
    return _counted("renamed", "input", lambda graph: gw.rename_inputs(graph, pairs, signature=signature))


@edit.command("rename-outputs")
def rename_outputs(names: Pairs, signature: SignatureName = None) -> Step:
    """Rename outputs: keys of signatures, and nodes."""
    pairs = _pairs(names)
    return _counted("renamed", "output", lambda graph: gw.rename_outputs(graph, pairs, signature=signature))


@edit.command("keep-signatures")
def keep_signatures(names: Annotated[list[str], typer.Argument(metavar="SIGNATURE...", help="Its name.")]) -> Step:
    """Remove all signatures but these, and what only they need."""
    return _counted("removed", "signature", lambda graph: gw.keep_signatures(graph, names))


@edit.command("batch-size")
def batch_size(
    size: Annotated[str, typer.Argument(metavar="SIZE", help="A number, or `free`.")],
    inputs: Annotated[list[str] | None, unset("An input; all by default.", "--input")] = None,
    means: Annotated[bool | None, unset("Whether sums over the batch, divided by its size, are means.", "--means/--no-means")] = None,
) -> Step:
    """Change the batch size, or free it."""
    if size != "free" and not size.isdecimal():
        raise ArgumentError(f"{size!r} is not a batch size", where="argument SIZE", remedy="write a number, or free")
    wanted = None if size == "free" else int(size)
    return _counted("changed", "node", lambda graph: gw.change_batch_size(graph, wanted, inputs=inputs, means=means))


@edit.command("strip-training")
def strip_training(
    outputs: Annotated[list[str] | None, unset("A value to keep, where the model states no outputs.", "--output")] = None,
    constants: Annotated[list[str] | None, unset("INPUT=VALUE, such as keep_prob=1.0.", "--constant")] = None,
) -> Step:
    """Remove gradients, optimizers, summaries, and inputs that only training knows."""
    values = {name: _literal(text) for name, text in _pairs(constants or []).items()}
    return _counted("removed", "node", lambda graph: gw.strip_training(graph, outputs=outputs, constants=values))


@edit.command("freeze")
def freeze(
    checkpoint: Annotated[Path | None, unset("Where the values are, if MODEL is a graph: what a TF1 Saver wrote.", "--checkpoint")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Keep variables that have no value.")] = False,
) -> Step:
    """Make constants of the variables of a SavedModel, or of a graph and its checkpoint."""

    def step(graph: Graph) -> tuple[Graph, str]:
        from graphwright.source.join_checkpoints import stored_values

        count = gw.freeze_variables(graph, None if checkpoint is None else stored_values(checkpoint), partial=partial)
        return graph, f"froze {counted(count, 'variable')}{_serves(graph)}"

    return step


def _serves(graph: Graph) -> str:
    return "; the model serves its signatures only" if graph.signatures else ""


@edit.command("fold-batch-norms")
def fold_batch_norms() -> Step:
    """Fold batch norms into the convolutions before or behind them; freezes the variables of a SavedModel first."""

    def step(graph: Graph) -> tuple[Graph, str]:
        report = gw.fold_batch_norms(graph)
        left = [f"left {norm.name} ({norm.op_type}): {norm.reason}" for norm in report.left]
        return graph, "\n".join([f"folded {counted(len(report.folded), 'chain')}{_serves(graph) if report.folded else ''}", *left])

    return step


@edit.command("replace-op")
def replace_op(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The op type to replace.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new op type.")],
) -> Step:
    """Replace a type of operation everywhere, in functions too."""
    return _counted("replaced", "node", lambda graph: gw.replace_op_type(graph, old, new))


@edit.command("extract")
def extract(
    inputs: Annotated[list[str], typer.Option("--input", help="A value to feed, NAME or KEY=NAME.")],
    outputs: Annotated[list[str], typer.Option("--output", help="A value to compute, NAME or KEY=NAME.")],
) -> Step:
    """Cut out the part of a model between tensors."""
    from_values, to_values = _ends(inputs), _ends(outputs)
    return lambda graph: (gw.extract_submodel(graph, from_values, to_values), "extracted the part")


@edit.command("merge")
def merge(
    second: Annotated[str, typer.Argument(metavar="SECOND", help="The other model, a file like MODEL.")],
    connect: Annotated[list[str] | None, unset("INPUT=OUTPUT: an input of the second reads an output of the first.")] = None,
    keep_signatures: Annotated[bool, typer.Option("--keep-signatures", help="Keep the signatures of both that are still fed.")] = False,
) -> Step:
    """Make one model of two, with the variables, tables and assets of both."""
    pairs = _pairs(connect or [])
    return lambda graph: (gw.merge_models(graph, _load(second), connect=pairs, keep_signatures=keep_signatures), "merged")


@edit.command("remove-debug")
def remove_debug() -> Step:
    """Cut out assertions, prints, numeric checks and chains of Identity."""
    return _counted("removed", "node", gw.remove_debug_ops)


@edit.command("convert-weights")
def convert_weights(
    dtype: Annotated[Literal["bfloat16", "float16"], typer.Option(help="The dtype of stored weights.")] = "bfloat16",
) -> Step:
    """Store weights in 16 bits; freezes the variables of a SavedModel first."""
    return _counted("converted", "constant", lambda graph: gw.convert_weights(graph, dtype))


@edit.command("inline")
def inline() -> Step:
    """Inline all calls of functions."""
    from graphwright.transform.inline_calls import inline_calls

    return _counted("inlined", "call", inline_calls)


@edit.command("simplify")
def simplify(no_inline: Annotated[bool, typer.Option("--no-inline", help="Keep function calls.")] = False) -> Step:
    """Remove duplicate, constant and useless computation; proved equal."""
    return lambda graph: (graph, str(gw.simplify(graph, inline_functions=not no_inline)))


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
    """Show inputs, outputs, signatures, functions and op types of a model, or the names of its nodes.

    With --batch or --feed, module:name is traced for these shapes, and the step is shown.
    """
    graph = _load(model, tags=tags, **_shapes(feed, batch, mode))  # first, as it loads TensorFlow without its start-up lines
    from graphwright.report.listing import listing
    from graphwright.source.stored_variables import stored_variables
    from graphwright.transform.interface import described, input_values, output_values

    if nodes is not None:
        matches = [node for node in graph if _regex(nodes).search(node.name)]
        if as_json:
            echo_json([{"name": n.name, "op_type": n.op_type, "outputs": [described(v) for v in n.outputs]} for n in matches])
        else:
            for node in matches:
                echo(printable(f"{node.name}  {node.op_type}  {', '.join(map(described, node.outputs))}".rstrip()))
        return
    result = listing(graph, len(stored_variables(graph)[0]), inputs=input_values(graph), outputs=output_values(graph))
    if as_json:
        echo_json(plain(result))
    else:
        echo(result.text(rows))


def diff(
    before: First,
    after: Second,
    rows: Rows = 40,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare two models by name and structure; exit code 1 if they differ.

    With --batch or --feed, module:name is traced for these shapes, and the steps are compared.
    """
    shapes = _shapes(feed, batch, mode)
    result = diff_of(_load(before, **shapes), _load(after, **shapes))
    if as_json:
        echo_json(plain(result))
    else:
        echo(result.text(rows))
    if result:
        raise typer.Exit(1)


def draw(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model to draw.")],
    out: Annotated[Path | None, typer.Argument(metavar="PICTURE", help="An .html file.", show_default=False)] = None,
    scope: Annotated[str, typer.Option(help="Draw only this scope.")] = "",
    open_scopes: Annotated[list[str] | None, unset("A scope to show open.", "--open")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite PICTURE if it exists.")] = False,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "auto",
) -> None:
    """Draw a model as a page whose scopes open and close. Without PICTURE, the file is named after the model.

    With --batch or --feed, module:name is traced for these shapes, and the step is drawn.
    """
    from graphwright.report.drawing import check_target as check_page
    from graphwright.report.drawing import default_path
    from graphwright.report.drawing import draw as job

    if out is not None:
        check_page(out, overwrite=overwrite)
    graph = _load(model, **_shapes(feed, batch, mode))
    if out is None and not overwrite:
        check_page(default_path(graph))
    written = job(graph, out, scope=scope, open_scopes=tuple(open_scopes or ()))
    echo(f"picture written to {written}")


def _load(text: str, out: Path | None = None, overwrite: bool = False, tags: Sequence[str] | None = None, **shapes: Any) -> Graph:
    """Load a model, after a check that `out` can be written; with shapes, trace it as a step."""
    if out is not None:
        check_target(out, overwrite=overwrite)
    target = load_target(text)
    if shapes and isinstance(target, Path):
        raise ArgumentError(
            "shapes of inputs were given for a file",
            where=f"options --feed and --batch, {text!r}",
            cause="a file is read as it is; nothing is traced",
            remedy="leave them out",
        )
    from graphwright.source.load import load
    from graphwright.step.targets import trace

    return load(trace(target, **shapes).function if shapes else target, tags=tags)


def _shapes(feed: list[str] | None, batch: int | None, mode: Mode) -> dict[str, Any]:
    return {} if feed is None and batch is None else {"feeds": parse_feeds(feed), "batch": batch, "mode": mode}


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
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{text!r} is not a value", remedy="write a number, true, false, or a list") from error
