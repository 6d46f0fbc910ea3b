"""What all pages share: templates, styles and scripts become one HTML file that needs no network.

The charts are drawn by the pages' own `charts.js`, so a page is little more than its figures. A content security policy in the
page forbids every request.
"""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphwright.errors import printable
from graphwright.files import file_for_user
from graphwright.report.measured_chart import Track
from graphwright.report.results import ROLES, Timeline
from graphwright.report.summary import NO_LAYER
from graphwright.report.timeline_chart import Words, timeline_data
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time, glue_units

_JSON: dict[str, Any] = {"allow_nan": False, "separators": (",", ":")}
_PACKED_FROM = 200_000  # characters of data, beyond which a page holds them compressed; browsers since 2023 unpack them
_STYLES = ("theme.css", "report.css", "tables.css")
_SCRIPTS = ("report.js", "charts.js", "tables.js", "memory.js")


def render_page(template: str, scripts: Sequence[str] = (), styles: Sequence[str] = (), **values: Any) -> str:
    """The text of a page with charts.

    Args:
        template: its file, which extends `base.html`.
        scripts: files to run after those that every page has.
        styles: the same for style sheets.
        values: what the template shows.
    """
    # The scripts are our own and trusted; everything else on the page is escaped.
    return (
        environment()
        .get_template(template)
        .render(
            values,
            packed=packed(values["data"]),
            style=Markup("\n".join(source(name) for name in (*_STYLES, *styles))),
            script=Markup("\n".join(source(name) for name in (*_SCRIPTS, *scripts, "start.js"))),
        )
    )


def packed(data: Any) -> str:
    """Data of a page as text that its script unpacks; "" where there is little, which stands there as it is."""
    text = _dumps(data, **_JSON)
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode() if len(text) > _PACKED_FROM else ""


def _dumps(data: Any, **options: Any) -> str:
    """ASCII JSON, without the characters that `printable` leaves out; ends of lines and halves of characters stay."""
    return re.sub(r"\\(?:u([0-9a-f]{4})|.)", _shown, json.dumps(data, **options))


def _shown(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16)) if escape[1] else {"b": "\b", "f": "\f", "r": "\r"}.get(escape[0][1], " ")
    return escape[0] if "\ud800" <= character <= "\udfff" or printable(character) == character else "\\ufffd"


def _finalized(value: Any) -> Any:
    return type(value)(printable(value, lines=True)) if isinstance(value, str) else value


def page_data(
    top_bytes: int,
    budget_bytes: int | None = None,
    timelines: Sequence[tuple[Timeline, Mapping[str, Any]]] = (),
    time_of: Mapping[str, float] | None = None,
    tracks: Sequence[Track] = (),
    **more: Any,
) -> dict[str, Any]:
    """What the scripts of a page draw from.

    Args:
        top_bytes: how high its charts of memory reach.
        timelines: memory over steps, each with its `id` on the page and, where there are several, its `title`.
        time_of: see `timeline_data`.
        tracks: measured memory over time.
        more: what single scripts ask for.
    """
    words = Words()
    drawn = [{**timeline_data(timeline, words, time_of), **said} for timeline, said in timelines]
    top_bytes = max([top_bytes, *(track.peak_bytes for track in tracks)])
    shared = {"roles": ROLES, "noLayer": NO_LAYER, "topBytes": top_bytes, "budgetBytes": budget_bytes, "timelines": drawn}
    shared |= {"tracks": [track.data() for track in tracks]}
    return {**shared, "words": list(words), "curve": None, **more}


@cache
def environment() -> jinja2.Environment:
    """The templates, with the filters that format figures. What they show is escaped."""
    made: Any = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    # `tojson` escapes <, >, & and quotes; nan has no place in JSON, and a browser would refuse the whole page's data.
    made.policies["json.dumps_kwargs"] = _JSON
    made.policies["json.dumps_function"] = _dumps
    made.filters |= {
        "bytes": format_bytes,
        "count": format_count,
        "flops": format_flops,
        "percent": format_percent,
        "seconds": format_time,
        "glued": glue_units,
        "breakable": breakable,
        "breakable_code": _breakable_code,
    }
    return made


def breakable(name: str, words: bool = True) -> Markup:
    """A name that may go on in the next line behind each slash and underscore, and with `words` before those of `Conv2DBackpropInput`.

    >>> breakable("net/<b>/conv_1")
    Markup('net/<wbr>&lt;b&gt;/<wbr>conv_<wbr>1')
    """
    return _broken(rf"(?<=[/_])(?=\S){'|(?<=[A-Za-z0-9])(?=[A-Z][a-z])' * words}", name)


def _breakable_code(code: str) -> Markup:
    return _broken(r"(?<=[(._=,/])(?=\w)", code)


def _broken(where: str, text: str) -> Markup:
    return Markup("<wbr>").join(re.split(where, text))


def source(name: str) -> str:
    """The text of a file in `templates`."""
    return resources.files("graphwright.report").joinpath("templates", name).read_text(encoding="utf-8")


def write_page(path: Path, page: str) -> Path:
    """Write the text of a page; a file that is there is replaced.

    Raises:
        ArgumentError: `path` is a folder, lies in no folder, or cannot be written.
    """
    with file_for_user(path) as stream:
        stream.write(page)
    return path
