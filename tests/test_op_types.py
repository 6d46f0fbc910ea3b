"""What an op is, is asked of `ir/traits/`: how many names of op types are spelled out elsewhere, and that the number only falls."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
from graphwright.source.private_tensorflow import registered_ops

SOURCE = Path(__file__).parent.parent / "src" / "graphwright"
MOST = 78
TABLES = {
    "ir/traits/": "the traits themselves",
    "ops/": "facts about operations, a family per file",
    "analyze/optimizer_state.py": "slots of optimizers, by their kernels",
    "source/bounded_shapes.py": "bounds of results, by op type",
    "transform/remove_debug_ops.py": "checks and messages, and how their values may be made",
    "transform/constant_values.py": "what is computed with numpy",
    "transform/fold_constants.py": "what folding leaves alone, by op type",
    "transform/batch_rules.py": "what holds or follows a batch size, by op type",
    "transform/batch_trace.py": "what follows a batch size in constants and lists, by op type",
    "transform/batch_rows.py": "what joins examples",
    "analyze/part_numbers.py::_BY_STRUCTURE": "what puts parts together",
    "analyze/loop_execution.py::_list_operation": "what operations on lists of tensors make, in storages",
    "analyze/executor_memory.py::_list_kernel": "what kernels on lists of tensors hold, in buffers",
    "transform/folding/linear.py::LINEAR": "rank of what convolutions and matrix products read",
    "transform/folding/steps.py::_arithmetic": "factor and offset of arithmetic per channel",
    "transform/folding/steps.py::layout_behind": "where the channels are behind an op",
}
"""Files, folders, or names in files that hold one table of rules by op type, and what their table says."""


def asked(tree: ast.AST, op_types: frozenset[str], tables: AbstractSet[str] = frozenset()) -> list[str]:
    """The op types that code compares with. Those that it makes nodes of, as arguments of calls, do not count, nor does prose.

    Args:
        tables: names of functions and variables that are left out.
    """
    made = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if tables.intersection(defined(node)):
            made |= {id(inside) for inside in ast.walk(node)}
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] not in ("startswith", "endswith", "frozenset"):
            made |= {id(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in made:
            words = node.value.split()
            found += words if op_types.issuperset(words) else []
    return found


def defined(node: ast.AST) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def tables_in(name: str) -> set[str]:
    """The tables of rules among the names of a file."""
    return {symbol for path, _, symbol in (table.partition("::") for table in TABLES) if path == name and symbol}


def test_op_types_are_asked_of_traits() -> None:
    op_types = frozenset(name for name in registered_ops() if len(name) > 1)  # TensorFlow registers "A" and "B" for tests
    found = {
        name: len(asked(ast.parse(path.read_text(encoding="utf-8")), op_types, tables_in(name)))
        for path in sorted(SOURCE.rglob("*.py"))
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(tuple(table for table in TABLES if "::" not in table))
    }
    total, most = sum(found.values()), Counter(found).most_common(8)
    assert total <= MOST, f"{total} names of op types, most of them in {most}: ask a trait of `ir/traits/`, or make one there"
    assert total > MOST - 10, f"fewer names of op types: set MOST to {total}"


def test_each_table_is_there() -> None:
    for table in TABLES:
        path, _, symbol = table.partition("::")
        assert (SOURCE / path).exists(), table
        if symbol:
            assert any(symbol in defined(node) for node in ast.walk(ast.parse((SOURCE / path).read_text(encoding="utf-8")))), table


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("node.op_type == 'Const'", ["Const"]),
        ("node.op_type in ('Const', 'NoOp')", ["Const", "NoOp"]),
        ("frozenset('MatMul Relu'.split())", ["MatMul", "Relu"]),
        ("op_type.startswith('Assign')", ["Assign"]),
        ("graph.add_node('Const', 'name')", []),
        ("'''Const'''", []),
        ("print('a Const')", []),
        ("TABLE = {'MatMul': 2}", []),
        ("TABLE: dict[str, int] = {'MatMul': 2}", []),
        ("class A:\n    def rule(self): return self.kind == 'Relu'\n    def other(self): return self.kind == 'Const'", ["Const"]),
    ],
)
def test_the_count_itself(code: str, expected: list[str]) -> None:
    assert asked(ast.parse(code), frozenset({"Const", "NoOp", "MatMul", "Relu", "Assign"}), {"TABLE", "rule"}) == expected
