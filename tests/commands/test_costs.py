"""The commands about costs: what they print, what they write, and their exit codes."""

import json
import shlex
import sys

import pytest
from typer.testing import CliRunner

from graphwright.analyze.flops import built_in_rules
from graphwright.commands.cli import app
from graphwright.commands.inputs import EXIT_CHECK_FAILED, EXIT_ERROR, EXIT_INFEASIBLE
from graphwright.errors import ArgumentError

pytestmark = pytest.mark.tensorflow

STEPS = """
import tensorflow as tf

weights = [tf.Variable(tf.random.stateless_normal((64, 64), (0, k)) / 8, name=f"weight{k}") for k in range(4)]


def step_through(chosen):
    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            for weight in chosen:
                x = tf.nn.gelu(x @ weight)
            loss = tf.reduce_mean(tf.square(x - y))
        for weight, gradient in zip(chosen, tape.gradient(loss, chosen)):
            weight.assign_sub(0.01 * gradient)
        return loss

    return train_step


train_step = step_through(weights)
shorter = step_through(weights[:3])
"""
FEEDS = ("--feed", "x=32,64", "--feed", "y=32,64")
OPEN = ("--feed", "x=batch,64", "--feed", "y=batch,64")
STATIC = ("flops", "params", "peak", "check")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command line in a folder of its own, 80 columns wide, where `my_costs` is a module of the user's."""
    (tmp_path / "my_costs.py").write_text(STEPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    yield lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])
    sys.modules.pop("my_costs", None)


@pytest.fixture
def frozen(tmp_path):
    """A graph with an open batch, in a file."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 64), "x")
        tf.nn.relu(tf.matmul(x, tf.ones((64, 32)), name="product"), name="scores")
        tf.reduce_sum(x, name="side")
    tf.io.write_graph(graph.as_graph_def(), str(tmp_path), "frozen.pb", as_text=False)
    return tmp_path / "frozen.pb"


def succeed(done):
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.stdout


@pytest.mark.parametrize("command", ["flops", "params", "shapes", "peak", "max-batch", "profile", "compare", "check"])
def test_help_fits(run, command):
    text = succeed(run(command, "--help"))
    assert max(map(len, text.splitlines())) <= 80
    assert f"graphwright {command}" in text or command in text


@pytest.mark.parametrize("command", STATIC)
def test_text_fits_and_json_is_json(run, command):
    options = (*FEEDS, "--max-peak", "1GiB") if command == "check" else FEEDS
    text = succeed(run(command, "my_costs:train_step", *options))
    assert "train_step" in text
    assert max(map(len, text.splitlines())) <= 80
    assert isinstance(json.loads(succeed(run(command, "my_costs:train_step", *options, "--json"))), dict)


class TestFlops:
    def test_rules_need_no_target(self, run):
        text = succeed(run("flops", "--rules"))
        assert "  5 per element: largest, difference, exponential, sum, quotient\n      Softmax, LogSoftmax" in text
        assert set(built_in_rules()) <= set(text.replace(",", "").split())
        assert max(map(len, text.splitlines())) <= 80

    def test_an_open_batch_gives_formulas(self, run, frozen):
        plain = json.loads(succeed(run("flops", frozen, "--outputs", "scores", "--json")))
        assert plain["formula"] == "4,128 * batch"
        assert (plain["batch"], plain["total_flops"]) == (8, 8 * 4128)
        assert "batch" in succeed(run("flops", "my_costs:train_step", *OPEN))

    def test_only_what_is_fetched(self, run, frozen):
        fed = ("--feed", "x=8,64", "--json")
        one = json.loads(succeed(run("flops", frozen, "--outputs", "scores", *fed)))["total_flops"]
        assert one == 8 * 4128
        assert json.loads(succeed(run("flops", frozen, *fed)))["total_flops"] == one + 8 * 64 - 1
        assert json.loads(succeed(run("flops", frozen, "--outputs", "scores, side", *fed)))["total_flops"] == one + 8 * 64 - 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("peak", "my_costs:train_step"), "not been traced"),
            (("peak", "my_costs:train_step", "--feed", "x=32,64"), "--feed y=SIZES"),
            (("flops", "my_costs:train_step", *FEEDS, "--feed", "z=3"), "it has x, y"),
            (("flops", "my_costs:train_step", *FEEDS, "--outputs", "loss"), "outputs"),
            (("flops", "frozen.pb", "--outputs", "score"), "scores"),
            (("flops", "frozen.pb", "--outputs", "scores,"), "option --outputs"),
            (("flops", "frozen.pb", "--outputs", "scores", "--feed", "z=8,64"), "it has x"),
            (("check", "frozen.pb", "--outputs", "scores", "--max-peak", "1GiB"), "--feed x=SIZES"),
            (("check", "my_costs:train_step", *FEEDS, "--max-flops", "lots"), "option --max-flops"),
            (("check", "my_costs:train_step", *FEEDS, "--max-peak", "0.5"), "option --max-peak"),
            (("check", "my_costs:train_step", *FEEDS, "--max-peak", "1GiB", "--tolerance", "speed=1%"), "option --tolerance"),
            (
                ("check", "my_costs:train_step", *FEEDS, "--max-peak", "1GiB", "--tolerance", "1%", "--tolerance", "peak=2%"),
                "option --tolerance",
            ),
            (("check", "my_costs:train_step", *FEEDS, "--write-baseline", "costs.txt"), ".json"),
            (("profile", "my_costs:train_step", *FEEDS, "--columns", "beauty"), "columns"),
            (("profile", "my_costs:train_step", *FEEDS, "--show", "("), "option --show"),
            (("profile", "my_costs:train_step", *FEEDS, "--sort", "beauty"), "option --sort"),
        ],
    )
    def test_is_explained(self, run, frozen, arguments, words):
        assert frozen.exists()
        done = run(*arguments)
        assert done.exit_code == EXIT_ERROR, done.output
        assert words in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.output


class TestCompare:
    def test_two_steps(self, run, tmp_path):
        text = succeed(run("compare", "my_costs:shorter", "my_costs:train_step", *FEEDS, "--html", tmp_path / "page.html"))
        assert text.startswith("B against A: peak")
        assert max(map(len, text.splitlines()[:-1])) <= 80
        assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")

    def test_with_a_baseline(self, run):
        succeed(run("check", "my_costs:shorter", *FEEDS, "--write-baseline", "costs.json"))
        plain = json.loads(succeed(run("compare", "costs.json", "my_costs:train_step", *FEEDS, "--json")))
        assert plain["figures"]["parameters"]["difference"] == 64 * 64
        assert plain["figures"]["total_flops"]["ratio"] > 1


class TestCheck:
    def test_exit_codes(self, run):
        assert run("check", "my_costs:train_step", *FEEDS, "--max-flops", "1G", "--max-peak", "1GiB").exit_code == 0
        assert run("check", "my_costs:train_step", *FEEDS, "--max-flops", "1k").exit_code == EXIT_CHECK_FAILED
        assert len({0, EXIT_CHECK_FAILED, EXIT_ERROR, EXIT_INFEASIBLE, 1}) == 5

    def test_a_baseline(self, run):
        succeed(run("check", "my_costs:shorter", *FEEDS, "--write-baseline", "costs.json"))
        succeed(run("check", "my_costs:shorter", *FEEDS, "--baseline", "costs.json"))
        failed = run(
            "check", "my_costs:train_step", *FEEDS, "--baseline", "costs.json", "--tolerance", "parameters=50%", "--format", "github"
        )
        assert failed.exit_code == EXIT_CHECK_FAILED
        lines = [line for line in failed.stdout.splitlines() if line.startswith("::error")]
        assert any("FLOPs" in line for line in lines)
        assert not any("parameters" in line for line in lines)
        succeed(run("check", "my_costs:train_step", *FEEDS, "--baseline", "costs.json", "--tolerance", "90%"))

    def test_json_says_which_figure_failed(self, run):
        done = run("check", "my_costs:train_step", *FEEDS, "--max-nodes", "3", "--json")
        assert done.exit_code == EXIT_CHECK_FAILED
        plain = json.loads(done.stdout)
        assert plain["passed"] is False
        assert [row["figure"] for row in plain["findings"]] == ["nodes"]


class TestBatch:
    def test_the_largest_batch(self, run, frozen):
        plain = json.loads(succeed(run("max-batch", frozen, "--budget", "1MiB", "--json")))
        assert plain["batch"] > 1
        peak = json.loads(succeed(run("peak", frozen, "--feed", f"x={plain['batch']},64", "--json")))["high_bytes"]
        assert peak <= 2**20
        assert json.loads(succeed(run("peak", frozen, "--feed", f"x={plain['batch'] + 1},64", "--json")))["high_bytes"] > 2**20

    def test_where_none_fits(self, run, frozen):
        assert run("max-batch", frozen, "--budget", "100").exit_code == EXIT_INFEASIBLE

    def test_shapes(self, run, frozen):
        assert "batch" in succeed(run("shapes", frozen))
        assert isinstance(json.loads(succeed(run("shapes", frozen, "--json"))), dict)


@pytest.mark.slow
class TestProfile:
    def test_a_tree_a_trace_and_an_event_file(self, run, tmp_path):
        words = ("--by", "op", "--columns", "time,flops", "--sort", "flops", "--show", "MatMul.*|Mul", "--json")
        done = run("profile", "my_costs:train_step", *FEEDS, *words, "--trace", "trace.json", "--tensorboard", "events")
        plain = json.loads(succeed(done))
        assert any(row["name"] == "MatMul" for row in plain["rows"])
        assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
        assert list((tmp_path / "events").iterdir())

    def test_tables(self, run):
        text = succeed(run("profile", "my_costs:train_step", *FEEDS, "--all"))
        assert "Per op type" in text
        assert max(map(len, text.splitlines())) <= 80


def test_names_with_commas():
    from graphwright.commands.inputs import names_in

    assert names_in(["a,b", "c"]) == ["a", "b", "c"]
    assert names_in(None) is None
    with pytest.raises(ArgumentError, match="empty name"):
        names_in(["a,,b"])


SCREENS = {
    "inspect": ("inspect", "my_costs:train_step", *FEEDS),
    "inspect a file": ("inspect", "frozen.pb", "--batch", 8),
    "optimize": ("optimize", "my_costs:train_step", *FEEDS, "--budget", "90%"),
    "advise": ("advise", "my_costs:train_step", *FEEDS, "--memory", "90%"),
    "advise too little": ("advise", "my_costs:train_step", *FEEDS, "--memory", "10%"),
    "check": ("check", "my_costs:train_step", *FEEDS, "--max-peak", "1KiB"),
    "compare": ("compare", "my_costs:train_step", "my_costs:shorter", *FEEDS),
    "max-batch": ("max-batch", "my_costs:train_step", "--budget", "1MiB", *OPEN),
    "flops": ("flops", "my_costs:train_step", *OPEN),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c.startswith("advise") else []) for c in SCREENS])
def test_first_screens_are_short_and_say_what_to_run_next(run, frozen, case):
    screen = run(*SCREENS[case])
    lines = screen.stdout.splitlines()
    assert screen.exit_code in (0, EXIT_CHECK_FAILED), screen.output
    assert 2 < len(lines) <= 14
    assert max(map(len, lines)) <= 80
    if case == "optimize":
        assert 'step = gw.optimize_memory(step, "90%")' in screen.stdout
        return
    following = shlex.split(screen.stdout.partition("Next: graphwright ")[2].replace("\\\n", ""))
    assert str(SCREENS[case][1]) in following
    if following[0] in ("compare", "flops", "inspect"):  # which take little time
        assert run(*following).exit_code == 0
