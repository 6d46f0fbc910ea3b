"""`cache_frozen`: transfer learning that computes the features of frozen layers once per sample, not once per epoch.

`fit` and `evaluate` pass features, stored by the content of the samples, to the trained layers, so shuffling and batching do not matter.
All other parts of Keras's training run unchanged.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from graphwright.errors import ArgumentError, GraphError, UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.report.units import counted, format_bytes
from graphwright.reuse.feature_store import Arrays, FeatureFolder, FeatureStore, digest
from graphwright.reuse.frozen_prefix import FrozenPrefix, find_prefix
from graphwright.source.private_keras import compile_arguments, inputs_of_graph, is_from_fit, output_structure, what_is_overridden
from graphwright.source.tensorflow_import import import_keras, left_alone

_ARRAY_CHUNK = 32
"""Samples of an array whose features are computed together."""

_TOLERANCE = 64.0
"""Units of roundoff, times the square root of the depth, by which features of a sample may differ between batches."""


def cache_frozen(model: Any, *, folder: str | Path | None = None, max_bytes: int | None = None) -> Any:
    """Let `fit` and `evaluate` of a Keras model compute the features of its frozen layers once per sample.

    Losses equal those of plain training, except for kernels whose order of sums depends on the batch size. Features are identified by
    the content of the sample, and are computed again if a frozen weight has changed or layers were frozen or released. Without frozen
    layers whose features can be kept, training is plain until there are some again. `predict`, `save`, callbacks and metrics use the
    unchanged model.

    Args:
        model: a functional model or a Sequential whose first layers are frozen (`layer.trainable = False`). Nested models may be
            frozen in part. The model is changed in place, before or after `compile`.
        folder: stores features in an SQLite database in this folder, for later processes; without it, in memory.
        max_bytes: the limit in memory, in bytes; the least recently used features are dropped.

    Returns:
        The model, with `model.frozen_cache`, a `FrozenCache`, which counts and can be removed.

    Raises:
        ArgumentError: `model` is not a Keras model, or both `folder` and `max_bytes` were given.
        UnsupportedError: no frozen layers with weights precede the trained ones; random augmentation, dropout or a batch norm in training
            mode precedes frozen layers; a layer adds a loss or a mask; the model overrides Keras's `train_step`; or it trains under a
            `tf.distribute` strategy.

    >>> import keras, numpy as np
    >>> base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="relu")])
    >>> base.trainable = False
    >>> model = keras.Sequential([keras.Input((8,)), base, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((6, 8), "float32") * np.arange(6)[:, None], np.zeros((6, 1))
    >>> history = cache_frozen(model).fit(x, y, epochs=10, verbose=0)
    >>> model.frozen_cache
    <FrozenCache of 1 frozen layer with weights: 6 samples, 96 B in memory; 0 found, 6 computed>
    """
    keras = import_keras()
    if not isinstance(model, keras.Model):
        raise ArgumentError(f"a {type(model).__name__} was given, not a Keras model", argument="model")
    if folder is not None and max_bytes is not None:
        raise ArgumentError("a limit of memory was given beside a folder on disk", argument="max_bytes", remedy="give one of them")
    if "frozen_cache" in vars(model):
        model.frozen_cache.remove()
    model.frozen_cache = FrozenCache(model, None if folder is None else Path(folder), max_bytes)
    return model


class FrozenCache:
    """The features that `cache_frozen` keeps for a model.

    Attributes:
        found: samples whose features were in the cache.
        computed: samples whose features were computed.
    """

    def __init__(self, model: Any, folder: Path | None, max_bytes: int | None) -> None:
        overridden = what_is_overridden(model)
        if overridden:
            raise UnsupportedError(
                f"{type(model).__name__} {model.name!r} replaces {', '.join(overridden)}, which may read the samples themselves",
                cause="optimize_memory did, which plans the whole step" if "optimized_step" in vars(model) else "",
                remedy="train it plainly, or give it the features as its inputs",
            )
        self.found = self.computed = 0
        self._model, self._folder = model, folder
        self._compiled = compile_arguments(model)
        self._store = FeatureStore(max_bytes)
        self._are_independent = False  # not checked yet
        self._find_prefix()
        self._follow_weights()
        model.fit, model.evaluate = self._with_features("fit"), self._with_features("evaluate")

    def __repr__(self) -> str:
        layers = counted(sum(call.has_weights for call in self._parts.prefix), "frozen layer")
        where = f"in {self._folder}" if self._folder else f"{format_bytes(self._store.nbytes)} in memory"
        counts = f"{self.found:,} found, {self.computed:,} computed"
        return f"<FrozenCache of {layers} with weights: {counted(len(self._store), 'sample')}, {where}; {counts}>"

    @property
    def nbytes(self) -> int:
        """Bytes of features in memory."""
        return self._store.nbytes

    def clear(self) -> None:
        self._store.clear()

    def remove(self) -> None:
        """Let the model train plainly again. The database in the folder stays."""
        for name in ("fit", "evaluate", "frozen_cache"):
            delattr(self._model, name)
        self._store = FeatureStore()

    # The model's methods

    def _with_features(self, name: str) -> Callable[..., Any]:
        plain = getattr(self._model, name)
        signature = inspect.signature(plain)

        def method(*args: Any, **kwargs: Any) -> Any:
            if is_from_fit(kwargs):
                return plain(*args, **kwargs)
            strategy = self._model.distribute_strategy
            if strategy is not None and strategy.num_replicas_in_sync > 1:
                raise UnsupportedError("the model trains under a tf.distribute strategy", remedy="train it on one device, or plainly")
            self._follow_layers()
            if not self._parts.prefix:
                return plain(*args, **kwargs)
            self._follow_weights()
            bound = signature.bind(*args, **kwargs)
            arguments = bound.arguments
            if "x" in arguments:
                arguments["x"] = self._converted(arguments["x"], self._of_arrays)
            if arguments.get("validation_data") is not None:
                arguments["validation_data"] = self._converted(arguments["validation_data"], partial(_with_x, self._of_arrays))
            if name == "fit":
                arguments["callbacks"] = self._watching(arguments.get("callbacks"))
            with self._routed():
                return plain(*bound.args, **bound.kwargs)

        method.__doc__, method.__name__ = plain.__doc__, name
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    @contextmanager
    def _routed(self) -> Generator[None]:
        model = self._model
        plain = model.train_function, model.test_function
        if self._compiled is not (now := compile_arguments(model)):
            self._compiled, self._functions = now, (None, None)
        part, kind = _TrainedLayers(model, self._parts), cast("Any", type(model))
        model.train_step, model.test_step = partial(kind.train_step, part), partial(kind.test_step, part)
        model.train_function, model.test_function = self._functions
        try:
            yield
        finally:
            self._functions = model.train_function, model.test_function
            model.train_function, model.test_function = plain
            del model.train_step, model.test_step

    def _watching(self, callbacks: Any) -> Any:
        """Return the callbacks of a `fit` with one that raises if frozen weights change while their features are in use."""
        keras: Any = importlib.import_module("keras")
        watch = keras.callbacks.LambdaCallback(on_epoch_begin=self._check_weights)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(watch)
            return callbacks
        return [*([] if callbacks is None else listed(callbacks)), watch]

    # The frozen layers

    def _find_prefix(self) -> None:
        self._parts = find_prefix(self._model)
        self._layers, self._settings = self._layer_state(), self._layer_settings()
        self._functions: tuple[Any, Any] = (None, None)
        self._weights: bytes = b""

    def _layer_state(self) -> list[tuple[int, bool]]:
        return [(id(call.operation), call.is_trained) for call in (*self._parts.prefix, *self._parts.head)]

    def _follow_layers(self) -> None:
        """Find the prefix again if layers were frozen or released; it is empty if training must be plain."""
        if self._layer_state() == self._layers:
            return
        try:
            self._find_prefix()
        except UnsupportedError:
            self._parts = replace(self._parts, prefix=[], head=[*self._parts.prefix, *self._parts.head])
            self._layers = self._layer_state()
            if self._folder is None:
                self._store.clear()

    def _follow_weights(self) -> None:
        weights = self._weights_digest()
        if weights != self._weights:
            self._weights = weights
            if self._folder is None:
                self._store.clear()
            else:
                self._store = FeatureFolder(self._folder, weights.hex())

    def _weights_digest(self) -> bytes:
        return digest([self._settings, *(np.asarray(variable) for variable in self._parts.variables)])

    def _layer_settings(self) -> np.ndarray[Any, Any]:
        serialize: Any = importlib.import_module("keras").saving.serialize_keras_object
        operations = {id(call.operation): call.operation for call in self._parts.prefix}
        order = {key: place for place, call in enumerate(self._parts.prefix) for key in call.gives}
        settings = [_without_names(serialize(operation)) for operation in operations.values()] if self._folder else []
        edges = [[order.get(key, -1) for key in call.takes.values()] for call in self._parts.prefix]
        text = repr((settings, edges, [order[key] for key in self._parts.features]))
        return np.frombuffer(text.encode(), np.uint8)

    def _check_weights(self, epoch: int, _logs: Any) -> None:
        if self._weights_digest() != self._weights:
            raise GraphError(
                f"weights of frozen layers changed before epoch {epoch + 1}, while their features were in use",
                where=f"model {self._model.name!r}",
                cause="a callback, or another thread, sets weights of layers that are frozen",
                remedy="call `fit` once for each state of the frozen weights, or remove the cache: model.frozen_cache.remove()",
            )

    # Features

    def _compute(self, samples: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        tf: Any = importlib.import_module("tensorflow")
        inputs = inputs_of_graph(self._model, samples[0]) if len(self._parts.inputs) == 1 else samples
        return [feature.numpy() for feature in self._parts.compute(*map(tf.constant, inputs))]

    def _samples(self, x: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the tensors that identify samples. A single input is hashed as given: bytes of pixels take a quarter of the time."""
        tree: Any = importlib.import_module("keras").tree
        return tree.flatten(x) if len(self._parts.inputs) == 1 else [inputs[place] for place in self._parts.read]

    def _features(self, samples: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        keys = [digest(array[place] for array in samples) for place in range(len(samples[0]))]
        if not keys:
            return [np.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype) for spec in self._parts.specs]
        rows = {key: row for key in dict.fromkeys(keys) if (row := self._store.get(key)) is not None}
        missing = {key: place for place, key in reversed(list(enumerate(keys))) if key not in rows}
        if missing:
            places = sorted(missing.values())
            features = self._compute([array[places] for array in samples])
            self._check_independence(samples, places, features)
            fresh: dict[bytes, Arrays] = {keys[place]: tuple(f[row] for f in features) for row, place in enumerate(places)}
            self._store.put(fresh)
            rows |= fresh
        self.computed += len(missing)
        self.found += len(keys) - len(missing)
        return [np.stack([rows[key][number] for key in keys]) for number in range(len(self._parts.features))]

    def _check_independence(self, samples: Sequence[np.ndarray[Any, Any]], places: list[int], features: list[np.ndarray[Any, Any]]) -> None:
        """Raise if the features of the first sample of the first batch differ when it is computed alone."""
        if self._are_independent or len(places) == 1:
            return
        depth = len(self._parts.prefix)
        for spec, single, batch in zip(self._parts.specs, self._compute([a[places[:1]] for a in samples]), features, strict=True):
            if not _is_near(single[0], batch, depth):
                raise UnsupportedError(
                    f"the features of a sample, {spec.name!r}, depend on the other samples of its batch",
                    cause="a frozen layer takes a mean, a rank or a comparison over the batch",
                    remedy="train the model plainly",
                )
        self._are_independent = True

    def _of_batch(self, x: Any) -> Any:
        inputs = inputs_of_graph(self._model, x)
        samples = [np.asarray(array) for array in self._samples(x, inputs)]
        return self._packed(self._features(samples), [np.asarray(tensor) for tensor in inputs])

    def _packed(self, features: list[Any], inputs: Sequence[Any]) -> Any:
        parts = [*features, *(inputs[place] for place in self._parts.passed_on)]
        return parts[0] if len(parts) == 1 else tuple(parts)

    # Data in the forms that Keras accepts

    def _converted(self, data: Any, of_arrays: Callable[[Any], Any]) -> Any:
        keras: Any = importlib.import_module("keras")
        tf: Any = importlib.import_module("tensorflow")
        if isinstance(data, tf.data.Dataset):
            dataset: Any = data.map(left_alone(self._of_element))
            return dataset.prefetch(tf.data.AUTOTUNE)
        of_tuple = partial(_with_x, self._of_batch)
        if isinstance(data, keras.utils.PyDataset):
            return _mapped(data, of_tuple)
        if isinstance(data, Iterator):
            return (of_tuple(batch) for batch in cast("Iterator[Any]", data))
        if isinstance(data, tf.distribute.DistributedDataset):
            raise UnsupportedError("a distributed data set was given", remedy="train on one device, or plainly")
        return of_arrays(data)

    def _of_arrays(self, x: Any) -> Any:
        tree: Any = importlib.import_module("keras").tree
        count = len(tree.flatten(x)[0])

        def rows(array: Any, first: int) -> Any:
            return array[first : first + _ARRAY_CHUNK]

        def joined(*parts: Any) -> Any:
            return np.concatenate(parts)

        chunks = (tree.map_structure(partial(rows, first=first), x) for first in range(0, max(count, 1), _ARRAY_CHUNK))
        return tree.map_structure(joined, *map(self._of_batch, chunks))

    def _of_element(self, *element: Any) -> Any:
        tf: Any = importlib.import_module("tensorflow")
        inputs = inputs_of_graph(self._model, element[0])
        samples, specs = self._samples(element[0], inputs), self._parts.specs

        def features_of(*arrays: Any) -> Any:
            return self._features(arrays)

        features = listed(tf.numpy_function(features_of, samples, [tf.as_dtype(spec.dtype) for spec in specs]))
        for feature, spec in zip(features, specs, strict=True):
            feature.set_shape([samples[0].shape[0], *spec.shape[1:]])
        return (self._packed(features, inputs), *element[1:])


class _TrainedLayers:
    """A model that calls its trained layers only; in all other respects it is the model."""

    def __init__(self, model: Any, parts: FrozenPrefix) -> None:
        self._model, self._parts = model, parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, x: Any, training: bool = False) -> Any:
        tree: Any = importlib.import_module("keras").tree
        inputs = listed(x)
        count = len(self._parts.features)
        outputs = self._parts.finish(inputs[:count], inputs[count:], training=training)
        structure = output_structure(self._model)
        return outputs[0] if isinstance(structure, (tuple, list)) and len(outputs) == 1 else tree.pack_sequence_as(structure, outputs)


def _is_near(single: np.ndarray[Any, Any], batch: np.ndarray[Any, Any], depth: int) -> bool:
    """Return whether features of a sample equal the features of the first sample of a batch, except for roundoff."""
    if not np.issubdtype(single.dtype, np.floating):
        return np.array_equal(single, batch[0])
    ours, all_features = single.astype(np.float64), batch.astype(np.float64)
    differs = (ours != all_features[0]) & ~(np.isnan(ours) & np.isnan(all_features[0]))
    scale = float(np.max(np.abs(all_features), initial=1e-30, where=np.isfinite(all_features)))
    error = float(np.max(np.abs(ours - all_features[0]), initial=0.0, where=differs))
    return error <= _TOLERANCE * np.sqrt(depth) * float(np.finfo(single.dtype).eps) * scale


def _without_names(settings: Any) -> Any:
    """Return a layer's configuration without names, which depend on the layers created before in the process."""
    if isinstance(settings, dict):
        items = cast("dict[str, Any]", settings).items()
        return {key: _without_names(item) for key, item in items if key not in {"name", "shared_object_id"}}
    return [_without_names(item) for item in listed(settings)] if isinstance(settings, (list, tuple)) else settings


def _with_x(convert: Callable[[Any], Any], batch: Any) -> Any:
    x, *others = listed(batch)
    return (convert(x), *others)


def _mapped(data: Any, of_batch: Callable[[Any], Any]) -> Any:
    keras: Any = importlib.import_module("keras")

    class Mapped(keras.utils.PyDataset):  # defined here because Keras is imported late
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> Any:
            return of_batch(data[index])

        def on_epoch_begin(self) -> None:
            data.on_epoch_begin()

        def on_epoch_end(self) -> None:
            data.on_epoch_end()

    return Mapped()
