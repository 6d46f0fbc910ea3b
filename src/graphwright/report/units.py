"""Figures as readers see them: bytes in binary units, counts, FLOPs, shares and times."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from rich.cells import cell_len

from graphwright.errors import printable as printable

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FLOP_UNITS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
NOT_KNOWN = "not known"
_ANY_SIZE = Context(prec=400)  # digits of the largest float, and of its fractions
_COUNT = re.compile(r"\d+ × ")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|[KMGTPE]?i?B\b|[kMGTPE]?FLOP\b|[mµ]?s\b)")


def format_bytes(nbytes: float, *, digits: int = 3) -> str:
    """Write bytes in the largest binary unit below them.

    >>> format_bytes(812), format_bytes(1536), format_bytes(2**30 - 1), format_bytes(-3 * 2**20)
    ('812 B', '1.50 KiB', '1.00 GiB', '-3.00 MiB')
    """
    return _scaled(nbytes, 1024.0, BYTE_UNITS, digits)


def format_bytes_apart(first: float, second: float) -> tuple[str, str]:
    """Write two sizes with as many digits as it takes to tell them apart.

    >>> format_bytes_apart(2684354560, 2684999999)
    ('2.500 GiB', '2.501 GiB')
    """
    digits = 3
    while first != second and digits < 12 and format_bytes(first, digits=digits) == format_bytes(second, digits=digits):
        digits += 1
    return format_bytes(first, digits=digits), format_bytes(second, digits=digits)


def format_count(count: float) -> str:
    return f"{int(count):,}"


def counted(count: int, what: str) -> str:
    return f"{format_count(count)} {what}" + ("" if count == 1 else "s")


def feeds_text(feeds: Mapping[str, Sequence[int | None] | None]) -> str:
    """Write shapes by input.

    >>> feeds_text({"x": (None, 3), "y": (8,)})
    'x (batch, 3), y (8)'
    """
    return ", ".join(f"{name} ({', '.join('batch' if d is None else str(d) for d in shape or ())})" for name, shape in feeds.items())


def format_flops(flops: float) -> str:
    """Write a number of floating-point operations in decimal units.

    >>> format_flops(2.5e12), format_flops(0)
    ('2.50 TFLOP', '0 FLOP')
    """
    return _scaled(flops, 1000.0, _FLOP_UNITS, 3)


def format_short(count: float) -> str:
    """Write a count in decimal units without a name.

    >>> format_short(57_300_000.0), format_short(812.0)
    ('57.3 M', '812')
    """
    return format_flops(count).removesuffix("FLOP").rstrip()


def format_percent(share: float) -> str:
    """Write a share of one as a percentage; small shares keep a significant digit.

    >>> [format_percent(share) for share in (0.5, 0.0012, 0.00001, 0.0, -0.031)]
    ['50.0 %', '0.12 %', '<0.01 %', '0 %', '-3.1 %']
    """
    if not math.isfinite(share):
        return NOT_KNOWN
    percent = 100.0 * share
    if percent == 0.0:
        return "0 %"
    if abs(percent) < 0.005:
        return "<0.01 %" if percent > 0 else ">-0.01 %"
    return f"{percent:.2f} %" if abs(percent) < 0.995 else f"{percent:,.1f} %"


def nothing_of_zero(form: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda figure: form(figure) if figure else ""


def signed(form: Callable[[Any], str]) -> Callable[[Any], str]:
    """Write a difference in a form with its sign, and 0 as an empty text.

    >>> [signed("{:,} B".format)(difference) for difference in (2048, 0, -3)]
    ['+2,048 B', '', '-3 B']
    """
    return lambda figure: f"{'+' if figure > 0 else ''}{form(figure)}" if figure else ""


def format_ratio(ratio: float) -> str:
    return f"{ratio:.3g}"


def format_time(time_s: float) -> str:
    """Write seconds with three significant digits.

    >>> format_time(1.5), format_time(0.0123), format_time(0.000004), format_time(float("nan"))
    ('1.50 s', '12.3 ms', '4.00 µs', 'not known')
    """
    if not math.isfinite(time_s):
        return NOT_KNOWN
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if abs(time_s) >= 0.9995 * s), ("µs", 1e-6))
    return f"{_significant(time_s / scale, 3)} {unit}"


def shorten_middle(text: str, width: int) -> str:
    """Fit a text into `width` terminal cells; leave out its middle, since both ends of a node name matter.

    >>> shorten_middle("encoder/block1/conv2/Conv2D", 16)
    'encoder…2/Conv2D'
    """
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(width, 0)]
    tail_width = width // 2
    return _cells(text, width - 1 - tail_width) + "…" + _cells(text[::-1], tail_width)[::-1]


def shorten_apart(texts: Sequence[str], width: int) -> list[str]:
    """Fit texts into `width` terminal cells; texts that would look alike lose the words that they begin with in common.

    >>> shorten_apart(["net/block_0/attention/dense", "net/block_1/attention/dense", "norm"], 16)
    ['…block_0…n/dense', '…block_1…n/dense', 'norm']
    >>> shorten_apart(["2 × transformer_encoder_layer_0…1", "2 × transformer_decoder_layer_0…1"], 24)
    ['2 × …encoder_layer_0…1', '2 × …decoder_layer_0…1']
    """
    short = {text: shorten_middle(text, width) for text in texts}
    groups: dict[str, list[str]] = {}
    for text, shown in short.items():
        groups.setdefault(shown, []).append(text)
    for alike in groups.values():
        common = os.path.commonprefix(alike)  # noqa: RUF071 - the first letter that differs is wanted
        start = common.rfind("/") + 1 or max(map(common.rfind, "_- ")) + 1 or len(common)
        if alike[0][start : start + 1].isdecimal():  # a number keeps the word before it
            start = common.rfind("_", 0, start - 1) + 1 or start
        if len(alike) > 1 and start and width > 1:
            count = _COUNT.match(common[:start])
            head = f"{count[0] if count else ''}…"
            ends = shorten_apart([text[start:] for text in alike], width - cell_len(head))
            short |= {text: head + end.removeprefix("…") for text, end in zip(alike, ends, strict=True)}
    return [short[text] for text in texts]


def glue_units(text: str) -> str:
    r"""Put no-break spaces between numbers and their units.

    >>> glue_units("needs 5.00 GiB, 28 % more").split(" ")
    ['needs', '5.00\xa0GiB,', '28\xa0%', 'more']
    """
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)


def _cells(text: str, width: int) -> str:
    taken = 0
    for index, character in enumerate(text):
        taken += cell_len(character)
        if taken > width:
            return text[:index]
    return text


def _scaled(amount: float, base: float, units: tuple[str, ...], digits: int) -> str:
    if not math.isfinite(amount):
        return NOT_KNOWN
    scaled, index = float(amount), 0
    # The rounded text decides: 1023.9999 MiB rounds to 1024 MiB, so it is written as 1.00 GiB.
    while index + 1 < len(units) and abs(float(_significant(scaled, digits if index else 15))) >= base:
        scaled /= base
        index += 1
    if index == 0:
        return f"{scaled:.0f} {units[0]}" if scaled == round(scaled) else f"{scaled:.1f} {units[0]}"
    return f"{_significant(scaled, digits)} {units[index]}"


def _significant(number: float, digits: int) -> str:
    """Write a number with `digits` significant digits, in fixed notation; whole digits are never dropped."""
    if number == 0:
        return "0"
    exact = Decimal(number)
    # Sizes in binary units often end in exactly one half; Python's own formatting rounds that to even, browsers round it up.
    rounded = Context(digits, ROUND_HALF_UP).plus(exact)
    decimals = max(digits - 1 - max(rounded.adjusted(), 0), 0)
    return str(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, _ANY_SIZE))
