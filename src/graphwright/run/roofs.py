"""The limits of this machine as TensorFlow reaches them: FLOPs of a large matrix product, bytes moved by a large elementwise one.

They are the roofs of a roofline plot (Williams, Waterman and Patterson, CACM 52, 2009).
"""

import time
from collections.abc import Callable
from typing import Any

from graphwright.analyze.time_model import Roofs
from graphwright.source.tensorflow_import import import_tensorflow

_SIDE = 2048
_ELEMENTS = 2**24
_REPEATS = 5
_IN_PLACE = 8


def measure_roofs() -> Roofs:
    """Measure FLOPs and bytes per second, each the best of several runs."""
    tf = import_tensorflow()
    square, row = tf.ones((_SIDE, _SIDE)), tf.ones((_ELEMENTS,))

    def multiply(a: Any) -> Any:
        return tf.linalg.matmul(a, a)

    # All but the first write where they read: pages that the system hands out anew take longer than moving what is in them.
    def scale(a: Any, by: Any, count: int) -> Any:
        for _ in range(count):
            a = a * by
        return a

    product, scaled = tf.function(multiply), tf.function(scale)
    product_s = _best_s(lambda: float(product(square)[0, 0]))
    first_s, all_s = (_best_s(lambda count=count: float(scaled(row, row, count)[0])) for count in (1, 1 + _IN_PLACE))
    moved_s = (all_s - first_s) / _IN_PLACE if all_s > first_s else all_s / (1 + _IN_PLACE)
    return Roofs(
        2.0 * _SIDE**3 / product_s,
        3.0 * row.dtype.size * _ELEMENTS / moved_s,
        f"measured here: the best of {_REPEATS} products of {_SIDE} x {_SIDE} float32 matrices, and of {_REPEATS} times {_IN_PLACE} "
        f"elementwise products in place, which read twice {row.dtype.size * _ELEMENTS // 2**20} MiB and write them",
    )


def _best_s(run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()  # reads a number of the result, so that it is finished
        times.append(time.perf_counter() - start)
    return min(times)
