"""Bytes that kernels allocate beyond their outputs. Observed on TensorFlow 2.21, on a CPU with AVX-512."""

import os
from functools import cache
from pathlib import Path

from graphwright.analyze.eigen_workspace import BY_EIGEN_ALONE, eigen_workspace_bytes
from graphwright.analyze.onednn_workspace import gemm_workspace_bytes, onednn_workspace_bytes
from graphwright.ir.dtypes import DType, element_count
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.effects import is_collective
from graphwright.ir.traits.merging import can_pad

HOW_COMPILED = (
    "calls that XLA compiles are one operation each, which needs the temporaries and constants of XLA's own buffer assignment; for "
    "convolutions in groups also what Eigen was seen to take"
)
_FOR_ONEDNN = frozenset({"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"})
_AVX512, _AMX = frozenset({"avx512f"}), frozenset({"amx_bf16"})
_FOR_BFLOAT16 = _AVX512 | {"avx_ne_convert"}  # one of which oneDNN's kernels for it need (`IsDataTypeSupportedByOneDNNOnThisCPU`)


def onednn_enabled() -> bool:
    """Return whether TensorFlow uses oneDNN on the CPU: as the environment says, else if the processor has instructions for it."""
    asked = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower()
    return _cpu_has(_FOR_ONEDNN) if asked not in ("0", "1", "false", "true") else asked in ("1", "true")


@cache
def _cpu_has(any_of: frozenset[str]) -> bool:
    try:
        cpu_info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True  # not Linux: as most machines
    return not any_of.isdisjoint(cpu_info.split())


def _by_onednn(dtype: DType) -> bool:
    return (dtype.name == "float32" or (dtype.name == "bfloat16" and _cpu_has(_FOR_BFLOAT16))) and onednn_enabled()


def workspace_bytes(node: Node) -> int:
    """Return the scratch bytes of a node on the CPU, of its oneDNN kernel or of TensorFlow's own."""
    if is_collective(node) or not node.outputs or (node.op_type not in BY_EIGEN_ALONE and _by_onednn(node.outputs[0].dtype)):
        avx512 = _cpu_has(_AVX512)
        return onednn_workspace_bytes(node, avx512=avx512) + gemm_workspace_bytes(node, avx512=avx512, amx=_cpu_has(_AMX))
    return eigen_workspace_bytes(node)


def pads_by_itself(node: Node) -> bool:
    """Return whether the kernel of a convolution includes the padding before it."""
    return can_pad(node) and _by_onednn(node.outputs[0].dtype)


def hidden_output_bytes(value: Value) -> int:
    """Return bytes that a kernel keeps for the gradient beside an output, for as long as the output lives.

    oneDNN's max pooling stores the position of each maximum, one byte per output element.
    """
    op_type = value.producer.op_type
    if op_type in ("MaxPool", "MaxPool3D") and _by_onednn(value.dtype) and any(c.op_type == f"{op_type}Grad" for c in value.consumers):
        return element_count(value.shape) or 0
    return 0
