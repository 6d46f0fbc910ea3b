"""Sheets as HTML pages: templates, styles and scripts become one file that needs no network.

The charts are drawn by the pages' own `charts.js`, so a page is little more than its figures. A content security policy in the
page forbids every request.
"""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from graphwright.errors import printable
from graphwright.files import file_for_user
from graphwright.report.sheet import NO_LAYER, Drawing, Printed, Sheet
from graphwright.report.timeline import ROLES, MemoryCharts
from graphwright.report.timeline_chart import chart_data
from graphwright.report.units import format_bytes, format_count, glue_units

ROW_LIMIT = 200
"""Further rows of a table are left out of a page, and the table says so."""

_JSON: dict[str, Any] = {"allow_nan": False, "separators": (",", ":")}
_PACKED_FROM = 200_000  # characters of data; a page holds more of them compressed, which browsers since 2023 unpack
_STYLES = ("theme.css", "report.css", "tables.css")
_SCRIPTS = ("report.js", "charts.js", "tables.js", "memory.js", "layers.js")


class OnPage(Printed):
    """A value that prints itself, with a page."""

    __slots__ = ()

    def write_html(self, path: str | Path) -> Path:
        """Write the report as one offline HTML file; replace an existing file; return the path.

        Raises:
            ArgumentError: `path` is a folder, lies in no folder, or cannot be written.
        """
        return write_page(Path(path), page_of(self._sheet()))


def page_of(sheet: Sheet) -> str:
    drawings = [block for block in sheet.blocks if isinstance(block, Drawing)]
    data: dict[str, Any] = {"roles": ROLES, "noLayer": NO_LAYER}
    charts = next((block for block in sheet.blocks if isinstance(block, MemoryCharts)), MemoryCharts((), 1))
    data |= chart_data(charts)
    for drawing in drawings:
        data |= drawing.data()
    scripts = dict.fromkeys([*_SCRIPTS, *(name for drawing in drawings for name in drawing.scripts), "start.js"])
    styles = (*_STYLES, "drawing.css") if "drawing.js" in scripts else _STYLES
    return render("page.html", data, styles, "\n".join(map(source, scripts)), sheet=sheet, row_limit=ROW_LIMIT)


def render(template: str, data: Any, styles: tuple[str, ...], script: str, **values: Any) -> str:
    """Return the text of a page from the files of its template and styles, its script, and the data that the script draws."""
    # Styles and scripts are our own and trusted; everything else on the page is escaped.
    style = Markup("\n".join(map(source, styles)))
    return environment().get_template(template).render(values, data=data, packed=_packed(data), style=style, script=Markup(script))


def _packed(data: Any) -> str:
    """Compress long data of a page for its script; return "" for short data."""
    text = _dumps(data, **_JSON)
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode() if len(text) > _PACKED_FROM else ""


def _dumps(data: Any, **options: Any) -> str:
    """ASCII JSON without the characters that `printable` leaves out; line ends and surrogates stay."""
    return re.sub(r"\\(?:u([0-9a-f]{4})|.)", _shown, json.dumps(data, **options))


def _shown(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16)) if escape[1] else {"b": "\b", "f": "\f", "r": "\r"}.get(escape[0][1], " ")
    return escape[0] if "\ud800" <= character <= "\udfff" or printable(character) == character else "\\ufffd"


def _finalized(value: Any) -> Any:
    return type(value)(printable(value, lines=True)) if isinstance(value, str) else value


@cache
def environment() -> Any:
    """Return the templates, with filters that format figures. They escape what they show."""
    import jinja2  # only pages need it, and every command imports this module

    templates: Any = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    # `tojson` escapes <, >, & and quotes; nan has no place in JSON, and a browser would refuse the whole page's data.
    templates.policies["json.dumps_kwargs"] = _JSON
    templates.policies["json.dumps_function"] = _dumps
    templates.filters |= {
        "bytes": format_bytes,
        "count": format_count,
        "glued": glue_units,
        "breakable": breakable,
        "breakable_code": _breakable_code,
    }
    return templates


def breakable(name: str, words: bool = True) -> Markup:
    """Let a name break after each slash and underscore, and with `words` before the words of `Conv2DBackpropInput`.

    >>> breakable("net/<b>/conv_1")
    Markup('net/<wbr>&lt;b&gt;/<wbr>conv_<wbr>1')
    """
    return _broken(rf"(?<=[/_])(?=\S){'|(?<=[A-Za-z0-9])(?=[A-Z][a-z])' * words}", name)


def _breakable_code(code: str) -> Markup:
    return _broken(r"(?<=[(._=,/])(?=\w)", code)


def _broken(where: str, text: str) -> Markup:
    return Markup("<wbr>").join(re.split(where, text))


def source(name: str) -> str:
    return resources.files("graphwright.report").joinpath("templates", name).read_text(encoding="utf-8")


def write_page(path: Path, page: str) -> Path:
    """Write the text of a page; replace an existing file."""
    with file_for_user(path) as stream:
        stream.write(page)
    return path
