"""Every target with one command, every command with two targets, by command and by call; and wrong usages, each with one clear error."""

import inspect
import json
import re

import pytest

pytest.importorskip("tensorflow")

from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app
from graphwright.commands.inputs import EXIT_ERROR, load_target, parse_feeds
from tests.commands.every_target import TARGETS, make

pytestmark = pytest.mark.tensorflow
COMMANDS = {  # with what else each is given
    "inspect": (),
    "flops": ("--json",),
    "params": (),
    "shapes": (),
    "peak": (),
    "check": ("--max-peak", "1GiB"),
    "sweep": ("--batch", "2,4"),
    "max-batch": ("--budget", "1MiB"),
    "compare": (),
    "profile": ("--steps", "1"),
    "optimize": ("--budget", "100%"),
    "advise": ("--memory", "1GiB"),
    "verify": ("--trust",),
    "show": (),
    "draw": ("picture.html", "--overwrite"),
    "diff": (),
    "edit": ("out.pb", "inline", "--overwrite"),
}
OF_TWO = ("compare", "verify", "diff")
READ_AS_THEY_ARE = ("show", "draw", "diff", "edit")
OF_STEPS_TOO = ("show", "draw", "diff")
OF_ANY_BATCH = ("sweep", "max-batch")
NOT_YET_TRACED = ("class", "unbuilt", "untraced")


NO_VALUES = ("no values to run with", "in a checkpoint or a session, which nothing names", "freeze its variables first")
REFUSED = {  # cells in which the question makes no sense, with the words of the error
    **dict.fromkeys((("profile", "TF1 graph"), ("verify", "TF1 graph")), NO_VALUES),
    **dict.fromkeys((("edit", name) for name in NOT_YET_TRACED), ("remedy",)),
}
MADE_ANEW = ("functional", "uncompiled", "class", "unbuilt", "called", "fitted", "two inputs")  # twice, with other weights and numbers
FILES = tuple(name for name, given in TARGETS.items() if ":" not in given.text and ".keras" not in name and name != ".h5")
TARGETS_OF = {  # besides `flops`, which takes each
    "inspect": ("fitted", ".pb"),
    "params": ("unbuilt", "export"),
    "shapes": ("concrete", ".h5"),
    "peak": ("two inputs", "TF1 SavedModel"),
    "check": ("called", "export, folded"),
    "sweep": ("signature", "export, renamed"),
    "max-batch": (".keras, subclassed", "untraced"),
    "compare": ("uncompiled", ".pbtxt"),
    "profile": ("signature", "export, inlined"),
    "optimize": (".keras, not compiled", "concrete"),
    "advise": (".keras", "two inputs"),
    "verify": ("untraced", "unbuilt"),
    "show": ("functional", "untraced"),
    "draw": ("class", "export, weights in 16 bits"),
    "diff": ("unbuilt", "export"),
    "edit": ("module", "TF1 graph"),
}
JOBS = {  # what changes a graph, with its arguments
    gw.rename_inputs: {"names": {"x": "rows"}},
    gw.convert_weights: {},
    gw.replace_op_type: {"old": "Relu", "new": "Elu"},
}


CELLS = [
    *(("flops", name) for name in TARGETS),
    *(pytest.param(c, name, marks=[pytest.mark.slow] * (c in ("profile", "advise"))) for c in TARGETS_OF for name in TARGETS_OF[c]),
    *REFUSED,
]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setenv("COLUMNS", "80")
        patch.setenv("NO_COLOR", "1")
        make(folder)
        yield folder


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def told(done):
    """The error as one line: what it says inside its frame."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())


@pytest.mark.parametrize(("command", "name"), CELLS)
def test_every_target_and_every_command(command, name):
    given = TARGETS[name]
    feed = given.feed.replace("=4,", "=batch,") if command in OF_ANY_BATCH else given.feed
    takes_shapes = command not in READ_AS_THEY_ARE or (command in OF_STEPS_TOO and name in NOT_YET_TRACED)
    options = [*COMMANDS[command], *(("--feed", feed) if takes_shapes else ())]
    options += ["--trust"] * (command == "profile")
    # A plan is one of a training step, unless its inference is asked for: the loss of a model that is not compiled is not known.
    options += ["--mode", "infer"] * (command == "optimize" and not given.trains)
    done = run(command, *[given.text] * (1 + (command in OF_TWO)), *options)
    if (command, name) in REFUSED:
        assert done.exit_code == EXIT_ERROR
        assert [words for words in REFUSED[command, name] if words not in told(done)] == [], told(done)
    else:
        differ = (command == "verify" and name in MADE_ANEW) or (command == "diff" and done.exit_code == 1 and name not in FILES)
        assert done.exit_code == differ, done.output + repr(done.exception)
        assert command == "diff" or "__inference" not in done.output  # functions have no other names, by which they are told apart
        assert "__graphwright" not in done.output
    if command == "flops":
        listed = json.loads(done.stdout)
        called = gw.count_flops(load_target(given.text), feeds=parse_feeds([feed]))
        assert listed["total_flops"] == called.total > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # what is no target
        (("inspect", "my_targets:missing"), "'my_targets' has no 'missing'"),
        (("inspect", "my_targets:number"), "int cannot be traced"),
        (("inspect", "my_targets:step"), "'step' is a plain Python function of x"),
        (("show", "my_targets:untraced"), "0 traces"),
        (("draw", "my_targets:untraced"), "give its shape: --feed"),
        (("draw", "export", "--batch", "4"), "a file is read as it is"),
        (("edit", "my_targets:untraced", "out", "freeze"), "get_concrete_function"),
        (("verify", "export", "folded", "--batch", "4"), "add --trust"),
        (("edit", "tf1.pb", "out", "freeze"), "1 variable has no value: weight"),
        (("edit", "tf1.pb", "out", "freeze", "--checkpoint", "tf1/variables/missing"), "the checkpoint cannot be read"),
        (("profile", "export", "--batch", "4"), "--trust"),
        (("optimize", "uncompiled.keras", "--batch", "4", "--budget", "0.5"), "for its inference give tf.function(model)"),
        (("flops", "uncompiled.keras", "--batch", "4", "--mode", "train"), "not compiled"),
        # feeds
        (("flops", "functional.keras", "--feed", "bogus=3,3"), "no input 'bogus'"),
        (("inspect", "renamed", "--feed", "image=4,8,8,3"), "it has picture"),
        (("inspect", "export", "--feed", "image=4,8,3"), "does not fit [?,8,8,3]"),
        (("inspect", "my_targets:functional", "--feed", "image=4,8,8,5"), "cannot be traced with these inputs"),
        (("inspect", "my_targets:unbuilt"), "give its shape: --feed x=SIZES"),
        # batch sizes
        (("inspect", "export"), "give --batch N, or --feed image=SIZES"),
        (("inspect", "export", "--batch", "4", "--feed", "image=2,8,8,3"), "another batch size than batch=4"),
        (("peak", "my_targets:fixed", "--batch", "8"), "no input leaves its first dimension open: x (4, 6)"),
        (("optimize", "my_targets:functional", "--batch", "4", "--budget", "50%", "--offload-to", "nowhere"), "where: option --offload-to"),
        (("edit", "export", "out", "rename-inputs", "picture=image"), "'picture'"),
    ],
)
def test_a_wrong_usage_gets_one_clear_error(arguments, words):
    done = run(*arguments)
    assert done.exit_code == EXIT_ERROR, done.output + repr(done.exception)
    assert words in told(done)
    assert done.output.count("error") >= 1
    assert "Traceback" not in done.output
    assert "__graphwright" not in done.output


class TestInputs:
    """The same step, whatever tells the shapes of its inputs."""

    def test_of_a_model(self):
        import keras
        import numpy as np
        import tensorflow as tf

        x, y = np.zeros((4, 8, 8, 3), "float32"), np.zeros(4, "int32")

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 1

            def __getitem__(self, index):
                return x, y

        given = [
            {"inputs": x},
            {"inputs": tf.TensorSpec(x.shape, tf.float32)},
            {"inputs": tf.data.Dataset.from_tensors((x, y))},
            {"inputs": (batch for batch in [(x, y)])},
            {"inputs": Batches()},
            {"feeds": {"x": x.shape}},
            {"batch": 4},
            {},
        ]
        model = load_target("my_targets:called")
        found = [gw.count_flops(model, **words, mode="infer").total for words in given]
        assert len(set(found)) == 1
        found = [gw.count_flops(model, **words).total for words in ({"inputs": Batches()}, {"inputs": (x, y)}, {})]
        assert len(set(found)) == 1

    def test_of_a_function(self):
        import tensorflow as tf

        data = tf.data.Dataset.from_tensors(tf.zeros((4, 6)))
        given = [{"inputs": {"x": tf.zeros((4, 6))}}, {"inputs": data}, {"inputs": iter(data)}, {"feeds": {"x": (4, 6)}}]
        assert len({gw.count_flops(load_target("my_targets:untraced"), **words).total for words in given}) == 1

    def test_of_a_plan(self):
        model = load_target("my_targets:fitted")
        assert gw.optimize_memory(model, "100%", batch=4, cache_dir=None).memory_plan().feeds == {"x": (4, 8, 8, 3), "y": (4,)}
        with pytest.raises(gw.ArgumentError, match="both inputs and a batch size"):
            gw.optimize_memory(load_target("my_targets:untraced"), "100%", inputs=(1.0,), batch=4)
        with pytest.raises(gw.ArgumentError, match="a tuple was given"):
            gw.optimize_memory(model, "100%", batch=(1.0,), cache_dir=None)

    def test_an_empty_dataset_is_an_error(self):
        import tensorflow as tf

        with pytest.raises(gw.ArgumentError, match="no batch"):
            gw.inspect(load_target("my_targets:fitted"), inputs=tf.data.Dataset.range(0))


class TestCalls:
    def test_a_path_is_taken_where_a_graph_is(self, place):
        assert gw.draw(place / "export", place / "drawn.html").exists()
        assert not gw.diff(place / "export", str(place / "export"))
        assert gw.diff(place / "export", place / "folded")
        part = gw.extract_submodel(place / "graph.pb", ["x"], ["scores"])
        assert len(gw.merge_models(part, place / "graph.pb")) == 2 * len(part)

    @pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
    def test_what_changes_a_graph_writes_what_it_made_of_a_path(self, job, place, tmp_path):
        words = JOBS[job]
        with pytest.raises(gw.ArgumentError, match=f"{job.__name__} changes a graph, was given str, and not where"):
            job("export", **words)
        graph = gw.load(place / "graph.pb")
        expected = job(graph, **words)
        gw.write(graph, tmp_path / "expected.pb")
        assert repr(job(str(place / "graph.pb"), **words, out=tmp_path / "out.pb")) == repr(expected)
        assert (tmp_path / "out.pb").read_bytes() == (tmp_path / "expected.pb").read_bytes()
        with pytest.raises(gw.ArgumentError, match="already"):
            job("not looked at", **words, out=tmp_path / "out.pb")
        assert "out=None, overwrite=False" in str(inspect.signature(job))

    def test_what_changes_a_graph_takes_a_model_and_writes_a_graph_too(self, tmp_path):
        model = load_target("my_targets:functional")
        assert gw.rename_outputs(model, {"output_0": "logits"}, out=tmp_path / "model")
        assert "logits" in gw.load(tmp_path / "model").signatures["serving_default"].outputs
        graph = gw.load(model)
        gw.rename_outputs(graph, {"output_0": "odds"}, out=tmp_path / "model", overwrite=True)
        assert "odds" in gw.load(tmp_path / "model").signatures["serving_default"].outputs
        assert "odds" in graph.signatures["serving_default"].outputs

    def test_a_graph_is_frozen_with_its_checkpoint_and_then_runs(self, tmp_path):
        frozen = tmp_path / "frozen.pb"
        done = run("edit", "tf1.pb", frozen, "freeze", "--checkpoint", "tf1/variables/variables")
        assert done.exit_code == 0, done.output
        assert "froze 1 variable" in done.output
        assert {node.op_type for node in gw.load(frozen)} == {"Placeholder", "Const", "MatMul", "Relu"}
        assert run("verify", frozen, frozen, "--feed", "x=4,6", "--trust").exit_code == 0

    def test_folding_is_seen_by_command_and_by_call(self, place):
        assert len(gw.fold_batch_norms(gw.load(place / "export")).folded) == 2  # of both signatures
        before, after = (gw.count_flops(place / name, batch=4).total for name in ("export", "folded"))
        compared = json.loads(run("compare", "export", "folded", "--batch", "4", "--json").stdout)["figures"]["total_flops"]
        assert (compared["a"], compared["b"]) == (before, after)
        assert after < before
