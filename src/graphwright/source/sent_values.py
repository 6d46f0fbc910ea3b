"""Variables that are in files between the runs of a step (`transform.offload_state`), as the rest of the process sees them.

Such a variable holds its value, or the name of the file that has it, in as many bits as no value of it has. Whoever reads variables to
compare, copy or save them asks here.
"""

from __future__ import annotations

import glob
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from graphwright.ir.traits.values import GONE, OFFLOADED, STATE_FILE, TENSOR_IN_FILE
from graphwright.source.private_tensorflow import before_python_uses
from graphwright.source.rebuild import variable_behind
from graphwright.source.tensorflow_import import import_tensorflow

_FOLDERS: dict[int, tuple[Any, str]] = {}  # by the identity of a handle: itself, so that the number stays its own, and the folder
_FUNCTIONS: Counter[int] = Counter()  # how many functions leave the variable in files
IN_USE = threading.RLock()
"""Held while a step runs that leaves variables in files, and while one is brought back: each moves files that the other reads."""


def remember(handle: Any, folder: str) -> None:
    """From now on one more function leaves the variable in files of this folder; what is in one of another folder is brought back first."""
    if _FOLDERS.get(id(handle), (handle, folder))[1] != folder:
        bring_back(handle)
    _FOLDERS[id(handle)] = handle, folder
    _FUNCTIONS[id(handle)] += 1


def come_back_when_used(variables: Iterable[Any]) -> None:
    """Let those of some `tf.Variable`s that may be away hold their values again whenever Python reads them or assigns to them."""
    for variable in variables:
        handle = getattr(variable, "handle", None)
        if handle is not None and may_be_away(handle):
            before_python_uses(variable, partial(bring_back, handle))


def forget(handle: Any) -> None:
    """One function is no more that left the variable in files; without any other one it comes back for good."""
    _FUNCTIONS[id(handle)] -= 1
    if _FUNCTIONS[id(handle)] <= 0:
        bring_back(handle)
        _FOLDERS.pop(id(handle), None)
        del _FUNCTIONS[id(handle)]


def may_be_away(handle: Any) -> bool:
    """Whether the variable is in a file between two runs of some step."""
    return id(handle) in _FOLDERS


def sent_handles(function: Any) -> list[Any]:
    """The handles of variables that a `ConcreteFunction` leaves in files."""
    operations = function.graph.get_operations()
    gone = {op.inputs[0].name for op in operations if op.name.startswith(f"{OFFLOADED}/") and op.name.endswith(f"/{GONE}")}
    return [external for external, internal in function.graph.captures if internal.name in gone]


def value_of(handle: Any, dtype: Any) -> Any:
    """The value of a variable, wherever it is.

    Raises:
        tf.errors.OpError: its file cannot be read.
    """
    tf: Any = import_tensorflow()
    with IN_USE if may_be_away(handle) else nullcontext():
        held = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        if not may_be_away(handle) or held.shape.is_compatible_with(_shape_of(handle)):
            return held
        return tf.raw_ops.RestoreV2(prefix=_file_of(handle, held), tensor_names=[TENSOR_IN_FILE], shape_and_slices=[""], dtypes=[dtype])[0]


def _file_of(handle: Any, held: Any) -> str:
    tf: Any = import_tensorflow()
    numbers = tf.reshape(tf.bitcast(held, tf.int32), [-1]).numpy()
    return f"{_FOLDERS[id(handle)][1]}{'_'.join(str(number) for number in numbers)}{STATE_FILE}"


def bring_back(handle: Any) -> bool:
    """Let the variable hold its value; whether it was away."""
    tf: Any = import_tensorflow()
    if not may_be_away(handle) or (behind := variable_behind(handle)) is None:
        return False
    with IN_USE, tf.init_scope():
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=behind[1])
        value = value_of(handle, behind[1])
        if value.shape == before.shape:
            return False
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        file = Path(_file_of(handle, before))
        for path in file.parent.glob(f"{glob.escape(file.name)}.*"):
            path.unlink(missing_ok=True)
    return True


def _shape_of(handle: Any) -> Any:
    behind = variable_behind(handle)
    return import_tensorflow().TensorShape(None) if behind is None else behind[0]
