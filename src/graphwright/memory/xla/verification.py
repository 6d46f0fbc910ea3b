"""The proof by running that a rewritten step that XLA compiles computes the same as the original.

XLA fuses the two programs differently, so results differ in the last digits, and no tolerance fits all: Adam makes a full step of a
gradient that is zero up to rounding. So both graphs first run by TensorFlow's own kernels, and must agree bit for bit on the CPU. Then both
XLA programs run, and must agree within the tolerance by dtype, or as well as the original's program agrees with TensorFlow's kernels.
"""

import importlib
from typing import Any

from graphwright.errors import in_words
from graphwright.ir.traits.values import BARRIER, SEVERAL
from graphwright.run.verify import verify
from graphwright.source.graph_def import nodes_of
from graphwright.source.private_tensorflow import captures_of
from graphwright.source.rebuild import is_jit_compiled, rebuild_concrete_function

tf: Any = importlib.import_module("tensorflow")

_YARDSTICK = 2.0  # how much farther than the original's own rounding the rewritten program's may be


def verify_compiled(original: Any, rewritten: Any, inputs: Any, *, other_sums: bool = False) -> tuple[str, str]:
    """Run both steps, with TensorFlow's kernels and as XLA compiles them, and restore the variables.

    Returns:
        What was proved, in words; and the first difference, "" if there is none.
    """
    plain, ours = _run_by(original, xla=False), _run_by(rewritten, xla=False)
    if not is_jit_compiled(original):  # a plan for a GPU, which XLA compiles wherever it runs
        original = _run_by(original, xla=True)
    try:
        by_kernels = verify(plain, ours, inputs, other_sums=other_sums)
    except tf.errors.OpError as error:  # an operation that only XLA has, or no memory for it
        by_kernels = None
        said = f"not run by TensorFlow's kernels ({in_words(error)[:100]})"
    else:
        if not by_kernels.equal:
            return "", f"by TensorFlow's kernels, {by_kernels.first_difference}"
        said = f"by TensorFlow's kernels {by_kernels}"
    if _draws_by_state(original):
        if by_kernels is None:
            return "", "XLA draws random numbers from a state of its own, so its programs cannot be compared"
        return f"{said}; XLA's programs not compared, since XLA draws random numbers from a state of its own", ""
    compiled = verify(original, rewritten, inputs, other_sums=other_sums)
    if not compiled.equal and by_kernels is not None:
        rounding = verify(original, plain, inputs)
        if compiled.max_abs <= _YARDSTICK * rounding.max_abs:
            own = f"XLA's program of the original differs from TensorFlow's kernels by up to {rounding.max_abs:.3g}"
            return f"{said}; compiled by XLA, equal up to rounding: largest difference {compiled.max_abs:.3g}, where {own}", ""
    if not compiled.equal:
        return "", f"compiled by XLA, {compiled.first_difference}"
    return f"{said}; compiled by XLA {compiled}", ""


def _draws_by_state(function: Any) -> bool:
    """Whether random numbers depend on a hidden counter of TensorFlow; XLA has its own."""
    graph_def = function.graph.as_graph_def()
    return any("seed" in node.attr and "seed2" in node.attr for node in nodes_of(graph_def))


def _run_by(function: Any, *, xla: bool) -> Any:
    graph_def = function.graph.as_graph_def()
    for node in nodes_of(graph_def):
        node.attr.pop("_XlaMustCompile", None)
        if node.op == BARRIER:
            node.op = SEVERAL
    for body in graph_def.library.function:
        body.attr.pop("_XlaMustCompile", None)
    captures = captures_of(function)
    count = len(function.inputs) - len(captures)
    return rebuild_concrete_function(
        graph_def,
        inputs=[tensor.name for tensor in function.inputs[:count]],
        captures=[(external, inner.name) for external, inner in zip(captures, function.inputs[count:], strict=True)],
        outputs=[tensor.name for tensor in function.outputs],
        control_outputs=[operation.name for operation in function.graph.control_outputs],
        name="xla" if xla else "kernels",
        jit_compile=xla,
        like=function,
    )
