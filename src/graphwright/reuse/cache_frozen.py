"""`cache_frozen`: transfer learning that computes the features of frozen layers once for each sample, not once in every epoch.

The model stays what it is: `fit` and `evaluate` give its layers that are trained the features of the frozen ones, kept by the content
of the samples, so it does not matter how these are shuffled, batched or read. Everything else of Keras's training runs as written.
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
from graphwright.reuse.feature_store import FeatureFolder, FeatureStore, digest
from graphwright.reuse.frozen_prefix import FrozenPrefix, find_prefix
from graphwright.source.private_keras import compile_arguments, inputs_of_graph, is_from_fit, output_structure, what_is_overridden
from graphwright.source.tensorflow_import import import_keras, left_alone

_AT_ONCE = 32  # samples whose features are computed together where an array holds them
_APART = 64.0  # units of roundoff, times the square root of the depth of sums, by which a sample's features may differ with its batch


def cache_frozen(model: Any, *, folder: str | Path | None = None, max_bytes: int | None = None) -> Any:
    """Let `fit` and `evaluate` of a Keras model compute the features of its frozen layers once for each sample.

    The losses are those of plain training, but for the order of sums where a kernel orders them by the size of a batch. A sample's
    features are found by its content, and are computed anew where a frozen weight has changed or layers were frozen or released.
    Where no frozen layers are left whose features can be kept, training is plain until there are some again.
    `predict`, `save`, callbacks and metrics see the model as it is.

    Args:
        model: a functional model or a Sequential, with its first layers frozen (`layer.trainable = False`); models inside it are
            opened, so they may be frozen in part. It is changed in place, before or after `compile`.
        folder: where features are kept on disk, as TFRecord files, and found again by later processes; in memory without it.
        max_bytes: how many bytes of features are kept in memory; what is used least goes, and is computed again.

    Returns:
        The model, with `model.frozen_cache`, a `FrozenCache`, which counts and can be removed.

    Raises:
        ArgumentError: `model` is no Keras model, or both `folder` and `max_bytes` were given.
        UnsupportedError: no layers with weights are frozen in front of what is trained; frozen layers stand behind random
            augmentation, dropout, or a batch norm in training mode; a layer adds a loss or a mask; the model replaces Keras's
            `train_step`; or it trains under a `tf.distribute` strategy.

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
        found: samples whose features were there.
        computed: samples whose features were computed.
    """

    def __init__(self, model: Any, folder: Path | None, max_bytes: int | None) -> None:
        replaced = what_is_overridden(model)
        if replaced:
            raise UnsupportedError(
                f"{type(model).__name__} {model.name!r} replaces {', '.join(replaced)}, which may read the samples themselves",
                cause="optimize_memory did, which plans the whole step" if "optimized_step" in vars(model) else "",
                remedy="train it plainly, or give it the features as its inputs",
            )
        self.found = self.computed = 0
        self._model, self._folder = model, folder
        self._compiled = compile_arguments(model)
        self._find()
        self._store = FeatureStore(max_bytes)
        self._alike = False
        self._follow_weights()
        self._plain: dict[str, Callable[..., Any]] = {"fit": model.fit, "evaluate": model.evaluate}
        model.fit, model.evaluate = self._wrapped("fit"), self._wrapped("evaluate")

    def __repr__(self) -> str:
        from graphwright.report.units import counted, format_bytes

        layers = counted(sum(call.has_weights for call in self._parts.prefix), "frozen layer")
        where = f"in {self._folder}" if self._folder else f"{format_bytes(self._store.nbytes)} in memory"
        counts = f"{self.found:,} found, {self.computed:,} computed"
        return f"<FrozenCache of {layers} with weights: {counted(len(self._store), 'sample')}, {where}; {counts}>"

    @property
    def nbytes(self) -> int:
        """Bytes of features in memory."""
        return self._store.nbytes

    def clear(self) -> None:
        """Let all features go, on disk too."""
        self._store.clear()

    def remove(self) -> None:
        """Let the model train plainly again; files on disk stay."""
        for name in ("fit", "evaluate", "frozen_cache"):
            delattr(self._model, name)
        self._store = FeatureStore()

    # What the model's methods do

    def _wrapped(self, name: str) -> Callable[..., Any]:
        plain = self._plain[name]
        signature = inspect.signature(plain)

        def with_features(*args: Any, **kwargs: Any) -> Any:
            if is_from_fit(kwargs):
                return plain(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            if self._model.distribute_strategy is not None and self._model.distribute_strategy.num_replicas_in_sync > 1:
                raise UnsupportedError("the model trains under a tf.distribute strategy", remedy="train it on one device, or plainly")
            self._follow_layers()
            if not self._parts.prefix:
                return plain(*args, **kwargs)
            self._follow_weights()
            if "x" in given:
                given["x"] = self._data(given["x"], whole=True)
            if given.get("validation_data") is not None:
                given["validation_data"] = self._data(given["validation_data"], whole=False)
            if name == "fit":
                callbacks = given.get("callbacks")
                given["callbacks"] = self._watching(callbacks)
            try:
                with self._routed():
                    return plain(*bound.args, **bound.kwargs)
            finally:
                self._store.flush()

        with_features.__doc__, with_features.__name__ = plain.__doc__, name
        with_features.__signature__ = signature  # type: ignore[attr-defined]
        return with_features

    @contextmanager
    def _routed(self) -> Generator[None]:
        """Keras's own steps, in which the model is called with features, while the block runs."""
        model = self._model
        plain = model.train_function, model.test_function
        if self._compiled is not (now := compile_arguments(model)):
            self._compiled, self._functions = now, (None, None)
        part, kind = _Trained(model, self._parts), cast("Any", type(model))
        model.train_step, model.test_step = partial(kind.train_step, part), partial(kind.test_step, part)
        model.train_function, model.test_function = self._functions
        try:
            yield
        finally:
            self._functions = model.train_function, model.test_function
            model.train_function, model.test_function = plain
            del model.train_step, model.test_step

    def _watching(self, callbacks: Any) -> Any:
        """The callbacks of a `fit`, and one that stops it where frozen weights change while their features are in use."""
        keras: Any = importlib.import_module("keras")
        watch = keras.callbacks.LambdaCallback(on_epoch_begin=self._check_weights)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(watch)
            return callbacks
        return [*([] if callbacks is None else _listed(callbacks)), watch]

    # What is frozen

    def _find(self) -> None:
        """Find the frozen prefix; all that was made of another one goes."""
        self._parts = find_prefix(self._model)
        self._layers, self._made_by = self._layer_state(), self._words_of_layers()
        self._functions: tuple[Any, Any] = (None, None)
        self._weights: bytes = b""

    def _layer_state(self) -> list[tuple[int, bool]]:
        return [(id(call.operation), call.is_trained) for call in (*self._parts.prefix, *self._parts.head)]

    def _follow_layers(self) -> None:
        """Find the frozen prefix again where layers were frozen or released; where none is left, training is plain."""
        if self._layer_state() == self._layers:
            return
        try:
            self._find()
        except UnsupportedError:
            self._parts = replace(self._parts, prefix=[], head=[*self._parts.prefix, *self._parts.head])
            self._layers = self._layer_state()
            if self._folder is None:
                self._store.clear()

    def _follow_weights(self) -> None:
        """Forget features of other weights than those of now."""
        weights = self._digest_of_weights()
        if weights != self._weights:
            self._weights = weights
            if self._folder is None:
                self._store.clear()
            else:
                self._store.flush()
                self._store = FeatureFolder(self._folder, weights.hex())

    def _digest_of_weights(self) -> bytes:
        """Of the frozen weights, and of the layers that they are of."""
        return digest([self._made_by, *(np.asarray(variable) for variable in self._parts.variables)])

    def _words_of_layers(self) -> np.ndarray[Any, Any]:
        """The layers' settings as they were traced, and what is taken from them."""
        serialize: Any = importlib.import_module("keras").saving.serialize_keras_object
        operations = {id(call.operation): call.operation for call in self._parts.prefix}
        order = {key: place for place, call in enumerate(self._parts.prefix) for key in call.gives}
        settings = [_nameless(serialize(operation)) for operation in operations.values()] if self._folder else []
        wired = [[order.get(key, -1) for key in call.takes.values()] for call in self._parts.prefix]
        words = repr((settings, wired, [order[key] for key in self._parts.features]))
        return np.frombuffer(words.encode(), np.uint8)

    def _check_weights(self, epoch: int, _logs: Any) -> None:
        if self._digest_of_weights() != self._weights:
            raise GraphError(
                f"weights of frozen layers changed before epoch {epoch + 1}, while their features were in use",
                where=f"model {self._model.name!r}",
                cause="a callback, or another thread, sets weights of layers that are frozen",
                remedy="call `fit` once for each state of the frozen weights, or take the cache away: model.frozen_cache.remove()",
            )

    # Features

    def _computed(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        tf: Any = importlib.import_module("tensorflow")
        given = inputs_of_graph(self._model, inputs[0]) if len(self._parts.inputs) == 1 else inputs
        return [feature.numpy() for feature in self._parts.compute(*map(tf.constant, given))]

    def _told_apart_by(self, x: Any, inputs: Sequence[Any]) -> list[Any]:
        """What samples are told apart by: what the prefix reads, of a single input as it was given, which pixels make a quarter of."""
        tree: Any = importlib.import_module("keras").tree
        return tree.flatten(x) if len(self._parts.inputs) == 1 else [inputs[place] for place in self._parts.read]

    def _features(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The features of a batch, of what its samples are told apart by."""
        count = len(inputs[0])
        keys = [digest(array[place] for array in inputs) for place in range(count)]
        rows = {key: found for key in dict.fromkeys(keys) if (found := self._store.get(key)) is not None}
        missing = {key: place for place, key in reversed(list(enumerate(keys))) if key not in rows}
        if missing:
            places = sorted(missing.values())
            made = self._computed([array[places] for array in inputs])
            self._check_samples(inputs, places, made)
            for row, place in enumerate(places):
                rows[keys[place]] = tuple(feature[row] for feature in made)
                self._store.put(keys[place], rows[keys[place]])
        self.computed += len(missing)
        self.found += count - len(missing)
        if not keys:
            return [np.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype) for spec in self._parts.specs]
        return [np.stack([rows[key][number] for key in keys]) for number in range(len(self._parts.features))]

    def _check_samples(self, inputs: Sequence[np.ndarray[Any, Any]], places: list[int], made: list[np.ndarray[Any, Any]]) -> None:
        """Refuse layers that make a sample's features of other samples too; by running the first batch, whose first sample goes alone."""
        if self._alike or len(places) == 1:
            return
        alone = self._computed([array[places[:1]] for array in inputs])
        for name, one, all_of_them in zip(self._parts.specs, alone, made, strict=True):
            if not np.issubdtype(one.dtype, np.floating):
                same = np.array_equal(one[0], all_of_them[0])
            else:
                first, among = one[0].astype(np.float64), all_of_them[0].astype(np.float64)
                differ = (first != among) & ~(np.isnan(first) & np.isnan(among))
                scale = float(np.max(np.abs(all_of_them.astype(np.float64)), initial=1e-30, where=np.isfinite(all_of_them)))
                apart = float(np.max(np.abs(first - among), initial=0.0, where=differ))
                same = apart <= _APART * np.sqrt(len(self._parts.prefix)) * float(np.finfo(one.dtype).eps) * scale
            if not same:
                raise UnsupportedError(
                    f"the features of a sample, {name.name!r}, differ with the other samples of its batch",
                    cause="a frozen layer takes a mean, a rank or a comparison over the batch",
                    remedy="train the model plainly",
                )
        self._alike = True

    def _of_batch(self, x: Any) -> Any:
        """What the trained layers take of one batch of samples: the features, and the inputs that they take themselves."""
        inputs = inputs_of_graph(self._model, x)
        return self._packed(
            self._features([np.asarray(given) for given in self._told_apart_by(x, inputs)]), [np.asarray(i) for i in inputs]
        )

    def _packed(self, features: list[Any], inputs: Sequence[Any]) -> Any:
        parts = [*features, *(inputs[place] for place in self._parts.passed_on)]
        return parts[0] if len(parts) == 1 else tuple(parts)

    # Data, in the forms that Keras takes

    def _data(self, data: Any, *, whole: bool) -> Any:
        """The same data with features in place of samples.

        Args:
            whole: whether it is the argument `x`, so that a tuple of arrays holds several inputs, no targets.
        """
        keras: Any = importlib.import_module("keras")
        tf: Any = importlib.import_module("tensorflow")
        if isinstance(data, tf.data.Dataset):
            mapped: Any = data.map(left_alone(self._of_element))
            return mapped.prefetch(tf.data.AUTOTUNE)
        if isinstance(data, keras.utils.PyDataset):
            return _sequence_of(data, self._of_tuple)
        if isinstance(data, Iterator):
            return (self._of_tuple(batch) for batch in cast("Iterator[Any]", data))
        if isinstance(data, tf.distribute.DistributedDataset):
            raise UnsupportedError("a distributed data set was given", remedy="train on one device, or plainly")
        return self._of_arrays(data) if whole else self._of_tuple(data, self._of_arrays)

    def _of_arrays(self, x: Any) -> Any:
        """As `_of_batch`, a few samples at a time."""
        tree: Any = importlib.import_module("keras").tree
        count = len(tree.flatten(x)[0])

        def rows(array: Any, first: int) -> Any:
            return array[first : first + _AT_ONCE]

        def joined(*parts: Any) -> Any:
            return np.concatenate(parts)

        made = [self._of_batch(tree.map_structure(partial(rows, first=first), x)) for first in range(0, max(count, 1), _AT_ONCE)]
        return tree.map_structure(joined, *made)

    def _of_tuple(self, batch: Any, of_x: Callable[[Any], Any] | None = None) -> Any:
        of_x = of_x or self._of_batch
        x, *others = _listed(batch)
        return (of_x(x), *others)

    def _of_element(self, *element: Any) -> Any:
        """The same for an element of a `tf.data.Dataset`, symbolically."""
        tf: Any = importlib.import_module("tensorflow")
        inputs = inputs_of_graph(self._model, element[0])
        read, specs = self._told_apart_by(element[0], inputs), self._parts.specs

        def of_arrays(*arrays: Any) -> Any:
            return self._features(arrays)

        features = tf.numpy_function(of_arrays, read, [tf.as_dtype(spec.dtype) for spec in specs])
        for feature, spec in zip(_listed(features), specs, strict=True):
            feature.set_shape([read[0].shape[0], *spec.shape[1:]])
        return (self._packed(_listed(features), inputs), *element[1:])


class _Trained:
    """A model of which only the trained layers are called; for all else it is the model."""

    def __init__(self, model: Any, parts: FrozenPrefix) -> None:
        self._whole, self._parts = model, parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __call__(self, x: Any, training: bool = False) -> Any:
        tree: Any = importlib.import_module("keras").tree
        given = _listed(x)
        count = len(self._parts.features)
        outputs = self._parts.finish(given[:count], given[count:], training=training)
        structure = output_structure(self._whole)
        return outputs[0] if isinstance(structure, (tuple, list)) and len(outputs) == 1 else tree.pack_sequence_as(structure, outputs)


def _nameless(settings: Any) -> Any:
    """The settings of a layer without names, which count the layers that were made in a process."""
    if isinstance(settings, dict):
        items = cast("dict[str, Any]", settings).items()
        return {key: _nameless(item) for key, item in items if key not in {"name", "shared_object_id"}}
    return [_nameless(item) for item in _listed(settings)] if isinstance(settings, (list, tuple)) else settings


def _listed(value: Any) -> list[Any]:
    """What a tuple or list holds; anything else alone."""
    return list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else [value]


def _sequence_of(data: Any, of_batch: Callable[[Any], Any]) -> Any:
    """A `PyDataset` whose batches are those of another, changed."""
    keras: Any = importlib.import_module("keras")

    class Changed(keras.utils.PyDataset):  # Keras is imported late
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> Any:
            return of_batch(data[index])

        def on_epoch_begin(self) -> None:
            data.on_epoch_begin()

        def on_epoch_end(self) -> None:
            data.on_epoch_end()

    return Changed()
