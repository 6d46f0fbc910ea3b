"""The accuracy benchmark's tables: errors, ranges, what a file keeps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from rich.console import Console

from bench import accuracy
from bench.accuracy_table import AccuracyResults, FlopRow, PeakRow, as_markdown, as_summary, print_tables, verdict
from bench.xla_costs import xla_flops

MIB = 2**20
ORDERED = PeakRow("unet", "full", "train", 2, "ordered", 2, 100 * MIB, MIB, 99 * MIB, 99 * MIB, 99 * MIB, 50 * MIB, "how")
EXECUTOR = replace(ORDERED, order="executor", predicted_bytes=110 * MIB, low_bytes=98 * MIB, high_bytes=111 * MIB)


def test_errors_are_relative_to_the_measured_peak() -> None:
    assert math.isclose(ORDERED.error, -0.01)
    assert math.isclose(ORDERED.grappler_error, -0.5)


@pytest.mark.parametrize(("low", "high", "inside"), [(98, 111, True), (102, 111, True), (104, 111, False), (80, 96, False)])
def test_the_range_has_the_goal_as_its_margin(low: int, high: int, inside: bool) -> None:
    assert replace(EXECUTOR, low_bytes=low * MIB, high_bytes=high * MIB).in_range is inside


def test_the_verdict_counts_each_order_by_itself() -> None:
    text = verdict([ORDERED, EXECUTOR])
    assert "control edges: 1 of 1 within 3 %" in text
    assert "0 of 1 within 3 %, 1 in the predicted range" in text
    assert "worst +10.0 % (unet full, train, batch 2, threads 2)" in text


def test_a_file_gives_back_what_was_written_and_a_new_row_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    flops = FlopRow("unet", "full", "train", 2, 1e9, 900_000_000, 0)
    results = AccuracyResults([ORDERED, EXECUTOR], [flops])
    path = tmp_path / "deep" / "accuracy.json"
    results.write(path)
    assert AccuracyResults.read(path) == results
    results.put(replace(EXECUTOR, predicted_bytes=7))
    results.put(replace(flops, flops=2e9))
    assert [row.predicted_bytes for row in results.peaks] == [ORDERED.predicted_bytes, 7]
    assert [row.flops for row in results.flops] == [2e9]
    assert AccuracyResults.read(tmp_path / "none.json") == AccuracyResults()


def test_both_tables_name_every_row() -> None:
    results = AccuracyResults([ORDERED, EXECUTOR], [FlopRow("unet", "full", "train", 2, 1e9, 900_000_000, 0)])
    text = as_markdown(results)
    assert "| unet | full | train | 2 | ordered | 2 | 100.0 | 99.0 | -1.0 % |" in text
    assert "| 98.0 to 111.0 | yes | -50 % |" in text
    assert "-10.0 %" in text
    console = Console(width=200, record=True)
    print_tables(results, console)
    assert "98.0 to 111.0" in console.export_text()


def test_the_summary_has_one_line_for_the_batch_sizes_of_a_model() -> None:
    later = replace(ORDERED, batch=4, measured_bytes=200 * MIB, predicted_bytes=202 * MIB)
    text = as_summary(AccuracyResults([later, ORDERED, EXECUTOR]))
    assert "| unet | full | train | 2 / 4 | 100 / 200 | -1.0 / +1.0 |  | +10.0 | 1 of 1 | -50 / -75 |" in text


def test_rows_whose_allocations_were_counted_have_a_star() -> None:
    counted = replace(ORDERED, batch=4, how="pages; counted by TensorFlow's allocator: tensors 90 MB")
    results = AccuracyResults([ORDERED, counted])
    assert "| unet | full | train | 2 / 4 | 100 / 100 | -1.0 / -1.0* |" in as_summary(results)
    assert "| 4 | ordered | 2 | 100.0 | 99.0 | -1.0 %* |" in as_markdown(results)


def test_tensorflows_profiler_counts_a_product() -> None:
    product = tf.function(lambda a: a @ a).get_concrete_function(tf.zeros([256, 256]))
    assert accuracy.profiler_flops(product.graph) == 33_554_432


def test_xla_counts_a_product_and_a_loop_body_once() -> None:
    pytest.importorskip("jaxlib")
    product = tf.function(lambda a: a @ a)
    loop = tf.function(lambda a: tf.while_loop(lambda i, _: i < 10, lambda i, b: (i + 1, b @ a), (0, a))[1])
    assert xla_flops(product, (tf.zeros([256, 256]),)) == 33_554_432
    assert xla_flops(loop, (tf.zeros([256, 256]),)) == pytest.approx(33_554_432, abs=100)


def test_xla_counts_nothing_where_it_cannot_compile() -> None:
    assert xla_flops(tf.function(lambda a: tf.py_function(lambda b: b, [a], tf.float32)), (tf.zeros([2]),)) is None


def test_every_model_has_three_batch_sizes_in_both_sizes() -> None:
    assert set(accuracy.BATCHES) == set(accuracy.SMALL_BATCHES)
    assert {len(batches) for batches in (*accuracy.BATCHES.values(), *accuracy.SMALL_BATCHES.values())} == {3}
