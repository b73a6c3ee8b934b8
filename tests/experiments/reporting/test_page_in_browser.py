"""The page in a real browser: it sorts, filters, exports, shows tips, fits the screen; its console stays silent.

Skipped where there is no Chromium; with OUTRIDER_NEEDS_BROWSER=1 that is a failure.
"""

import csv
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from experiments.reporting.page.render import write_page
from experiments.results.record_diff import diff_records
from tests.support.page_records import HOSTILE, full_records, sweep_records

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        if os.environ.get("OUTRIDER_NEEDS_BROWSER"):
            pytest.fail("OUTRIDER_NEEDS_BROWSER is set, and there is no chromium or no chromedriver")
        pytest.skip("no chromium and chromedriver")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(full_records(), path, changes=diff_records(full_records(), full_records()))
    return path


@pytest.fixture
def page(browser: Chrome, file: Path) -> Iterator[Chrome]:
    """The page, opened anew from the disk on a wide screen; whatever a test does, the console stays empty."""
    show(browser, width=1280)
    browser.get(file.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def show(browser: Chrome, *, width: int, dark: bool = False) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def found(page: Chrome, selector: str) -> list[WebElement]:
    return page.find_elements(By.CSS_SELECTOR, selector)


def point_at(page: Chrome, x: float, y: float) -> None:
    actions = ActionBuilder(page)
    actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()


def column(page: Chrome, heading: str) -> list[str]:
    """The cells of the table's visible rows, without intervals."""
    script = """
        const headings = [...document.querySelectorAll("table.points thead th")].map((each) => each.innerText.trim());
        return [...document.querySelectorAll("table.points tbody tr")].filter((row) => row.offsetParent !== null)
            .map((row) => row.cells[headings.indexOf(arguments[0])])
            .map((cell) => cell.tagName === "TD" ? cell.firstChild?.textContent ?? "" : cell.textContent);
    """
    return page.execute_script(script, heading)


def heading(page: Chrome, name: str) -> WebElement:
    (button,) = [each for each in found(page, "table.points thead button") if each.text == name]
    return button


@pytest.mark.slow
def test_a_heading_sorts_by_its_column_and_back(page: Chrome) -> None:
    before = column(page, "measured speedup")
    known = sorted((each for each in before if each not in ("–", "")), key=float)
    missing = len(before) - len(known)
    assert missing and before != known
    button = heading(page, "measured speedup")
    button.click()
    assert column(page, "measured speedup")[: len(known)] == known[::-1]
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.ENTER)
    assert column(page, "measured speedup")[: len(known)] == known  # what is missing is last again
    assert [each.get_attribute("aria-sort") for each in found(page, "table.points [aria-sort]")] == ["ascending"]
    heading(page, "drafter").click()
    names = [name.lower() for name in column(page, "drafter") if name[0] != "<"]
    assert names == sorted(names)


@pytest.mark.slow
def test_words_settings_and_drafters_filter_table_and_pictures(page: Chrome) -> None:
    assert page.find_element(By.ID, "count").text == "7 points"
    search = page.find_element(By.ID, "search")
    search.send_keys("ngram T = 0")
    assert [name.split("\n")[0][:5] for name in column(page, "drafter")] == ["ngram"]
    assert page.find_element(By.ID, "count").text == "1 of 7 points"
    assert [each.text for each in found(page, ".rows.speedups .label") if each.is_displayed()] == ["ngram"]
    search.send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    Select(page.find_element(By.ID, "group")).select_by_index(1)
    assert len(set(column(page, "setting"))) == 1
    Select(page.find_element(By.ID, "group")).select_by_index(0)
    (toggle,) = found(page, "[data-toggles='small_transformer']")
    toggle.send_keys(Keys.SPACE)
    assert toggle.get_attribute("aria-pressed") == "false"
    assert not any("small_transformer" in name for name in column(page, "drafter"))
    assert not any(each.is_displayed() for each in found(page, ".line[data-drafter='small_transformer']"))
    toggle.click()
    assert page.find_element(By.ID, "count").text == "7 points"


def test_the_table_is_exported_as_it_is_shown(page: Chrome, tmp_path: Path) -> None:
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.find_element(By.ID, "search").send_keys("T = 0")
    heading(page, "measured speedup").click()
    page.find_element(By.ID, "csv").click()
    file = tmp_path / "outrider.csv"
    WebDriverWait(page, 10).until(lambda _: file.exists() and file.stat().st_size)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["measured speedup"] for row in rows] == column(page, "measured speedup")
    assert [row["drafter"] for row in rows[:3]] == ["small_transformer", "ngram", "baseline"]
    assert rows[0]["rule"] == "speculative_sampling · exact" and rows[0]["setting"] == "T = 0, batch_size 1"
    assert rows[0]["95% of speedup"] == "2.48–2.58" and rows[2]["95% of speedup"] == ""
    assert rows[0]["efficiency"] == "0.83" and rows[2]["efficiency"] == ""
    assert rows[3]["drafter"] == "<i>typical</i>"


@pytest.mark.slow
def test_marks_and_headings_show_tips_as_elements(page: Chrome) -> None:
    assert found(page, "[title], svg title") == []  # the browser's own would be slow, small, and absent on a phone
    tip = page.find_element(By.ID, "tip")
    (mark,) = found(page, "[data-tip^='small_transformer, batch size 2: measured speedup 1.20']")
    page.execute_script("arguments[0].closest('.panel').scrollIntoView({block: 'center'})", mark)
    box = page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", mark)
    point_at(page, box["left"] + 10, box["top"] + 10)  # near is enough
    assert tip.text == "small_transformer, batch size 2: measured speedup 1.20 (1.15 to 1.25)"
    point_at(page, box["left"] + 60, box["top"] - 40)
    assert not tip.is_displayed()
    page.execute_script("arguments[0].focus()", heading(page, "c"))
    assert tip.text == "time of a draft step ÷ time of a target pass over one row"
    ActionChains(page).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_the_prompt_stands_before_what_was_decoded(page: Chrome) -> None:
    prompt, text = page.find_element(By.ID, "prompt"), page.find_element(By.ID, "text")
    assert prompt.text == f"# {HOSTILE}" and not found(page, "#prompt button")
    assert prompt.location["y"] < text.location["y"]
    Select(page.find_element(By.ID, "token-prompt")).select_by_index(1)  # 21 lines, of which 8 are shown
    assert HOSTILE not in prompt.text and prompt.text.count("import this") == 8
    page.find_element(By.CSS_SELECTOR, "#prompt button").click()
    assert prompt.text.startswith(f"# {HOSTILE}") and prompt.text.count("import this") == 20


def test_tokens_tell_of_themselves_where_one_points(page: Chrome) -> None:
    tokens, tip = found(page, ".token"), page.find_element(By.ID, "tip")
    assert len(tokens) == 6 and not tip.is_displayed()
    ActionChains(page).move_to_element(tokens[2]).perform()
    assert tip.is_displayed()
    printed = " ".join(tip.text.split())
    assert printed == "( replaced: the target's, in place of a drafted one p 0.25 q 0.001 instead of [ p 0.125 q 0.875"
    ActionChains(page).move_to_element(page.find_element(By.ID, "tokens-title")).perform()
    assert not tip.is_displayed()
    assert tokens[5].text == HOSTILE and page.title.startswith("Outrider")


def test_tokens_are_reached_by_keys_alone(page: Chrome) -> None:
    page.find_element(By.ID, "token-prompt").send_keys(Keys.TAB)
    focused, tip = page.switch_to.active_element, page.find_element(By.ID, "tip")
    assert focused.get_attribute("aria-label") == "def, plain" and tip.is_displayed()
    focused.send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("aria-label") == "␣f, accepted, p 0.75, q 0.5"
    assert "accepted" in tip.text
    page.switch_to.active_element.send_keys(Keys.END)
    page.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert page.switch_to.active_element.get_attribute("aria-label") == "▯, accepted, p 1.0e-5, q 1"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    assert len(found(page, ".token[tabindex='0']")) == 1


def test_another_point_and_prompt_can_be_chosen(page: Chrome) -> None:
    assert len(Select(page.find_element(By.ID, "token-point")).options) == 4
    Select(page.find_element(By.ID, "token-prompt")).select_by_index(1)
    Select(page.find_element(By.ID, "token-point")).select_by_index(2)
    assert Select(page.find_element(By.ID, "token-prompt")).first_selected_option.text == "prompt 1"
    assert "3 accepted: drafted, and kept" in page.find_element(By.ID, "producers").text


# How much of every table is out of sight, but for those of numbers below a chart.
TABLES = (
    "return [...document.querySelectorAll('.scroller:has(> .sortable)')]"
    ".map((each) => each.scrollWidth - each.clientWidth)"
)
TRACKS = "return [...document.querySelectorAll('.track')].map((each) => each.getBoundingClientRect().height)"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen(page: Chrome, width: int, dark: bool) -> None:
    show(page, width=width, dark=dark)
    for details in found(page, "details"):
        page.execute_script("arguments[0].open = true", details)
    assert page.execute_script("return document.documentElement.scrollWidth") == width
    if width == 1280:
        assert max(page.execute_script(TABLES)) == 0
    assert min(page.execute_script(TRACKS)) >= 30, "a row without its marks"


# Pairs of texts of one picture or one row of it that cover each other.
COLLISIONS = """
    const found = [];
    for (const picture of document.querySelectorAll(".curves, .rows li, .axis svg, .legend")) {
        const texts = [...picture.querySelectorAll("text, span")]
            .filter((each) => each.textContent.trim() && each.checkVisibility());
        const boxes = texts.map((each) => each.getBoundingClientRect());
        boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, j) => {
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 1 && down > 1) found.push([texts[i].textContent, texts[i + 1 + j].textContent]);
        }));
    }
    return found;
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_curves_of_a_sweep_fit_the_screen_and_no_label_covers_another(page: Chrome, tmp_path: Path, width: int) -> None:
    records = sweep_records()
    write_page(records, tmp_path / "report.html", changes=diff_records(records, records))
    show(page, width=width)
    page.get((tmp_path / "report.html").as_uri())
    assert page.execute_script("return document.documentElement.scrollWidth") == width
    if width == 1280:
        assert max(page.execute_script(TABLES)) == 0
    titles = [each.text for each in found(page, ".sweep h2")]
    assert titles == ["Curves over γ", "Curves over batch size"]
    panels = [each.text for each in found(page, ".sweep .panel h3")][:9]
    conditions = ("T = 0, batch size 1", "T = 1, batch size 1", "T = 1, batch size 32")
    quantities = ("measured speedup", "τ", "α empirical")
    assert panels == [f"{quantity}, {condition}" for condition in conditions for quantity in quantities]
    tops = [each.rect["y"] for each in found(page, ".sweep .panel")]
    assert len(set(tops[:3])) == (1 if width == 1280 else 3)  # a condition is a line, or stands below itself
    assert page.execute_script(COLLISIONS) == []


def test_the_speedup_is_beside_the_drafter_on_a_phone(page: Chrome) -> None:
    show(page, width=390)
    second = found(page, "table.points thead th")[1]
    assert second.text == "measured speedup"
    assert second.rect["x"] + second.rect["width"] <= 390  # without scrolling the table


CONTRASTS = """
    const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const luminance = (colour) => channels(colour).map((value) => value / 255)
        .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    function behind(element) {
        for (let each = element; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if (colour.startsWith("rgb(")) return colour;
        }
    }
    return arguments[0].map((selector) => {
        const element = document.querySelector(selector);
        const [a, b] = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => b - a);
        return (a + 0.05) / (b + 0.05);
    });
"""


def test_text_can_be_read_in_the_light_and_in_the_dark(page: Chrome) -> None:
    selectors = ["h1", ".lead", ".facts dt", "table.points td", ".setting", ".good", ".alarm", "thead button"]
    selectors += [f".token.{producer}" for producer in ("accepted", "replaced", "bonus", "plain")]
    backgrounds = []
    for dark in (False, True):
        show(page, width=1280, dark=dark)
        contrasts = page.execute_script(CONTRASTS, selectors)
        too_weak = [selector for selector, ratio in zip(selectors, contrasts, strict=True) if ratio < 4.5]
        assert too_weak == []  # WCAG's AA for text
        backgrounds.append(page.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert backgrounds[0] != backgrounds[1]


def test_everything_has_a_name_for_a_screen_reader(page: Chrome) -> None:
    tree = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    shown = [node for node in tree if not node.get("ignored")]
    roles = {node["role"]["value"] for node in shown}
    assert {"table", "columnheader", "rowheader", "image", "listbox", "option", "searchbox", "button"} <= roles
    named = ("button", "image", "img", "table", "searchbox", "combobox", "listbox", "option", "region", "columnheader")
    nameless = [
        node for node in shown if node["role"]["value"] in named and not node.get("name", {}).get("value", "").strip()
    ]
    assert [node["role"]["value"] for node in nameless] == []
    rows = [node["name"]["value"] for node in shown if node["role"]["value"] == "image"]
    assert "measured 2.53, zero-overhead speedup 1.71, predicted (Thm 3.8) 1.91" in rows


def test_nothing_was_asked_of_a_network(page: Chrome) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)") == []
