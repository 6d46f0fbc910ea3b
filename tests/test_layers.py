"""The layering table of docs/architecture.md, read from the imports themselves, lazy ones included."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "graphwright"

# layer -> what it may import from, itself aside. An entry with a dot is one module, without a dot a whole layer.
_BELOW = frozenset({"errors", "files", "bound_process", "plain", "ir", "ops", "source", "analyze", "plan", "transform", "run", "report"})
TABLE: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "files": frozenset({"errors"}),
    "bound_process": frozenset(),
    "plain": frozenset(),
    "plan": frozenset({"errors", "files"}),
    "ir": frozenset({"errors"}),
    "ops": frozenset({"errors", "plain", "ir"}),
    "analyze": frozenset({"errors", "plain", "ir", "ops", "plan.model"}),
    "transform": frozenset({"errors", "plain", "ir", "ops", "analyze", "plan.model"}),
    "source": frozenset({"errors", "files", "ir"}),
    "run": frozenset({"errors", "files", "bound_process", "plain", "ir", "ops", "source", "analyze"}),
    "report": frozenset({"errors", "files", "bound_process", "plain", "ir", "ops", "analyze", "plan.model", "plan.json_file"}),
    "step": _BELOW,
    "memory": _BELOW | {"step"},
    "costs": _BELOW | {"step", "memory.planning"},
    "advice": _BELOW | {"step", "memory", "costs"},
    "gradient": _BELOW | {"step", "memory"},
    "reuse": _BELOW | {"step", "memory", "gradient", "costs.flops", "costs.peak", "least_squares.jacobians"},
    "least_squares": frozenset({"errors", "plain", "source", "step"}),
    "workers": frozenset({"errors", "files", "source", "step"}),
    "reversible": frozenset({"errors", "plain", "source", "report"}),
    "editor": frozenset({"errors", "files", "ir", "analyze", "transform", "source", "report"}),
    "train": frozenset({"source", "least_squares", "workers", "reversible"}),
    "commands": _BELOW | {"step", "memory", "costs", "advice", "reuse", "__init__"},
    "__main__": frozenset({"commands.cli"}),
    "__init__": _BELOW | {"step", "memory", "costs", "advice", "gradient", "reuse", "reversible", "train"},
}
TENSORFLOW_LAYERS = frozenset({"source", "run", "gradient", "reuse", "least_squares", "reversible", "memory", "advice"})
TENSORFLOW_NAMES = frozenset({"tensorflow", "keras", "tf_keras"})


def layer_of(module: str) -> str:
    """The layer of a module given without the package's own name: "plan.model" -> "plan"."""
    return module.split(".", maxsplit=1)[0]


def imported_modules(tree: ast.AST) -> set[tuple[str, int]]:
    """Every module named by an import anywhere in the tree, `import_module("...")` included, with its line."""
    found: set[tuple[str, int]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            # `from graphwright.plan import model` names a module, `from graphwright.plan.model import Task` an attribute.
            found |= {(f"{node.module}.{alias.name}", node.lineno) for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            found |= {(arg.value, node.lineno) for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return found


def offences(module: str, tree: ast.AST) -> list[str]:
    """What the module imports against the table."""
    layer = layer_of(module)
    allowed = TABLE[layer]
    found: list[str] = []
    for name, line in sorted(imported_modules(tree), key=lambda pair: pair[1]):
        top, _, inner = name.partition(".")
        if top in TENSORFLOW_NAMES and layer not in TENSORFLOW_LAYERS:
            found.append(f"{module}:{line} imports {top}; only {', '.join(sorted(TENSORFLOW_LAYERS))} may")
        if top != "graphwright":
            continue
        target = inner if layer_of(inner) in TABLE else "__init__"
        if layer_of(target) == layer:
            continue
        if not any(target == entry or target.startswith(f"{entry}.") for entry in allowed):
            found.append(f"{module}:{line} imports graphwright.{inner}; {layer} may import {', '.join(sorted(allowed)) or 'nothing'}")
    return found


def at_run_time(tree: ast.Module) -> ast.Module:
    """Without what only type checkers see."""
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return tree


def module_name(path: Path, root: Path = SOURCE) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_module_belongs_to_a_layer():
    assert {layer_of(module_name(path)) for path in FILES} <= set(TABLE)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_table(path):
    assert offences(module_name(path), ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(("root", "package"), [(SOURCE, "graphwright."), (ROOT / "bench", "bench.")])
def test_no_files_import_each_other_in_a_cycle(root: Path, package: str) -> None:
    """Imports inside functions count; those for type checkers alone, which import nothing, do not."""
    files = {package + module_name(path, root): path for path in root.rglob("*.py")}
    needs: dict[str, set[str]] = {}
    for module, path in files.items():
        names = {name for name, _ in imported_modules(at_run_time(ast.parse(path.read_text(encoding="utf-8"))))}
        needs[module] = {next((m for m in (name, name.rpartition(".")[0]) if m in files), "") for name in names} - {"", module}
    TopologicalSorter(needs).prepare()  # raises CycleError, which names the files


def test_the_check_for_cycles_sees_imports_inside_functions() -> None:
    code = "if TYPE_CHECKING:\n    import a\ndef f():\n    import b"
    assert {name for name, _ in imported_modules(at_run_time(ast.parse(code)))} == {"b"}


@pytest.mark.parametrize(
    ("module", "code", "expected"),
    [
        ("plan.solve", "from graphwright.plan.model import Task", 0),
        ("plan.solve", "from graphwright.ir.graph import Graph", 1),
        ("plan.solve", "def f():\n    import graphwright.ir", 1),
        ("plan.solve", "def f():\n    import tensorflow as tf", 1),
        ("plan.solve", "from importlib import import_module\nimport_module('keras')", 1),
        ("plan.solve", "from tensorflow.python import eager", 1),
        ("analyze.cost", "from graphwright.plan.model import Task", 0),
        ("analyze.cost", "from graphwright.plan import model", 0),
        ("analyze.cost", "from graphwright.plan.solve import solve", 1),
        ("analyze.cost", "from graphwright.plan import solve", 1),
        ("report.html", "import graphwright", 1),
        ("memory.planning", "import tensorflow\nfrom graphwright.plan.solve import solve", 0),
        ("step.flatten", "from graphwright.costs.inspection import inspect", 1),
        ("commands.cli", "import graphwright as gw", 0),
        ("errors", "from graphwright.plan.model import Task", 1),
    ],
)
def test_the_check_itself_sees_offences(module, code, expected):
    assert len(offences(module, ast.parse(code))) == expected


def test_the_documented_table_is_this_table():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = {
        cells[0].strip("` "): cells[1] for cells in (line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `"))
    }
    documented = {name.removesuffix(".py"): frozenset(re.findall(r"`([\w.]+)`", entries)) for name, entries in rows.items()}
    assert documented == {name: entries for name, entries in TABLE.items() if not name.startswith("__")}
