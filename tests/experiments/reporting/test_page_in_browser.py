"""The page in a real browser: it sorts, filters, tells of tokens, fits the screen, and is silent in the console.

Skipped where there is no Chromium; with OUTRIDER_NEEDS_BROWSER=1 that is a failure.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

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


def column(page: Chrome, heading: str) -> list[str]:
    """The cells of the table's visible rows."""
    script = """
        const headings = [...document.querySelectorAll("table.points thead th")].map((each) => each.innerText.trim());
        return [...document.querySelectorAll("table.points tbody tr")].filter((row) => row.offsetParent !== null)
            .map((row) => row.cells[headings.indexOf(arguments[0])].textContent);
    """
    return page.execute_script(script, heading)


def heading(page: Chrome, name: str) -> WebElement:
    (button,) = [each for each in found(page, "table.points thead button") if each.text == name]
    return button


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


# How much of every table is out of sight.
TABLES = "return [...document.querySelectorAll('.scroller')].map((each) => each.scrollWidth - each.clientWidth)"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen(page: Chrome, width: int, dark: bool) -> None:
    show(page, width=width, dark=dark)
    for details in found(page, "details"):
        page.execute_script("arguments[0].open = true", details)
    assert page.execute_script("return document.documentElement.scrollWidth") == width
    if width == 1280:
        assert max(page.execute_script(TABLES)) == 0


def test_a_sweep_fits_the_screen(page: Chrome, tmp_path: Path) -> None:
    write_page(sweep_records(), tmp_path / "report.html", changes=diff_records(sweep_records(), sweep_records()))
    for width in (1280, 390):
        show(page, width=width)
        page.get((tmp_path / "report.html").as_uri())
        assert page.execute_script("return document.documentElement.scrollWidth") == width
        if width == 1280:
            assert max(page.execute_script(TABLES)) == 0


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
