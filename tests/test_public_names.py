"""The public names of the packages, which are loaded when they are first used."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import graphwright as gw
from tests.walk import without_tensorflow

PACKAGES = ("graphwright", "graphwright.train")


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
    command = [sys.executable, without_tensorflow.__file__, "--hide"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    without_tensorflow.check(json.loads(done.stdout))


@pytest.mark.parametrize("argument", ["target", "feeds", "inputs", "outputs", "mode", "batch"])
def test_questions_about_a_step_describe_its_arguments_each_on_a_line(argument: str) -> None:
    asked = [getattr(gw, name) for name in dir(gw) if inspect.isfunction(getattr(gw, name))]
    asked = [question for question in asked if {"target", argument} <= set(inspect.signature(question).parameters)]
    assert asked
    assert [q.__name__ for q in asked if not re.search(rf"^    {argument}: \w", inspect.getdoc(q) or "", re.MULTILINE)] == []
