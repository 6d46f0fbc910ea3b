"""How TensorFlow executes the functions called in a block: with or without Grappler, by which executor.

TensorFlow optimizes a function when it is first called, with the options of that call, and caches the outcome per
options. So a function may run with Grappler's rewrites and without them side by side, and nothing that the user has set
globally is touched: the options live in the calling thread.

A function that is called while another is *traced* becomes a part of that one, and is optimized with it: then the options
around the outer call count. Only a function that is not inlined (`rebuild_concrete_function(..., noinline=True)`) keeps the
options under which its call was traced.

Also without Grappler, TensorFlow merges stateless nodes that are equal in type, attributes, inputs *and control inputs*
when it instantiates a function. A recomputed node is safe from that by a control input of its own.
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
    """Calls of functions in this block, in this thread, run the graph as it is, without Grappler's rewrites.

    Args:
        executor: name of TensorFlow's executor; empty for its default, `"SINGLE_THREADED_EXECUTOR"` for the one that
            runs nodes one after the other.

    >>> import tensorflow as tf
    >>> double = tf.function(lambda x: x + x)
    >>> with grappler_disabled():
    ...     float(double(tf.constant(2.0)))
    4.0
    """
    return _call_options(grappler=False, executor=executor)


def grappler_enabled() -> AbstractContextManager[None]:
    """Calls of functions in this block, in this thread, run with Grappler, also where the user has switched it off."""
    return _call_options(grappler=True)


def optimized_anew(*, grappler: bool, memory_optimizer: bool = True) -> AbstractContextManager[None]:
    """Calls in this block, in this thread, make TensorFlow optimize the function again, even where it has done so before.

    Args:
        memory_optimizer: whether Grappler's memory optimizer takes part.
    """
    return _call_options(grappler=grappler, number=next(_NUMBERS), memory_optimizer=memory_optimizer)


def is_grappler_disabled() -> bool:
    """Whether a function called now in this thread would run without Grappler's rewrites."""
    config = tf.compat.v1.ConfigProto.FromString(call_options().config_proto_serialized)
    return bool(config.graph_options.rewrite_options.disable_meta_optimizer)


@contextmanager
def _call_options(*, grappler: bool, executor: str = "", number: int = 0, memory_optimizer: bool = True) -> Generator[None]:
    """TensorFlow's options as they would be, but for Grappler and the executor; another number, another entry in its cache."""
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
