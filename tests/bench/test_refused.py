"""The benchmark that lets TensorFlow build all plans."""

import pytest

from bench.refused import main


@pytest.mark.slow
@pytest.mark.tensorflow
def test_no_plan_is_refused_for_convolutions_with_bias_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """A residual network whose shortcuts are convolutions with bias, so that two of each gradient read the same."""
    assert main("--size small --models shortcut --shares 40 --time-limit 0.3".split()) == 0
    *_, default, every, _, last = capsys.readouterr().out.splitlines()
    assert (default.split(" | ")[1], every.split(" | ")[1]) == ("default", "all")
    assert default.endswith(" | 0 |")
    assert every.endswith(" | 0 |")
    assert "none" not in default + every
    assert last == "0 refused"
