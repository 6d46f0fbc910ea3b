"""What an installation without TensorFlow says: run by its own Python, prints JSON. See `test_installed.py`."""

import inspect
import json
from pathlib import Path

import typer
from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app
from graphwright.errors import GraphwrightError


def answers_of_names() -> dict[str, str]:
    """By public function, what a call with the name of a file comes to; "" for what needs no TensorFlow."""
    found = {}
    for package, home in (("gw", gw), ("gw.train", gw.train)):
        for name in dir(home):
            try:
                value = getattr(home, name)
                needed = inspect.signature(value).parameters.values() if inspect.isfunction(value) else ()
                if needed:
                    value(*["model.keras" for p in needed if p.default is p.empty and p.kind is not p.KEYWORD_ONLY])
                found[f"{package}.{name}"] = ""
            except GraphwrightError as error:
                found[f"{package}.{name}"] = f"{type(error).__name__}: {error.what}; {error.remedy}"
            except AttributeError as error:  # of what takes objects of TensorFlow alone
                found[f"{package}.{name}"] = f"AttributeError: {error}"
    return found


def commands(group: typer.main.TyperGroup, before: tuple[str, ...] = ()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


GIVEN = {"budget": "1GiB", "memory": "1GiB", "trace": "trace.json", "names": "a=b", "renames": "a=b", "out": "out", "size": "2"}


def answers_of_commands() -> dict[str, tuple[int, str]]:
    """By command, its exit code and what it says of a model."""
    found = {}
    for names, command in commands(typer.main.get_command(app)):
        arguments = []
        for parameter in command.params:
            text = GIVEN.get(parameter.name, "model.keras")
            if parameter.param_type_name == "argument":
                arguments += [text] if parameter.required or names[-1] in ("rename-inputs", "rename-outputs") else []
            elif parameter.required or parameter.name == "trace" or (names[0] == "optimize" and parameter.name == "budget"):
                arguments += [parameter.opts[0], text]
        if names[0] == "profile":
            arguments.append("--trust")
        done = CliRunner().invoke(app, [*names, *arguments], env={"COLUMNS": "300", "NO_COLOR": "1"})
        found[" ".join(names)] = (done.exit_code, " ".join(done.output.split()))
    return found


if __name__ == "__main__":
    Path("model.keras").write_bytes(b"")
    print(json.dumps({"names": answers_of_names(), "commands": answers_of_commands()}))  # noqa: T201
