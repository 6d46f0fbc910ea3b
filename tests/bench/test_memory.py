"""The benchmark's table: what counts as kept, and what a file keeps."""

import json
import math

import pytest
from rich.console import Console

from bench import memory
from bench.memory_table import ModelRows, Results, Row, as_markdown, print_table

MIB = 1 << 20


def rows():
    return [
        Row("unmodified", status="ok", predicted_bytes=99 * MIB, measured_bytes=100 * MIB, resident_bytes=MIB, time_ratio=1.0),
        Row("keras.RematScope", status="raises", note="ValueError: no | keywords"),
        Row("graphwright", "50 %", 50 * MIB, "ok", 49 * MIB, 50 * MIB, MIB, 1.0, 1.1, 0.2, 3.0, equal=True, planned_time_ratio=1.05),
        Row("graphwright", "30 %", 30 * MIB, "ok", 29 * MIB, 31 * MIB, MIB, 1.0, 1.1, 0.2, 3.0, equal=False, note="loss differs"),
    ]


def test_kept_is_judged_by_the_measured_peak():
    assert [row.kept for row in rows()] == [None, None, True, False]


def test_the_error_is_relative_to_the_measured_peak():
    assert math.isclose(rows()[0].error, -0.01)
    assert rows()[1].error is None


def test_a_file_gives_back_what_was_written(tmp_path):
    results = Results({"TensorFlow": "2"}, {"unet": ModelRows("a net", {"size": "small"}, True, rows())})
    results.write(tmp_path / "deep" / "results.json")
    assert Results.read(tmp_path / "deep" / "results.json") == results
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["results.json"]


def test_no_file_is_no_results(tmp_path):
    assert Results.read(tmp_path / "none.json") == Results()


def test_markdown_has_a_column_for_every_cell_and_says_what_is_wrong(tmp_path):
    text = as_markdown(Results({}, {"unet": ModelRows("a net", {}, True, rows())}))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {12}
    assert "WRONG: loss differs" in text
    assert "raises: ValueError: no \\| keywords" in text
    assert "| NO |" in text
    assert "| 1.05 | 1.10 |" in text


def test_the_terminal_table_names_failures(tmp_path):
    with (tmp_path / "out.txt").open("w") as file:
        print_table(Results({}, {"unet": ModelRows("a net", {}, True, rows())}), ["unet"], Console(file=file, width=80))
    text = (tmp_path / "out.txt").read_text()
    assert "WRONG" in text
    assert "loss differs" in text


def test_from_json_prints_markdown(tmp_path, capsys):
    Results({}, {"unet": ModelRows("a net", {}, True, rows())}).write(tmp_path / "r.json")
    assert memory.main(["--from-json", str(tmp_path / "r.json")]) == 0
    assert "**unet**: a net" in capsys.readouterr().out


def test_a_missing_file_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        memory.main(["--from-json", str(tmp_path / "none.json")])
    assert "there is no file" in capsys.readouterr().err


def test_models_of_the_table_are_those_of_the_zoo():
    from bench import zoo

    assert set(memory.MODEL_NAMES) == set(zoo.MODELS)


@pytest.mark.slow
@pytest.mark.thorough
def test_one_model_from_end_to_end_and_not_twice(tmp_path, capfd):
    path = tmp_path / "results.json"
    arguments = ["--models", "mlp1000", "--size", "small", "--budgets", "0.5", "--quick", "--json", str(path)]
    assert memory.main(arguments) == 0
    entry = Results.read(path).models["mlp1000"]
    assert entry.complete
    ours = [row for row in entry.rows if row.step == "graphwright" and row.status == "ok"]
    assert ours
    assert all(row.equal and row.measured_bytes and row.time_ratio for row in ours)
    stamp = path.read_bytes()
    assert memory.main(arguments) == 0
    assert path.read_bytes() == stamp
    assert json.loads(stamp)["models"]["mlp1000"]["settings"]["quick"] is True
