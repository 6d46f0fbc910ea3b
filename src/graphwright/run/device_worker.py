"""Compile with XLA for an absent GPU: a script that needs jax and its CUDA plugin, and nothing of graphwright.

It reads a request as JSON: `module` (StableHLO as TensorFlow writes it) and `target` (the text of XLA's `GpuTargetConfigProto`), or nothing
for the versions only. It answers bytes by kind and the scheduled program. `jax.export.Exported` and `make_ir_context` are not quite public,
so the versions are pinned (the extra `gpu-target`).
"""

import dataclasses
import importlib
import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("jax", "jaxlib", "jax-cuda13-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm")
_DTYPES = {"i1": "bool", "complex<f32>": "complex64", "complex<f64>": "complex128"}
_KINDS = {"i": "int", "si": "int", "ui": "uint", "f": "float", "bf": "bfloat"}


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide the result; "" for a missing one."""
    by_package: dict[str, str] = {}
    for name in PACKAGES:
        try:
            by_package[name] = version(name)
        except PackageNotFoundError:
            by_package[name] = ""
    return by_package


def readable(module: str) -> str:
    """Rewrite TensorFlow's text for this version of MLIR: XLA's own copy is not StableHLO, and truth values took one bit each."""
    module = re.sub(r"mhlo\.copy (%[\w#]+) : (tensor<[^>]*>)", r"stablehlo.reshape \1 : (\2) -> \2", module)
    return re.sub(r'dense<"0x([0-9A-F]+)"> : tensor<((?:\d+x)+)i1>', _bytes_for_bits, module)


def _bytes_for_bits(match: re.Match[str]) -> str:
    bits, count = bytes.fromhex(match[1]), 1
    for size in match[2].split("x")[:-1]:
        count *= int(size)
    text = "".join("01" if bits[k // 8] >> k % 8 & 1 else "00" for k in range(count))
    return f'dense<"0x{text}"> : tensor<{match[2]}i1>'


def dtype_name(element: str) -> str:
    """Return NumPy's name of an MLIR type."""
    if element in _DTYPES:
        return _DTYPES[element]
    kind, bits = re.findall(r"[a-z]+|\d+", element)
    return f"{_KINDS[kind]}{bits}"


def read_module(module: str, platform: str) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Return the function that jax calls, the shapes of its arguments, and the arguments that it may overwrite.

    Args:
        platform: "cuda", or the platform of the devices on which it is to run.
    """
    names = "jax jax.export jax.interpreters.mlir jaxlib.mlir.ir jaxlib.mlir.dialects.stablehlo".split()
    modules: list[Any] = [importlib.import_module(name) for name in names]
    jax, export, mlir, ir, stablehlo = modules
    jax.config.update("jax_enable_x64", True)
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    with context:
        parsed = ir.Module.parse(readable(module))
        attributes = parsed.operation.attributes
        aliases = str(attributes["mhlo.input_output_alias"]) if "mhlo.input_output_alias" in attributes else ""
        donated = sorted({int(number) for number in re.findall(r"parameter_number = (\d+)", aliases)})
        for name in list(attributes):
            if name.startswith("mhlo."):
                del attributes[name]
        (main,) = (f for f in parsed.body.operations if f.attributes["sym_name"].value == "main")
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)

        def avals(types: Any) -> tuple[Any, ...]:
            ranked = [ir.RankedTensorType(one) for one in types]
            return tuple(jax.core.ShapedArray(tuple(t.shape), jax.numpy.dtype(dtype_name(str(t.element_type)))) for t in ranked)

        given, results = avals(kind.inputs), avals(kind.results)
        artifact = stablehlo.serialize_portable_artifact(parsed, stablehlo.get_current_version())
    known = {field.name for field in dataclasses.fields(export.Exported)}
    fields = {
        "fun_name": "step",
        "in_tree": jax.tree.structure((given, {})),
        "in_avals": given,
        "out_tree": jax.tree.structure(results),
        "out_avals": results,
        "in_shardings_hlo": (None,) * len(given),
        "out_shardings_hlo": (None,) * len(results),
        "_has_named_shardings": False,
        "_in_named_shardings": (None,) * len(given),
        "_out_named_shardings": (None,) * len(results),
        "nr_devices": 1,
        "platforms": (platform,),
        "ordered_effects": (),
        "unordered_effects": (),
        "disabled_safety_checks": (),
        "mlir_module_serialized": artifact,
        "calling_convention_version": export.maximum_supported_calling_convention_version,
        "module_kept_var_idx": tuple(range(len(given))),
        "uses_global_constants": False,
        "_get_vjp": None,
    }
    # `_has_named_shardings` went with jax 0.11, which runs on GPUs what 0.10 has laid out for them.
    exported = export.Exported(**{name: value for name, value in fields.items() if name in known})
    return exported.call, given, tuple(donated)


def compile_module(module: str, target: str) -> dict[str, Any]:
    jax: Any = importlib.import_module("jax")
    topologies: Any = importlib.import_module("jax.experimental.topologies")
    topology = topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x1x1")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    call, avals, donated = read_module(module, "cuda")
    places = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding) for aval in avals]
    compiled = jax.jit(call, donate_argnums=donated).lower(*places).compile()
    memory = compiled.memory_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "program": compiled.as_text(),
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    answer: dict[str, Any] = {"versions": versions()}
    if "module" in request:
        os.environ["JAX_PLATFORMS"] = "cpu"  # jax itself must not look for a GPU
        answer |= compile_module(request["module"], request["target"])
    json.dump(answer, answers)
    answers.flush()


if __name__ == "__main__":
    main()
