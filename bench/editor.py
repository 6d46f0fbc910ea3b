"""Time edits of large graphs, relative to protobuf and TensorFlow on the same graph.

    python -m bench.editor                        # 1k, 10k and 100k nodes
    python -m bench.editor --nodes 1000 1000000
    python -m bench.editor --json results.json

Each size is timed in its own process, by processor time. A row gives the seconds of load, walk, rename all,
reroute 1 %, copy, and write, the memory of the loaded graph per node, and the ratio of load +
reroute + write to `ParseFromString` + `SerializeToString` and to `tf.import_graph_def` of the
same graph in the same process. The graph is a chain of blocks of convolution-like nodes with
weights, in scopes three deep; its bytes are generated once, from a seed.

The last columns time `graphwright.editor`: load, `reroute_ts` of 1 %, and
`to_graph_def`, which loads and writes the same graph; and their ratio to `tf.import_graph_def`.
The last row is a graph that calls as many functions as it has nodes, each with two nodes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console
from rich.table import Table

SIZES = (1_000, 10_000, 100_000)
FUNCTIONS = 5_000
STEPS = ("load", "walk", "rename all", "reroute 1 %", "copy", "write")
WORDS = ("gde load", "gde reroute 1 %", "gde write")


def graph_bytes(node_count: int) -> bytes:
    """A serialized `GraphDef` of about this many nodes: five nodes per layer, a skip connection every tenth layer."""
    import tensorflow as tf

    graph_def: Any = tf.compat.v1.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    float32 = tf.float32.as_datatype_enum

    def add(op: str, name: str, inputs: tuple[str, ...] = ()) -> str:
        node = graph_def.node.add(name=name, op=op)
        node.input.extend(inputs)
        node.attr["dtype" if op in ("Placeholder", "Const") else "T"].type = float32
        if op == "Const":
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([0.5, 0.25, 0.125, 1.0]))
        elif op == "Placeholder":
            node.attr["shape"].shape.dim.add().size = -1
            node.attr["shape"].shape.dim.add().size = 4
        return name

    last = skip = add("Placeholder", "input")
    layer = 0
    while len(graph_def.node) < node_count:
        scope = f"stage_{layer // 1000}/block_{layer // 10}/layer_{layer}"
        scale = add("Mul", f"{scope}/scaled", (last, add("Const", f"{scope}/kernel")))
        last = add("Relu", f"{scope}/relu", (add("AddV2", f"{scope}/biased", (scale, add("Const", f"{scope}/bias"))),))
        if layer % 10 == 9:
            last = skip = add("AddV2", f"{scope}/skip", (last, skip))
        layer += 1
    return graph_def.SerializeToString(deterministic=True)


def function_bytes(count: int) -> bytes:
    """Return a serialized `GraphDef` with a chain of calls, each of a separate function."""
    import tensorflow as tf

    graph_def: Any = tf.compat.v1.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    float32 = tf.float32.as_datatype_enum
    last = graph_def.node.add(name="input", op="Placeholder")
    last.attr["dtype"].type = float32
    last.attr["shape"].shape.dim.add().size = 4
    for k in range(count):
        function = graph_def.library.function.add()
        function.signature.name = f"step_{k}"
        function.signature.input_arg.add(name="x", type=float32)
        function.signature.output_arg.add(name="y", type=float32)
        for name, op, inputs in (("scaled", "Mul", ("x", "x")), ("biased", "AddV2", ("scaled:z:0", "x"))):
            function.node_def.add(name=name, op=op, input=inputs).attr["T"].type = float32
        function.ret["y"] = "biased:z:0"
        last = graph_def.node.add(name=f"call_{k}", op="PartitionedCall", input=[last.name])
        for key in ("Tin", "Tout"):
            last.attr[key].list.type.append(float32)
        last.attr["f"].func.name = f"step_{k}"
    return graph_def.SerializeToString(deterministic=True)


def measure(node_count: int, *, functions: bool = False) -> dict[str, Any]:
    """Time each step and its references in this process, in seconds; garbage is collected before each one."""
    import tensorflow as tf

    import graphwright.editor as gde
    from graphwright.ir.edit.clone import copy_graph
    from graphwright.ir.walk import topological_order
    from graphwright.source.graph_def import from_graph_def, to_graph_def

    data = function_bytes(node_count) if functions else graph_bytes(node_count)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        gc.collect()
        started = time.process_time()
        result = work()
        seconds[name] = time.process_time() - started
        return result

    def read() -> Any:
        return from_graph_def(tf.compat.v1.GraphDef.FromString(data))

    read_once: Any = tf.compat.v1.GraphDef.FromString(graph_bytes(100))
    gde.Graph(read_once).to_graph_def()  # structures that are built on first use are not timed
    parsed = timed("parse", lambda: tf.compat.v1.GraphDef.FromString(data))
    timed("serialize", parsed.SerializeToString)
    before = _resident_bytes()
    graph = timed("load", read)
    gc.collect()
    bytes_per_node = (_resident_bytes() - before) / len(graph)

    def walk() -> int:
        return sum(len(v.uses) + len(n.inputs) for n in topological_order(graph) for v in n.outputs)

    def reroute() -> int:
        [first] = graph.nodes[0].outputs
        return graph.replace_many_uses({n.inputs[0]: first for n in chosen_of(graph)})

    def chosen_of(graph: Any) -> list[Any]:
        nodes = [n for n in graph.nodes if n.op_type in ("Mul", "PartitionedCall")]
        return nodes[1 :: max(1, len(nodes) // max(1, len(graph) // 100))]

    def reroute_words() -> int:
        first = words.nodes[0].output(0)
        return sum(gde.reroute_ts(first, node.inputs[0]) for node in map(words.view_of, chosen_of(words.ir)))

    timed("walk", walk)
    timed("rename all", lambda: graph.rename_many({n: f"renamed/{n.name}" for n in graph.nodes}))
    rerouted = timed("reroute 1 %", reroute)
    timed("copy", lambda: copy_graph(graph))
    timed("write", lambda: to_graph_def(graph).SerializeToString())
    words = timed("gde load", lambda: gde.Graph(tf.compat.v1.GraphDef.FromString(data)))
    by_words = timed("gde reroute 1 %", reroute_words)
    timed("gde write", lambda: words.to_graph_def().SerializeToString())
    imported = tf.compat.v1.GraphDef.FromString(data)

    def import_graph() -> None:
        with tf.Graph().as_default():
            tf.graph_util.import_graph_def(imported, name="")

    timed("tf.import_graph_def", import_graph)
    assert by_words == rerouted
    return {"nodes": len(imported.node), "functions": functions, "rerouted": rerouted, "bytes_per_node": bytes_per_node, "seconds": seconds}


def _resident_bytes() -> int:
    """Return the memory of this process now, or its peak if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ratios(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return load + reroute 1 % + write over parse + serialize, and over `tf.import_graph_def`, the latter also for the editor."""
    seconds = row["seconds"]
    ours = seconds["load"] + seconds["reroute 1 %"] + seconds["write"]
    words = sum(seconds[step] for step in WORDS)
    imported = seconds["tf.import_graph_def"]
    return ours / (seconds["parse"] + seconds["serialize"]), ours / imported, words / imported


def print_rows(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(
        "nodes",
        *STEPS,
        *WORDS,
        "bytes/node",
        "parse + serialize",
        "import_graph_def",
        "x protobuf",
        "x import",
        "gde x import",
        title="seconds",
        title_justify="left",
    )
    for row in rows:
        seconds = row["seconds"]
        over_protobuf, over_import, words = ratios(row)
        table.add_row(
            f"{row['nodes']:,}" + (" and functions" if row["functions"] else ""),
            *(f"{seconds[step]:.3f}" for step in (*STEPS, *WORDS)),
            f"{row['bytes_per_node']:.0f}",
            f"{seconds['parse'] + seconds['serialize']:.3f}",
            f"{seconds['tf.import_graph_def']:.3f}",
            f"{over_protobuf:.1f}",
            f"{over_import:.2f}",
            f"{words:.2f}",
        )
    console.print(table)
    console.print(
        "x protobuf, x import: load + reroute 1 % + write, over parse + serialize, and over tf.import_graph_def, of the same graph."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.editor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES), help="sizes of the graphs")
    parser.add_argument("--functions", type=int, default=FUNCTIONS, help="functions of the graph that calls many, 0 for no such row")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--strict", action="store_true", help="fail where 100k nodes or more take longer than tf.import_graph_def")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of-functions", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one, functions=options.of_functions)))
        return 0
    rows: list[dict[str, Any]] = []
    jobs = [(size, ()) for size in options.nodes] + [(count, ("--of-functions",)) for count in (options.functions,) if count]
    for size, more in jobs:
        command = [sys.executable, "-m", "bench.editor", "--one", str(size), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return 1
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print_rows(rows, Console(width=150))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(options.strict and any(row["nodes"] >= 100_000 and max(ratios(row)[1:]) >= 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
