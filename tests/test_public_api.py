"""What users may call: every public name with its signature, as it stands in `public_api.txt`.

A change of that file is a change for users: `python tests/test_public_api.py` writes it anew, and the changelog says why.
"""

from __future__ import annotations

import inspect
import re
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SNAPSHOT = Path(__file__).with_name("public_api.txt")
PACKAGES = ("graphwright", "graphwright.train", "graphwright.editor")


def lines_of(package: str) -> list[str]:
    module = import_module(package)
    found: list[str] = []
    for name in sorted(n for n in dir(module) if not n.startswith("_")):
        value = getattr(module, name)
        if inspect.ismodule(value):  # the editor shows its files, of which some stand for modules of graph_def_editor
            if package == "graphwright.editor":
                continue
            found.append(f"{package}.{name} (module)")
        elif inspect.isclass(value):
            found.append(f"{package}.{name}{_signature(value)} (class)")
            own = {n: m for base in reversed(value.__mro__) if base.__module__.startswith("graphwright") for n, m in vars(base).items()}
            found += [f"{package}.{name}.{n}{_signature(m)}" for n, m in sorted(own.items()) if not n.startswith("_")]
        else:
            found.append(f"{package}.{name}{_signature(value)}")
    return found


def _signature(value: Any) -> str:
    if isinstance(value, property):
        return " (property)"
    if isinstance(value, type) and issubclass(value, Enum):
        return ""  # each Python says another one
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if not callable(function):
        return ""
    try:
        text = str(inspect.signature(function))
    except (ValueError, TypeError):
        return "(...)"
    text = re.sub(r"frozenset\(\{(.*?)\}\)", lambda m: ", ".join(sorted(m[1].split(", "))).join(("frozenset({", "})")), text)
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace("graphwright.", "")


def test_the_public_names_and_signatures_are_these() -> None:
    assert [line for package in PACKAGES for line in lines_of(package)] == SNAPSHOT.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("package", PACKAGES)
def test_what_users_may_call_is_documented(package: str) -> None:
    module = import_module(package)
    bare: list[str] = []
    for name in (n for n in dir(module) if not n.startswith("_")):
        value = getattr(module, name)
        if not str(getattr(value, "__module__", "")).startswith("graphwright"):
            continue
        told: dict[str, Any] = {name: value}
        for n in dir(value) if inspect.isclass(value) else ():
            owners = [base for base in value.__mro__ if n in vars(base)]
            ours = all(base.__module__.startswith("graphwright") for base in owners)  # what Keras asks for, Keras explains
            member = getattr(value, n)
            if ours and not n.startswith("_") and (callable(member) or isinstance(member, property)):
                told[f"{name}.{n}"] = member
        bare += [n for n, member in told.items() if not inspect.getdoc(member)]
    assert not bare


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{line}\n" for package in PACKAGES for line in lines_of(package)), encoding="utf-8")
