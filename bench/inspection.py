"""Time static inspection against the size of the graph: `python -m bench.inspection`.

A training step of many layers is traced once per size (which takes longer than everything measured here), then inspected by each cost
function. Times are processor times, which other programs disturb little.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import graphwright as gw

WIDTH, BATCH, NODES_PER_LAYER = 16, 8, 19
WORDS: dict[str, Callable[[Any], object]] = {
    "inspect": gw.inspect,
    "count_flops": gw.count_flops,
    "predict_peak": gw.predict_peak,
    "step_costs": gw.step_costs,
}


def training_step(layers: int) -> tuple[Any, Sequence[Any]]:
    """A residual network of dense layers with its gradients and updates, traced; and its variables, which must be kept."""
    names = [f"block{k // 10}/dense{k}" for k in range(layers)]
    kernels = [tf.Variable(tf.zeros((WIDTH, WIDTH)), name=f"{name}/kernel") for name in names]
    biases = [tf.Variable(tf.zeros((WIDTH,)), name=f"{name}/bias") for name in names]

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            for name, kernel, bias in zip(names, kernels, biases, strict=True):
                with tf.name_scope(name):
                    x = tf.nn.relu(tf.nn.bias_add(x @ kernel, bias)) + x
            loss = tf.reduce_mean(tf.square(x - y))
        for variable, gradient in zip(kernels + biases, tape.gradient(loss, kernels + biases), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    spec = tf.TensorSpec((BATCH, WIDTH))
    return step.get_concrete_function(spec, spec), [*kernels, *biases]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    chosen = parser.parse_args()
    function, _kept = training_step(1)
    gw.inspect(function)  # modules loaded at the first call
    print("| nodes | " + " | ".join(f"{word}, CPU s" for word in WORDS) + " |")
    print("|---:|" + "---:|" * len(WORDS))
    for nodes in chosen.nodes:
        function, _kept = training_step(max(nodes // NODES_PER_LAYER, 1))
        times: list[float] = []
        for word in WORDS.values():
            gc.collect()
            start = time.process_time()
            word(function)
            times.append(time.process_time() - start)
        count = len(function.graph.get_operations())
        print(f"| {count:,} | " + " | ".join(f"{seconds:.2f}" for seconds in times) + " |", flush=True)


if __name__ == "__main__":
    main()
