"""FLOPs by XLA's own cost analysis of a step's HLO, before optimization.

TensorFlow does not expose the analysis; jaxlib, which is built from the same sources, does. It counts a loop's body once.
"""

from __future__ import annotations

from typing import Any


def xla_flops(step: Any, inputs: tuple[Any, ...]) -> float | None:
    """Return XLA's FLOPs of one call of a `tf.function`; None if jaxlib is missing or XLA cannot compile the step."""
    try:
        from jaxlib import _jax, xla_client
    except ImportError:
        return None
    import tensorflow as tf

    compiled = tf.function(step.python_function, jit_compile=True)
    try:
        hlo = compiled.experimental_get_compiler_ir(*inputs)(stage="hlo_serialized")
    except (tf.errors.OpError, TypeError, ValueError):
        return None
    module = xla_client.XlaComputation(hlo).get_hlo_module()
    return float(_jax.hlo_module_cost_analysis(xla_client.make_cpu_client(), module)["flops"])
