"""Check that TensorFlow builds every plan (placement, graph passes, executor). Nothing runs.

    python -m bench.refused                                        # all models, each share, without and with all verbs
    python -m bench.refused --models shortcut ddpm --shares 30 50
    python -m bench.refused --size small --time-limit 1            # smaller models, in minutes
    python -m bench.refused --programs m01.py m02.py               # files with `build()` -> {"step": ..., "args": (...)}

A row per model and set of verbs, a column per share of its peak, in falling order: the relative time of the plan, or "none" if no plan
keeps the budget; smaller shares are then skipped. A plan that also keeps the next share serves for both. A plan that TensorFlow refuses is
counted, even if the next plan succeeds. Prints Markdown, cell by cell, and ends with an error if a plan was refused.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench import half
from bench.shares import Step

SHARES = tuple(range(20, 100, 10))
VERBS: dict[str, Any] = {"default": {}, "all": {"allow": "all"}}


def shortcut(pixels: int = 32, width: int = 16, blocks: int = 3, batch: int = 32) -> Step:
    """A residual network whose shortcuts are convolutions with bias, followed by norms."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image: Any = layers.Input((pixels, pixels, 3))
    x: Any = layers.Conv2D(width, 3, padding="same")(image)
    for k in range(blocks):
        h: Any = layers.Activation("swish")(layers.GroupNormalization(4)(x))
        h = layers.Conv2D(width * (k + 2), 3, padding="same")(h)
        h = layers.Conv2D(width * (k + 2), 3, padding="same")(layers.Activation("swish")(h))
        x = layers.Add()([h, layers.Conv2D(width * (k + 2), 1)(layers.Activation("swish")(x))])
    model = keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return half.classifier(f"shortcuts with bias, {blocks} blocks, batch {batch}, Adam", model, pixels, batch)


def padded(pixels: int = 32, width: int = 16, blocks: int = 3, batch: int = 32) -> Step:
    """Explicit padding before each convolution, whose kernels are standardized in the step."""
    import keras
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)

    class Standardized(layers.Conv2D):
        def convolution_op(self, inputs: Any, kernel: Any) -> Any:
            mean, variance = tf.nn.moments(kernel, [0, 1, 2])
            return super().convolution_op(inputs, (kernel - mean) * tf.math.rsqrt(variance + 1e-5))

    image: Any = layers.Input((pixels, pixels, 3))
    x: Any = Standardized(width, 3)(layers.ZeroPadding2D()(image))
    for k in range(blocks):
        h: Any = layers.Activation("relu")(layers.GroupNormalization(4)(x))
        h = Standardized(width * (k + 2), 3)(layers.ZeroPadding2D()(h))
        x = layers.Add()([h, layers.Conv2D(width * (k + 2), 1)(x)])
    model = keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return half.classifier(f"standardized kernels behind padding, {blocks} blocks, batch {batch}, Adam", model, pixels, batch)


MODELS: dict[str, Callable[[], Step]] = {"shortcut": shortcut, "padded": padded, **half.MODELS}
SMALL: dict[str, Callable[[], Step]] = {
    "shortcut": lambda: shortcut(16, 8, 2, 16),
    "padded": lambda: padded(16, 8, 2, 16),
    "gan": lambda: half.gan(batch=16),
    "two_tower": lambda: half.two_tower(500, 200, 16, 256),
    "graph_network": lambda: half.graph_network(200, 1000, 16, 2),
    "vit": lambda: half.vit(32, 8, 32, 2, 16),
    "seq2seq": lambda: half.seq2seq(200, 32, 8, 6, 16),
    "ddpm": lambda: half.ddpm(16, 16, 8),
    "lm_head": lambda: half.lm_head(16, 2, 32, 1000),
}
"""By name; those of `bench.half` besides, in small where they can be made so."""


def program(path: str) -> Step:
    """Return the step of a file, which may import its neighbors."""
    sys.path.insert(0, str(Path(path).parent))
    made = runpy.run_path(path)["build"]()
    return Path(path).stem, made["step"], tuple(made["args"])


def cells(step: Step, shares: Sequence[int], options: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Return the cost of a plan for each share, in falling order, and the number of plans that TensorFlow refused."""
    import graphwright as gw

    _, function, inputs = step
    words, least = "", float("inf")  # the last cell, and the share of the peak that its plan takes, in percent
    for share in sorted(shares, reverse=True):
        if words == "none" or least <= share:
            yield words, 0
            continue
        refused, least = 0, float("inf")
        try:
            plan = gw.optimize_memory(function, share / 100, inputs=inputs, verify=False, **options).plan
        except gw.InfeasibleError:
            words = "none"
        except gw.VerificationError as error:
            words, refused = str(error.what), 1
        else:
            refused, least = int("refused" in plan.how), 100 * plan.peak_bytes / plan.original_peak_bytes
            words = f"{1 + plan.overhead:.2f}" + " (next)" * refused
        yield words, refused


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.refused", description=(__doc__ or "").splitlines()[0])
    known = [name for name in MODELS if name != "gpt2" or find_spec("keras_hub") is not None]
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=known)
    parser.add_argument("--programs", nargs="+", default=(), metavar="FILE", help="these instead of models")
    parser.add_argument("--shares", nargs="+", type=int, default=SHARES, metavar="PERCENT")
    parser.add_argument("--verbs", nargs="+", choices=tuple(VERBS), default=tuple(VERBS))
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--time-limit", type=float, default=6.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    models = MODELS if options.size == "full" else SMALL
    print(f"| model | verbs | {' | '.join(f'{share} %' for share in sorted(options.shares, reverse=True))} | refused |")
    print(f"|---|---|{'---:|' * (len(options.shares) + 1)}")
    count = 0
    for name in options.programs or (name for name in options.models if name in models):
        step = program(name) if options.programs else models[name]()
        with tempfile.TemporaryDirectory() as folder:  # the unmodified peak and the default plan are computed once
            for verbs in options.verbs:
                asked, refused = {**VERBS[verbs], "cache_dir": folder, "time_limit_s": options.time_limit}, 0
                print(f"| {Path(name).stem} | {verbs} |", end="", flush=True)
                for words, times in cells(step, options.shares, asked):
                    refused += times
                    print(f" {words} |", end="", flush=True)
                count += refused
                print(f" {refused} |", flush=True)
    print(f"\n{count} refused")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
