"""Bytes that Eigen packs for one product of matrices, by all threads: what TensorFlow's own kernels for the CPU are made of.

Followed is Eigen's `TensorContractionThreadPool.h` and, for float32, what TensorFlow puts in its place (`eigen_contraction_kernel.h`): its
kernel reads a matrix where it lies if packing would change nothing, or be for one use. Constants are those of the wheels for x86, which are
compiled for AVX. Eigen sees matrices by columns, so its first one is TensorFlow's second: here `m` are the columns of the output, `n` its
rows, `k` is what is summed over, and the matrices are the *left* one (m x k) and the *right* one (k x n).

Counted is what is written. A product whose threads keep to one side packs that side a little at a time; where threads wait for each other
it may pack more after all, up to the whole side, which is seldom and not counted.
"""

import math
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_NR = 4  # columns of the kernel's registers
_REGISTERS, _PACKET_BYTES, _LARGEST_PACKET = 16, 32, 8
_LONGEST_SUM = 320
_START_CYCLES, _THREAD_CYCLES, _TASK_CYCLES = 100_000, 100_000, 40_000
_CYCLES_A_BYTE = 11 / 64
_INNER_START_CYCLES, _INNER_THREAD_CYCLES = 100_000, 3_000
_SLICES = 2  # of the sums that are under way at once
_FEW, _ROWS_IN_CACHE, _SHARED_CACHE = 48, 576, 1_572_864  # what one thread takes whole; bytes that it takes of a shared cache
_UNROLLED = (48, 24)  # rows and columns that TensorFlow's kernel for float32 likes
_DIRECT_BYTES = 256 << 10  # what may be read twice where it lies
_TASKS_A_THREAD = ((4, 8.0), (8, 4.0), (16, 2.0), (32, 1.0), (64, 0.8))  # up to so many threads, from which on they keep to one side
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Product(NamedTuple):
    """A product, and how its matrices lie.

    Attributes:
        columns: of the output, the left matrix's.
        rows: of the output, the right matrix's.
        terms: of each sum.
        size: bytes of an element as it is computed.
        left: whether the left matrix may be read where it lies: a plain tensor, not transposed.
        right: whether the right one may.
    """

    columns: int
    rows: int
    terms: int
    size: int = 4
    left: bool = False
    right: bool = False


class Processor(NamedTuple):
    """Threads of TensorFlow's pool, and bytes of the three levels of cache."""

    threads: int
    first: int = 32 << 10
    second: int = 256 << 10
    third: int = 2 << 20


class _Blocks(NamedTuple):
    m: int
    n: int
    k: int


@lru_cache(maxsize=1 << 14)
def packed_bytes(product: Product, processor: Processor) -> int:
    """Bytes of packed operands and of partial sums.

    >>> two = Processor(2, second=512 << 10, third=32 << 20)
    >>> packed_bytes(Product(2048, 16, 512, left=True, right=True), two)  # 16 rows: the left matrix is read once, where it lies
    32768
    >>> packed_bytes(Product(2048, 64, 512, left=True, right=True), two)
    4194304
    """
    threads = processor.threads
    m, n, k, size = product[:4]
    if min(m, n, k) <= 0 or n == 1:
        return 0
    by_column = _by_column(m, n, 2)
    blocks = _blocks(product, processor, by_column, 2)
    cost = _cost(product, blocks, by_column)
    busy = min(max(int((_total(m * n, *cost) - _START_CYCLES) / _THREAD_CYCLES + 0.9), 1), threads)
    inner = _inner_threads(product, threads)
    if _by_terms(product, processor, busy, inner):
        part = _blocks(product._replace(terms=-(-k // inner)), processor, True, inner)
        return (inner - 1) * m * n * size + inner * (part.m + part.n) * part.k * size
    if busy == 1:
        blocks = _blocks_of_one(product, processor)
        left = 0 if product.left and _is_direct(blocks.m == m, -(-n // blocks.n), m * blocks.k * size) else blocks.m * blocks.k
        right = 0 if product.right and _is_direct(blocks.k == k, -(-m // blocks.m), k * blocks.n * size) else blocks.k * blocks.n
        return (left + right) * size
    by_column = _by_column(m, n, busy)
    blocks = _blocks(product, processor, by_column, busy)
    kernels_m, kernels_n, slices = (-(-whole // part) for whole, part in zip((m, n, k), blocks, strict=True))
    grain_m, grain_n = _grains(product, blocks, by_column, busy)
    tasks = -(-kernels_n // grain_n) if by_column else -(-kernels_m // grain_m)
    at_once = min(min(slices, _SLICES) * blocks.k, k)
    left, right = m * at_once, n * at_once
    if tasks >= threads * next((each for most, each in _TASKS_A_THREAD if threads <= most), 0.6):
        own = threads * (grain_n * blocks.n if by_column else grain_m * blocks.m) * blocks.k
        left, right = (left, min(right, own)) if by_column else (min(left, own), right)
    if product.left and _is_direct(kernels_m == 1, kernels_n, m * blocks.k * size):
        left = 0
    if product.right and _is_direct(slices == 1, kernels_m, k * blocks.n * size):
        right = 0
    return (left + right) * size


def _is_direct(is_same: bool, readers: int, nbytes: int) -> bool:
    """Whether a block of a matrix is read where it lies (`DirectColMajorAccess`)."""
    return is_same or readers == 1 or (readers == 2 and nbytes < _DIRECT_BYTES)


def _mr(size: int) -> int:
    return _REGISTERS // 2 // _NR * _packet(size)


def _packet(size: int) -> int:
    return min(_PACKET_BYTES // size, _LARGEST_PACKET)


def _by_column(m: int, n: int, threads: int) -> bool:
    """`shardByCol`"""
    if m // threads >= _NR and (
        n // threads < _NR or (n // threads < 4 * _NR and n % (threads * _NR) != 0 and (m % (threads * _NR) == 0 or m // n >= 6))
    ):
        return False
    return not (n // threads < 16 * _NR and m > n * 32)


def _blocks(product: Product, processor: Processor, by_column: bool, threads: int) -> _Blocks:
    """`evaluateProductBlockingSizesHeuristic` for more than one thread."""
    m, n, k, size = product[:4]
    _, first, second, third = processor
    rows, columns = (m, n) if by_column else (n, m)
    mr = _mr(size)
    longest = max(8, min((first - mr * _NR * size) // ((mr + _NR) * size), _LONGEST_SUM))
    terms = k if longest >= k else longest - longest % 8
    fit, each = (second - first) // (_NR * size * terms), -(-columns // threads)
    columns = max(fit - fit % _NR, _NR) if fit <= each else min(columns, _up(each, _NR))
    if third > second:
        fit, each = (third - second) // (size * terms * threads), -(-rows // threads)
        rows = fit - fit % mr if mr <= fit < each else min(rows, _up(each, mr))
    return _enlarged(product, *((rows, columns) if by_column else (columns, rows)), terms)


def _blocks_of_one(product: Product, processor: Processor) -> _Blocks:
    """The same for one thread, whose kernel packs up to 2 MiB more of a large product for itself."""
    m, n, k, size = product[:4]
    _, first, second, _ = processor
    mr = _mr(size)
    if max(m, n, k) < _FEW:
        return _enlarged(product, m, n, k)
    longest = max((first - mr * _NR * size) // ((mr + _NR) * size) // 8 * 8, 1)
    terms = k if k <= longest else _evenly(k, longest, 8)
    left = first - mr * _NR * size - m * terms * size
    widest = left // (terms * size) if left >= _NR * size * terms else 3 * _SHARED_CACHE // (4 * longest * size)
    columns = max(min(_SHARED_CACHE // (2 * terms * size), widest) // _NR, 1) * _NR
    if n > columns:
        return _enlarged(product, m, _evenly(n, columns, _NR), terms)
    if terms < k:
        return _enlarged(product, m, n, terms)
    operand = terms * n * size
    cache, most = (first, m) if operand <= 1 << 10 else (second, min(_ROWS_IN_CACHE, m)) if operand <= 1 << 15 else (_SHARED_CACHE, m)
    rows = min(cache // (3 * terms * size), most)
    rows -= rows % mr if rows > mr else 0
    return _enlarged(product, _evenly(m, rows, mr) if rows else m, n, terms)


def _evenly(count: int, most: int, unit: int) -> int:
    """A block of at most so many, such that the last one is as large as possible."""
    return most if count % most == 0 else most - unit * ((most - (unit == 8) - count % most) // (unit * (count // most + 1)))


def _enlarged(product: Product, bm: int, bn: int, terms: int) -> _Blocks:
    """For float32 as `TensorContractionBlocking` of TensorFlow makes blocks larger, and sums of like length."""
    m, n, k, size = product[:4]
    if size != 4:
        return _Blocks(bm, bn, terms)
    return _Blocks(min(m, _up(bm * 3 // 2, _UNROLLED[0])), min(n, _up(bn, _UNROLLED[1])), min(k, _up(k // max(-(-k // terms), 1), 8)))


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _cost(product: Product, blocks: _Blocks, by_column: bool | None = None) -> tuple[float, float, float]:
    """Bytes loaded and stored and cycles for an element of the output (`contractionCost`); of packed operands for no `by_column`."""
    m, n, _, size = product[:4]
    cycles = blocks.k * _cycles(blocks.m, blocks.n, blocks.k, size) / _packet(size)
    if by_column is None:
        return 0.0, size, cycles
    return size * blocks.k / (m if by_column else n), size, cycles


def _cycles(across: int, along: int, k: int, size: int) -> float:
    """`computeBandwidth` without fused products."""
    return 4.0 if k == 1 else 2.0 if across < _NR or along < _mr(size) else 1.0


def _total(count: float, loaded: float, stored: float, cycles: float) -> float:
    return count * ((loaded + stored) * _CYCLES_A_BYTE + cycles)


def _inner_threads(product: Product, threads: int) -> int:
    """Threads among which the sums could be divided (`numThreadsInnerDim`)."""
    m, n, k, size = product[:4]
    whole = _total(k, size * n, size, _cycles(n, m, k, size) * m * n / _packet(size))
    adding = _total(m * n, 2, 1, 1 / _packet(size))
    best, least = 1, whole
    for count in range(2, threads + 1, 2):
        cost = whole / count + _INNER_START_CYCLES + count * (adding + _INNER_THREAD_CYCLES)
        if cost < least:
            best, least = count, cost
    return best


def _by_terms(product: Product, processor: Processor, busy: int, inner: int) -> bool:
    """`shardByInnerDim`"""
    m, n, k, size = product[:4]
    if n == 1 or inner < max(2, busy) or m * n * size > processor.third / inner or k // inner < 2 * _NR:
        return False
    return max(m, n) // busy < _NR or (k // inner > 8 * _NR and (min(m, n) < 2 * _NR or inner > busy))


def _grains(product: Product, blocks: _Blocks, by_column: bool, threads: int) -> tuple[int, int]:
    """Kernels of a task along m and along n (`coarsenM`, `coarsenN`); the side that threads do not keep to comes first."""
    grains = [1, 1]
    kernels = [-(-product.columns // blocks.m), -(-product.rows // blocks.n)]
    for side in (0, 1) if by_column else (1, 0):
        grain, known = 1, kernels[side]
        while True:
            while grain <= kernels[side] and known == -(-kernels[side] // grain):
                grain += 1
            if grain > kernels[side]:
                break
            tried = list(grains)
            tried[side] = grain
            verdict = _check(kernels, tried, grains, blocks, product, threads)
            if verdict < 0:
                break
            known = -(-kernels[side] // grain)
            if verdict:
                grains = tried
    return grains[0], grains[1]


def _check(kernels: list[int], tried: list[int], kept: list[int], blocks: _Blocks, product: Product, threads: int) -> int:
    """`checkGrain`"""
    task = _total(blocks.m * tried[0] * blocks.n * tried[1], *_cost(product, blocks)) / _TASK_CYCLES
    if task < 1:
        return 1
    if task > 2:
        return -1

    def share(grains: list[int]) -> float:
        tasks = math.prod(-(-count // grain) for count, grain in zip(kernels, grains, strict=True))
        return tasks / _up(tasks, threads)

    return int(share(tried) > share(kept) or share(tried) == 1)


@lru_cache(maxsize=4)
def this_processor(threads: int) -> Processor:
    """The first processor's caches; typical ones where the system does not tell."""
    found = Processor(threads)
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    for level, index in (("first", 0), ("second", 2), ("third", 3)):
        with suppress(OSError, ValueError, KeyError, IndexError):
            told = (_CACHES / f"index{index}" / "size").read_text().strip()
            found = found._replace(**{level: int(told[:-1]) * units[told[-1]]})
    return found
