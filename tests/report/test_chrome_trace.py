"""A Chrome trace is JSON whose slices nest on each track, and Perfetto's trace processor finds in it what was measured."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from graphwright.analyze.step_profile import StepProfile
from graphwright.report.chrome_trace import trace_events, write_chrome_trace
from tests.report import profiles


@pytest.fixture
def events():
    return list(trace_events(profiles.small_profile(), flows=True))


def test_each_run_is_a_slice_with_its_figures(events):
    slices = [e for e in events if e["ph"] == "X" and e["name"] != "step"]
    assert len(slices) == len(profiles.small_profile().runs)
    first = slices[0]
    assert (first["name"], first["ts"], first["dur"], first["cat"]) == ("MatMul", 0.0, 40.0, "forward")
    assert first["args"]["node"] == "net/dense/MatMul"
    assert first["args"]["flops_per_s"] == pytest.approx(1e11)
    kernel = next(e for e in slices if e["args"].get("kernel"))
    assert kernel["cat"] == "backward"
    assert kernel["cname"] != first["cname"]


def test_each_lane_is_a_track_whose_slices_do_not_overlap(events):
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[(event["pid"], event["tid"])].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(slices))
    named = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named == {"thread 1", "thread 2", "thread 3", "stream 7", "step"}


def test_memory_is_a_counter_and_arrows_lead_forward(events):
    counts = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counts == [(0.0, profiles.MIB), (1.0, 3 * profiles.MIB), (90.0, 2 * profiles.MIB)]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 1 + 2 + 2  # the host's run and its kernel both read
    assert all(starts[k]["ts"] <= ends[k]["ts"] for k in starts)
    assert not any(e["ph"] == "s" for e in trace_events(profiles.small_profile()))


def test_a_step_without_runs_is_a_trace(tmp_path):
    path = write_chrome_trace(StepProfile("nothing", (), (), 0.0), tmp_path / "trace.json")
    assert json.loads(path.read_text())["traceEvents"]
