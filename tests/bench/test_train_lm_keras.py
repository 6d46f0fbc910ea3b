from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from bench.train_lm_keras import table

OURS = {
    "step_s_ratio": 0.08,
    "processor_s_ratio": 0.09,
    "step_bytes": 3 << 20,
    "process_bytes": 300 << 20,
    "loss": 0.1,
    "decision": "qr: small",
}
THEIRS = {"step_bytes": 4 << 20, "process_bytes": 200 << 20, "loss": 0.2, "decision": "theirs"}
NAME = "sinc, 61 parameters"


def cells(results):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(results).splitlines()[2:]]


def test_ratios_beside_sizes():
    assert cells({NAME: {"ours": OURS, "theirs": THEIRS}}) == [
        [NAME, "0.08 (0.09)", "0.75 (3.0 MiB)", "1.50 (300 MiB)", "0.1", "0.2", "qr"]
    ]


def test_what_is_missing_is_left_open():
    alone = {key: value for key, value in OURS.items() if not key.endswith("_ratio") and key != "process_bytes"}
    assert cells({NAME: {"ours": alone}}) == [[NAME, "", "3.0 MiB", "not run", "0.1", "", "qr"]]
    assert cells({NAME: {"ours": {"failed": "no"}}})[0][1] == "failed: no"
