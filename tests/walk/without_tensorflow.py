"""What calls and commands say without TensorFlow: prints JSON; with `--hide` where it is installed, as if it were not.

The one list of calls for `test_public_names.py`, which hides it, and `test_installed.py`, whose environment has none.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app

INSTALL = 'pip install "graphwright[cpu]"'
SAID = re.compile(r"TensorFlow is not installed|" + re.escape(INSTALL))
WORK_WITHOUT = {"graphwright.trust", "graphwright.load_plan", "graphwright.read_costs", "graphwright.write_costs", "plan"}
OF_MODELS = {"graphwright.train.repair_for_workers"}  # which nobody can have
VALUES = {"OLD=NEW...": "a=b", "SIZE": "2", "OUT": "changed"}


class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, *others: Any) -> Any:
        return None if fullname.partition(".")[0] in ("tensorflow", "keras", "tensorboard") else super().find_spec(fullname, *others)


def answer(question: Callable[[], object]) -> str:
    try:
        question()
    except gw.MissingDependencyError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever else is said is what is asked for
        return f"{type(error).__name__}: {error}"
    return "done"


def call(package: Any, name: str) -> None:
    """Use a public name: a function is called with the name of a file, and anything else is read."""
    value = getattr(package, name)
    if not name[:1].islower() or not callable(value):
        return
    parameters = inspect.signature(value).parameters
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    words: dict[str, Any] = {name: {"a": "b"} if name == "names" else "model.pb" for name in needed}
    value(**words, **({"out": "changed"} if "out" in parameters else {}))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def run(path: tuple[str, ...], command: Any) -> str:
    """The exit code of a command of a model, and what it says."""
    given = ["edit", "model.pb", VALUES["OUT"], path[1]] if path[0] == "edit" else list(path)
    for p in command.params:
        if p.required:
            given += [VALUES.get(p.metavar, "model.pb")] if p.param_type_name == "argument" else [p.opts[0], "1GiB"]
    given += ["--trust"] * any(p.name == "trust" for p in command.params)
    given += ["--budget", "1GiB"] * (path == ("optimize",)) + ["--max-peak", "1GiB"] * (path == ("check",))
    done = CliRunner().invoke(app, given, env={"COLUMNS": "300", "NO_COLOR": "1"})
    return f"{done.exit_code} {' '.join(done.output.split())} {done.exception!r}"


def answers() -> dict[str, str]:
    """By public name, and by command, what it says."""
    found = {
        f"{package.__name__}.{name}": answer(lambda package=package, name=name: call(package, name))
        for package in (gw, gw.train)
        for name in dir(package)
        if not name.startswith("_") and name != "train"
    }
    found["graphwright.editor"] = answer(lambda: importlib.import_module("graphwright.editor"))
    return found | {" ".join(path): run(path, command) for path, command in commands(typer.main.get_command(app))}


def check(told: dict[str, str]) -> None:
    """Whether all that needs TensorFlow says alike that it is missing and what to install."""
    doctor = told.pop("doctor")
    assert "TensorFlow" in doctor
    assert INSTALL in doctor  # which says what else there is, too
    silent = {name: words for name, words in told.items() if not {"TensorFlow is not installed", INSTALL} <= set(SAID.findall(words))}
    asked = {name for name in silent if "." not in name or name.rpartition(".")[2][:1].islower()}
    assert asked == WORK_WITHOUT | OF_MODELS, silent
    assert {words for name, words in silent.items() if name not in asked} == {"done"}, silent
    assert {"graphwright.train.LMModel", "graphwright.inspect", "edit freeze"} <= told.keys() - silent.keys()
    wrong = {name: words for name, words in told.items() if "." not in name and name not in silent and not words.startswith("2 ")}
    assert wrong == {}
    assert len(told) > 80
    assert not any("Traceback" in words for words in told.values())


if __name__ == "__main__":
    if "--hide" in sys.argv:
        assert "tensorflow" not in sys.modules
        sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
    Path("model.pb").write_bytes(b"not read")
    print(json.dumps(answers()))  # noqa: T201
