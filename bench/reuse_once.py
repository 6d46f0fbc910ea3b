"""One value that depends on a variable, written six times in one graph: `python -m bench.reuse_once [--size 200] [--rounds 11]`.

A sum of `expm(W * .01)`: in a `tf.function` that Grappler optimizes, in TF1 sessions, in the graph after `gw.simplify`, with
`gw.cached`, and by hand.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tensorflow as tf

import graphwright as gw
from bench.reuse_ways import SESSION_LEVEL, Way, flops_per_kernel, print_ways, session_call, tell_of_allocations
from graphwright.source.concrete_function import from_concrete_function, to_concrete_function

TIMES = 6


def value(w: Any) -> Any:
    return tf.linalg.expm(w * 0.01)


def six(w: Any) -> Any:
    """Repeat the value six times, as users write it."""
    return tf.add_n([value(w) for _ in range(TIMES)])


def main() -> None:
    """Measure and print."""
    tell_of_allocations()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    start = np.random.default_rng(0).normal(size=(options.size, options.size))
    w = tf.Variable(start)
    plain = tf.function(lambda: six(w))
    graph, binding = from_concrete_function(plain.get_concrete_function())
    print(gw.simplify(graph), end="\n\n")
    cached = gw.cached(lambda: value(w))
    kept = tf.Variable(value(w))

    ways = {
        "plain, tf.function": Way(plain),
        f"session, opt_level {SESSION_LEVEL}": Way(session_call(six, start)),
        f"session, opt_level {SESSION_LEVEL}, reference variable": Way(session_call(six, start, reference=True)),
        "gw.simplify": Way(to_concrete_function(graph, binding)),
        "gw.cached, tf.function": Way(tf.function(lambda: tf.add_n([cached() for _ in range(TIMES)])), lambda: cached.cache_info().nbytes),
        "by hand, written once": Way(tf.function(lambda: TIMES * value(w))),
        "by hand, in a variable": Way(tf.function(lambda: tf.add_n([kept.read_value() for _ in range(TIMES)])), lambda: start.nbytes),
    }
    title = f"expm(W * .01) of {options.size} x {options.size}, float64, {TIMES} times in one graph"
    print_ways(title, ways, options.rounds, base="plain, tf.function", kernel="MatrixSolve", flops=flops_per_kernel(plain))


if __name__ == "__main__":
    main()
