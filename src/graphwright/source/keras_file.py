"""Files of Keras: checks before Keras opens an archive, and clear errors."""

import importlib
import inspect
import json
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any, cast

from graphwright.errors import FileFormatError, in_words, origin_of
from graphwright.files import check_given
from graphwright.source.model_folder import leaves_folder
from graphwright.source.private_keras import forget_empty_build, is_saved_part, object_of_config
from graphwright.source.tensorflow_import import import_keras
from graphwright.source.trust import TrustedPath, check_trusted

_WARNINGS = threading.RLock()  # the filters are one list for the process: two threads must not put back each other's
_FUNCTIONS = frozenset("activations constraints initializers losses metrics ops regularizers".split())
_LOOKED_UP = frozenset("builtins keras keras_cv keras_hub keras_nlp".split())
"""Packages in which Keras looks up names in files that are not registered."""
_LOSSES = {name: name for word in ("bce", "kld", "mae", "mape", "mse", "msle") for name in (word, word.upper())}
"""Names that `compile` knows, and Keras's reader of `.h5` files does not, unless they are handed to it."""
_DOORS = frozenset({"get", "serialize", "deserialize"})
_HARMLESS_BYTES = 256 * 2**20
_GREATEST_RATIO = 100
_LARGEST_CONFIG_BYTES = 256 * 2**20


def read_keras_file(path: Path, *, compiled: bool) -> Any:
    """Read the Keras model in a `.keras` or `.h5` file, with `compiled` also its optimizer and loss. Python code in it runs only for a
    trusted path; else it is refused by `ArgumentError`.
    """
    trusted = isinstance(path, TrustedPath)
    check_given(path)
    if path.suffix == ".keras":
        check_keras_archive(path)
    if not trusted:
        check_keras_objects(path)
    try:
        with _WARNINGS, warnings.catch_warnings():
            # An optimizer that was saved before its first step has no values yet.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer", UserWarning)
            # A model with a `compile` of its own is not compiled then; what needs it compiled says so.
            warnings.filterwarnings("ignore", r"`compile\(\)` was not called as part of model loading", UserWarning)
            model = import_keras().saving.load_model(path, compile=compiled, safe_mode=not trusted, custom_objects=_LOSSES)
            if compiled and getattr(model, "optimizer", None) is not None:
                forget_empty_build(model.optimizer)
            return model
    except Exception as error:  # Keras raises anything for a damaged file
        if "safe_mode" in str(error) and not trusted:
            check_trusted(path, "loading the model, which holds Python code or reads other files,")
        holds_weights = "No model config" in str(error)
        raise FileFormatError(
            f"Keras cannot read it: {in_words(origin_of(error)).partition(' Full object config')[0]}",
            where=str(path),
            cause="it holds only weights" if holds_weights else "it is damaged, or holds custom layers that are not registered",
            remedy="make the model in Python, call its load_weights, and give the model; in a shell as file.py:name"
            if holds_weights
            else "import the module that registers them, in a shell by --import MODULE; or load it yourself and pass the model",
        ) from error


def check_keras_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise FileFormatError(
            f"it is no .keras archive: {error}", where=str(path), cause="the file is damaged or cut off, or was written by Keras 2"
        ) from error
    names: set[str] = set()
    for entry in entries:
        if leaves_folder(entry.filename) or (entry.external_attr >> 16) & 0o170000 == 0o120000:
            raise FileFormatError(
                f"the entry {entry.filename!r} leaves the archive",
                where=str(path),
                cause="the file may be malicious: it would write to other folders",
            )
        if entry.filename in names:
            raise FileFormatError(f"two entries are named {entry.filename!r}", where=str(path), cause="the file is damaged")
        names.add(entry.filename)
    total = sum(entry.file_size for entry in entries)
    size = path.stat().st_size
    config = next((e.file_size for e in entries if e.filename == "config.json"), None)
    if (total > _HARMLESS_BYTES and total > _GREATEST_RATIO * size) or (config or 0) > _LARGEST_CONFIG_BYTES:
        raise FileFormatError(
            f"the archive of {size} bytes would unpack to {total} bytes",
            where=str(path),
            cause="it is a zip bomb: weights do not compress so",
        )
    if config is None:
        raise FileFormatError("there is no config.json in the archive", where=str(path), cause="it is no .keras file")


def check_keras_objects(path: Path) -> None:
    """Refuse a file that names functions or classes of Keras other than parts of models, before Keras calls them: a data set that is
    downloaded, a model with weights, a setting of the process.
    """
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                configs: list[Any] = [json.loads(archive.read("config.json"))]
        else:
            with importlib.import_module("h5py").File(path, "r") as file:
                configs = [json.loads(file.attrs[key]) for key in ("model_config", "training_config") if key in file.attrs]
    except Exception as error:  # h5py and zipfile raise anything for a damaged file
        raise FileFormatError(f"its configuration cannot be read: {in_words(error)}", where=str(path), cause="it is damaged") from error
    while configs:
        part = configs.pop()
        if isinstance(part, dict):
            known = cast("dict[str, Any]", part)
            if "class_name" in known and "config" in known and not _is_part_of_models(known):
                name = known.get("config") if known["class_name"] == "function" else known.get("spec_name", known["class_name"])
                check_trusted(path, f"loading the model, of which {known.get('module')}.{str(name)[:80]} is a part,")
            configs += known.values()
        elif isinstance(part, list):
            configs += cast("list[Any]", part)


def _is_part_of_models(config: dict[str, Any]) -> bool:
    name, module = config["class_name"], config.get("module")
    is_function = name == "function"
    name = config.get("config") if is_function else name
    if not isinstance(name, str) or not isinstance(module, str | None):
        return False
    if name.startswith("__") and not is_function:  # a value
        return name != "__typespec__"
    key = name if is_function else config.get("registered_name", name)
    if isinstance(key, str) and import_keras().saving.get_registered_object(key) is not None:
        return True
    if not module:  # a layer of an old file, or nothing
        held = object_of_config("", name)
        return is_function or held is None or is_saved_part(held)
    package, _, room = module.partition(".")
    if package not in _LOOKED_UP:
        return True
    if package == "builtins":
        exported = [held for room in (*_FUNCTIONS, "optimizers") if (held := object_of_config(f"keras.{room}", name)) is not None]
        return is_function and name not in _DOORS and all(map(inspect.isfunction, exported))
    held = object_of_config(module, name)
    if is_function:
        return package == "keras" and room.partition(".")[0] in _FUNCTIONS and name not in _DOORS and inspect.isfunction(held)
    return package == "keras" and is_saved_part(held)
