"""How TensorFlow executes the functions called in a block: with or without Grappler, by which executor.

TensorFlow optimizes a function at its first call and caches the result by the options of the call, which belong to the calling thread. A
function called while another one is traced becomes part of it, unless it is not inlined (`rebuild_concrete_function(..., noinline=True)`).
Even without Grappler, TensorFlow merges stateless nodes with equal types, attributes, inputs and control inputs.
"""

import importlib
import itertools
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from graphwright.source.private_tensorflow import call_options, new_call_options, set_call_options

tf: Any = importlib.import_module("tensorflow")

_NUMBERS = itertools.count(1)


def grappler_disabled(*, executor: str = "") -> AbstractContextManager[None]:
    """Call functions in this block, in this thread, without Grappler's rewrites.

    Args:
        executor: TensorFlow's executor; "" for the default, "SINGLE_THREADED_EXECUTOR" to run one node at a time.
    """
    return _call_options(grappler=False, executor=executor)


def grappler_enabled() -> AbstractContextManager[None]:
    """Call functions in this block, in this thread, with Grappler, even if the user has switched it off."""
    return _call_options(grappler=True)


def optimized_anew(*, grappler: bool, memory_optimizer: bool = True) -> AbstractContextManager[None]:
    """Make TensorFlow optimize functions again in this block, in this thread."""
    return _call_options(grappler=grappler, number=next(_NUMBERS), memory_optimizer=memory_optimizer)


def is_grappler_disabled() -> bool:
    """Whether a function called now in this thread would run without Grappler's rewrites."""
    config = tf.compat.v1.ConfigProto.FromString(call_options().config_proto_serialized)
    return bool(config.graph_options.rewrite_options.disable_meta_optimizer)


@contextmanager
def _call_options(*, grappler: bool, executor: str = "", number: int = 0, memory_optimizer: bool = True) -> Generator[None]:
    before = call_options()
    config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
    rewrites = config.graph_options.rewrite_options
    rewrites.disable_meta_optimizer = not grappler
    if not memory_optimizer:
        rewrites.memory_optimization = rewrites.NO_MEM_OPT
    if number:
        if rewrites.cpu_layout_conversion == rewrites.NO_CONVERSION_ON_CPU and not tf.config.get_visible_devices("GPU"):
            rewrites.layout_optimizer = rewrites.OFF  # it infers all shapes, and changes nothing without a GPU
        config.experimental.session_metadata.name = "graphwright"
        config.experimental.session_metadata.version = number
    set_call_options(new_call_options(config, executor))
    try:
        yield
    finally:
        set_call_options(before)
