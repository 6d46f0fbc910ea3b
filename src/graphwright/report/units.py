"""Figures as people read them: bytes in binary units, counts, FLOPs, shares and times.

Every report, terminal or page, formats through these functions, so that one figure looks
the same wherever it is shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

from rich.cells import cell_len

from graphwright.errors import printable as printable

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FLOP_UNITS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
NOT_KNOWN = "not known"
_ANY_SIZE = Context(prec=400)  # digits of the largest float, and of its fractions
_COUNT = re.compile(r"\d+ × ")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|[KMGTPE]?i?B\b|[kMGTPE]?FLOP\b|[mµ]?s\b)")


def format_bytes(nbytes: float, *, digits: int = 3) -> str:
    """Bytes in the largest binary unit below them, with `digits` significant digits.

    >>> format_bytes(812), format_bytes(1536), format_bytes(5 * 2**30), format_bytes(2**30 - 1)
    ('812 B', '1.50 KiB', '5.00 GiB', '1.00 GiB')
    >>> format_bytes(-3 * 2**20)
    '-3.00 MiB'
    """
    return _scaled(nbytes, 1024.0, BYTE_UNITS, digits)


def format_bytes_apart(first: float, second: float) -> tuple[str, str]:
    """Two sizes side by side, with as many digits as it takes to tell them apart.

    >>> format_bytes_apart(2**30, 3 * 2**30)
    ('1.00 GiB', '3.00 GiB')
    >>> format_bytes_apart(2684354560, 2684999999)
    ('2.500 GiB', '2.501 GiB')
    """
    digits = 3
    while first != second and digits < 12 and format_bytes(first, digits=digits) == format_bytes(second, digits=digits):
        digits += 1
    return format_bytes(first, digits=digits), format_bytes(second, digits=digits)


def format_count(count: float) -> str:
    """A whole number with its thousands apart.

    >>> format_count(31030658)
    '31,030,658'
    """
    return f"{int(count):,}"


def counted(count: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "node"), counted(1200, "node")
    ('1 node', '1,200 nodes')
    """
    return f"{format_count(count)} {what}" + ("" if count == 1 else "s")


def feeds_text(feeds: Mapping[str, Sequence[int | None] | None]) -> str:
    """Shapes by input.

    >>> feeds_text({"x": (None, 3), "y": (8,)})
    'x (batch, 3), y (8)'
    """
    return ", ".join(f"{name} ({', '.join('batch' if d is None else str(d) for d in shape or ())})" for name, shape in feeds.items())


def format_flops(flops: float) -> str:
    """Floating point operations (a number of them, not a rate) in decimal units.

    >>> format_flops(2.5e12), format_flops(0), format_flops(999_999)
    ('2.50 TFLOP', '0 FLOP', '1.00 MFLOP')
    """
    return _scaled(flops, 1000.0, _FLOP_UNITS, 3)


def format_percent(share: float) -> str:
    """A share of one as a percentage; small shares keep a digit that says something.

    >>> [format_percent(share) for share in (0.5, 0.1234, 0.0012, 0.00001, 0.0, -0.031)]
    ['50.0 %', '12.3 %', '0.12 %', '<0.01 %', '0 %', '-3.1 %']
    >>> format_percent(float("nan"))
    'not known'
    """
    if not math.isfinite(share):
        return NOT_KNOWN
    percent = 100.0 * share
    if percent == 0.0:
        return "0 %"
    if abs(percent) < 0.005:
        return "<0.01 %" if percent > 0 else ">-0.01 %"
    return f"{percent:.2f} %" if abs(percent) < 0.995 else f"{percent:,.1f} %"


def format_time(time_s: float) -> str:
    """Seconds in a unit that leaves three significant digits.

    >>> format_time(1.5), format_time(0.0123), format_time(0.000004), format_time(float("nan"))
    ('1.50 s', '12.3 ms', '4.00 µs', 'not known')
    """
    if not math.isfinite(time_s):
        return NOT_KNOWN
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(time_s) >= 0.9995 * scale or unit == "µs":
            return f"{_significant(time_s / scale, 3)} {unit}"
    raise AssertionError("unreachable: the last unit takes every time")


def shorten_middle(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells, its middle left out where it is too long.

    Both ends of a node name tell: the start says which part of the model, the end which op.

    >>> shorten_middle("encoder/block1/conv2/Conv2D", 16)
    'encoder…2/Conv2D'
    >>> shorten_middle("short", 16)
    'short'
    """
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(width, 0)]
    tail_width = width // 2
    head_width = width - 1 - tail_width
    return _cells(text, head_width) + "…" + _cells(text[::-1], tail_width)[::-1]


def shorten_apart(texts: Sequence[str], width: int) -> list[str]:
    """Each as `shorten_middle` has it; those that would look alike keep the parts of the path in which they differ.

    >>> shorten_apart(["net/block_0/attention/dense", "net/block_1/attention/dense", "norm"], 16)
    ['…block_0/at…ense', '…block_1/at…ense', 'norm']
    >>> shorten_apart(["2 × transformer_encoder_layer_0…1", "2 × transformer_decoder_layer_0…1"], 24)
    ['2 × …encoder_layer_0…1', '2 × …decoder_layer_0…1']
    >>> shorten_apart([f"net/encoder_layer_{k}/feed_forward_{part}_dense" for k in range(2) for part in ("in", "out")], 22)
    ['…layer_0/…in_dense', '…layer_0/…out_dense', '…layer_1/…in_dense', '…layer_1/…out_dense']
    """
    short = {text: shorten_middle(text, width) for text in texts}
    families = {text: [text] for text in short}  # those that looked alike once
    for apart in (_from_part, _differences):
        shown: dict[str, list[str]] = {}
        for text, so_far in short.items():
            shown.setdefault(so_far, []).append(text)
        for alike in shown.values():
            if len(alike) > 1:
                joined = list(dict.fromkeys(member for text in alike for member in families[text]))
                families |= dict.fromkeys(joined, joined)
                short |= apart(joined, width)
    return [short[text] for text in texts]


def _from_part(alike: Sequence[str], width: int) -> dict[str, str]:
    """From the part of the path on in which they first differ."""
    start = alike[0].rfind("/", 0, _first_difference(alike)) + 1
    found: dict[str, str] = {}
    for text in alike:
        part, slash, rest = text[start:].partition("/")
        rest = slash + rest
        part = shorten_middle(f"…{part}" if start else part, max(width - cell_len(rest), 2 * width // 3))
        found[text] = part + shorten_middle(rest, width - cell_len(part))
    return found


def _differences(alike: Sequence[str], width: int) -> dict[str, str]:
    """Those parts of the path alone in which they differ, each from the word on in which it does; a number with the word before it."""
    paths = [text.split("/") for text in alike]
    kept: list[list[str]] = [[] for _ in alike]
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            start = max(parts[0].rfind(mark, 0, _first_difference(parts)) for mark in "_- ") + 1
            if start and parts[0][start:].isdecimal():
                start = parts[0].rfind("_", 0, start - 1) + 1
            for own, part in zip(kept, parts, strict=True):
                count = _COUNT.match(part)
                before = count[0] if count and start > count.end() else ""
                own.append(f"{before}…{part[start:]}" if start else part)
    common = min(map(len, paths))
    return {text: shorten_middle("/".join(own + path[common:]), width) for text, own, path in zip(alike, kept, paths, strict=True)}


def _first_difference(alike: Sequence[str]) -> int:
    """The first place at which they do not have the same letter; 0 where one begins as the others do."""
    return next((k for k, letters in enumerate(zip(*alike, strict=False)) if len(set(letters)) > 1), 0)


def glue_units(text: str) -> str:
    """`text` with no-break spaces between numbers and their units, so that a line never ends between the two.

    >>> glue_units("needs 5.00 GiB, 28 % more").split(" ")
    ['needs', '5.00\\xa0GiB,', '28\\xa0%', 'more']
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
    scaled = float(amount)
    index = 0
    # What is written decides, not what is meant: 1023.9999 MiB rounds to 1024, so it is written 1.00 GiB.
    while index + 1 < len(units) and abs(float(_significant(scaled, digits if index else 15))) >= base:
        scaled /= base
        index += 1
    if index == 0:
        return f"{scaled:.0f} {units[0]}" if scaled == round(scaled) else f"{scaled:.1f} {units[0]}"
    return f"{_significant(scaled, digits)} {units[index]}"


def _significant(number: float, digits: int) -> str:
    """Fixed notation with `digits` significant digits, whole digits never dropped."""
    if number == 0:
        return "0"
    whole_digits = math.floor(math.log10(abs(number))) + 1
    decimals = max(0, digits - max(whole_digits, 1))
    text = _fixed(number, decimals)
    # 9.996 rounds to 10.00 at two decimals: one digit more than asked for.
    if decimals and len(text.strip("-").replace(".", "")) > digits:
        text = _fixed(number, decimals - 1)
    return text


def _fixed(number: float, decimals: int) -> str:
    # Sizes in binary units often end in exactly one half; Python's own formatting rounds that to even, browsers round it up.
    return str(Decimal(number).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, _ANY_SIZE))
