"""Pictures of the pages and of the terminal: for the README, and to look at all pages after a change.

    python docs/figures/screenshots.py                       # docs/figures/report.png and terminal.svg
    python docs/figures/screenshots.py --all /tmp/pages      # each page, 1280 and 400 pixels wide, light and dark, with its tabs

Needs Chromium and playwright, which CI installs. Pages that lie in the folder already are not made again; `--only` names some.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTHS = {1280: 900, 400: 800}
MODEL = "mobilenet.keras"
PAGES = {
    "report": f"inspect {MODEL} --batch 8 --trust --measure --profile --html report.html",
    "plan": f"optimize {MODEL} --batch 8 --budget 50% --trust --measure --html plan.html",
    "draw": "draw served draw.html",
    "draw_training": "draw training.pb draw_training.html",
    "compare": f"compare {MODEL} narrow.keras --batch 8 --html compare.html",
    "sweep": f"sweep {MODEL} --batch 1,2,4,8 --budget 1GiB --optimized 50% --html sweep.html",
    "profile": f"profile {MODEL} --batch 8 --trust --html profile.html",
    "advise": f"advise {MODEL} --batch 32 --memory 1GiB --html advise.html",
}
"""By page the command that writes it."""
README = f"optimize {MODEL} --batch 16 --budget 50% --chart --html plan.html"
LINES = 39  # of the terminal's picture
COLORS = 256  # of the report's, which keeps it small


def make_models(folder: Path) -> None:
    """The models that the commands name."""
    if (folder / "training.pb").exists():
        return
    import keras
    import tensorflow as tf

    from graphwright.step.targets import trace

    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.save(folder / MODEL)
    model.export(folder / "served", verbose=False)
    narrow = keras.applications.MobileNetV2(weights=None, alpha=0.5)
    narrow.compile("adam", "sparse_categorical_crossentropy")
    narrow.save(folder / "narrow.keras")
    graph = trace(model, batch=8).function.graph.as_graph_def()
    tf.io.write_graph(graph, str(folder), "training.pb", as_text=False)


def run(command: str, folder: Path, columns: int = 80) -> str:
    """What `graphwright` prints on a terminal, colors included."""
    words = [sys.executable, "-m", "graphwright", *shlex.split(command)]
    terminal = {"COLUMNS": str(columns), "FORCE_COLOR": "1", "TERM": "xterm-256color", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, cwd=folder, env=os.environ | terminal, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"graphwright {command}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def terminal_picture(command: str, printed: str, path: Path, columns: int = 80) -> None:
    """A terminal window with a command and what it printed."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=columns, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ graphwright {command}", style="bold"))
    lines = printed.rstrip().splitlines()
    console.print(Text.from_ansi("\n".join([*lines[:LINES], "..."] if len(lines) > LINES else lines)))
    path.write_text(console.export_svg(title="graphwright", unique_id="terminal"), encoding="utf-8")


def shoot(browser: Any, page: Path, to: Path, *, width: int, scheme: str, height: int | None = None) -> None:
    """Each tab of a page, whole; with a height only the first, cut there."""
    window = {"width": width, "height": height or WIDTHS[width]}
    opened = browser.new_page(viewport=window, color_scheme=scheme, device_scale_factor=1 if height is None else 2)
    opened.set_default_timeout(120_000)
    opened.on("pageerror", lambda error: sys.stderr.write(f"{page.name}: {error}\n"))
    opened.goto(page.as_uri())
    opened.wait_for_load_state("load")
    opened.wait_for_timeout(1500)
    if height is not None:
        opened.screenshot(path=to)
        opened.close()
        return
    tabs = opened.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)")
    for tab in tabs or [""]:
        if tab:
            opened.locator(f"#{tab}").click()
            opened.wait_for_timeout(700)
        too_wide = opened.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if too_wide > 0:
            sys.stderr.write(f"{page.name} {tab} at {width}: {too_wide} pixels wider than the window\n")
        name = re.sub(r"^tab-", "", tab)
        opened.screenshot(path=to / f"{page.stem}{'-' if name else ''}{name}_{width}_{scheme}.png", full_page=True)
    opened.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="pictures of all pages; pages and models are kept there")
    parser.add_argument("--only", nargs="*", choices=PAGES, default=list(PAGES), help="of all pages these")
    chosen = parser.parse_args()
    from PIL import Image
    from playwright.sync_api import sync_playwright

    program = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        folder: Path = (chosen.all or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        make_models(folder)
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        if not chosen.all:
            terminal_picture(README, run(README, folder), HERE / "terminal.svg")
            shoot(browser, folder / "plan.html", HERE / "report.png", width=1280, scheme="light", height=900)
            with Image.open(HERE / "report.png") as picture:
                small = picture.convert("RGB").quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
            small.save(HERE / "report.png", optimize=True)
        for name in chosen.only if chosen.all else []:
            page = folder / f"{name}.html"
            if not page.exists():
                run(PAGES[name], folder)
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    shoot(browser, page, folder, width=width, scheme=scheme)
        browser.close()


if __name__ == "__main__":
    main()
