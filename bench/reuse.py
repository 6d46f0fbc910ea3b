"""What reuse saves: `python -m bench.reuse --gradient-cache`; minutes on two cores."""

from __future__ import annotations

import argparse
import os

from bench import reuse_gradient_cache

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    """Run the sections that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradient-cache", action="store_true", help=reuse_gradient_cache.__doc__.splitlines()[0])
    given = parser.parse_args()
    if given.gradient_cache:
        reuse_gradient_cache.main()


if __name__ == "__main__":
    main()
