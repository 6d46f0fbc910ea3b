"""Time rewrite rules by example on a large graph, relative to `tf.import_graph_def` of the same graph.

    python -m bench.rewrite                       # 100 rules over 100,000 nodes
    python -m bench.rewrite --nodes 10000 --rules 10

Processor time, in one process, the graph of `bench/editor.py`: layers `relu(x * kernel + bias)` with skip connections. *nothing
matches*: all rules look for frequent op types, in orders that do not occur. *one matches*: one of them replaces `relu(a + b)`, in every
layer. Tracing the rules is a separate column.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from itertools import count, product
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.editor import graph_bytes


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rules", type=int, default=100)
    args = parser.parse_args()
    import tensorflow as tf

    import graphwright as gw

    graph_def: Any = tf.compat.v1.GraphDef.FromString(graph_bytes(args.nodes))
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        gc.collect()
        started = time.process_time()
        result = work()
        seconds[name] = time.process_time() - started
        return result

    def import_it() -> None:
        with tf.Graph().as_default():
            tf.graph_util.import_graph_def(graph_def, name="")

    small: Any = tf.compat.v1.GraphDef.FromString(graph_bytes(100))
    rules = [rule_of(k) for k in range(args.rules)]
    hit = gw.Rule(lambda a, b: tf.nn.relu(a + b), lambda a, b: tf.maximum(a + b, 0.0), name="relu")
    gw.rewrite(gw.load(small), [*rules[:2], hit])  # structures that are built on first use are not timed
    timed("import_graph_def", import_it)
    timed("rules traced", lambda: gw.rewrite(gw.load(small), rules))
    graph = gw.load(graph_def)
    nothing = timed("nothing matches", lambda: gw.rewrite(graph, rules))
    assert not nothing.applied
    one = timed("one matches", lambda: gw.rewrite(graph, [*rules[1:], hit]))
    table = Table(title=f"{args.rules} rules over {len(graph_def.node):,} nodes, seconds of processor time")
    for column in ("", "seconds", "ratio to import_graph_def"):
        table.add_column(column, justify="right")
    for name, taken in seconds.items():
        table.add_row(name, f"{taken:.2f}", f"{taken / seconds['import_graph_def']:.2f}")
    Console().print(table, f"{len(one.applied):,} replacements where one matches")


def rule_of(number: int) -> Any:
    """Return one of many rules without a match: operations of the graph in other orders, and a constant."""
    import tensorflow as tf

    import graphwright as gw

    steps: tuple[Callable[[Any, Any], Any], ...] = (lambda x, y: x * y, lambda x, y: x + y, lambda x, _: tf.nn.relu(x))
    chains = (chain for length in count(2) for chain in product(range(3), repeat=length))
    chain = next(chain for k, chain in enumerate(chains) if k == number)

    def pattern(x: Any, y: Any) -> Any:
        for step in chain:
            x = steps[step](x, y)
        return tf.nn.relu(x * (number + 2.0)) + y

    return gw.Rule(pattern, lambda x, y: x + y, name=f"rule {number}")


if __name__ == "__main__":
    main()
