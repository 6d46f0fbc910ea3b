"""Lines of plain text for a terminal: paragraphs, facts and tables that fit a width.

Long names lose their middle. No text holds a control character.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from graphwright.report.units import glue_units, printable, shorten_apart, shorten_middle

PLAIN_WIDTH = 80
_GAP = "  "  # between columns
_LABEL_WIDTH = 24
_LEAST_TEXT_WIDTH = 12
_LEAST_NAME_WIDTH = 8
_NAME_WIDTH = 20  # cells that names may take before columns are left out for them


def wrapped(text: str, width: int) -> list[str]:
    """Break a text at spaces, never between a number and its unit; a name wider than a line loses its middle."""
    words = [shorten_middle(word, width) for word in glue_units(printable(text)).split(" ") if word]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in flowing(words, " ", width)]


def flowing(items: Sequence[str], gap: str, width: int) -> list[str]:
    """Put short texts one after another, each whole on a line.

    >>> flowing(["weights 1 GiB", "gradients 1 GiB"], ", ", 20)
    ['weights 1 GiB,', 'gradients 1 GiB']
    """
    lines: list[str] = []
    for item in items:
        if lines and cell_len(lines[-1] + gap + item) <= width:
            lines[-1] += gap + item
            continue
        if lines:
            lines[-1] += gap.rstrip()
        lines.append(item)
    return lines


def continued(command: str, width: int) -> str:
    """Break a command before options.

    >>> print(continued("graphwright optimize net.keras --batch 8 --budget 2GiB", 42))
    graphwright optimize net.keras --batch 8 \\
      --budget 2GiB
    """
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + len(" -- \\") > width:
            lines[-1] += " \\"
            lines.append(f"  --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)


def fact_lines(rows: Sequence[tuple[str, str, str]], width: int) -> list[str]:
    labels = [shorten_middle(printable(label), _LABEL_WIDTH) for label, _, _ in rows]
    figures = [printable(figure) for _, figure, _ in rows]
    label_width, figure_width = max(map(cell_len, labels)), max(map(cell_len, figures))
    indent = label_width + len(_GAP) + (figure_width + len(_GAP) if figure_width else 0)
    lines: list[str] = []
    for label, figure, (_, _, note) in zip(labels, figures, rows, strict=True):
        head = set_cell_size(label, label_width) + _GAP
        if figure_width:
            head += _padded(figure, figure_width, at_right=True) + _GAP
        first, *others = wrapped(note, max(width - indent, _LEAST_TEXT_WIDTH)) or [""]
        lines += [head + first, *(" " * indent + line for line in others)]
    return lines


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]], at_right: Sequence[bool], width: int, *, fixed: bool) -> list[str]:
    """Lay out a table in a width; shorten names in the first column, and leave out the last columns that do not fit unless `fixed`."""
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    taken, count = min(widths[0], _NAME_WIDTH), 1
    while count < len(widths) and (fixed or taken + len(_GAP) + widths[count] <= width):
        taken += len(_GAP) + widths[count]
        count += 1
    name_width = max(width - sum(len(_GAP) + other for other in widths[1:count]), _LEAST_NAME_WIDTH)
    names = shorten_apart([row[0] for row in rows], name_width)
    widths[0] = max(map(cell_len, [headings[0], *names]))
    cells = [headings[:count], *([name, *row[1:count]] for name, row in zip(names, rows, strict=True))]
    return [_GAP.join(_padded(*cell) for cell in zip(line, widths, at_right, strict=False)) for line in cells]


def _padded(text: str, width: int, at_right: bool) -> str:
    return " " * (width - cell_len(text)) + text if at_right else set_cell_size(text, width)
