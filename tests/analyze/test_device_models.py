"""GPUs as figures: what XLA is told of them, and what they do per second."""

from __future__ import annotations

import re

import pytest

from graphwright.analyze.device_models import DEVICES, find_device
from graphwright.analyze.time_model import ASSUMED_RATES, Rates, estimated_time_s
from graphwright.errors import ArgumentError
from graphwright.ir.graph import DTYPES, Graph


@pytest.mark.parametrize("name", DEVICES)
def test_what_xla_is_told_names_each_field_once_and_is_balanced(name: str) -> None:
    device = DEVICES[name]
    text = device.description()
    fields = re.findall(r"(?m)^  (\w+)", text)
    assert len(fields) == len(set(fields)) > 20
    assert text.count("{") == text.count("}")
    assert f"device_memory_size: {device.memory_bytes}\n" in text
    assert f"core_count: {device.cores}\n" in text


def test_less_memory_is_all_that_changes() -> None:
    device = DEVICES["h100"]
    whole, less = (text.splitlines() for text in (device.description(), device.description(10**9)))
    assert [b for a, b in zip(whole, less, strict=True) if a != b] == ["  device_memory_size: 1000000000"]


def test_figures_are_plausible() -> None:
    for device in DEVICES.values():
        rates = device.rates
        assert rates.product("float16") >= rates.product("float32") >= rates.other_flops_per_s >= rates.product("float64") > 1e11
        assert 10 * device.host_bytes_per_s < 10 * device.bytes_per_s < rates.product("float32")
        assert 2**33 < device.memory_bytes < 2**38
    assert DEVICES["t4"].bytes_per_s < DEVICES["a100"].bytes_per_s < DEVICES["h100"].bytes_per_s < DEVICES["h200"].bytes_per_s


def test_an_unknown_device_lists_those_that_there_are() -> None:
    with pytest.raises(ArgumentError, match="'v100'") as caught:
        find_device("v100")
    assert caught.value.argument == "device"
    assert "cpu, h100" in caught.value.remedy


def test_a_gpu_prices_by_its_own_rates() -> None:
    def product(dtype: str, rates: Rates = DEVICES["a100"].rates) -> float:
        g, kind = Graph(), [(DTYPES[dtype], (2048, 2048))]
        a = g.add_node("Const", "a", output_types=kind).outputs[0]
        return estimated_time_s((g.add_node("MatMul", "b", inputs=[a, a], output_types=kind),), rates)

    assert product("float16") < product("float32") < product("float64")
    assert product("float32") < product("float32", ASSUMED_RATES) / 100
