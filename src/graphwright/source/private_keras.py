"""Keras's private machinery, one use per function: the only file that names private modules of Keras.

`tests/source/test_private_keras.py` calls each of these functions, so that changes in Keras are noticed at once.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, cast

from graphwright.source.private_tensorflow import traces_of


def without_autocast() -> Any:
    """Keep the variables of layers in their own dtype, whatever the policy of the layer that is being called."""
    return importlib.import_module("keras.src.backend.common.variables").AutocastScope(None)


def all_layers(layer: Any) -> list[Any]:
    """Return a layer and all layers within it, in whatever they are kept."""
    return list(layer._flatten_layers())


def own_variables(layer: Any) -> list[Any]:
    """Return the variables of a layer, trainable ones first, without those of the layers within it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def added_losses(layer: Any) -> list[Any]:
    """Return the losses that the last call of a layer, and of layers in it, added by `add_loss`, without regularizers."""
    return [loss for part in layer._flatten_layers() for loss in part._get_own_losses()]


def input_structure(model: Any) -> Any:
    """Return the symbolic inputs in the structure of the model's argument; flat where Keras knows none."""
    return getattr(model, "_inputs_struct", model.inputs)


def layer_classes(model: Any, prefix: str = "") -> dict[str, str]:
    """Return the class name of each layer, by the names of its enclosing layers, without the model, and its own."""
    classes: dict[str, str] = {}
    for layer in model._flatten_layers(include_self=False, recursive=False):
        name = prefix + layer.name
        classes |= {name: type(layer).__name__} | layer_classes(layer, f"{name}/")
    return classes


def input_name(tensor: Any) -> str:
    """Return the name of an input in `model.summary()`; Keras calls the tensor of an unnamed one `keras_tensor_181`."""
    history = getattr(tensor, "_keras_history", None)
    return str(tensor.name if history is None else history.operation.name)


def called_specs(model: Any) -> Any:
    """Return specs of the argument of a subclassed model's first call, in its structure, or None: shapes, and the dtype that it computes
    in, as Keras keeps no other.
    """
    tf: Any = importlib.import_module("tensorflow")
    dtype = tf.as_dtype(str(getattr(model, "input_dtype", None) or "float32"))
    shapes: dict[str, Any] = getattr(model, "_build_shapes_dict", None) or {}

    def specs(part: Any) -> Any:  # tuples, or lists from a file, in mappings and sequences
        if isinstance(part, Mapping):
            return {key: specs(shape) for key, shape in cast("Mapping[str, Any]", part).items()}
        is_shape = all(size is None or isinstance(size, int) for size in part)
        return tf.TensorSpec(part, dtype) if is_shape else [specs(shape) for shape in part]

    return next(map(specs, shapes.values()), None)


def call_with_specs(model: Any, specs: Any) -> Any:
    """Call a model symbolically, which builds it; return its symbolic outputs."""
    keras: Any = importlib.import_module("keras")

    def symbolic(spec: Any) -> Any:
        return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)

    return model(importlib.import_module("tensorflow").nest.map_structure(symbolic, specs))


def trained_on(model: Any) -> tuple[Any, ...] | None:
    """Return specs of the last data of `fit` or `train_on_batch`: `(x,)`, `(x, y)` or `(x, y, sample_weight)`; None before training, or
    with a training step that is not Keras's.
    """
    step = _step_of_data(getattr(model, "train_function", None))
    if step is None or not traces_of(step):
        return None
    data: Any = traces_of(step)[-1].structured_input_signature[0][0]
    parts = list(cast("tuple[Any, ...]", data)) if isinstance(data, tuple) else [data]
    while parts and parts[-1] is None:
        parts.pop()
    return tuple(parts)


def _step_of_data(function: Any) -> Any:
    """Return the `tf.function` of one batch of data inside the functions of an iterator that Keras's trainer makes from it."""
    if getattr(function, "__name__", "") == "one_step_on_data" and hasattr(function, "get_concrete_function"):
        return function
    function = getattr(function, "python_function", function)
    if not inspect.isfunction(function) or not function.__module__.startswith("keras.src.backend.tensorflow"):
        return None
    inner = inspect.getclosurevars(function).nonlocals.values()
    steps = (_step_of_data(held) for held in inner if held is not function and callable(held))
    return next((step for step in steps if step is not None), None)


def compile_arguments(model: Any) -> dict[str, Any]:
    """Return the user's arguments of `compile`; empty before it was called."""
    config = getattr(model, "_compile_config", None)
    return {} if config is None else config.config


def losses_and_metrics(model: Any) -> list[Any]:
    """Return the objects that keep the loss and the metrics of a compiled model, and make their variables."""
    held = (getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss"))
    return [item for item in held if item is not None]


def forget_empty_build(optimizer: Any) -> None:
    """Reset an optimizer that was built for no variables, so that it is built again. Keras builds one so when it reads an `.h5` file of a
    model that was never trained, and refuses to train then.
    """
    if optimizer.built and not optimizer._trainable_variables:
        optimizer.built = False


def loss_tracker_of(model: Any) -> Any:
    """Return the metric of a compiled model that keeps the mean of its loss."""
    return model._loss_tracker


def build_from(model: Any, data: Any) -> None:
    """Make the variables of a model and of its metrics from one batch of data of `fit`, without computing anything."""
    model._symbolic_build(data_batch=data)


def set_builder(model: Any, build: Callable[..., None]) -> None:
    """Replace Keras's way to build the model in `fit` and `evaluate` by `build(iterator=None, data_batch=None)`."""
    model._maybe_symbolic_build = build


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Set the first epoch of the `fit` that is about to begin; None for its own argument."""
    model._initial_epoch = epoch


def mask_of(output: Any) -> Any:
    """Return the mask that a layer has put on its output, or None."""
    return getattr(output, "_keras_mask", None)


def logits_of(output: Any) -> Any:
    """Return the argument of softmax or sigmoid, where Keras's activation has noted it on its output, or None."""
    return getattr(output, "_keras_logits", None)


def track_parts(layer: Any) -> None:
    """Make TensorFlow's saving see all variables of a built layer, as Keras's does. Keras 3 gives TensorFlow the parts that are
    attributes, but neither parts in lists and dictionaries nor the states of random generators, which `tf.train.Checkpoint` then silently
    omits.
    """
    tree: Any = importlib.import_module("keras").tree
    kind: Any = importlib.import_module("tensorflow").__internal__.tracking.Trackable
    with importlib.import_module("keras.src.utils.tracking").DotNotTrackScope():  # Keras knows them already, and its built layers take none
        for part in all_layers(layer):
            held = {(name, *path): item for name in part._tracked for path, item in tree.flatten_with_path(getattr(part, name))}
            held |= {("seed_generators", number): generator.state for number, generator in enumerate(part._seed_generators)}
            for path, item in held.items():
                if isinstance(item, kind):
                    part._track_trackable(item, "-".join(map(str, path)), overwrite=True)


def training_in(frames: Iterable[FrameType]) -> tuple[Any, Any] | None:
    """Return the model whose `fit` or `train_on_batch` is among these frames, and a batch of its step's data, or None."""
    base = importlib.import_module("keras").Model
    for frame in frames:
        name, held = frame.f_code.co_name, frame.f_locals
        if name == "train_on_batch" and isinstance(held.get("self"), base):
            return held["self"], tuple(held[part] for part in ("x", "y", "sample_weight") if held[part] is not None)
        if name == "error_handler" and getattr(held.get("fn"), "__qualname__", "").endswith("Trainer.fit"):  # which hides the frame of fit
            arguments = inspect.signature(held["fn"]).bind(*held["args"], **held["kwargs"]).arguments
            data = {key: arguments[key] for key in ("x", "y", "sample_weight", "batch_size", "steps_per_epoch") if key in arguments}
            batches = importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator(
                arguments["self"].distribute_strategy, **data
            )
            batch = next(iter(batches.data_adapter.get_tf_dataset()), None)
            return None if batch is None else (arguments["self"], tuple(part for part in batch if part is not None))
    return None


def is_functional(layer: Any) -> bool:
    """Return whether a layer only runs its graph of layers: a functional model, or a built Sequential."""
    functional: Any = importlib.import_module("keras.src.models.functional").Functional
    sequential: Any = importlib.import_module("keras").Sequential
    kind: Any = cast("Any", type(layer))
    if issubclass(kind, sequential):
        return layer._functional is not None and kind.call is sequential.call
    return issubclass(kind, functional) and kind.call is functional.call


def _graph_of(model: Any) -> Any:
    """Return the functional model that a built Sequential keeps; any other model is one itself."""
    return getattr(model, "_functional", None) or model


def graph_calls(model: Any) -> list[tuple[Any, Callable[[dict[int, Any]], tuple[tuple[Any, ...], dict[str, Any]]], list[Any], list[Any]]]:
    """Return the calls of a functional model in an order that they can run in, without inputs.

    Each is the operation, a function that fills values (by the `id` of their symbolic tensors) into the arguments of the call, and the
    symbolic inputs and outputs.
    """
    by_depth = _graph_of(model)._nodes_by_depth
    nodes = (node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if node.operation and not node.is_input)
    return [(node.operation, node.arguments.fill_in, list(node.input_tensors), list(node.outputs)) for node in nodes]


def as_called_in(training: bool, operation: Any) -> Callable[..., Any]:
    """Return an operation of a functional model as the model calls it in training, or not in training."""
    return importlib.import_module("keras.src.models.functional").operation_fn(operation, training=training)


def inputs_of_graph(model: Any, x: Any) -> list[Any]:
    """Convert the argument of a functional model to tensors in the order of `model.inputs`, cast and with their ranks."""
    return _graph_of(model)._standardize_inputs(x)


def output_structure(model: Any) -> Any:
    """Return the structure of symbolic tensors that a functional model returns."""
    return _graph_of(model)._outputs_struct


def forget_added_losses(layer: Any) -> None:
    """Forget the losses that the last call of a layer added."""
    layer._clear_losses()


def is_from_fit(arguments: dict[str, Any]) -> bool:
    """Return whether `fit` called `evaluate`, with these keyword arguments."""
    return bool(arguments.get("_use_cached_eval_dataset"))


def what_is_overridden(model: Any) -> list[str]:
    """Return the methods of Keras's training that the class of a model, or the model itself, overrides."""
    plain: Any = importlib.import_module("keras").Model
    kind: Any = cast("Any", type(model))
    names = ("train_step", "test_step", "compute_loss", "compute_metrics", "make_train_function", "make_test_function")
    return [name for name in names if name in vars(model) or getattr(kind, name) is not getattr(plain, name)]


def object_of_config(module: str, name: str) -> Any:
    """Return the object that Keras looks up for a name in a saved configuration: an exported one, or one of a loaded module. `module` is
    empty in files of Keras 2, which name layers.
    """
    module = module or "keras.src.layers"
    exported = importlib.import_module("keras.src.api_export").get_symbol_from_name(f"{module}.{name}")
    return exported if exported is not None else getattr(sys.modules.get(module), name, None)


def is_saved_part(kind: Any) -> bool:
    """Return whether a class of Keras is a part of models: a layer, operation, loss, metric, optimizer or one of their arguments."""
    keras: Any = importlib.import_module("keras")
    kinds = (
        importlib.import_module("keras.src.saving.keras_saveable").KerasSaveable,
        importlib.import_module("keras.src.dtype_policies.dtype_policy_map").DTypePolicyMap,
        importlib.import_module("keras.src.quantizers.quantization_config").QuantizationConfig,
        keras.initializers.Initializer,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
        keras.optimizers.schedules.LearningRateSchedule,
        keras.quantizers.Quantizer,
        keras.random.SeedGenerator,
        keras.DTypePolicy,
    )
    return isinstance(kind, type) and issubclass(kind, kinds)
