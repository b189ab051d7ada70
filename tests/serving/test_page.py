"""The page in a real browser: Debian's chromium with selenium. Skipped without them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time

import pytest

import treemax
from tests.serving.test_offline_page import HOSTILE
from tests.serving.test_outline import texts_and_labels
from treemax.formats import Examples
from treemax.inputs.labels import read_labels
from treemax.serving.offline_page import offline_page

pytest.importorskip("selenium")
pytest.importorskip("uvicorn")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromium-driver are not installed"),
]
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
WITHOUT_A_NAME = """
return [...document.querySelectorAll("button, input, select, textarea, canvas")].filter((each) => each.offsetParent
  && !(each.getAttribute("aria-label") || each.getAttribute("aria-labelledby") || each.getAttribute("aria-describedby")
       || each.labels?.length || each.textContent.trim())).map((each) => each.outerHTML.slice(0, 80));
"""


class Page:
    """A browser with the page, and what tests ask of it."""

    def __init__(self, profile, width, dark):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, url):
        self.driver.get(url)
        self.until("return document.documentElement.dataset.ready === 'yes'")
        self.run("window.alerts = []; window.alert = (text) => window.alerts.push(text)")
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, script, *arguments, seconds=60):
        """Wait until a script returns something true."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"did not become true: {script}"
            time.sleep(0.05)
        return found

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def until_best(self, label):
        self.until("return document.querySelector('.answer .name')?.textContent === arguments[0]", label)

    def until_node(self, title):
        self.until("return document.getElementById('node-title').textContent === arguments[0]", title)

    def ask(self, text, label):
        field = self.find("#text")
        field.clear()
        field.send_keys(text)
        self.until_best(label)

    def problems(self):
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if e["level"] == "SEVERE" and "status of 40" not in e["message"]]


@pytest.fixture(params=[(390, True), (1280, False)], ids=["phone, dark", "desk, light"])
def page(request, tmp_path):
    page = Page(tmp_path / "profile", *request.param)
    try:
        yield page
        assert page.problems() == []
        assert page.run("return window.alerts") == []
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"
        assert page.run(WITHOUT_A_NAME) == []
    finally:
        page.driver.quit()


def with_hostile_labels():
    texts, labels = texts_and_labels()
    texts += [f"strange{i} word{i}" for i in range(len(HOSTILE))] * 3
    return texts, [*labels, *HOSTILE, *HOSTILE, *HOSTILE]


def served(path, folder):
    command = [sys.executable, "-m", "treemax", "serve", str(path), "--port", "0", "--data", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r" on (http://\S+)", line):
            return process, found[1]
    raise AssertionError("".join(lines))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    treemax.TextModel(estimator=treemax.LabelTree(max_leaf=3)).fit(*with_hostile_labels()).save(folder / "m.treemax")
    process, url = served(folder / "m.treemax", folder / "data")
    yield url
    process.terminate()
    process.wait()


def test_typing_shows_labels_words_and_path(page, address):
    page.open(address)
    page.ask("an apple is a fruit", "apple")
    page.until("return document.querySelectorAll('#mirror mark').length > 0")
    assert "apple" in page.run("return [...document.querySelectorAll('#mirror mark')].map((m) => m.textContent)")
    page.until("return document.querySelector('#path li:last-child').textContent.includes('apple')")
    widths = page.run(
        "return [...document.querySelectorAll('.answer .bar i')].map((bar) => parseFloat(bar.style.width))"
    )
    assert widths == sorted(widths, reverse=True) and 0 < widths[0] <= 100
    assert page.find("#status").get_attribute("textContent").startswith("Best: apple")
    page.ask("a bus is a vehicle", "bus")


def test_late_answers_are_ignored(page, address):
    page.open(address)
    page.run("""
        const real = window.fetch; window.late = 0;
        window.fetch = async (path, options) => {
          const reply = await real(path, { ...options, signal: undefined });
          if (options.body?.includes("cat")) { await new Promise((done) => setTimeout(done, 1500)); window.late++; }
          return reply;
        };""")
    field = page.find("#text")
    field.send_keys("cat animal")
    time.sleep(0.4)
    field.clear()
    page.ask("oak tree", "oak")
    page.until("return window.late >= 2")
    time.sleep(0.2)
    page.until_best("oak")


def test_nodes_open_by_pointer_and_by_keyboard(page, address):
    from selenium.webdriver.common.keys import Keys

    page.open(address)
    page.until_node("All labels")
    page.find(".children button").click()
    page.until("return document.querySelector('#trail button')?.textContent === 'All labels'")
    page.find("#trail button").click()
    page.until_node("All labels")
    canvas = page.find("#map")
    canvas.send_keys(Keys.HOME, Keys.ARROW_DOWN)
    page.until("return document.getElementById('map-said').textContent.includes('level 1')")
    canvas.send_keys(Keys.ENTER)
    page.until("return document.getElementById('node-title').textContent !== 'All labels'")
    canvas.send_keys(Keys.ESCAPE)
    page.until("return document.getElementById('map-said').textContent.startsWith('All labels')")


def test_a_click_on_the_map_opens_a_node(page, address):
    page.open(address)
    page.run("""
        const map = document.getElementById("map"), frame = map.getBoundingClientRect();
        const at = { clientX: frame.left + 20, clientY: frame.top + frame.height / 3 + 20, bubbles: true };
        map.dispatchEvent(new MouseEvent("click", at));""")
    page.until("return document.getElementById('node-title').textContent !== 'All labels'")


def test_search_finds_a_label_and_its_place(page, address):
    from selenium.webdriver.common.keys import Keys

    page.open(address)
    field = page.find("#search-input")
    field.send_keys("tra")
    page.until("return document.querySelectorAll('#search-options [role=option]').length > 0")
    assert field.get_attribute("aria-expanded") == "true"
    field.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    page.until_node("tram")
    page.until("return document.activeElement.id === 'node-title'")


def test_the_slider_backs_off_to_parents(page, address):
    page.open(address)
    page.ask("apple", "apple")
    page.until("return !document.getElementById('backoff').hidden")
    set_to = """const slider = document.getElementById("confidence"); slider.value = arguments[0];
                slider.dispatchEvent(new Event("input")); return document.getElementById("backed").textContent"""
    assert page.run(set_to, 0).startswith("apple")
    assert re.match("one of|any of", page.run(set_to, 99))


def test_hostile_labels_are_only_text(page, address):
    page.open(address)
    for i, label in enumerate(HOSTILE):
        page.ask(f"strange{i} word{i}", label)
        page.until("return document.getElementById('path').textContent.includes(arguments[0])", label)
        page.find("#to-answer").click()
        page.until_node(label)
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0


def test_a_wrong_answer_is_corrected_with_one_click(page, tmp_path):
    from selenium.webdriver.common.keys import Keys

    model = treemax.TextModel(treemax.TfidfText(), treemax.OnlineLabelTree(random_state=0)).fit(*texts_and_labels())
    model.save(tmp_path / "online.treemax", resume=True)
    process, url = served(tmp_path / "online.treemax", tmp_path / "data")
    try:
        page.open(url)
        if not page.run("return fetch('models').then((r) => r.json()).then((found) => found.models[0].learns)"):
            pytest.skip("the service does not learn")
        page.find("#text").send_keys("red old big")
        page.until("return document.querySelectorAll('button.right').length > 1")
        second = page.run("return document.querySelectorAll('.answer .name')[1].textContent")
        page.driver.find_elements("css selector", "button.right")[1].click()
        page.until("return document.getElementById('learned').textContent.startsWith('Learned')")
        note = page.find("#learned").text
        assert second in note and "→" in note
        page.find("#learned button").click()
        page.until("return document.getElementById('learned').textContent.startsWith('Undone')")
        page.find("#correct-input").send_keys("novelty")
        page.until("return document.querySelector('#correct-options')?.textContent.includes('New label: novelty')")
        page.find("#correct-input").send_keys(Keys.ENTER)
        page.until("return document.getElementById('learned').textContent.includes('novelty')")
        page.until("return document.getElementById('facts').textContent.includes('13 labels')")
        page.until("return document.getElementById('progress-text').textContent.startsWith('Of 1 example')")
    finally:
        process.terminate()
        process.wait()


def test_several_labels_of_a_text_are_taught_together(page, tmp_path):
    texts, labels = texts_and_labels()
    model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree(random_state=0))
    model.fit(texts, [[label, "thing"] for label in labels]).save(tmp_path / "online.treemax", resume=True)
    process, url = served(tmp_path / "online.treemax", tmp_path / "data")
    try:
        page.open(url)
        page.find("#text").send_keys(texts[0])
        page.until("return document.querySelectorAll('button.right').length > 1")
        assert not page.find("#teach-marked").is_displayed()
        names = page.run("return [...document.querySelectorAll('.answer .name')].map((each) => each.textContent)")
        for place in (0, 1, 2, 2):  # the third is marked, then no longer
            page.driver.find_elements("css selector", "button.right")[place].click()
        assert page.find("#teach-marked").text == f"Teach {names[0]}, {names[1]}"
        page.find("#teach-marked").click()
        page.until("return document.getElementById('learned').textContent.startsWith('Learned')")
        page.until("return document.getElementById('teach-marked').hidden")
        [example] = page.run("return fetch('log').then((r) => r.json())")["examples"]
        assert example["labels"] == names[:2]
        page.until("return document.getElementById('progress-text').textContent.startsWith('Of 1 example')")
    finally:
        process.terminate()
        process.wait()


def test_the_offline_page(page, tmp_path):
    texts, labels = with_hostile_labels()
    model = treemax.TextModel(estimator=treemax.LabelTree(max_leaf=3)).fit(texts, labels)
    own = ["apple fruit", "strange0 word0", "cat animal"]
    examples = Examples(read_labels([["pear"], [HOSTILE[0]], ["cat"]]), texts=own)
    (tmp_path / "page.html").write_bytes(offline_page(model, HOSTILE[0], [examples]).html)
    page.open((tmp_path / "page.html").as_uri())
    page.until_best("apple")
    page.until("return document.querySelectorAll('#mirror mark').length > 0")
    assert "pear taken for apple" in page.find("#confusions").text
    page.find("#another").click()
    page.until_best(HOSTILE[0])
    page.find("#to-answer").click()
    page.until_node(HOSTILE[0])
    page.find("#search-input").send_keys("tram")
    page.until("return document.querySelectorAll('#search-options [role=option]').length === 1")
    page.run(
        "document.querySelector('#search-options [role=option]').dispatchEvent(new MouseEvent('mousedown', {cancelable: true}))"
    )
    page.until_node("tram")
    assert not page.run("return performance.getEntriesByType('resource').some((each) => /^http/.test(each.name))")
