"""Savings by reuse, compared with plain TensorFlow with Grappler, TF1 sessions, and results kept by hand.

    python -m bench.reuse                       # everything, one section after the other
    python -m bench.reuse --once --cached       # only these

Each section runs in its own process, because some make TensorFlow record each allocation, which would slow down the others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

SECTIONS = {
    "once": "a value that depends on a variable, written six times in one graph",
    "cached": "such a value used in many calls, with gradients, and one large input that stays",
    "simplify": "gw.simplify on exported models and training steps",
    "jacobian": "gw.jacobian in chunks",
    "gradient_cache": "gw.GradientCache beside the plain step",
    "transfer": "gw.cache_frozen in ten epochs of transfer learning",
}


def main() -> None:
    """Run the requested sections, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, told in SECTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=told)
    asked = vars(parser.parse_args())
    failed = [name for name in SECTIONS if (asked[name] or not any(asked.values())) and not ran(name)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def ran(name: str) -> bool:
    """Run a section and return whether it completed."""
    print(f"\n{SECTIONS[name]}: python -m bench.reuse --{name.replace('_', '-')}\n", flush=True)
    program = f"from bench import reuse_{name}; reuse_{name}.main()"
    return not subprocess.run([sys.executable, "-c", program], env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, check=False).returncode


if __name__ == "__main__":
    main()
