"""On reference models every way to choose checkpoints gives the gradients of `tf.gradients`, to 1e-10 in float64."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from bench import zoo
from tests.gradient.sessions import assert_equal, recomputed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::graphwright.errors.CheckpointWarning"),  # some of the tensors lead nowhere
]


@pytest.fixture
def _doubles() -> Generator[None]:
    for dtype in ("float64", "float32"):  # the policy of layers is made from floatx once, when the first layer is
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        if dtype == "float64":
            yield


def _some_tensors(graph: Any) -> list[Any]:
    """Tensors of the forward part, as somebody may pick them who knows nothing of the model."""
    tensors = [t for op in graph.get_operations() if op.inputs and op.type != "ReadVariableOp" for t in op.outputs]
    return [t for t in tensors if t.dtype.is_floating and t.shape.rank is not None and t.shape.rank > 1][3::9]


@pytest.mark.usefixtures("_doubles")
@pytest.mark.parametrize("name", ["unet", "resnet50", "lstm"])
def test_gradients_of_a_reference_model(name: str) -> None:
    reference = zoo.make(name, size="small")
    assert {v.dtype for v in reference.model.trainable_variables} == {"float64"}
    _assert_equal_in_every_mode(reference, np.float64, 1e-10)


def test_gradients_in_bfloat16() -> None:
    """To the last bit: what is computed again is computed by the same kernels from the same values, and rounds as they did."""
    reference = zoo.make("transformer_bfloat16", size="small")
    assert "bfloat16" in {layer.compute_dtype for layer in reference.model.layers}
    _assert_equal_in_every_mode(reference, np.float32, 0.0)


def _assert_equal_in_every_mode(reference: zoo.Reference, dtype: Any, tolerance: float) -> None:
    """Gradients, and what else the step changes, are those of a plain step from the same state."""
    model = reference.model
    inputs = [tf.cast(x, dtype) if x.dtype.is_floating else x for x in reference.inputs]
    weights = model.trainable_variables
    states = [v for v in model.variables if not v.trainable]
    states += [layer.seed_generator.state for layer in model.layers if getattr(layer, "seed_generator", None) is not None]
    start = [state.numpy() for state in states]

    def gradients_of(checkpoints: Any) -> tuple[list[Any], list[Any], int]:
        for state, value in zip(states, start, strict=True):
            state.assign(value)

        @tf.function(autograph=False)
        def gradients(x: Any, y: Any) -> Any:
            loss = reference.loss(y, model(x, training=True))
            if checkpoints is None:
                return tf.gradients(loss, weights)
            for tensor in _some_tensors(loss.graph) if checkpoints == "collection" else ():
                tf.compat.v1.add_to_collection("checkpoints", tensor)
            kept = _some_tensors(loss.graph)[::2] if checkpoints == "list" else checkpoints
            return gw.gradients(loss, weights, checkpoints=kept, time_limit_s=0.5)

        traced = gradients.get_concrete_function(*inputs)
        found = [tf.convert_to_tensor(g).numpy() for g in traced(*inputs)]
        return found, [state.numpy() for state in states], len(recomputed(traced.graph))

    plain, after, _ = gradients_of(None)
    assert {g.dtype for g in plain} == {np.dtype(dtype)}
    clones = 0
    for checkpoints in ("memory", "speed", "list", "collection", 0.9):
        found, after_found, count = gradients_of(checkpoints)
        clones += count
        assert_equal(plain, found, tolerance)
        for one, other in zip(after, after_found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10)  # sums over threads
    assert clones > 0
