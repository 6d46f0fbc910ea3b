"""Protobuf files of any origin, with clear errors where they are damaged, too large, or something else."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphwright.errors import FileFormatError, UnsupportedError, first_line
from graphwright.files import check_given, read_given
from graphwright.source.tensorflow_import import import_tensorflow

PROTOBUF_LIMIT_BYTES = 2**31 - 1
_DEEPEST_TEXT = 100  # as in the binary format; deeper nesting would exhaust the parser's stack


def read_message(path: Path, message: Any) -> Any:
    """Fill a message from a `.pb` or `.pbtxt` file; raise `FileFormatError` where it holds none, or is too large."""
    check_given(path)
    size = path.stat().st_size
    if size > PROTOBUF_LIMIT_BYTES:
        raise FileFormatError(
            f"the file has {size} bytes, and protobuf reads at most {PROTOBUF_LIMIT_BYTES}",
            where=str(path),
            cause="weights are constants of the graph",
            remedy="export the model with variables (tf.saved_model.save), which are kept outside of the graph",
        )
    text_format: Any = importlib.import_module("google.protobuf.text_format")
    decode_error: Any = importlib.import_module("google.protobuf.message").DecodeError
    data = read_given(path)
    try:
        if path.suffix in (".pbtxt", ".txt"):
            content = data.decode("utf-8")
            _check_depth(content, str(path))
            text_format.Parse(content, message)
        else:
            message.ParseFromString(data)
    except (decode_error, text_format.ParseError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"it is not a {type(message).__name__}: {first_line(error)}",
            where=str(path),
            cause="the file is damaged or cut off, or is something else",
            remedy="give a GraphDef (.pb, .pbtxt), a SavedModel folder or a .keras file",
        ) from error
    return message


def read_graph_def(path: Path) -> Any:
    graph_def = read_message(path, import_tensorflow().compat.v1.GraphDef())
    if not graph_def.node and not graph_def.library.function:
        raise FileFormatError(
            "the graph is empty", where=str(path), cause="the file is empty, or no GraphDef (a saved_model.pb is read by its folder)"
        )
    return graph_def


def _check_depth(content: str, where: str) -> None:
    depth = 0
    for mark in re.findall(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[{}<>]', content):
        if mark in "{<":
            depth += 1
        elif mark in "}>":
            depth -= 1
        if depth > _DEEPEST_TEXT:
            raise FileFormatError(f"messages are nested more than {_DEEPEST_TEXT} deep", where=where, cause="the file may be malicious")


def remove_items(items: Any, goes: Callable[[Any], object]) -> None:
    for k in reversed([k for k, item in enumerate(items) if goes(item)]):
        del items[k]


def serialize(message: Any, what: str) -> bytes:
    encode_error: Any = importlib.import_module("google.protobuf.message").EncodeError
    try:
        data = message.SerializeToString(deterministic=True)
    except (encode_error, ValueError) as error:
        raise too_large(what) from error
    if len(data) > PROTOBUF_LIMIT_BYTES:
        raise too_large(what)
    return data


def too_large(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the graph is larger than the {PROTOBUF_LIMIT_BYTES} bytes that a protobuf can hold",
        where=what,
        cause="weights are constants of the graph; TensorFlow itself cannot read or write more",
        remedy="keep the weights in variables, which a SavedModel holds outside of the graph",
    )
