"""A program of XLA, read from its text."""

from __future__ import annotations

import pytest

from graphwright.analyze.device_models import DEVICES
from graphwright.analyze.time_model import Rates
from graphwright.analyze.xla_program import Program

MIB = 2**20
BY_MEMORY = Rates({"float32": 1e30}, 1e30, 1.0, 0.0, "one byte per second")
BY_FLOPS = Rates({"float32": 1.0, "float16": 4.0}, 1.0, 1e30, 0.0, "one FLOP per second")

CHAIN = """HloModule jit_call, is_scheduled=true, entry_computation_layout={(f32[512,512]{1,0})->f32[]}

%fused_tanh (p: f32[512,512]) -> (f32[512,512], f32[512,512]) {
  %p = f32[512,512]{1,0} parameter(0)
  %t = f32[512,512]{1,0} tanh(%p)
  ROOT %both = (f32[512,512]{1,0}, /*index=1*/f32[512,512]{1,0}) tuple(%t, %p)
}

ENTRY %main.1 (a: f32[512,512]) -> f32[512,512] {
  %a = f32[512,512]{1,0} parameter(0), metadata={op_name="args[0]"}
  %b = f32[512,512]{1,0} copy(%a), metadata={op_name="jit(call)/call_exported/net/first/MatMul;net/other"}
  %c = (f32[512,512]{1,0}, /*index=1*/f32[512,512]{1,0}) fusion(%b), kind=kInput, calls=%fused_tanh
  %c0 = f32[512,512]{1,0} get-tuple-element(%c), index=0
  %c1 = f32[512,512]{1,0} get-tuple-element(%c), index=1
  %v = f32[262144]{0} bitcast(%c0)
  %d = f32[512,512]{1,0} fusion(%v, %c1), kind=kLoop, calls=%fused_tanh
  %e = f32[512,512]{1,0} custom-call(%d, %a), custom_call_target="__cublas$gemm", backend_config={"lhs_contracting_dimensions":["1"]}
  ROOT %r = f32[512,512]{1,0} negate(%e)
}
"""


def test_what_is_live_follows_views_and_parts_of_tuples() -> None:
    peak, live = Program(CHAIN).live_at_peak()
    # b and both parts of c at c; the kernel of d writes where it reads, and the result r has its place elsewhere.
    assert peak.name == "c"
    assert [(one.name, nbytes) for one, nbytes in live] == [("b", MIB), ("c", MIB), ("c", MIB)]
    assert live[0][0].op_name == "net/first/MatMul"
    assert live[1][0].op_name == "c"


def test_a_value_that_is_read_later_lives_until_then() -> None:
    longer = CHAIN.replace("custom-call(%d, %a)", "custom-call(%d, %b)")
    _, live = Program(longer).live_at_peak()
    assert sum(nbytes for _, nbytes in live) == 3 * MIB
    assert "b" in {one.name for one, _ in live}


def test_bytes_and_flops_of_the_roofline() -> None:
    program = Program(CHAIN)
    moved = 2 + 3 + 3 + 3 + 2  # b, c, d, e, r in MiB; views move nothing
    assert program.time_s(BY_MEMORY) == moved * MIB
    assert program.time_s(BY_FLOPS) == pytest.approx(2 * 512**3)
    halves = Program(CHAIN.replace("f32[", "f16["))
    assert halves.time_s(BY_FLOPS) == pytest.approx(2 * 512**3 / 4)
    assert program.time_s(DEVICES["h100"].rates) < program.time_s(DEVICES["t4"].rates)


@pytest.mark.parametrize(
    ("kind", "result", "operands"),
    [
        ("convForward", "f32[8,30,30,16]", ("f32[8,32,32,4]", "f32[16,3,3,4]")),
        ("convBackwardInput", "f32[8,32,32,4]", ("f32[8,30,30,16]", "f32[16,3,3,4]")),
        ("convBackwardFilter", "f32[16,3,3,4]", ("f32[8,32,32,4]", "f32[8,30,30,16]")),
    ],
)
def test_the_three_convolutions_of_a_layer_take_the_same_flops(kind: str, result: str, operands: tuple[str, str]) -> None:
    text = f"""HloModule m
ENTRY %main (x: {operands[0]}, y: {operands[1]}) -> {result} {{
  %x = {operands[0]} parameter(0)
  %y = {operands[1]} parameter(1)
  ROOT %z = ({result}, u8[0]) custom-call(%x, %y), window={{size=3x3}}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn${kind}"
}}"""
    assert Program(text).time_s(BY_FLOPS) == 2 * (8 * 30 * 30 * 16) * (3 * 3 * 4)


def test_a_loop_takes_its_rounds_and_reads_a_slice_of_what_it_slices() -> None:
    text = """HloModule m
%slices (p: f32[100,1024], k: s32[]) -> f32[1,1024] {
  %p = f32[100,1024]{1,0} parameter(0)
  %k = s32[] parameter(1)
  ROOT %s = f32[1,1024]{1,0} dynamic-slice(%p, %k, %k), dynamic_slice_sizes={1,1024}
}
%body (state: (s32[], f32[100,1024])) -> (s32[], f32[100,1024]) {
  %state = (s32[], f32[100,1024]{1,0}) parameter(0)
  %k.1 = s32[] get-tuple-element(%state), index=0
  %all = f32[100,1024]{1,0} get-tuple-element(%state), index=1
  %one = f32[1,1024]{1,0} fusion(%all, %k.1), kind=kLoop, calls=%slices
  ROOT %next = (s32[], f32[100,1024]{1,0}) tuple(%k.1, %all)
}
ENTRY %main (a: (s32[], f32[100,1024])) -> (s32[], f32[100,1024]) {
  %a = (s32[], f32[100,1024]{1,0}) parameter(0)
  ROOT %w = (s32[], f32[100,1024]{1,0}) while(%a), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"100"}}
}"""
    assert Program(text).time_s(BY_MEMORY) == 100 * (4096 + 4 + 4096)
