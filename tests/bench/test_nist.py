from __future__ import annotations

import re

import numpy as np
import pytest

from bench.nist import FOLDER, MODELS, all_problems, read_problem


@pytest.mark.parametrize("name", MODELS)
def test_the_model_gives_the_certified_sum_of_squares(name):
    problem = read_problem(name)
    squares = np.sum(problem.residuals(problem.certified, problem.x, problem.y) ** 2)
    # Lanczos1 is exact but for the rounding of its data: what is left at 11 digits of the parameters is rounding too.
    assert squares == pytest.approx(problem.squares, rel=1e-9, abs=1e-19)


def test_all_files_are_read_in_full():
    problems = all_problems()
    assert len(problems) == 25
    for problem in problems:
        header = re.search(r"Number of Observations:\s+(\d+)", (FOLDER / f"{problem.name}.dat").read_text(encoding="ascii"))
        assert header is not None
        assert len(problem.x) == len(problem.y) == int(header[1])
    assert all(len(start) == len(problem.certified) == len(problem.deviations) for problem in problems for start in problem.starts)


def test_digits():
    problem = read_problem("DanWood")
    assert problem.digits(problem.certified) == 11.0
    assert problem.digits(problem.certified * [1.0, 1.001]) == pytest.approx(3.0)
    assert problem.digits(problem.certified * [np.nan, 1.0]) == -np.inf
