"""What all pages share: templates, styles and scripts become one HTML file that needs no network.

The charts are drawn by plotly.js, which the plotly wheel ships as one file of some 5 MB, nearly
the whole of the page. A smaller library would do for the drawing; but it must come as a
Python package with its JavaScript inside (nothing is fetched, at installation or later), have
stacked areas with hover text, and bring few packages along. A content security policy in the
page forbids every request, so that "offline" does not rest on the library's good behavior.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphwright.files import file_for_user
from graphwright.report.results import ROLES
from graphwright.report.summary import NO_LAYER
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time, glue_units

_STYLES = ("theme.css", "report.css", "tables.css")
_SCRIPTS = ("report.js", "tables.js", "memory.js")


def render_page(template: str, scripts: Sequence[str] = (), styles: Sequence[str] = (), **values: Any) -> str:
    """The text of a page with charts.

    Args:
        template: its file, which extends `base.html`.
        scripts: files to run after those that every page has.
        styles: the same for style sheets.
        values: what the template shows.
    """
    library = plotly_script()
    assert "</script" not in library.lower(), "plotly.js would end the script element that holds it"
    # The scripts are our own and trusted; everything else on the page is escaped.
    return (
        environment()
        .get_template(template)
        .render(
            values,
            plotly=Markup(library),
            style=Markup("\n".join(source(name) for name in (*_STYLES, *styles))),
            script=Markup("\n".join(source(name) for name in (*_SCRIPTS, *scripts, "start.js"))),
        )
    )


def page_data(top_bytes: int, budget_bytes: int | None = None, timelines: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """What the scripts of a page draw from.

    Args:
        top_bytes: how high its charts of memory reach.
        timelines: memory over steps, see `timeline_data`.
        more: what single scripts ask for.
    """
    shared = {"roles": ROLES, "noLayer": NO_LAYER, "topBytes": top_bytes, "budgetBytes": budget_bytes, "timelines": timelines}
    return {**shared, "curve": None, **more}


def plotly_script() -> str:
    offline: Any = importlib.import_module("plotly.offline")
    script: str = offline.get_plotlyjs()
    return script


@cache
def environment() -> jinja2.Environment:
    """The templates, with the filters that format figures. What they show is escaped."""
    made: Any = jinja2.Environment(
        loader=jinja2.FunctionLoader(source), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # `tojson` escapes <, >, & and quotes; nan has no place in JSON, and a browser would refuse the whole page's data.
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.policies["json.dumps_function"] = json.dumps
    made.filters |= {
        "bytes": format_bytes,
        "count": format_count,
        "flops": format_flops,
        "percent": format_percent,
        "seconds": format_time,
        "glued": glue_units,
        "breakable": breakable,
    }
    return made


def breakable(name: str) -> Markup:
    """A name that may go on in the next line behind each slash.

    >>> breakable("net/<b>/conv")
    Markup('net/<wbr>&lt;b&gt;/<wbr>conv')
    """
    return Markup("/<wbr>").join(name.split("/"))


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
