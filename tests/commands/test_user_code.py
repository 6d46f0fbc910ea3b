"""Code and data of the user that fail: the user's own lines by command and by call, and data that do not fit, with the remedy."""

from __future__ import annotations

import sys
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app

pytestmark = pytest.mark.tensorflow
PROGRAM = """
import keras, numpy, tensorflow as tf
def helper(x):
    raise KeyError("no such key")
@tf.function
def step(x):
    return helper(x)
@tf.function(autograph=False)
def plain(x):
    return x.shape[7] + 1
def factory():
    raise ZeroDivisionError("in the factory")
def layers():
    return keras.Sequential([keras.layers.Input((8,)), keras.layers.Reshape((7,))])
def loss(y, p):
    return {}["my loss"]
def model():
    made = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
    made.compile("sgd", loss)
    return made
class Own(keras.Model):
    def call(self, x):
        return undefined_name
    def train_step(self, data):
        return {"loss": self.missing(data)}
def own():
    made = Own()
    made.compile("sgd", "mse")
    return made
@tf.function
def asserts(x):
    tf.debugging.assert_equal(tf.reduce_sum(x), 1234.5, message="the sums differ")
    return x
@tf.function
def multiplies(x):
    return x @ tf.ones((8, 8))
@tf.function(input_signature=[tf.TensorSpec([None, 8])])
def signed(x):
    return x + 1
"""
RAISED = {  # by command: what graphwright was doing, and the user's last line
    "inspect own_code.py:step --feed x=2,2": ("tracing 'step'", 'raise KeyError("no such key")', "KeyError"),
    "inspect own_code.py:plain --feed x=2,2": ("tracing 'plain'", "return x.shape[7] + 1", "IndexError"),
    "inspect own_code.py:factory": ("calling 'factory'", 'raise ZeroDivisionError("in the factory")', "ZeroDivisionError"),
    "inspect own_code.py:layers": ("calling 'layers'", "keras.layers.Reshape((7,))", "ValueError"),
    "inspect own_code.py:model --batch 2": ("tracing sequential", 'return {}["my loss"]', "KeyError"),
    "optimize own_code.py:own --budget 50% --feed x=2,8 --feed y=2,3": ("tracing own", "undefined_name", "name 'undefined_name'"),
    "verify own_code.py:asserts own_code.py:asserts --feed x=2,2": ("running 'asserts'", "in asserts", "the sums differ"),
    "inspect imports_nothing.py:x": ("importing imports_nothing.py", "import nothing_of_this_name", "ModuleNotFoundError"),
}
REFUSED = {  # by command: words of the error
    "inspect own_code.py:multiplies --feed x=8,9": ("own_code.py:36 multiplies", "Dimensions must be equal", "--feed x=SIZES"),
    "inspect own_code.py:multiplies --batch 8": ("option --feed x", "has not been traced", "give its shape: --feed x=SIZES"),
    "inspect own_code.py:signed --feed x=4,8:int32": ("the feed is of type int32, and the step takes float32", "option --feed x"),
    "inspect own_code.py:signed.nothing --batch 2": ("has no 'nothing'",),
    "inspect ends.py:step": ("ends the process when it is imported", "sys.exit(3)", "__main__"),
    "inspect custom.keras --batch 2": ("Could not locate class 'Twice'", "--import MODULE"),
    "inspect weights.h5": ("it holds only weights", "load_weights"),
    "inspect saved --outputs nothing --batch 2": ("there is no node named 'nothing'", "the last nodes are"),
}


def network(loss: str = "mse") -> keras.Model:
    model = keras.Sequential([keras.layers.Input((8,), name="image"), keras.layers.Dense(3)])
    model.compile("sgd", loss)
    return model


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("COLUMNS", "200")
        patch.setenv("NO_COLOR", "1")
        (made / "own_code.py").write_text(PROGRAM)
        (made / "imports_nothing.py").write_text("import nothing_of_this_name\n")
        (made / "ends.py").write_text("import sys\nsys.exit(3)\n")
        (made / "own_layers.py").write_text(
            "import keras\n@keras.saving.register_keras_serializable('own')\nclass Twice(keras.layers.Layer):\n"
            "    def call(self, x):\n        return 2 * x\n"
        )
        patch.syspath_prepend(made)
        import own_layers  # pyright: ignore[reportMissingImports]

        keras.Sequential([keras.layers.Input((8,)), own_layers.Twice()]).save("custom.keras")
        del sys.modules["own_layers"]
        keras.saving.get_custom_objects().pop("own>Twice")
        network().save("mse.h5")
        network().save_weights("all.weights.h5")
        (made / "all.weights.h5").rename(made / "weights.h5")
        network().export("saved", verbose=False)
        yield made


@pytest.mark.parametrize("usage", RAISED)
def test_what_the_users_code_raises_is_shown_from_its_own_lines(usage: str) -> None:
    done = CliRunner().invoke(app, [*usage.split(), *["--trust"] * usage.startswith("verify"), "--quiet"])
    doing, line, error = RAISED[usage]
    assert done.exit_code == 2, repr(done.exception)
    assert done.stderr.startswith(f"graphwright was {doing}"), done.stderr
    assert line in done.stderr
    assert error in done.stderr.splitlines()[-1] or error in done.stderr
    assert not any(library in done.stderr for library in ("/graphwright/", "-packages/", "autograph"))


@pytest.mark.parametrize("usage", REFUSED)
def test_what_tensorflow_or_keras_refuses_names_the_place_and_the_remedy(usage: str) -> None:
    done = CliRunner().invoke(app, [*usage.split(), "--quiet"])
    flat = " ".join(done.stderr.replace("│", " ").split())
    assert done.exit_code == 2, repr(done.exception)
    assert [words for words in REFUSED[usage] if words not in flat] == [], flat
    assert "Traceback" not in flat


def test_a_module_that_registers_layers_is_imported(folder) -> None:
    for module in ("own_layers", "own_layers.py"):
        assert CliRunner().invoke(app, ["params", "custom.keras", "--import", module, "--quiet"]).exit_code == 0
        keras.saving.get_custom_objects().pop("own>Twice")
        del sys.modules["own_layers"]
    done = CliRunner().invoke(app, ["params", "custom.keras", "--import", "no_such_module", "--quiet"])
    assert "there is no module 'no_such_module'" in done.stderr
    assert "option --import" in done.stderr


def test_a_legacy_file_that_names_its_loss_by_a_short_name_is_read() -> None:
    assert gw.inspect("mse.h5", batch=2).peak_bytes == gw.inspect(network(), batch=2).peak_bytes


X, Y = np.zeros((4, 8), "float32"), np.zeros((4, 3), "float32")


def two() -> keras.Model:
    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((3,), name="b")}
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values()))))
    model.compile("sgd", "mse")
    return model


@tf.function
def product(x):
    return x @ tf.ones((8, 8))


class Generator:
    """Raises when it is read."""

    def __iter__(self):
        raise OSError("the disk is gone")
        yield X


CALLS = {
    "x alone": (lambda: gw.inspect(network(), inputs=X), "its loss needs targets", r"inputs=\(x, y\)"),
    "no targets": (lambda: gw.inspect(network(), inputs=(X, None)), "its loss needs targets", "mode='infer'"),
    "a bare mapping": (lambda: gw.inspect(two(), inputs={"a": X[:, :2], "b": X[:, :3]}), "a dict was given", r"inputs=\(x, y\)"),
    "a wrong key": (lambda: gw.inspect(two(), inputs=({"a": X[:, :2], "c": X[:, :3]}, Y)), 'input "b"', "as fit takes it"),
    "a wrong key in feeds": (lambda: gw.inspect(two(), {"x": {"a": (4, 2), "c": (4, 3)}}), "no input 'c'", "it has a, b"),
    "feeds in a tuple": (lambda: gw.inspect(network(), (4, 8)), "feeds of type tuple", "give a mapping"),  # type: ignore[arg-type]
    "a feed that is a number": (lambda: gw.inspect(network(), {"image": 8}), "not a shape", "give a tuple"),
    "a feed that is text": (lambda: gw.inspect(network(), {"image": "4,8"}), "not a shape", "give a tuple"),
    "a negative size": (lambda: gw.inspect(network(), {"image": (-1, 8)}), "not a shape", "give a tuple"),
    "a batch that is true": (lambda: gw.inspect(network(), batch=True), "a bool was given", "give a size"),
    "integers": (
        lambda: gw.inspect(product, inputs=np.zeros((4, 8), "int32")),
        "float32 that does not match type int32",
        "dtypes and shapes",
    ),
    "objects": (lambda: gw.inspect(product, inputs=np.array([[1], [1, 2]], object)), "cannot be traced", "dtypes and shapes"),
    "other names": (lambda: gw.inspect(product, inputs={"images": X}), "a required argument: 'x'", r"product\(x\)"),
    "a rank": (lambda: gw.inspect(product, inputs=tf.TensorSpec([8])), "must be rank 2", "dtypes and shapes"),
    "a function that is gone": (
        lambda: gw.inspect(keeps_nothing(), inputs=X),
        "variables of the ConcreteFunction are gone",
        "give that tf.function or model",
    ),
    "a number of batches": (lambda: gw.sweep(network(), batches=8), "batches=8", r"\(1, 2, 4\)"),  # type: ignore[arg-type]
    "fifty bytes": (lambda: gw.optimize_memory(network(), 50, batch=4, cache_dir=None), "no plan fits 50 B", 'give "50%"'),
    "a model over itself": (lambda: gw.write(gw.load("saved"), "net.keras"), "Keras", "folder"),
}


def keeps_nothing():
    weight = tf.Variable(tf.ones((8, 8)))
    return tf.function(lambda x: x @ weight).get_concrete_function(tf.TensorSpec([4, 8]))


@pytest.mark.parametrize("usage", CALLS)
def test_a_wrong_call_names_what_was_got_and_the_remedy(usage: str) -> None:
    call, what, remedy = CALLS[usage]
    with pytest.raises(gw.GraphwrightError, match=what) as caught:
        call()
    assert caught.match(remedy)
    assert "array(" not in str(caught.value)  # no values


@pytest.mark.parametrize(
    ("data", "doing"),
    [
        (lambda: (part for part in Generator()), "reading the first batch"),
        (lambda: ({}["gone"] for _ in X), "reading the first batch"),
        (lambda: tf.data.Dataset.range(3).map(lambda x: tf.numpy_function(Generator().__iter__, [], tf.int64)), "reading the first batch"),
    ],
    ids=["generator", "iterator", "dataset"],
)
def test_data_that_raise_have_a_note(data, doing) -> None:
    with pytest.raises(Exception, match=r"gone|iter") as caught:
        gw.inspect(network(), inputs=data())
    assert any(note.startswith(f"graphwright was {doing}") for note in caught.value.__notes__)


def test_a_budget_that_fit_cannot_keep_is_one_short_error() -> None:
    model = gw.optimize_memory(network(), "64B", cache_dir=None)
    for train in (lambda: model.fit(X, Y, verbose=0), lambda: model.train_on_batch(X, Y)):
        with pytest.raises(gw.InfeasibleError, match=r"no plan fits 64 B") as caught:
            train()
        assert len(traceback.extract_tb(caught.value.__traceback__)) <= 5
