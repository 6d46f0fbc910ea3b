"""Arguments of `gradients` and `checkpointed`: checks and conversions."""

import importlib
import inspect
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.traits.values import PLACEHOLDERS
from graphwright.plan.budget import Budget

tf: Any = importlib.import_module("tensorflow")

Checkpoints = str | int | float | Sequence[Any]
MODES = ("collection", "memory", "speed")
COLLECTION = "checkpoints"


def check_mode(argument: Any) -> Checkpoints:
    checkpoints: Any = argument
    remedy = 'give a list of tensors, "collection", "memory", "speed", or a budget: bytes (int), a share (float below 1), or "2.5GiB"'
    if isinstance(checkpoints, str):
        if checkpoints in MODES:
            return checkpoints
        if not re.match(r"\s*[\d.]", checkpoints):
            raise ArgumentError(f"unknown way to choose checkpoints: {checkpoints!r}", argument="checkpoints", remedy=remedy)
        Budget.read(checkpoints)
        return checkpoints
    if not isinstance(checkpoints, bool) and isinstance(checkpoints, numbers.Real):  # NumPy's numbers too
        Budget.read(checkpoints)
        return int(checkpoints) if isinstance(checkpoints, numbers.Integral) else float(checkpoints)
    if isinstance(checkpoints, list | tuple | set | frozenset) or inspect.isgenerator(checkpoints):
        return list(argument)
    raise ArgumentError(f"{type(checkpoints).__name__} is no way to choose checkpoints", argument="checkpoints", remedy=remedy)


def check_graph(ys: Any) -> Any:
    if tf.executing_eagerly():
        raise UnsupportedError(
            "gradients were requested outside a graph",
            where="gradients",
            cause="this code runs eagerly, where the forward pass has run already and nothing can be planned",
            remedy="call it inside a tf.function or a tf.Graph; with a GradientTape, wrap the function: gw.checkpointed(fn)",
        )
    if not flat(ys):
        raise ArgumentError("there is nothing to differentiate", argument="ys", remedy="give a tensor, or a list of them")
    return tf.compat.v1.get_default_graph()


def check_options(kwargs: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(tf.compat.v1.gradients).parameters if name not in ("ys", "xs", "grad_ys")]
    strange = [name for name in kwargs if name not in known]
    if strange:
        raise ArgumentError(f"unknown argument {strange[0]!r}", where="gradients", remedy=f"tf.gradients takes {', '.join(known)}")


def check_time_limit(seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 0 < float(seconds) < math.inf:
        raise ArgumentError(f"{seconds!r} is not a time", argument="time_limit_s", remedy="give a positive number of seconds")


def check_feeds(live: Any, feeds: Mapping[Any, Any]) -> dict[str, tuple[int, ...]]:
    places = {operation.name: operation for operation in live.get_operations() if operation.type in PLACEHOLDERS}
    shapes: dict[str, tuple[int, ...]] = {}
    for key, shape in feeds.items():
        name = str(getattr(key, "name", key)).split(":")[0]
        if name not in places:
            known = ", ".join(name for name, operation in places.items() if operation.outputs[0].dtype != tf.resource) or "none"
            raise ArgumentError(f"{name!r} is not a placeholder of the graph", argument="feeds", remedy=f"the graph has {known}")
        declared = places[name].outputs[0].shape
        try:
            fed = tf.TensorShape(shape)
            fits = fed.is_fully_defined() and fed.is_compatible_with(declared)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise ArgumentError(f"{shape!r} is not a shape of {name!r}", argument="feeds", remedy=f"give numbers that fit {declared}")
        shapes[name] = tuple(tf.TensorShape(shape).as_list())
    return shapes


def named_checkpoints(live: Any, mode: Checkpoints) -> list[Any]:
    if mode == "collection":
        named = list(live.get_collection(COLLECTION))
        if not named:
            raise ArgumentError(
                f"the graph's collection {COLLECTION!r} is empty",
                argument="checkpoints",
                remedy=f'add tensors with tf.compat.v1.add_to_collection({COLLECTION!r}, tensor), or use checkpoints="memory"',
            )
    else:
        named = list(mode) if not isinstance(mode, str | int | float) else []
        if not named:
            raise ArgumentError("the list of checkpoints is empty", argument="checkpoints", remedy='give tensors, or use "memory"')
    for tensor in named:
        if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "op"):
            raise ArgumentError(f"{tensor!r} is not a tensor of a graph", argument="checkpoints", remedy="give tensors of the graph")
        if tensor.graph is not live:
            raise ArgumentError(
                f"the checkpoint {tensor.name!r} belongs to another graph",
                argument="checkpoints",
                remedy="take checkpoints of the graph in which the gradients are taken",
            )
    return named


def flat(tensors: Any) -> list[Any]:
    """Return the tensors in ys or in their gradients, including the parts of sparse ones."""
    return [t for t in tf.nest.flatten(tensors, expand_composites=True) if isinstance(t, tf.Tensor) and hasattr(t, "op")]


def listed(values: Any) -> list[Any]:
    return [*values] if isinstance(values, list | tuple) else [values]  # pyright: ignore[reportUnknownVariableType]
