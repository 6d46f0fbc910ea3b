import inspect
import pickle
import subprocess
import sys
import textwrap

import pytest

from graphwright import errors

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.GraphwrightError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_message_has_four_parts_and_survives_pickling(kind):
    error = kind("budget 0 was given", where="argument 'budget'", cause="a typing error", remedy="give a positive number")
    assert str(error).splitlines() == [
        "budget 0 was given",
        "  where: argument 'budget'",
        "  likely cause: a typing error",
        "  remedy: give a positive number",
    ]
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above; errors cross process borders this way
    assert type(again) is kind
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", CLASSES)
def test_empty_parts_are_left_out(kind):
    assert str(kind("something happened")) == "something happened"


def test_infeasible_says_the_smallest_budget():
    error = errors.InfeasibleError("no plan fits", smallest_budget_bytes=4096)
    assert error.smallest_budget_bytes == 4096


def run_without_tensorflow(code):
    """Run code in a fresh interpreter in which TensorFlow and Keras cannot be imported."""
    blocker = """
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {"tensorflow", "keras"}:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Blocker())
    """
    program = textwrap.dedent(blocker) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)


def test_import_without_tensorflow():
    done = run_without_tensorflow(
        """
        import graphwright as gw

        for name in ("ArgumentError", "GraphwrightError", "Inspection", "Measurement", "MemoryPlan"):
            assert name in dir(gw) and isinstance(getattr(gw, name), type)
        import graphwright.plan.budget, graphwright.commands.cli
        print("fine")
        """
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "gw.inspect(len, feeds={})",
        "gw.optimize_memory(len, budget=0.5)",
        "gw.measure(len, ())",
        "gw.verify(len, len, ())",
        "gw.sweep(len, batches=[1], budget=1)",
        "__import__('graphwright.commands.demo_model').commands.demo_model.make_demo(input_size=188, filters=1, batch=1)",
    ],
)
def test_what_needs_tensorflow_says_what_to_install(call):
    done = run_without_tensorflow(
        f"""
        import graphwright as gw

        try:
            {call}
        except gw.MissingDependencyError as error:
            print(error)
        """
    )
    assert "graphwright[cpu]" in done.stdout, done.stderr
    assert "[gpu]" in done.stdout


def test_the_command_line_says_what_to_install():
    done = run_without_tensorflow("from graphwright.commands.cli import main; main(['inspect', 'json:loads'])")
    assert done.returncode == 2
    assert "graphwright[cpu]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.tensorflow
def test_import_does_not_load_tensorflow():
    code = "import sys, graphwright, graphwright.commands.cli; print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_public_name_is_an_attribute_error():
    import graphwright

    with pytest.raises(AttributeError, match="has no attribute 'inspekt'"):
        graphwright.inspekt  # noqa: B018 - the access is the test


def test_an_infeasible_budget_survives_pickling():
    error = pickle.loads(pickle.dumps(errors.InfeasibleError("no", where="here", smallest_budget_bytes=7)))  # noqa: S301 - made here
    assert (error.smallest_budget_bytes, error.where, str(error)) == (7, "here", "no\n  where: here")


def test_what_an_error_carries_survives_pickling():
    error = errors.UnknownShapeError("no", argument="feeds", item="x", where="step 'f'", code=errors.ErrorCode.OPEN_INPUT)
    with pytest.raises(errors.UnknownShapeError), errors.located("at batch size 3"):
        raise error
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (again.argument, again.item, again.code) == ("feeds", "x", "open_input")
    assert again.where == error.where == "feeds['x'], step 'f', at batch size 3"


def test_the_origin_of_an_error_is_found_in_a_circle_too():
    first, second = ValueError("first"), KeyError("second")
    second.__cause__ = first
    assert errors.origin_of(second) is first
    first.__cause__ = first
    assert errors.origin_of(second) is first
    first.__cause__ = second
    assert errors.origin_of(second) in (first, second)
