"""GPUs as figures: the properties that XLA's compiler needs of an absent one, and the rates for estimated times.

The properties of the H100, H200, B200 and A100 are those by which XLA itself describes them (openxla/xla,
`xla/backends/gpu/target_config/specs/`); those of the L4 and T4 come from NVIDIA's data sheets and the tables of compute capabilities in
the CUDA C++ Programming Guide. Peak rates are those of the data sheets, without sparsity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphwright.analyze.time_model import Rates
from graphwright.errors import ArgumentError

_LAUNCH_S = 3e-6  # of a kernel


def with_article(full_name: str) -> str:
    return f"{'an' if full_name.startswith('N') else 'a'} {full_name}"


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A GPU.

    Attributes:
        name: the value of `device=`.
        capability: CUDA's compute capability.
        cores: streaming multiprocessors.
        units_per_core, threads_per_core: units for float32 and resident threads of each.
        shared_bytes_per_core, shared_bytes_per_block: memory that threads share, in all and for one block at most.
        cache_bytes: of the second level.
        clock_ghz: the highest.
        memory_bytes: as a program sees it.
        bytes_per_s: to and from that memory.
        host_bytes_per_s: over PCIe, one way.
        product_flops_per_s: of matrix products and convolutions, by dtype; float32 as TF32 where available.
        flops_per_s: of anything else, in float32.
    """

    name: str
    full_name: str
    capability: tuple[int, int]
    cores: int
    units_per_core: int
    threads_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    cache_bytes: int
    clock_ghz: float
    memory_bytes: int
    bytes_per_s: float
    host_bytes_per_s: float
    product_flops_per_s: Mapping[str, float]
    flops_per_s: float

    @property
    def rates(self) -> Rates:
        """The rates of the roofline: peaks, which no program reaches."""
        return Rates(
            product_flops_per_s=self.product_flops_per_s,
            other_flops_per_s=self.flops_per_s,
            bytes_per_s=self.bytes_per_s,
            execution_s=_LAUNCH_S,
            how=f"peak rates of {with_article(self.full_name)}, from its data sheet",
        )

    def description(self, memory_bytes: int | None = None) -> str:
        """Return XLA's `GpuTargetConfigProto` as text.

        Args:
            memory_bytes: the stated memory of the device; XLA recomputes values if a program would not fit.

        >>> find_device("t4").description().splitlines()[:2]
        ['gpu_device_info {', '  threads_per_block_limit: 1024']
        """
        major, minor = self.capability
        features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: {self.threads_per_core}
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {self.shared_bytes_per_block}
  shared_memory_per_core: {self.shared_bytes_per_core}
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  core_count: {self.cores}
  fpus_per_core: {self.units_per_core}
  clock_rate_ghz: {self.clock_ghz}
  memory_bandwidth: {int(self.bytes_per_s)}
  pcie_bandwidth: {int(self.host_bytes_per_s)}
  l2_cache_size: {self.cache_bytes}
  device_memory_size: {self.memory_bytes if memory_bytes is None else memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  runtime_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.full_name}"
"""


def _products(tf32: float, half: float, double: float) -> dict[str, float]:
    return {"float32": tf32, "float16": half, "bfloat16": half, "float64": double}


_MODELS = (
    DeviceModel(
        "h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 233472, 232448, 52428800, 1.98, 84942979072, 3.35232e12, 2**35,
        _products(494.7e12, 989.4e12, 66.9e12), 66.9e12,
    ),
    DeviceModel(
        "h200", "NVIDIA H200 141GB HBM3e", (9, 0), 132, 128, 2048, 233472, 232448, 52428800, 1.98, 151397597184, 4.8e12, 2**35,
        _products(494.7e12, 989.4e12, 66.9e12), 66.9e12,
    ),
    DeviceModel(
        "b200", "NVIDIA B200", (10, 0), 148, 128, 2048, 233472, 232448, 132644864, 1.965, 191514411008, 7.67232e12, 2**36,
        _products(1.1e15, 2.25e15, 37e12), 75e12,
    ),
    DeviceModel(
        "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 167936, 166912, 41943040, 1.41, 85100068864, 2.03904e12, 2**35,
        _products(156e12, 312e12, 19.5e12), 19.5e12,
    ),
    DeviceModel(
        "l4", "NVIDIA L4", (8, 9), 58, 128, 1536, 102400, 101376, 50331648, 2.04, 23569891328, 3e11, 2**35,
        _products(60e12, 121e12, 0.49e12), 30.3e12,
    ),
    DeviceModel(
        "t4", "Tesla T4", (7, 5), 40, 64, 1024, 65536, 65536, 4194304, 1.59, 15835660288, 3.2e11, 2**34,
        _products(8.1e12, 65e12, 0.25e12), 8.1e12,
    ),
)  # fmt: skip
DEVICES: Mapping[str, DeviceModel] = {model.name: model for model in _MODELS}
"""The GPUs that are known, by name."""
HERE = "cpu"
"""What `device=` calls this process's own devices."""


def device_name(device: DeviceModel | None) -> str:
    return HERE if device is None else device.name


def find_device(name: str) -> DeviceModel | None:
    """Return the GPU of this name; None for "cpu", this process's own devices.

    >>> find_device("L4").full_name, find_device("cpu")
    ('NVIDIA L4', None)
    """
    if name.lower() == HERE:
        return None
    if name.lower() not in DEVICES:
        raise ArgumentError(f"device={name!r} was given", argument="device", remedy=f"there are {', '.join((HERE, *DEVICES))}")
    return DEVICES[name.lower()]
