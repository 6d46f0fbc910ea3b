"""`gw.simplify` on exported models and on training steps, compared with Grappler: `python -m bench.reuse_simplify [--only NAME ...]`.

Nodes: the nodes that run (the nodes of called functions included), the nodes after Grappler (which lowers loops to single nodes), after
`simplify`, and after both. Equal: outputs, and for a step all variables after it, without Grappler, with the size of the difference if
they are not equal bit for bit. Grappler rewrites the two graphs in different ways, so differences under Grappler are relative to the
largest number, or for a step the largest difference.

Times are processor times, relative to the unsimplified graph under Grappler in the same turn: the median, and its 95 % interval by order
statistics. Models have random weights; basic-pitch is the trained model of its package.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from rich import box
from rich.console import Console
from rich.table import Table

import graphwright as gw
from bench import zoo
from bench.processor_time import processor_times
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.edit.prune import prune
from graphwright.ir.traits.effects import Purity
from graphwright.report.units import format_flops
from graphwright.run.call_options import grappler_disabled, grappler_enabled
from graphwright.run.executed_graph import recorded_graphs
from graphwright.run.traced_step import TracedStep, resolve
from graphwright.source.concrete_function import from_concrete_function, to_concrete_function
from graphwright.source.files import load_callable
from graphwright.source.private_tensorflow import call_flat
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.inline_calls import inline_calls

STEPS = ("unet", "resnet50", "transformer", "lstm", "mobilenetv3small")
BATCH = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """A graph before and after.

    Attributes:
        seconds: processor time that `simplify` took, loading and writing a file included.
        flops: FLOPs for the shapes of the calls.
        equal: results of the comparison without Grappler, and with it.
        owner: keeps variables alive.
    """

    before: TracedStep
    after: TracedStep
    seconds: float
    flops: tuple[float, float]
    equal: tuple[str, str]
    owner: Any


def application(kind: str, size: int) -> Callable[[Path], None]:
    """Exports a network of keras.applications."""

    def export(folder: Path) -> None:
        getattr(keras.applications, kind)(weights=None, input_shape=(size, size, 3), classes=100).export(folder, verbose=False)

    return export


def vision_transformer(folder: Path) -> None:
    """Exports a small ViT of keras_hub."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(64, 64, 3), patch_size=(8, 8), num_layers=6, num_heads=4, hidden_dim=128, mlp_dim=512, dropout_rate=0.1
    )
    backbone.export(folder, verbose=False)


def basic_pitch(folder: Path) -> None:
    """Return the SavedModel of the installed package basic-pitch."""
    spec = find_spec("basic_pitch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder.symlink_to(Path(next(iter(spec.submodule_search_locations))) / "saved_models" / "icassp_2022" / "nmp")


MODELS: dict[str, Callable[[Path], None]] = {
    "MobileNetV2, 96x96": application("MobileNetV2", 96),
    "ResNet50, 64x64": application("ResNet50", 64),
    "EfficientNetV2B0, 96x96": application("EfficientNetV2B0", 96),
    "DenseNet121, 64x64": application("DenseNet121", 64),
    "ViT of 6 layers, 64x64": vision_transformer,
    "basic-pitch": basic_pitch,
}


def model_pair(name: str, folder: Path) -> Pair:
    """An exported model, before and after `simplify`."""
    keras.utils.set_random_seed(0)
    MODELS[name](folder / "before")
    began = time.process_time()
    gw.simplify(folder / "before", out=folder / "after")
    seconds = time.process_time() - began
    functions = [load_callable(gw.trust(folder / which), runs=True) for which in ("before", "after")]
    rng = np.random.default_rng(0)
    inputs = {
        key: tf.constant(rng.uniform(-1, 1, [size or BATCH for size in spec.shape]), spec.dtype)
        for key, spec in functions[0].structured_input_signature[1].items()
    }
    before, after = (resolve(function, inputs) for function in functions)
    with grappler_disabled():
        plain = difference(before.run(), after.run())
    with grappler_enabled():
        grappled = difference(before.run(), after.run())
    flops = [gw.count_flops(folder / which, batch=BATCH).total for which in ("before", "after")]
    return Pair(before, after, seconds, (flops[0], flops[1]), (plain, grappled), functions)


def step_pair(name: str) -> Pair:
    """A training step before and after `simplify`, on the same variables."""
    reference = zoo.make(name, size="small", batch=BATCH)
    function = reference.step.get_concrete_function(*reference.inputs)
    graph, binding = from_concrete_function(function)
    began = time.process_time()
    gw.simplify(graph)
    seconds = time.process_time() - began
    simplified = to_concrete_function(graph, binding)
    found = [gw.verify(function, simplified, reference.inputs, grappler=grappler) for grappler in (False, True)]
    equal = ["bit for bit" if one.bitwise else f"{one.max_abs:.0e}" for one in found]
    before, after = (resolve(one, reference.inputs) for one in (function, simplified))
    return Pair(before, after, seconds, (gw.count_flops(before).total, gw.count_flops(after).total), (equal[0], equal[1]), reference)


def difference(expected: Any, found: Any) -> str:
    """The largest difference as a share of the largest number."""
    most = 0.0
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
        most = max(most, float(tf.reduce_max(tf.abs(a - b)) / tf.reduce_max(tf.abs(a))))
    return f"{most:.0e}" if most else "bit for bit"


def nodes_after_grappler(step: TracedStep) -> int:
    """Return the number of nodes after Grappler, functions included."""
    graphs = recorded_graphs(step, like=from_concrete_function(step.function, planned=False)[0])
    records = map(tf.compat.v1.RunMetadata.FunctionGraphs.FromString, graphs)
    graph = max(records, key=lambda record: len(record.pre_optimization_graph.node)).post_optimization_graph
    return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)


def nodes_as_written(step: TracedStep) -> int:
    """Return the number of nodes that a step runs, called functions included."""
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in step.arguments]
    called = tf.function(lambda *tensors: call_flat(step.function, tensors)).get_concrete_function(*specs)
    graph = from_concrete_function(called, planned=False)[0]
    inline_calls(graph, Purity(graph, stateful_op_types(graph)), strict=False)
    prune(graph, graph.outputs, signatures=False, collections=False)
    inner = [graph.functions[name].body for name in reached_functions(graph, graph.nodes)]
    return sum(map(len, (graph, *inner)))


def ratio(times: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> str:
    """Return the median of ratios and its 95 % interval by order statistics."""
    ratios, count = np.sort(times / base), len(times)
    low = max(0, int(np.floor(count / 2 - 0.98 * np.sqrt(count))) - 1)
    return f"{np.median(ratios):.2f} ({ratios[low]:.2f} to {ratios[count - 1 - low]:.2f})"


def row(name: str, pair: Pair, rounds: int) -> list[str]:
    """A row of the table."""
    nodes = [nodes_after_grappler(step) for step in (pair.before, pair.after)]
    runs = {
        "plain": pair.before.run,
        "simplified": pair.after.run,
        "plain, no Grappler": pair.before.run,
        "simplified, no Grappler": pair.after.run,
    }
    seconds = processor_times(runs, rounds, grappler=("plain", "simplified"))
    ratios = [ratio(seconds[how], seconds["plain"]) for how in list(runs)[1:]]
    written = [nodes_as_written(step) for step in (pair.before, pair.after)]
    flops = [format_flops(count) for count in pair.flops]
    counts = [f"{count:,}" for count in (written[0], nodes[0], written[1], nodes[1])]
    return [name, *counts, *flops, *pair.equal, f"{np.median(seconds['plain']) * 1e3:.0f} ms", *ratios, f"{pair.seconds:.1f} s"]


COLUMNS = (
    *("", "nodes", "Grappler", "simplify", "both", "FLOPs", "after", "equal", "under Grappler"),
    *("CPU time", "simplify and Grappler", "neither", "simplify alone", "simplify took"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", nargs="+", default=[], help="names of models and steps, as in the table")
    options = parser.parse_args()
    for title, names in (("exported models", [*MODELS]), (f"training steps, small, batches of {BATCH}", [*STEPS])):
        table = Table(title=title, box=box.MARKDOWN)
        for column in COLUMNS:
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name in names:
            if options.only and name not in options.only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                pair = model_pair(name, Path(folder)) if name in MODELS else step_pair(name)
                table.add_row(*row(name, pair, options.rounds))
        if table.row_count:
            Console(width=260).print(table)


if __name__ == "__main__":
    main()
