"""A batch in an encoder, chunk by chunk: forward without residuals, then again with the gradients of each chunk.

All chunks except a smaller last one run in one sequential `tf.while_loop`, so graph and memory are those of one chunk. If the batch size is
unknown while the function is traced, every chunk is sliced to its size in the loop.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from graphwright.errors import ArgumentError
from graphwright.reuse.encoders import Encoder
from graphwright.source.tensorflow_import import import_keras

tf: Any = importlib.import_module("tensorflow")

Carried = tuple[Any, ...]


class _Run(NamedTuple):
    first: int
    count: Any
    size: int
    is_cut: bool


class ChunkedEncoder:
    """An encoder on one batch, while a function is traced; the chunk size is in samples."""

    def __init__(self, encoder: Encoder, inputs: Any, chunk_size: int, where: str) -> None:
        self._encoder = encoder
        self._inputs = inputs
        leaves = tf.nest.flatten(inputs)
        known = samples_of(leaves, where)
        if known is None:
            self.samples = tf.shape(leaves[0])[0]
            for leaf in leaves[1:]:
                tf.debugging.assert_equal(tf.shape(leaf)[0], self.samples, f"{where}: inputs of different numbers of samples")
            self._runs = [_Run(0, (self.samples + chunk_size - 1) // chunk_size, chunk_size, True)]
        else:
            self.samples = known
            count, rest = divmod(known, chunk_size)
            runs = [_Run(0, count, chunk_size, False), _Run(count * chunk_size, 1, rest, False)]
            self._runs = [run for run in runs if run.count and run.size]
        self._states: list[list[Any]] = []

    def represent(self, after: Sequence[Any]) -> Any:
        """Return the representations of all samples, after some tensors, and store the random states before each chunk for `pull`."""
        encoder = self._encoder
        specs = tf.nest.flatten(encoder.outputs)
        parts: list[list[Any]] = []
        for run in self._runs:
            size = None if run.is_cut else run.size
            outputs = [tf.TensorArray(s.dtype, run.count, infer_shape=not run.is_cut, element_shape=[size, *s.shape]) for s in specs]
            states = [tf.TensorArray(state.dtype, run.count, element_shape=state.shape) for state in encoder.states]

            def body(i: Any, carried: Carried, run: _Run = run) -> Carried:
                outputs, states = carried[: len(specs)], carried[len(specs) :]
                states = [array.write(i, state.read_value()) for array, state in zip(states, encoder.states, strict=True)]
                leaves = tf.nest.flatten(encoder.call(self._chunk(run, i)))
                return (*(array.write(i, leaf) for array, leaf in zip(outputs, leaves, strict=True)), *states)

            arrays = loop(run.count, body, (*outputs, *states), after)
            parts.append([joined(array, None if run.is_cut else run.count * run.size) for array in arrays[: len(specs)]])
            self._states.append(list(arrays[len(specs) :]))
            after = parts[-1]
        whole = [leaves[0] if len(leaves) == 1 else tf.concat(leaves, 0) for leaves in zip(*parts, strict=True)]
        for leaf, spec in zip(whole, specs, strict=True):
            leaf.set_shape([self.samples if isinstance(self.samples, int) else None, *spec.shape])
        return tf.nest.pack_sequence_as(encoder.outputs, whole)

    def pull(self, cotangents: Sequence[Any], variables: Sequence[Any], sums: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        """Return the sums plus the gradients of the variables, and per variable whether it has a gradient."""
        encoder = self._encoder
        reached = [False] * len(variables)
        carried: Carried = tuple(sums)
        for run, states in zip(self._runs, self._states, strict=True):

            def body(i: Any, carried: Carried, run: _Run = run, states: Sequence[Any] = states) -> Carried:
                for state, array in zip(encoder.states, states, strict=True):
                    state.assign(array.read(i))
                with tf.GradientTape() as tape:
                    tape.watch(list(variables))
                    leaves = tf.nest.flatten(encoder.call(self._chunk(run, i)))
                pairs = [(leaf, self._rows(run, i, whole)) for leaf, whole in zip(leaves, cotangents, strict=True) if whole is not None]
                gradients = tape.gradient([leaf for leaf, _ in pairs], list(variables), output_gradients=[part for _, part in pairs])
                for k, gradient in enumerate(gradients):
                    reached[k] = reached[k] or gradient is not None
                return tuple(_added(total, gradient) for total, gradient in zip(carried, gradients, strict=True))

            carried = loop(run.count, body, carried, [])
        return list(carried), reached

    def _chunk(self, run: _Run, i: Any) -> Any:
        return tf.nest.map_structure(partial(self._rows, run, i), self._inputs)

    def _rows(self, run: _Run, i: Any, tensor: Any) -> Any:
        first = run.first + i * run.size
        return rows(tensor, first, tf.minimum(run.size, self.samples - first) if run.is_cut else run.size)


def samples_of(leaves: Sequence[Any], where: str) -> int | None:
    """Return the number of samples, or None if it is unknown; raise an ArgumentError if there are none or inputs differ."""
    wrong: Any = next((leaf for leaf in leaves if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (0, None)), None)
    if not leaves or wrong is not None:
        got = "nothing" if not leaves else f"shape {wrong.shape}" if isinstance(wrong, tf.Tensor) else f"a {type(wrong).__name__}"
        raise ArgumentError(
            f"{got} was given", argument="inputs", item=where, remedy="give dense tensors of known rank with the samples in front"
        )
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes - {None}) > 1:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise ArgumentError(
            f"the shapes {shapes} hold different numbers of samples",
            argument="inputs",
            item=where,
            remedy="give as many samples in each; let the encoder close over tensors that are not per sample",
        )
    if sizes == {0}:
        raise ArgumentError("no samples were given", argument="inputs", item=where, remedy="give at least one")
    return None if None in sizes else sizes.pop()


def rows(tensor: Any, first: Any, count: Any) -> Any:
    """Return `count` rows from row `first` on, with a known shape if the count is known (XLA requires that)."""
    shape = tensor.shape
    sizes = [shape[k] if shape[k] is not None else tf.shape(tensor)[k] for k in range(1, shape.rank)]
    part = tf.slice(tensor, [first] + [0] * len(sizes), [count, *sizes])
    part.set_shape([count if isinstance(count, int) else None, *shape[1:]])
    return part


def plain_variable(variable: Any) -> Any:
    return variable.value if isinstance(variable, import_keras().Variable) else variable


def joined(array: Any, count: int | None) -> Any:
    """Concatenate the chunks in a `tf.TensorArray`: `count` rows, or any number if None."""
    if count is None:
        return array.concat()
    stacked = array.stack()
    return tf.reshape(stacked, [count, *stacked.shape[2:]])  # `concat` would lose the known size


def loop(count: Any, body: Callable[[Any, Carried], Carried], carried: Carried, after: Sequence[Any]) -> Carried:
    """Run the body for i = 0 ... count - 1, sequentially, after some tensors."""
    with tf.control_dependencies(list(after)):
        if isinstance(count, int) and count == 1:
            return body(tf.constant(0), carried)

        def following(i: Any, *carried: Any) -> Carried:
            return (i + 1, *body(i, carried))

        def goes_on(i: Any, *_: Any) -> Any:
            return i < count

        return tf.while_loop(goes_on, following, (tf.constant(0), *carried), parallel_iterations=1)[1:]


def _added(total: Any, gradient: Any) -> Any:
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):  # of an embedding: adding only its rows needs no tensor of the table's size
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], tf.cast(gradient.values, total.dtype))
    return total + tf.cast(gradient, total.dtype)
