"""No control character of a name gets to a terminal, by results, errors, warnings or tracebacks; JSON stays JSON."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import graphwright as gw
from graphwright.commands import cli
from graphwright.commands.output import echo
from graphwright.errors import ArgumentError, printable
from graphwright.report.safe_console import SafeConsole

HOSTILE = "a\x1b[2Jb\nc\u202ed\x9be\u2028f\x7fg\rh[bold]i[/]"


def run(capsys: Any, *arguments: object) -> tuple[str, str, int]:
    """What a command prints, and its status; no character that a terminal obeys is in it."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    for text in (out, err):
        assert printable(text, lines=True) == text
    return out, err, int(ended.value.code or 0)


@pytest.fixture
def planner_graph(tmp_path: Path) -> Path:
    tasks = [{"name": HOSTILE, "time": 1, "nbytes": 8}, {"name": HOSTILE, "time": 1, "nbytes": 8}]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"name": HOSTILE, "tasks": tasks, "edges": [[0, 1]], "order": [0, 1]}))
    return path


def test_plan(planner_graph: Path, capsys: Any) -> None:
    out, _, status = run(capsys, "plan", planner_graph, "--budget", "1GiB")
    assert status == 0
    assert "[bold]" in out  # a name is no markup
    out, _, status = run(capsys, "plan", planner_graph, "--budget", "10", "--json")
    assert status == 3
    assert HOSTILE in json.loads(out)["reason"]
    _, err, _ = run(capsys, "plan", planner_graph, "--budget", "10")
    assert "no plan fits" in err


@pytest.mark.tensorflow
def test_a_model(tmp_path: Path, capsys: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 2], name="x")
        tf.nn.relu(x, name="y")
        meta_graph = tf.compat.v1.train.export_meta_graph(graph=graph)
    meta_graph.meta_info_def.tags.append("serve")
    signature = meta_graph.signature_def[HOSTILE]
    signature.inputs[HOSTILE].name = "x:0"
    signature.outputs[HOSTILE].name = "y:0"
    signature.method_name = HOSTILE
    folder = tmp_path / "model"
    folder.mkdir()
    from tensorflow.core.protobuf import saved_model_pb2

    (folder / "saved_model.pb").write_bytes(
        saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[meta_graph]).SerializeToString()
    )
    for command in (("show",), ("flops",), ("params",), ("shapes",), ("peak",), ("inspect",)):
        out, _, status = run(capsys, *command, folder)
        assert (status, bool(out)) == (0, True)
    out, _, _ = run(capsys, "show", folder, "--json")
    assert repr(HOSTILE) in repr(json.loads(out))
    meta_graph.graph_def.node[1].name = HOSTILE
    (tmp_path / "bad.pb").write_bytes(meta_graph.graph_def.SerializeToString())
    _, err, status = run(capsys, "flops", tmp_path / "bad.pb", "--outputs", "none")
    assert (status, bool(err)) == (2, True)


def test_an_error_that_nobody_foresaw(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        warnings.warn(HOSTILE, stacklevel=1)
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(cli, "app", fail)
    with pytest.warns(UserWarning, match="bold"):
        _, err, status = run(capsys)
    assert status == 2
    assert "RuntimeError" in err


def test_the_message_of_an_error_is_safe_for_whoever_prints_it() -> None:
    error = ArgumentError(HOSTILE, where=HOSTILE, cause=HOSTILE, remedy=HOSTILE)
    assert printable(str(error), lines=True) == str(error) == printable(error.what + str(error), lines=True).removeprefix(error.what)
    assert "\x1b" not in error.what + error.where + error.cause + error.remedy


def test_a_console_keeps_colors_and_loses_what_names_bring(capsys: Any) -> None:
    file = io.StringIO()
    SafeConsole(file=file, force_terminal=True, color_system="standard").print(f"[red]{HOSTILE}")
    assert file.getvalue().count("\x1b[2J") == 0
    assert "\x1b[31m" in file.getvalue()
    echo(HOSTILE)
    assert capsys.readouterr().out == printable(HOSTILE, lines=True) + "\n"


def test_there_is_no_other_way_to_the_terminal() -> None:
    source = Path(gw.__file__).parent
    texts = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    consoles = {name for name, text in texts.items() if " Console(" in text or "(Console(" in text or "=Console(" in text}
    echoes = {name for name, text in texts.items() if "typer.echo(" in text}
    assert consoles == set()
    assert echoes == {"commands/output.py", "commands/cli.py"}
    assert texts["commands/cli.py"].count("typer.echo(") == 1  # the version
