"""The command line: parse, call the library, print. Nothing is computed here.

Exit codes: 0 done; 1 two models differ (`diff`, `verify`); 2 an error that the message explains; 3 nothing fits the budget; 4 a check
failed, or `doctor` found something broken; 130 interrupted.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import json
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
from rich.markup import escape
from rich.panel import Panel

import graphwright as gw
from graphwright.analyze.device_models import HERE
from graphwright.commands import costs, edit
from graphwright.commands.inputs import (
    EXIT_CHECK_FAILED,
    EXIT_ERROR,
    EXIT_INFEASIBLE,
    AsJson,
    Batch,
    Chart,
    Device,
    Feeds,
    Html,
    Layers,
    ModeOption,
    OrderOption,
    Outputs,
    Target,
    bytes_or_share,
    checked,
    load_target,
    load_targets,
    names_in,
    parse_feeds,
    place_of_copies,
    shared_option,
    takes_trust,
    unset,
    written_file,
)
from graphwright.commands.interrupts import ends_when_interrupted
from graphwright.commands.measured_plan import measured_plan
from graphwright.commands.output import Commands, echo, echo_json, print_result, write_html
from graphwright.errors import ArgumentError, printable
from graphwright.report.cost_rows import LayerColumn, LayerTable
from graphwright.report.progress import hide, lines_of_progress, note, shown, tell
from graphwright.report.safe_console import SafeConsole
from graphwright.report.sheet import Paragraph, Sheet
from graphwright.report.units import format_bytes, format_percent, format_time
from graphwright.source.tensorflow_import import start_quietly

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="See what a TensorFlow graph costs, edit it, and train it in the memory you have.",
)

_COSTS = "What does it cost?"
_MEMORY = "Fit it into memory"
_EDITING = "Change a model"
_SETUP = "This installation"


DEFAULT_VERBS = "recompute,segment"
_VERBS = ("recompute", "segment", "offload", "transpose", "split", "all")

Budget = Annotated[str, typer.Option("--budget", help='Bytes, text such as "2.5GiB", or a share of the unmodified peak: 0.5 or "50%".')]


def main(arguments: list[str] | None = None) -> None:
    atexit.register(gc.freeze)  # or Python looks for garbage among all of TensorFlow's objects before it ends, which takes a second
    formatted = warnings.formatwarning

    def safe(*args: Any, **words: Any) -> str:
        hide()
        return printable(formatted(*args, **words), lines=True)

    warnings.formatwarning = safe
    try:
        with ends_when_interrupted():
            app(args=arguments, prog_name="graphwright")
    except Exception:  # noqa: BLE001 - an error that nobody foresaw is shown whole, and may quote a file
        sys.stderr.write(printable(traceback.format_exc(), lines=True))
        sys.exit(EXIT_ERROR)
    finally:
        warnings.formatwarning = formatted


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"graphwright {gw.__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction] - typer calls it
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def _parts(layers: bool, chart: bool) -> list[str]:
    return ["layers"] * layers + ["chart"] * chart


@app.command(rich_help_panel=_COSTS)
def inspect(
    target: Target,
    mode: ModeOption = "auto",
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the step in a fresh process, on generated inputs, and measure it.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also run it there and measure the time of each operation.")] = False,
    layers: Layers = False,
    chart: Chart = False,
    depth: Annotated[int | None, unset("Levels of the table of layers; as many as make some 40 rows.", min=1)] = None,
    columns: Annotated[str | None, unset(f"Of the table of layers, with commas: {', '.join(get_args(LayerColumn))}.")] = None,
    memory: Annotated[
        str | None, unset("For the report: what there is, as advise takes it, and what can be done comes first in it.", "--memory")
    ] = None,
    order: OrderOption = "executor",
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Show the costs of a step: peak memory by role, parameters, FLOPs."""
    shown = None if columns is None else tuple(name.strip() for name in columns.split(","))
    table = LayerTable(depth, cast("tuple[LayerColumn, ...] | None", shown))
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    amount = None if memory is None else bytes_or_share(memory, "memory")
    loaded = load_target(target, runs=measure or profile)
    advised = None if amount is None else gw.advise(loaded, amount, feeds, outputs=fetched, batch=batch)
    report = gw.inspect(loaded, feeds, None, fetched, mode=mode, batch=batch, measure=measure, profile=profile, order=order)
    if advised is not None:
        report = report.with_advice(advised.for_command(shlex.quote(target)))
    asked = _parts(bool(layers or depth or columns), chart)
    trains = report.backward_flops or report.undivided_flops
    then = "optimize --budget 50%" if trains else "inspect --layers"
    print_result(dataclasses.replace(report, table=table), as_json=as_json, parts=asked, then=then)
    write_html(report, html, quiet=as_json)


costs.add_to(app, _COSTS)


@app.command(rich_help_panel=_MEMORY)
def optimize(
    target: Target,
    budget: Annotated[
        str | None, unset('Bytes, text such as "2.5GiB", a share of the unmodified peak (0.5 or "50%"), or "smallest".', "--budget")
    ] = None,
    plan: Annotated[Path | None, unset("Instead of a budget: follow the plan that --save wrote, without a search.", "--plan")] = None,
    save: Annotated[Path | None, written_file("Write the plan to this file, for --plan and gw.load_plan.", "--save")] = None,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: Annotated[
        Literal["train", "infer"], typer.Option("--mode", help="For a Keras model: its training step, or its inference.")
    ] = "train",
    max_overhead: Annotated[
        float | None,
        typer.Option(min=0.0, help='With "--budget smallest": the most estimated extra time, as a share.', show_default="0.1"),
    ] = None,
    verify: Annotated[
        Literal["structure", "run"],
        typer.Option(help="How to prove the plan: by structure (runs nothing), or also by running a step both ways."),
    ] = "structure",
    allow: Annotated[
        str,
        typer.Option(
            help="Allowed verbs: recompute, segment, offload (equal bit for bit); split (may round differently); or all (all but offload)."
        ),
    ] = DEFAULT_VERBS,
    offload_to: Annotated[
        str | None,
        unset(
            "Copy to this folder, or device, what is dearer to run again; allows offload by itself.",
            "--offload-to",
            callback=place_of_copies,
        ),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the step before and after, each in a fresh process.")] = False,
    output: Annotated[
        Path | None,
        written_file("Of a graph: write it here, as a .meta file, with the planned step as optimized/NAME for each output.", "--output"),
    ] = None,
    layers: Layers = False,
    chart: Chart = False,
    html: Html = None,
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """Plan a training step into a memory budget, and prove that it computes the same."""
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    amount = None if budget is None else bytes_or_share(budget)
    if (budget is None) == (plan is None):
        what = "neither --budget nor --plan was given" if plan is None else "--budget was given beside --plan"
        raise ArgumentError(what, remedy="give one of them; a plan has its own budget")
    saved = None if plan is None else gw.load_plan(plan)
    unknown = [verb for verb in allow.split(",") if verb not in _VERBS]
    if unknown:  # read_allow says so too, once TensorFlow is loaded
        raise ArgumentError(f"{unknown[0]!r} is no verb", argument="allow", remedy=f"give some of {', '.join(_VERBS)}, with commas")
    runs = measure or verify == "run"
    loaded = load_target(target, runs=runs or output is not None)
    from graphwright.memory.verbs import read_allow
    from graphwright.source.session_step import write_session_graph
    from graphwright.step.example_inputs import example_inputs
    from graphwright.step.targets import is_keras_model, trace

    traced = trace(loaded, feeds=feeds, outputs=fetched, mode=mode, batch=batch, runs=runs)
    step, inputs = traced.function, example_inputs(traced)
    verbs = read_allow("all" if allow == "all" else allow.split(","))
    points = 6 if html else 0
    search: dict[str, Any] = {
        "curve_points": points,
        "allow": verbs,
        "max_overhead": max_overhead,
        "offload_to": offload_to,
        "device": device,
    }
    optimize_memory: Callable[..., Any] = gw.optimize_memory
    if output is None:
        fast = optimize_memory(step, amount, inputs=inputs, verify=verify, plan=saved, **search)
    else:
        fast = optimize_memory(loaded, amount, outputs=fetched, feeds=feeds, batch=batch, verify=verify, plan=saved, **search)
        write_session_graph(fast.fetches[0].graph, output)
    result = dataclasses.replace(fast.plan, name=traced.name)
    if measure:
        result = measured_plan(result, step, fast, inputs)
    asked = _parts(layers, chart)
    print_result(result, as_json=as_json, parts=asked)
    if not as_json and not asked and result.status != "infeasible":
        if not measure and device == HERE:
            echo(f"To measure it: add --measure{'' if shared_option('trust') else ' --trust'}")
        name, allowed = "model" if is_keras_model(traced.owner) else "step", f', allow="{allow}"' * (allow != DEFAULT_VERBS)
        echo(f"In code: {name} = gw.optimize_memory({name}, {json.dumps(amount)}{allowed})")
    if save is not None:
        result.save(save)
        if not as_json:
            echo(f"plan written to {save}")
    write_html(result, html, quiet=as_json)


@app.command(rich_help_panel=_MEMORY)
def advise(
    target: Target,
    memory: Annotated[
        str, typer.Option("--memory", help='Available memory: bytes, text such as "2.5GiB", or a share of the step\'s peak.')
    ],
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    html: Html = None,
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """What can be done so that a training step fits into memory, ranked, with what to call for each; and likely mistakes.

    Nothing is run. Plans are kept: following the advice plans nothing again.
    """
    feeds, fetched, amount = parse_feeds(feed), names_in(outputs), bytes_or_share(memory, "memory")
    loaded = load_target(target)
    advice = gw.advise(loaded, amount, feeds, outputs=fetched, batch=batch, device=device).for_command(shlex.quote(target))
    first = next((s.command for s in advice.suggestions if s.fits and advice.fits <= (s.kind == "batch")), "")
    command, _, rest = first.removeprefix("graphwright ").partition(" --budget ")
    then = f"{command.partition(' ')[0]} --budget {rest}" if first else "" if advice.fits else "optimize --budget smallest"
    print_result(advice, as_json=as_json, then=then)
    if html is not None:
        write_html(gw.inspect(loaded, feeds, outputs=fetched, mode="train", batch=batch).with_advice(advice), html, quiet=as_json)


@app.command(rich_help_panel=_MEMORY)
def demo(
    html: Annotated[Path, typer.Option("--html", help="Write the report to this file.", callback=checked)] = Path("report.html"),
    budget: Budget = "0.5",
    size: Annotated[int, typer.Option(help="Width and height of the images.")] = 572,
    filters: Annotated[int, typer.Option(min=1, help="Filters of the first level; the paper's 64 take four times as long.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Images in a step.")] = 2,
) -> None:
    """A U-Net trained in half its memory: planned, proved equal, measured, with a report."""
    from graphwright.commands.demo_model import make_demo

    amount = bytes_or_share(budget)
    with shown(lines_of_progress(), after_s=0.0):
        tell("starting TensorFlow")
        start_quietly()
        subject = make_demo(input_size=size, filters=filters, batch=batch)
        note(subject.description)
        tell(f"planning a step into a budget of {budget}")
        fast = gw.optimize_memory(subject.step, budget=amount, inputs=subject.inputs, curve_points=4)
        tell("running a step both ways")
        proof = gw.verify(subject.step, fast, subject.inputs)
        # Few steps: the machine may be slow, and a demo is short.
        result = measured_plan(fast.plan, subject.step, fast, subject.inputs, steps=1, rounds=2)
    result = dataclasses.replace(result, verification=f"{proof}; {fast.plan.verification}")
    print_result(result, as_json=False)
    write_html(result, html, quiet=False)
    if not proof.equal:
        raise typer.Exit(EXIT_ERROR)


@app.command(rich_help_panel=_MEMORY)
def plan(
    graph: Annotated[Path, typer.Argument(help="A planner graph as JSON: tasks with time and nbytes, edges, an order.")],
    budget: Budget,
    time_limit: Annotated[float, typer.Option(min=0.0, help="Seconds that the solver may take.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Schedule a planner graph within a budget, without TensorFlow."""
    from graphwright.plan.budget import Budget
    from graphwright.plan.files import read_cost_graph, solution_to_json
    from graphwright.plan.model import Schedule
    from graphwright.plan.simulate import simulate
    from graphwright.plan.solve import solve
    from graphwright.plan.time_bound import least_time

    costs = read_cost_graph(graph)
    unmodified = simulate(costs, Schedule(costs.order))
    solution = solve(costs, Budget.read(budget).of(unmodified.peak_bytes), time_limit_s=time_limit)
    if as_json:
        echo_json(solution_to_json(solution))
    else:
        bound = solution.lower_bound
        peak, allowed, whole = map(format_bytes, (solution.peak_bytes, solution.budget_bytes, unmodified.peak_bytes))
        least = least_time(costs, solution.budget_bytes) / sum(task.time for task in costs.tasks) - 1 if solution.overhead > 0 else 0.0
        verdict = f"{costs.name or graph.stem}: {len(costs.tasks)} tasks, {solution.status} in {format_time(solution.planning_time_s)}"
        proved = f"; no schedule takes less than {format_percent(least)}" if least > 0 else ""
        lines = (
            f"Planned peak {peak} of {allowed}, unmodified {whole}.",
            f"Extra time {format_percent(solution.overhead)}{proved}.",
            f"No schedule needs less than {format_bytes(bound.nbytes)}: {bound.reason}.",
        )
        echo(Sheet(verdict, [Paragraph(line) for line in lines]).text())
    if solution.status == "infeasible":
        if not as_json:
            SafeConsole(stderr=True).print(Panel(escape(solution.reason), title="no plan fits the budget", border_style="red"))
        raise typer.Exit(EXIT_INFEASIBLE)


@app.command(rich_help_panel=_EDITING)
def verify(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", help="A target, as for inspect.", show_default=False)],
    changed: Annotated[str, typer.Argument(metavar="CHANGED", help="The target that should compute the same.", show_default=False)],
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Consecutive steps that both run.")] = 1,
    rtol: Annotated[float | None, unset("Relative tolerance; by dtype by default.", min=0.0)] = None,
    atol: Annotated[float | None, unset("Absolute tolerance; by dtype by default.", min=0.0)] = None,
    as_json: AsJson = False,
) -> None:
    """Run two models on the same made-up inputs and compare what they leave; exit code 1 where that differs.

    Each has its own variables, and runs from its own values.
    """
    feeds = parse_feeds(feed)
    first, second = load_targets(original, changed, runs=True)
    verification = gw.verify(first, second, feeds=feeds, mode=mode, batch=batch, steps=steps, rtol=rtol, atol=atol)
    if as_json:
        echo_json(verification.to_json())
    else:
        verdict = str(verification).partition("; ")[0]
        echo(Sheet(f"{changed}, held against {original}: {verdict}.").text())
    if not verification:
        raise typer.Exit(1)


app.command("diff", rich_help_panel=_EDITING)(edit.diff)
app.command("draw", rich_help_panel=_EDITING)(edit.draw)
app.command("show", rich_help_panel=_EDITING)(edit.show)
app.add_typer(edit.edit, name="edit", rich_help_panel=_EDITING)


@app.command(rich_help_panel=_SETUP)
def doctor(as_json: AsJson = False) -> None:
    """What this installation can do: versions, devices, whether peaks can be measured here, what is missing and how to get it."""
    from graphwright.commands.doctor import diagnose

    with shown():
        installation = diagnose()
    print_result(installation, as_json=as_json)
    if not installation.is_healthy:
        raise typer.Exit(EXIT_CHECK_FAILED)


for _registered in (*app.registered_commands, edit.edit.registered_callback):
    if _registered is not None and _registered.callback not in (None, demo, doctor, plan):  # which read no model
        _registered.callback = takes_trust(_registered.callback, shows=_registered.rich_help_panel in (_COSTS, _MEMORY))
