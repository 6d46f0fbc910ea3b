"""Pages opened in a headless Chromium."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.programs import CHROMIUM


def open_in_browser(page: str, tmp_path: Path, probe: str) -> tuple[str, dict[str, object]]:
    """The page's elements after its scripts ran, and what `probe` (the body of a function) returned.

    Errors and requests that the content security policy refused are counted from the start.
    """
    watch = """<script>window.seen = {errors: [], refused: []};
    addEventListener("error", (event) => seen.errors.push(event.message));
    addEventListener("securitypolicyviolation", (event) => seen.refused.push(event.blockedURI));</script>"""
    ask = f"""<script>addEventListener("load", () => setTimeout(() => {{
      const said = document.createElement("pre");
      said.id = "probe";
      said.textContent = JSON.stringify({{...window.seen, ...(() => {{ {probe} }})()}});
      document.body.append(said);
    }}, 500));</script>"""
    file = tmp_path / "page.html"
    file.write_text(page.replace("<head>", "<head>" + watch, 1).replace("</body>", ask + "</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2400",
        "--virtual-time-budget=10000", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return dom, json.loads(html.unescape(found.group(1)))


def data_of(page: str) -> dict[str, Any]:
    """What the scripts of a page draw from."""
    found = re.search(r'<script type="(application/json|text/plain)" id="report-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[2] if found[1] == "application/json" else gzip.decompress(base64.b64decode(found[2])))
