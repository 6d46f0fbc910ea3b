"""A batch that goes through an encoder chunk by chunk: forward without residuals, then again with the gradients of each chunk.

All chunks but a smaller last one run in one `tf.while_loop`, one after another, so that graph and memory are those of one chunk. Where the
size of the batch is not known while the function is traced, chunks are cut to size in the loop, the last one too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from graphwright.errors import ArgumentError
from graphwright.reuse.encoders import Encoder

tf: Any = importlib.import_module("tensorflow")

Carried = tuple[Any, ...]


class _Run(NamedTuple):
    """Chunks of one size, the first of which begins at sample `first`."""

    first: int
    count: Any
    size: int
    is_cut: bool  # the last one may be smaller


class ChunkedEncoder:
    """An encoder on one batch, while a function is traced.

    Args:
        encoder: from `examine`.
        inputs: a structure of tensors with the samples in front.
        chunk_size: samples at a time.
    """

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
        """The representations of all samples; what random states were before each chunk is kept for `pull`.

        Args:
            after: tensors to wait for, so that only one chunk is in memory at a time.
        """
        encoder = self._encoder
        specs = tf.nest.flatten(encoder.outputs)
        parts: list[list[Any]] = []
        for run in self._runs:
            arrays = [tf.TensorArray(s.dtype, run.count, infer_shape=not run.is_cut, element_shape=[_size(run), *s.shape]) for s in specs]
            kept = [tf.TensorArray(state.dtype, run.count, element_shape=state.shape) for state in encoder.states]

            def body(i: Any, carried: Carried, run: _Run = run) -> Carried:
                arrays, kept = carried[: len(specs)], carried[len(specs) :]
                kept = [array.write(i, state.read_value()) for array, state in zip(kept, encoder.states, strict=True)]
                found = tf.nest.flatten(encoder.call(self._chunk(run, i)))
                return (*(array.write(i, leaf) for array, leaf in zip(arrays, found, strict=True)), *kept)

            done = loop(run.count, body, (*arrays, *kept), after)
            parts.append([joined(array, None if run.is_cut else run.count * run.size) for array in done[: len(specs)]])
            self._states.append(list(done[len(specs) :]))
            after = parts[-1]
        whole = [leaves[0] if len(leaves) == 1 else tf.concat(leaves, 0) for leaves in zip(*parts, strict=True)]
        for leaf, spec in zip(whole, specs, strict=True):
            leaf.set_shape([self.samples if isinstance(self.samples, int) else None, *spec.shape])
        return tf.nest.pack_sequence_as(encoder.outputs, whole)

    def pull(self, cotangents: Sequence[Any], variables: Sequence[Any], sums: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        """Sums with the gradients of the variables added, and which variables have any.

        Args:
            cotangents: per representation, flat, the gradient of the loss with respect to it; None where it has none.
            variables: `tf.Variable`s.
            sums: per variable, a tensor of its shape.
        """
        encoder = self._encoder
        reached = [False] * len(variables)
        carried: Carried = tuple(sums)
        for run, states in zip(self._runs, self._states, strict=True):

            def body(i: Any, carried: Carried, run: _Run = run, states: Sequence[Any] = states) -> Carried:
                for state, array in zip(encoder.states, states, strict=True):
                    state.assign(array.read(i))
                with tf.GradientTape() as tape:
                    tape.watch(list(variables))
                    found = tf.nest.flatten(encoder.call(self._chunk(run, i)))
                chosen = [(leaf, self._rows(run, i, whole)) for leaf, whole in zip(found, cotangents, strict=True) if whole is not None]
                gradients = tape.gradient([leaf for leaf, _ in chosen], list(variables), output_gradients=[part for _, part in chosen])
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
    """How many samples the inputs hold; None where that is not known yet.

    Raises:
        ArgumentError: there are none, or not as many in each.
    """
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
            remedy="give as many samples in each; what is not per sample the encoder can close over",
        )
    if sizes == {0}:
        raise ArgumentError("no samples were given", argument="inputs", item=where, remedy="give at least one")
    return None if None in sizes else sizes.pop()


def rows(tensor: Any, first: Any, count: Any) -> Any:
    """`count` rows from row `first` on; of known shape where the count is (XLA asks for that)."""
    shape = tensor.shape
    sizes = [shape[k] if shape[k] is not None else tf.shape(tensor)[k] for k in range(1, shape.rank)]
    part = tf.slice(tensor, [first] + [0] * len(sizes), [count, *sizes])
    part.set_shape([count if isinstance(count, int) else None, *shape[1:]])
    return part


def joined(array: Any, count: int | None) -> Any:
    """The chunks in a `tf.TensorArray`, one behind another: `count` rows, or, for None, as many as there are."""
    if count is None:
        return array.concat()
    stacked = array.stack()
    return tf.reshape(stacked, [count, *stacked.shape[2:]])  # of known size, which `concat` gives none


def _size(run: _Run) -> int | None:
    return None if run.is_cut else run.size


def loop(count: Any, body: Callable[[Any, Carried], Carried], carried: Carried, after: Sequence[Any]) -> Carried:
    """Run the body for i = 0 ... count - 1, one round after another."""
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
    if isinstance(gradient, tf.IndexedSlices):  # of an embedding: rows are added where they belong, and nothing as large as it is made
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], tf.cast(gradient.values, total.dtype))
    return total + tf.cast(gradient, total.dtype)
