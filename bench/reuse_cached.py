"""A value that depends on a variable, used twenty times, kept and not kept: `python -m bench.reuse_cached [--size 200] [--rounds 11]`.

First `expm(W)` times twenty vectors, with W unchanged between calls: by plain code, in a `tf.function` that Grappler optimizes, in TF1
sessions, kept by hand in a variable (which nobody updates when W changes), and with `gw.cached`; then with the gradient by W; then the
evaluations after `W.assign`. `expm` has one `MatrixSolve`, its gradient further ones. The last table scores twenty queries
against 4,000 rows that two dense layers encode, in float32, one query at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import graphwright as gw
from bench.reuse_ways import SESSION_LEVEL, Way, flops_per_kernel, kernels, print_ways, session_call, tell_of_allocations

USES = 20


def print_uses(size: int, rounds: int) -> None:
    """`expm(W)` times twenty vectors, and the gradient by W."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(size, size)) / size
    w, by_hand = tf.Variable(start), tf.Variable(tf.linalg.expm(start))
    vectors = [rng.normal(size=(size, 1)) for _ in range(USES)]
    xs = [tf.constant(x) for x in vectors]
    cached = gw.cached(lambda: tf.linalg.expm(w))

    def plain() -> Any:
        return tf.linalg.expm(w)

    def uses(value: Callable[[], Any]) -> list[Any]:
        return [value() @ x for x in xs]

    def in_session(variable: Any) -> list[Any]:
        return [tf.linalg.expm(variable) @ x for x in vectors]

    def gradient(value: Callable[[], Any], *, once: bool = False) -> Any:
        with tf.GradientTape() as tape:
            kept = value()
            loss = tf.add_n([tf.reduce_sum(tf.square((kept if once else value()) @ x)) for x in xs])
        return tape.gradient(loss, w)

    def held() -> int:
        return cached.cache_info().nbytes

    compiled = tf.function(lambda: uses(plain))
    ways = {
        "plain, tf.function": Way(compiled),
        "plain, eager": Way(lambda: uses(plain)),
        f"session, opt_level {SESSION_LEVEL}": Way(session_call(in_session, start)),
        f"session, opt_level {SESSION_LEVEL}, reference variable": Way(session_call(in_session, start, reference=True)),
        "gw.cached, eager": Way(lambda: uses(cached), held),
        "gw.cached, tf.function": Way(tf.function(lambda: uses(cached)), held),
        "by hand, in a variable": Way(tf.function(lambda: uses(by_hand.read_value)), lambda: start.nbytes),
    }
    title = f"expm(W) of {size} x {size}, float64, times {USES} vectors"
    flops = flops_per_kernel(compiled)
    print_ways(title, ways, rounds, base="plain, tf.function", kernel="MatrixSolve", flops=flops)
    # No row by hand: a variable that holds the value has no gradient by W.
    steps = {
        "plain, tf.function": Way(tf.function(lambda: gradient(plain))),
        "plain, eager": Way(lambda: gradient(plain)),
        "gw.cached, eager": Way(lambda: gradient(cached), held),
        "gw.cached, tf.function": Way(tf.function(lambda: gradient(cached)), held),
        "gw.cached, called once under the tape": Way(tf.function(lambda: gradient(cached, once=True)), held),
        "plain, called once under the tape": Way(tf.function(lambda: gradient(plain, once=True))),
    }
    print_ways(f"the same with the gradient by W: {USES} uses", steps, rounds, base="plain, tf.function", kernel="MatrixSolve", flops=flops)
    for name, run in (("eager", lambda: uses(cached)), ("tf.function", ways["gw.cached, tf.function"].call)):
        w.assign(w * 1.5)
        missed = cached.cache_info().misses
        ran = [kernels(run)["MatrixSolve"] for _ in range(3)]
        np.testing.assert_allclose(run(), uses(plain), rtol=1e-9)
        print(f"gw.cached, {name}: evaluations of three calls after W.assign: {ran}, misses: {cached.cache_info().misses - missed}")
    print()


def print_queries(rounds: int) -> None:
    """Twenty queries against a constant table."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return tf.constant(rng.normal(size=shape), tf.float32)

    table, asked = drawn(4000, 256), [drawn(1, 64) for _ in range(USES)]
    first, second = tf.Variable(drawn(256, 512) / 16.0), tf.Variable(drawn(512, 64) / 22.0)

    def encoded(table: Any) -> Any:
        return tf.nn.relu(table @ first) @ second

    def nearest(rows: Any, query: Any) -> Any:
        return tf.math.top_k(tf.linalg.matmul(query, rows, transpose_b=True), 10).values

    def best(table: Any, query: Any) -> Any:
        return nearest(encoded(table), query)

    by_hand, cached = tf.Variable(encoded(table)), gw.cached(encoded)

    def best_cached(table: Any, query: Any) -> Any:
        return nearest(cached(table), query)

    compiled, hand = tf.function(best), tf.function(lambda query: nearest(by_hand, query))
    cached_compiled = tf.function(best_cached)
    whole, rest = (USES * gw.count_flops(f, inputs=given).total for f, given in ((compiled, (table, asked[0])), (hand, asked[0])))

    def held() -> int:
        return cached.cache_info().nbytes

    ways = {
        "plain, tf.function": Way(lambda: [compiled(table, query) for query in asked], flops=whole),
        "plain, eager": Way(lambda: [best(table, query) for query in asked], flops=whole),
        "gw.cached, eager": Way(lambda: [best_cached(table, query) for query in asked], held, rest),
        "gw.cached, tf.function": Way(lambda: [cached_compiled(table, query) for query in asked], held, rest),
        "by hand, in a variable": Way(lambda: [hand(query) for query in asked], lambda: 4 * 4000 * 64, rest),
    }
    print_ways(f"{USES} queries to 4,000 rows", ways, rounds, base="plain, tf.function", kernel="MatMul")


def main() -> None:
    """Measure and print."""
    tell_of_allocations()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    print_uses(arguments.size, arguments.rounds)
    print_queries(arguments.rounds)


if __name__ == "__main__":
    main()
