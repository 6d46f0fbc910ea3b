from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from bench.train_least_squares import Fit, Run, nist_table, standard_table, summary_table

FITS = [
    Fit("BoxBOD", 1, "ours", 9.6, True, "step small", 40, 121, 0.02, 1.0, 1.0),
    Fit("BoxBOD", 2, "ours", 11.0, True, "step small", 17, 52, 0.01, 1.0, 0.0),
    Fit("BoxBOD", 1, "scipy lm", -2.2, True, "xtol", 6, 9, 0.001, 0.5, 0.0),
]


def test_a_claim_that_is_wrong_is_marked():
    table = nist_table(FITS)
    assert "| BoxBOD | 9.6 / 11.0 | **0, wrong** / not run | 40 / 17 |" in table


def test_the_summary_counts_digits_and_wrong_claims():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in summary_table(FITS).splitlines()[2:]]
    assert rows == [
        ["ours", "1 of 1", "1 of 1", "0", "28", "1.00", "1.00 s"],
        ["scipy lm", "0 of 1", "0 of 0", "1", "6", "0.50", "0.00 s"],
    ]


def test_minima_that_are_found_said_or_claimed_elsewhere_are_told_apart():
    runs = [
        Run("Beale", 1.0, "ours", 0.0, True, True, "step small", 9, 30),
        Run("Beale", 1.0, "scipy lm", 0.0, True, False, "evaluations", 11, 40),
        Run("Beale", 10.0, "ours", 0.45, False, False, "stalled", 90, 300),
        Run("Beale", 10.0, "scipy lm", 0.45, False, True, "ftol", 5, 6),
    ]
    lines = standard_table(runs).splitlines()
    assert "of the 1 that all find" in lines[0]
    assert lines[2:4] == ["| ours | 1 | 1 | 0 | 9, 9 | 30, 30 |", "| scipy lm | 1 | 0 | 1 | 11, 11 | 40, 40 |"]
    assert lines[-2:] == ["| Beale | 1 | 30 | 40, unsaid |", "| Beale | 10 | not found | **elsewhere** |"]
