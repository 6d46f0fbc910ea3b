"""What an op is, is asked of `ir/traits.py`: how many names of op types are spelled out elsewhere, and that the number only falls."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
from graphwright.source.private_tensorflow import registered_ops

SOURCE = Path(__file__).parent.parent / "src" / "graphwright"
MOST = 490
TABLES = {
    "ir/traits.py": "the traits themselves",
    "analyze/flop_rules/": "FLOPs by op type",
    "analyze/eigen_workspace.py": "scratch memory of Eigen's kernels",
    "analyze/workspace.py": "scratch memory of oneDNN's kernels",
    "analyze/gemm_workspace.py": "scratch memory of oneDNN's matrix products",
    "analyze/lookup_tables.py": "kernels that make lookup tables",
    "analyze/traffic.py": "bytes that kernels move",
    "analyze/time_model.py": "how fast kernels are",
    "analyze/executor_order.py": "kernels that TensorFlow's executor calls cheap",
    "analyze/constant_weights.py": "which inputs of an op are weights",
    "analyze/optimizer_state.py": "slots of optimizers, by their kernels",
    "analyze/unknown_shapes.py": "why the shape of an op's result depends on data",
    "source/bounded_shapes.py": "bounds of results, by op type",
    "transform/remove_debug_ops.py": "checks and messages, and how their values may be made",
    "transform/constant_values.py": "what is computed with numpy",
    "transform/fold_constants.py": "what folding leaves alone, by op type",
    "transform/batch_size.py": "inputs that hold a batch size, by op type",
}
"""Files, or folders, that hold one table of rules by op type, and what their table says."""


def asked(tree: ast.AST, op_types: frozenset[str]) -> list[str]:
    """The op types that code compares with. Those that it makes nodes of, as arguments of calls, do not count, nor does prose."""
    made = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] not in ("startswith", "endswith", "frozenset"):
            made |= {id(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in made:
            words = node.value.split()
            found += words if op_types.issuperset(words) else []
    return found


def test_op_types_are_asked_of_traits() -> None:
    op_types = frozenset(name for name in registered_ops() if len(name) > 1)  # TensorFlow registers "A" and "B" for tests
    found = {
        name: len(asked(ast.parse(path.read_text(encoding="utf-8")), op_types))
        for path in sorted(SOURCE.rglob("*.py"))
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(tuple(TABLES))
    }
    total, most = sum(found.values()), Counter(found).most_common(8)
    assert total <= MOST, f"{total} names of op types, most of them in {most}: ask a trait of `ir/traits.py`, or make one there"
    assert total > MOST - 10, f"fewer names of op types: set MOST to {total}"


def test_each_table_is_there() -> None:
    assert [name for name in TABLES if not (SOURCE / name).exists()] == []


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
    ],
)
def test_the_count_itself(code: str, expected: list[str]) -> None:
    assert asked(ast.parse(code), frozenset({"Const", "NoOp", "MatMul", "Relu", "Assign"})) == expected
