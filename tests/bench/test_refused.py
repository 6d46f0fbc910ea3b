"""The benchmark that lets TensorFlow build all plans."""

import pytest

from bench.refused import main


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("verbs", ["default", "all"])
def test_no_plan_is_refused_for_convolutions_with_bias_beside_each_other(capsys: pytest.CaptureFixture[str], verbs: str) -> None:
    """A residual network whose shortcuts are convolutions with bias, so that two of each gradient read the same."""
    assert main(f"--size small --models shortcut --shares 30 50 --time-limit 0.3 --verbs {verbs}".split()) == 0
    *_, row, _, last = capsys.readouterr().out.splitlines()
    assert row.startswith(f"| shortcut | {verbs} | ")
    assert row.endswith(" | 0 |")
    assert row.count("none") == 0
    assert last == "0 refused"
