"""The benchmarks of training: `python -m bench.train gradients|reversible|least_squares|lm_keras [...]`."""

from __future__ import annotations

import importlib
import sys

PARTS = ("gradients", "reversible", "least_squares", "lm_keras")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python -m bench.train {'|'.join(PARTS)} [...]")
    sys.exit(importlib.import_module(f"bench.train_{sys.argv[1]}").main(sys.argv[2:]))
