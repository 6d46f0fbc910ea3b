"""The public names of the packages, which are loaded when they are first used."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import graphwright as gw

PACKAGES = ("graphwright", "graphwright.train")
WITHOUT_TENSORFLOW = """
import importlib, inspect, json, sys
from importlib.machinery import PathFinder

class Path(PathFinder):
    @classmethod
    def find_spec(cls, name, *others):
        missing = name.split(".")[0] in ("tensorflow", "keras", "tensorboard")
        return None if missing else super().find_spec(name, *others)

sys.meta_path = [Path if finder is PathFinder else finder for finder in sys.meta_path]

import typer
from typer.testing import CliRunner
import graphwright as gw
from graphwright.commands.cli import app

told = {}

def ask(name, question):
    try:
        question()
        told[name] = "done"
    except gw.MissingDependencyError as error:
        told[name] = str(error)
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"

def call(package, name):
    function = getattr(package, name)
    parameters = inspect.signature(function).parameters.values()
    needed = {p.name: "model.pb" for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if "out" in inspect.signature(function).parameters:
        needed["out"] = "changed"
    function(**{name: {"a": "b"} if name == "names" else value for name, value in needed.items()})

for package in (gw, gw.train):
    for name in dir(package):
        if not name.startswith("_") and name[:1].islower() and name != "train":
            ask(f"{package.__name__}.{name}", lambda: call(package, name))
ask("editor", lambda: importlib.import_module("graphwright.editor"))

def commands(command, path=()):
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command

VALUES = {"OLD=NEW...": "a=b", "SIZE": "2", "OUT": "changed"}
for path, command in commands(typer.main.get_command(app)):
    given = list(path)
    for p in command.params:
        if p.required:
            given += [VALUES.get(p.metavar, "model.pb")] if p.param_type_name == "argument" else [p.opts[0], "1GiB"]
    given += ["--trust"] * any(p.name == "trust" for p in command.params)
    given += ["--budget", "1GiB"] * (path == ("optimize",))
    done = CliRunner().invoke(app, given)
    told[" ".join(path)] = f"{done.exit_code} {done.output} {done.exception!r}"
print(json.dumps(told))
"""
INSTALL = 'pip install "graphwright[cpu]"'
FOUND = re.compile(r"TensorFlow is not installed|pip install \"graphwright\[cpu\]\"")
WORK_WITHOUT = {"graphwright.trust", "graphwright.load_plan", "graphwright.read_costs", "graphwright.write_costs", "plan"}
OF_MODELS = {"graphwright.train.repair_for_workers"}  # which nobody can have


def checked_names(package: str) -> set[str]:
    """What type checkers are told."""
    tree = ast.parse(Path(str(import_module(package).__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    return {alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_users_see_the_same_names(package: str) -> None:
    assert set(dir(import_module(package))) - {"__version__"} == checked_names(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there_and_is_kept(package: str) -> None:
    module = import_module(package)
    for name in dir(module):
        assert getattr(module, name) is getattr(module, name)
        assert name in vars(module)
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'strange'"):
        getattr(module, "strange")  # noqa: B009 - type checkers know that it is not there


def test_without_tensorflow_every_call_and_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "model.pb").touch()
    environment = {**os.environ, "COLUMNS": "300"}
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    told = json.loads(done.stdout) if not done.returncode else {"": done.stderr}
    assert "TensorFlow" in told["doctor"]
    assert INSTALL in told.pop("doctor")  # which says what else there is, too
    silent = {name: words for name, words in told.items() if not {"TensorFlow is not installed", INSTALL} <= set(FOUND.findall(words))}
    assert silent.keys() == WORK_WITHOUT | OF_MODELS, silent
    assert len(told) > 80
    assert not any("Traceback" in words for words in told.values())


@pytest.mark.parametrize("argument", ["target", "feeds", "inputs", "outputs", "mode", "batch"])
def test_questions_about_a_step_describe_its_arguments_each_on_a_line(argument: str) -> None:
    asked = [getattr(gw, name) for name in dir(gw) if inspect.isfunction(getattr(gw, name))]
    asked = [question for question in asked if {"target", argument} <= set(inspect.signature(question).parameters)]
    assert asked
    assert [q.__name__ for q in asked if not re.search(rf"^    {argument}: \w", inspect.getdoc(q) or "", re.MULTILINE)] == []
