"""The page of `treemax serve` on a large tree: `python -m benchmarks.experiments.serving_page [LABELS]`.

Trains a LabelTree of so many labels (700,000 by default) on generated texts, one each, serves it, and drives Debian's
chromium with selenium: the first paint, the time from a click on a node until its panel is drawn, and the processor
time that the server needs for a node. Needs the extra `serve`, selenium, chromium and chromium-driver.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import FOLDER
from benchmarks.harness.output import help_if_asked, store

LABELS, VOCABULARY, TOPICS, WORDS = 700_000, 20_000, 2_000, 6
LOADS, NODES = 7, 100
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1280,900",
)  # fmt: skip
OPEN = """
const [nodes, done] = arguments;
(async () => {
  const times = [];
  for (const node of nodes) {
    const start = performance.now();
    await window.treemaxOpen(node);
    times.push(performance.now() - start);
  }
  done(times);
})();
"""


def model_file(n_labels: int) -> Path:
    """Train the model, if it is not in the cache."""
    import treemax

    path = FOLDER / ".cache" / f"serving-page-{n_labels}.treemax"
    if path.exists():
        return path
    draws = np.random.default_rng(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = np.array(sorted({"".join(draws.choice(syllables, 3)) for _ in range(24_000)})[:VOCABULARY], dtype=object)
    draws.shuffle(words)
    own = (len(words) * draws.random((n_labels, WORDS)) ** 2).astype(int)
    topic = draws.integers(0, TOPICS, n_labels)  # gives the first two words of a label
    own[:, 0], own[:, 1] = topic, (7 * topic + draws.integers(0, 3, n_labels)) % len(words)
    labels = np.array([f"{' '.join(words[row[:3]])} {i}" for i, row in enumerate(own)], dtype=object)
    chosen = np.argsort(draws.random(own.shape), axis=1)[:, : WORDS - 1]
    texts = [" ".join(row) for row in words[np.take_along_axis(own, chosen, 1)]]
    model = treemax.TextModel(estimator=treemax.LabelTree(cost=1.0, passes=3, n_jobs=1)).fit(texts, labels)
    path.parent.mkdir(exist_ok=True)
    model.save(path)
    return path


def processor_times(path: Path, nodes: list[str]) -> list[float]:
    """Milliseconds of the processor for each node."""
    import treemax
    from treemax.serving.outline import node_outline

    model, times = treemax.load(path), []
    node_outline(model, "root", 0, 200)
    for node in nodes:
        start = time.process_time()
        node_outline(model, node, 0, 200)
        times.append(1e3 * (time.process_time() - start))
    return times


def in_browser(url: str, nodes: list[str]) -> tuple[list[float], list[float]]:
    """Milliseconds to the first paint of each load, and to open each node."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver: Any = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        try:
            paints = []
            for _ in range(LOADS):
                driver.get(url)

                def ready() -> Any:
                    return driver.execute_script(
                        "return document.documentElement.dataset.ready"
                        " && performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                    )

                while not ready():
                    time.sleep(0.05)
                paints.append(float(ready()))
            time.sleep(3)  # what the map loads by itself
            driver.set_script_timeout(300)
            return paints, driver.execute_async_script(OPEN, nodes)
        finally:
            driver.quit()


def main(n_labels: int) -> None:
    path = model_file(n_labels)
    random.seed(0)
    nodes = [str(node) for node in random.sample(range(1, n_labels // 150), NODES)]  # inner nodes come first
    spent = processor_times(path, nodes)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "treemax", "serve", str(path), "--port", "0", "--data", folder]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            url = next(found[1] for line in server.stderr if (found := re.search(r" on (http://\S+)", line)))
            paints, opened = in_browser(url, nodes)
        finally:
            server.terminate()
            server.wait()
    rows = [
        [what, *(float(np.percentile(times, q)) for q in (50, 95)), most]
        for what, times, most in (
            ("first paint", paints, 1000.0),
            ("opening a node", opened, 100.0),
            ("of that, processor of the server", spent, None),
        )
    ]
    for row in rows:
        print(row)
    store(
        "systems", "serving-page", title=f"The page on a tree of {n_labels:,} labels",
        shows=f"Milliseconds in chromium at 1280 pixels, {LOADS} loads and {NODES} random inner nodes with all their "
        "children. The machine was busy with other work, so that the first two rows are upper bounds.",
        columns=["", *({"name": name, "decimals": 0} for name in ("median ms", "95th percentile ms", "wanted at most"))],
        rows=rows, machine="a two-core x86-64 machine",
    )  # fmt: skip


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LABELS)
