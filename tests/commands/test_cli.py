import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from graphwright.commands.cli import app
from graphwright.commands.inputs import EXIT_ERROR, EXIT_INFEASIBLE, load_target, parse_batches, parse_feeds, parse_open_feeds
from graphwright.commands.output import print_error
from graphwright.errors import ArgumentError, ErrorCode
from graphwright.report.memory_plan import load_plan


@pytest.fixture
def run(monkeypatch):
    """Runs the command line on a wide terminal without colors."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def chain(length, nbytes=100):
    """A forward chain of tasks and a backward chain that reads it from the end.

    f0 -> f1 -> ... -> fn
     \\     \\           |
     b0 <- b1 <- ... <- bn
    """
    tasks = [{"name": f"f{k}", "time": 1.0, "nbytes": nbytes} for k in range(length)]
    tasks += [{"name": f"b{k}", "time": 1.0, "nbytes": 1} for k in reversed(range(length))]
    edges = [[k, k + 1] for k in range(2 * length - 1)]
    edges += [[k, 2 * length - 1 - k] for k in range(length - 1)]
    return {"name": "chain", "tasks": tasks, "edges": edges, "order": list(range(2 * length))}


@pytest.fixture
def chain_file(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(chain(12)), encoding="utf-8")
    return path


class TestPlan:
    def test_json_is_a_schedule_that_keeps_the_budget(self, run, chain_file):
        done = run("plan", chain_file, "--budget", "0.6", "--time-limit", "5", "--json")
        assert done.exit_code == 0, done.stderr
        answer = json.loads(done.stdout)
        assert set(answer) >= {"status", "peak_bytes", "time", "overhead", "lower_bound", "schedule"}
        assert answer["peak_bytes"] <= 0.6 * 1201
        assert answer["time"] == len(answer["schedule"]) > 24  # every task costs 1, and some must run again
        assert set(answer["schedule"]) == set(range(24))

    def test_a_budget_below_the_bound_is_an_answer_with_a_reason(self, run, chain_file):
        done = run("plan", chain_file, "--budget", "0.01", "--json")
        assert done.exit_code == EXIT_INFEASIBLE
        assert json.loads(done.stdout)["status"] == "infeasible"
        done = run("plan", chain_file, "--budget", "0.01")
        assert done.exit_code == EXIT_INFEASIBLE
        assert "no plan fits the budget" in done.stderr


class TestTarget:
    def test_a_module_in_the_current_folder(self, tmp_path, monkeypatch):
        (tmp_path / "steps_here.py").write_text("class inner:\n    step = 'found'\n", encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", ["", *sys.path])
        assert load_target("steps_here:inner.step") == "found"

    def test_a_file_of_python_with_what_lies_beside_it(self, tmp_path, monkeypatch, run):
        folder = tmp_path / "my project"
        folder.mkdir()
        (folder / "beside_it.py").write_text("value = 'found'\n", encoding="utf-8")
        (folder / "my-steps.py").write_text("from beside_it import value\n\n\nclass inner:\n    step = value\n", encoding="utf-8")
        monkeypatch.setattr("sys.path", [*sys.path])
        assert load_target(f"{folder / 'my-steps.py'}:inner.step") == "found"
        done = run("inspect", f"{folder / 'none.py'}:step")
        assert (done.exit_code, "none.py" in done.stderr.replace("\n", "")) == (EXIT_ERROR, True)


class TestParse:
    @pytest.mark.parametrize("text", ["x", "=1,2", "x=1,,2", "x=a", "x=-1", "x=1.5", "x=?", "x=1:", "x=:"])
    def test_feeds_that_are_refused(self, text):
        with pytest.raises(ArgumentError, match=r"option --feed|is not"):
            parse_feeds([text])

    @pytest.mark.tensorflow
    def test_feeds_with_a_dtype(self):
        import tensorflow as tf

        assert parse_feeds(["y=8:int32", "x=8,3"]) == {"y": tf.TensorSpec((8,), tf.int32), "x": (8, 3)}
        feeds = parse_open_feeds(["y=batch:int64"])
        assert feeds is not None
        assert feeds(3) == {"y": tf.TensorSpec((3,), tf.int64)}
        with pytest.raises(ArgumentError, match="'int33' is not a dtype"):
            parse_feeds(["y=8:int33"])

    def test_open_feeds(self):
        feeds = parse_open_feeds(["x=8,3", "y=2,batch,batch", "rate="])
        assert feeds is not None
        assert feeds(5) == {"x": (5, 3), "y": (2, 5, 5), "rate": ()}

    @pytest.mark.parametrize("text", ["", "a", "1..", "4..2", "0..3", "1,,2", "0", "1-3"])
    def test_batches_that_are_refused(self, text):
        with pytest.raises(ArgumentError, match="batch size"):
            parse_batches(text)


def test_version_and_help(run):
    import graphwright

    assert run("--version").stdout == f"graphwright {graphwright.__version__}\n"
    for command in ("demo", "inspect", "optimize", "sweep", "plan"):
        assert run(command, "--help").exit_code == 0


STEPS = """
import keras
import tensorflow as tf

keras.utils.set_random_seed(0)
hidden = [keras.layers.Dense(64, activation="gelu") for _ in range(4)]
model = keras.Sequential([keras.layers.Input((64,), name="x"), *hidden, keras.layers.Dense(1)])
model.compile("adam", "mse")
traces = []


class Counted(keras.Sequential):
    def train_step(self, data):
        traces.append("train_step")
        return super().train_step(data)


counted = Counted([keras.layers.Input((4,), name="x"), keras.layers.Dense(1)])
counted.compile("sgd", "mse")
weights = [tf.Variable(tf.random.stateless_normal((64, 64), (0, k)) / 8, name=f"weight{k}") for k in range(4)]


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        for weight in weights:
            x = tf.nn.gelu(x @ weight)
        loss = tf.reduce_mean(tf.square(x - y))
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.01 * gradient)
    return loss


def no_step(x):
    return tf.numpy_function(lambda v: v, [x], tf.float32)
"""


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """A module of a user's, importable as `my_steps` until the test ends."""
    (tmp_path / "my_steps.py").write_text(STEPS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_steps"
    sys.modules.pop("my_steps", None)


FEEDS = ("--feed", "x=512,64", "--feed", "y=512,64")


@pytest.mark.tensorflow
class TestWithTensorFlow:
    def test_inspect(self, run, steps, tmp_path):
        page = tmp_path / "report.html"
        done = run("inspect", f"{steps}:train_step", *FEEDS, "--html", page)
        assert done.exit_code == 0, done.stderr
        assert "peak" in done.stdout.lower()
        assert "<html" in page.read_text(encoding="utf-8")
        assert str(page) in done.stdout.replace("\n", "")

    def test_optimize_a_keras_model(self, run, steps):
        done = run("optimize", f"{steps}:model", "--batch", "512", "--budget", "60%", "--json")
        assert done.exit_code == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["peak_bytes"] <= answer["budget_bytes"]
        assert answer["verification"].startswith("equal by structure")
        assert run("optimize", f"{steps}:model", "--batch", "512", "--budget", "1000").exit_code == EXIT_INFEASIBLE

    def test_a_keras_model_is_traced_once(self, run, steps):
        done = run("optimize", f"{steps}:counted", "--batch", "8", "--budget", "100%", "--json")
        assert done.exit_code == 0, done.stderr
        assert sys.modules[steps].traces == ["train_step"]

    @pytest.mark.slow
    def test_optimize_and_measure(self, run, steps):
        done = run("optimize", f"{steps}:train_step", *FEEDS, "--budget", "0.6", "--measure", "--json")
        assert done.exit_code == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["measured_after"]["peak_bytes"] < answer["measured_before"]["peak_bytes"]

    def test_a_plan_that_was_saved_is_followed_without_a_search(self, run, steps, tmp_path):
        path = tmp_path / "plan.json"
        first = run("optimize", f"{steps}:train_step", *FEEDS, "--budget", "80%", "--save", path)
        assert first.exit_code == 0, first.stderr
        assert f"plan written to {path}" in first.stdout.replace("\n", "")
        again = run("optimize", f"{steps}:train_step", *FEEDS, "--plan", path, "--json")
        assert again.exit_code == 0, again.stderr
        answer, saved = json.loads(again.stdout), load_plan(path)
        assert (answer["peak_bytes"], answer["budget_bytes"]) == (saved.peak_bytes, saved.budget_bytes)
        assert answer["verification"].startswith("equal by structure")
        assert "saved" in answer["how"]["plan"]
        other = run("optimize", f"{steps}:counted", "--batch", "8", "--plan", path)
        assert other.exit_code == EXIT_ERROR
        assert "the plan is for another step" in other.stderr
        assert "option --plan" in other.stderr

    def test_sweep_shows_plans_and_another_step_beside_it(self, run, steps, tmp_path):
        page = tmp_path / "sweep.html"
        feeds = ("--feed", "x=batch,64", "--feed", "y=batch,64")
        beside = ("--optimized", "70%", "--beside", f"{steps}:train_step")
        done = run("sweep", f"{steps}:train_step", *feeds, "--batch", "128,256", *beside, "--all", "--html", str(page))
        assert done.exit_code == 0, done.stderr
        assert "D  " in done.stdout
        assert "planned for 70%" in done.stdout
        assert "peak A, C" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 110
        assert "planned for 70%" in page.read_text()


def printed(error, command, capsys):
    """What a command prints of an error, in one line."""
    group = typer.main.get_command(app)
    print_error(error, group.get_command(None, command))
    return " ".join(capsys.readouterr().err.replace("\u2502", " ").split())


@pytest.mark.parametrize(
    ("command", "told", "words"),
    [
        ("inspect", {"argument": "target"}, "where: argument TARGET"),
        ("check", {"argument": "max_peak"}, "where: option --max-peak"),
        ("inspect", {"argument": "feeds", "item": "y"}, "where: option --feed y"),
        ("inspect", {"argument": "feeds", "item": "y", "where": "step 'train'"}, "where: option --feed y, step 'train'"),
        ("profile", {"argument": "order_by"}, "where: option --sort"),
        ("profile", {"argument": "unheard_of"}, "where: argument 'unheard_of'"),
        ("inspect", {"item": "x", "code": ErrorCode.OPEN_INPUT}, "remedy: give its shape: --feed x=SIZES"),
        ("inspect", {"item": "x", "code": ErrorCode.OPEN_BATCH}, "remedy: give --batch N, or --feed x=SIZES"),
        ("inspect", {"remedy": "see feeds={'x': (...)}", "code": ErrorCode.UNKNOWN_SIZE}, "--feed NAME=SIZES"),
        ("inspect", {"remedy": "give trust(path)", "code": ErrorCode.UNTRUSTED}, "add --trust"),
        ("inspect", {"remedy": "use less", "code": ErrorCode.OUT_OF_MEMORY}, "remedy: use less"),
    ],
)
def test_errors_name_options(command, told, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = printed(ArgumentError("no", **told), command, capsys)
    assert words in text
    assert "feeds=" not in text
    assert "trust(" not in text


def test_an_error_of_an_edit_names_its_options(run, tmp_path):
    (tmp_path / "g.pbtxt").write_text(
        'node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }', encoding="utf-8"
    )
    (tmp_path / "out.pb").touch()
    done = run("edit", tmp_path / "g.pbtxt", tmp_path / "out.pb", "rename-inputs", "x=y")
    assert "remedy: add --overwrite" in done.stderr
    done = run("edit", tmp_path / "g.pbtxt", tmp_path / "new.pb", "rename-inputs", "x=y:0")
    assert "where: argument OLD=NEW..., inputs" in done.stderr
