"""What Eigen packs for a product, beside high-water marks of processes with two and with four threads (AVX2, a second level of 512 KiB)."""

from __future__ import annotations

import pytest

from graphwright.analyze.eigen_product import Processor, Product, packed_bytes, this_processor

MIB = 1 << 20
CACHES = {"second": 512 << 10, "third": 32 << 20}


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "transposed", "two", "four"),  # measured, MiB
    [
        (16, 512, 2048, "", 0.0, 0.0),
        (64, 512, 2048, "", 3.77, 4.01),
        (64, 2048, 512, "b", 1.19, 1.14),
        (512, 64, 2048, "a", 0.5, 0.57),
        (256, 512, 512, "", 0.85, 1.39),
        (1024, 512, 512, "", 0.94, 2.82),
        (2048, 512, 2048, "", 3.76, 7.76),
        (256, 4096, 1024, "a", 2.91, 3.05),
        (1000, 1000, 1000, "", 3.59, 3.70),
        (4096, 64, 4096, "a", 1.91, 2.54),
        (64, 4096, 4096, "b", 0.66, 9.95),
        (8192, 768, 768, "", 1.39, 1.85),
        (768, 8192, 768, "a", 3.56, 3.53),
        (2048, 768, 3072, "", 6.06, 9.83),
    ],
)
def test_a_product_packs_what_was_measured(rows: int, terms: int, columns: int, transposed: str, two: float, four: float) -> None:
    product = Product(columns, rows, terms, left=transposed != "b", right=transposed != "a")
    for threads, measured in ((2, two), (4, four)):
        assert packed_bytes(product, Processor(threads, **CACHES)) / MIB == pytest.approx(measured, abs=0.55 if threads == 4 else 0.32)


def test_one_thread_packs_a_block_of_each_matrix() -> None:
    product = Product(4096, 64, 4096, left=False, right=True)
    assert packed_bytes(product, Processor(1, **CACHES)) / MIB == pytest.approx(5.8, abs=0.1)
    assert packed_bytes(product._replace(left=True), Processor(1, **CACHES)) == 0


def test_few_outputs_of_long_sums_are_divided_by_the_sums() -> None:
    assert (
        packed_bytes(Product(8, 8, 1 << 20), Processor(4, **CACHES)) == 3 * 8 * 8 * 4 + 4 * (8 + 8) * 320 * 4
    )  # sums, and what each thread packs


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("threads", [1, 2, 7, 96])
def test_any_shape_has_an_answer_that_is_at_most_both_matrices(size: int, threads: int) -> None:
    sides = (1, 2, 3, 47, 320, 4097, 1_000_003)
    for product in (Product(m, n, k, size) for m in sides for n in sides for k in sides):
        m, n, k = product[:3]
        sums = (threads - 1) * m * n * size
        assert 0 <= packed_bytes(product, Processor(threads, **CACHES)) <= (m + n) * _up(k, 8 * threads) * size + sums


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def test_the_caches_of_this_machine_are_told() -> None:
    found = this_processor(2)
    assert found.threads == 2
    assert 8 << 10 <= found.first <= found.second <= max(found.third, found.second) <= 1 << 32
