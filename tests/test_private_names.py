"""Private names of TensorFlow and Keras stand in two files, and each use of one is tested."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "graphwright"
DOORS = sorted(SOURCE.glob("source/private_*.py"))
_PRIVATE = re.compile(r"(tensorflow\.(python|core|compiler|tsl)|keras\.src)\b|__internal__")
_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr", "__setattr__", "__delattr__"})
# Documented in spite of their names: those of named tuples, and the end of a process that runs no handlers.
_PUBLIC = frozenset({"_replace", "_fields", "_asdict", "_make", "_exit"})


def attributes(tree: ast.AST) -> list[tuple[str, int]]:
    """Names of attributes that code asks for, with their lines: `x.name`, and `getattr(x, "name")`."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.attr, node.lineno))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _BY_NAME:
            found += [(arg.value, node.lineno) for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return [(name, line) for name, line in found if name.startswith("_") and not name.endswith("__")]


def made_by_classes(tree: ast.AST) -> set[str]:
    """Names of attributes that the classes of a file define, or give to `self`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            found |= {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
            found |= {ast.unparse(target) for item in node.body if isinstance(item, ast.Assign) for target in item.targets}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") in ("self", "cls"):
            found.add(node.attr)
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def own_names(room: Path) -> frozenset[str]:
    """The attributes of the classes of one room."""
    files = room.rglob("*.py") if room != SOURCE else room.glob("*.py")
    return frozenset[str]().union(*(made_by_classes(parsed(path)) for path in files if path not in DOORS))


def offences(tree: ast.AST, own: frozenset[str]) -> list[str]:
    """Private modules that a file names, and private attributes that no class of its room defines."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            texts = [node.value]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            texts = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
        else:
            texts = [node.attr] if isinstance(node, ast.Attribute) else []
        found += [f"line {getattr(node, 'lineno', 0)}: {text}" for text in texts if _PRIVATE.search(text)]
    return found + [f"line {line}: {name}" for name, line in attributes(tree) if name not in own | _PUBLIC]


def test_no_other_file_names_what_is_private() -> None:
    found: list[str] = []
    for path in sorted(set(SOURCE.rglob("*.py")) - set(DOORS)):
        room = SOURCE / path.relative_to(SOURCE).parts[0]
        own = own_names(room if room.is_dir() else SOURCE)
        found += [f"{path.relative_to(SOURCE)}, {offence}" for offence in offences(parsed(path), own)]
    assert found == []


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.stem)
def test_each_use_is_documented_and_tested(door: Path) -> None:
    tests = (ROOT / "tests" / "source" / f"test_{door.name}").read_text(encoding="utf-8")
    uses = [item for item in parsed(door).body if isinstance(item, ast.FunctionDef) and item.name[0] != "_"]
    assert len(uses) > 5
    assert [use.name for use in uses if not re.search(rf"\b{use.name}\(", tests) or not ast.get_docstring(use)] == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("importlib.import_module('tensorflow.python.eager.context')", 1),
        ("import tensorflow.core.protobuf", 1),
        ("from keras.src import utils", 1),
        ("from tensorflow import python", 1),
        ("tf.__internal__.tracking", 1),
        ("model._flatten_layers()", 1),
        ("getattr(model, '_flatten_layers')()", 1),
        ("object.__setattr__(model, '_tracker', None)", 1),
        ("self._trainable_variables", 1),
        ("class Mine:\n    def __init__(self, other):\n        self._held = other._held", 0),
        ("state._replace(step=1)", 0),
        ("'''Unlike `tensorflow.python.eager`.'''", 0),
        ("tf.compat.v1.Session", 0),
    ],
)
def test_the_check_itself_sees_offences(code: str, count: int) -> None:
    tree = ast.parse(code)
    assert len(offences(tree, frozenset(made_by_classes(tree)))) == count
