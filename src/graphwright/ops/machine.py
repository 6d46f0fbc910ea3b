"""This machine's kernels: whether oneDNN's or Eigen's run, its instructions and its threads."""

import os
from functools import cache
from pathlib import Path

from graphwright.ir.dtypes import DType

_FOR_ONEDNN = frozenset({"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"})
_FOR_BFLOAT16 = frozenset({"avx512f", "avx_ne_convert"})  # oneDNN needs one of them (`IsDataTypeSupportedByOneDNNOnThisCPU`)
AVX512, AMX = frozenset({"avx512f"}), frozenset({"amx_bf16"})


def onednn_enabled() -> bool:
    """Return whether TensorFlow uses oneDNN on the CPU: as the environment says, else if the processor has instructions for it."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower()
    return setting in ("1", "true") if setting in ("0", "1", "false", "true") else cpu_has(_FOR_ONEDNN)


@cache
def cpu_has(any_of: frozenset[str]) -> bool:
    try:
        cpu_info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True  # not Linux: as most machines
    return not any_of.isdisjoint(cpu_info.split())


def by_onednn(dtype: DType) -> bool:
    """Return whether oneDNN computes matrix products and convolutions of a dtype."""
    return (dtype.name == "float32" or (dtype.name == "bfloat16" and cpu_has(_FOR_BFLOAT16))) and onednn_enabled()


def thread_count() -> int:
    return os.cpu_count() or 1
