"""A step planned to 40 % of its peak, in a process that may take no more than the plan and a tenth: see `test_first_call.py`.

Usage: python limited.py MODE, where MODE is `call`, `threads`, `iterator`, or `original`, which runs the step without a plan.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorflow as tf

import graphwright as gw
from graphwright.run.free_memory import free_bytes

_BATCH, _WIDTH, _LAYERS, _THREADS, _CALLS = 65536, 64, 24, 8, 3


def _chain() -> tuple[Any, Any, Any]:
    """A chain of dense layers, as a step on a batch and as a step on an iterator, and its counter."""
    weights = [tf.Variable(tf.eye(_WIDTH) * 0.9) for _ in range(_LAYERS)]
    count = tf.Variable(0)

    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y * y)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        count.assign_add(1)
        return loss + x[0, 0]

    return tf.function(train), tf.function(lambda numbers: train(tf.fill((_BATCH, _WIDTH), tf.cast(next(numbers), tf.float32)))), count


def _limit(nbytes: int) -> None:
    """Let the process take this much more address space than it has."""
    status = Path("/proc/self/status").read_text().splitlines()
    taken = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, (taken + nbytes, taken + nbytes))


def main(mode: str) -> None:
    on_batch, on_iterator, count = _chain()
    step = on_iterator if mode == "iterator" else on_batch
    data = tf.data.Dataset.range(_CALLS + 1)  # numbers: what a pipeline holds itself is no part of a plan
    x: Any = iter(data) if mode == "iterator" else tf.ones((_BATCH, _WIDTH))
    float(tf.reduce_sum(tf.random.normal((64, 64)) @ tf.random.normal((64, 64))))  # TensorFlow's threads are there now,
    if mode == "iterator":
        next(x)  # those of data sets too
    fast = gw.optimize_memory(step, 0.4, inputs=(x,), cache_dir=None)
    plan = fast.plan
    at_once = _THREADS if mode == "threads" else 1
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(lambda _: sum(range(10**5)), range(10 * at_once)))  # so are ours, and their stacks
        limit = int(1.1 * at_once * (plan.peak_bytes - plan.resident_bytes))
        _limit(limit)
        free = free_bytes()
        assert free is not None
        assert free <= limit
        run = step if mode == "original" else fast
        if mode == "threads":
            losses = [float(loss) for loss in threads.map(lambda _: run(x), range(_CALLS * _THREADS))]
        else:
            losses = [float(run(x)) for _ in range(_CALLS)]
    answer = {"count": int(count), "losses": losses, "peak": plan.peak_bytes, "original": plan.original_peak_bytes}
    print(json.dumps(answer | {"verification": plan.verification}))  # noqa: T201


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1])
