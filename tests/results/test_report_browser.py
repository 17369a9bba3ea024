"""The report in headless Chromium: at desktop and phone width, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_report import (
    ARMS,
    HOSTILE,
    add_artefacts,
    add_items,
    gsm8k_rows,
    made_campaign,
    made_rows,
)

from results.report import write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)

WIDTHS = {"desktop": 1280, "phone": 390}

CLIPPED = """
const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  if (!node.textContent.trim()) continue;
  const parent = node.parentElement;
  if (['TITLE', 'STYLE'].includes(parent.tagName.toUpperCase())) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const box = range.getBoundingClientRect();
  if (!box.width) continue;
  const holder = parent.closest('svg') || parent.closest('td, th, dd, dt, li, p, h1, h2, h3, h4');
  const limit = holder ? holder.getBoundingClientRect() : {left: 0, right: innerWidth};
  let inside = box.left >= limit.left - 1 && box.right <= limit.right + 1;
  if (parent.closest('svg')) {
    inside = inside && box.top >= limit.top - 1 && box.bottom <= limit.bottom + 1;
  }
  let scrolled = false;
  for (let e = parent; e; e = e.parentElement) scrolled = scrolled || scrolls(e);
  if (!scrolled) inside = inside && box.left >= 0 && box.right <= innerWidth + 1;
  if (!inside) found.push(node.textContent.trim().slice(0, 60));
}
return found;
"""

OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll('svg')) {
  if (getComputedStyle(svg).display === 'none') continue;
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map(t => t.getBoundingClientRect());
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const a = boxes[i], b = boxes[j];
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 2 && y > 4) found.push(texts[i].textContent + ' | ' + texts[j].textContent);
  }
}
return found;
"""

CONTRASTS = """
const style = getComputedStyle(document.documentElement);
const luminance = name => {
  const hex = style.getPropertyValue(name).trim();
  const part = i => {
    const v = parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16) / 255;
    return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2);
};
const paper = luminance('--paper');
return Object.fromEntries(arguments[0].map(name => {
  const other = luminance(name);
  return [name, (Math.max(paper, other) + 0.05) / (Math.min(paper, other) + 0.05)];
}));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of a campaign with all its artefacts, and of a large one with hostile text."""
    root = tmp_path_factory.mktemp("reports")
    rows = made_rows(
        concs=(1, 8), spec_method="dspark", spec_tokens=2, acceptance_length=2.4,
        acceptance_rate_pos0=0.8, acceptance_rate_pos1=0.6,
    )  # fmt: skip
    rows[3] |= {"valid": False, "invalid_reasons": "errors: 5 errors to 20 completed, above 0.1"}
    gsm8k = gsm8k_rows()
    full = made_campaign(root / "full", [*rows, *gsm8k])
    for row in rows:
        add_artefacts(full, row)
    add_items(full, gsm8k[0])
    add_items(full, gsm8k[1], flip=0)
    name = f"upstream {HOSTILE} " + "x" * 90
    rows = made_rows(
        configs=("tp1", "tp2-dp2-ep4"), concs=(1, 4, 16, 64), arms=(*ARMS[:2], name), pairs=2,
        model=f"org/{'model-' * 30}", note=HOSTILE,
    )  # fmt: skip
    for number, row in enumerate(rows):
        row["point"] = f"{number:03}"
    large = made_campaign(root / "large", rows)
    one = made_campaign(root / "one", made_rows(pairs=1))
    return {path.name: write_report(path)[0] for path in (full, large, one)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["full", "large", "one"])
def test_the_page_is_whole_at_every_width_and_in_both_schemes(
    browser: Any, pages: dict[str, Path], name: str, width: str, scheme: str
) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": WIDTHS[width], "height": 844, "deviceScaleFactor": 1,
         "mobile": width == "phone"},
    )  # fmt: skip
    browser.get_log("browser")
    browser.get(pages[name].as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    run = browser.execute_script
    assert browser.get_log("browser") == []
    assert run("return innerWidth") == WIDTHS[width]
    assert run("return document.documentElement.scrollWidth") <= WIDTHS[width]
    assert run(CLIPPED) == []
    assert run(OVERLAPS) == []
    shown = {"desktop": "wide", "phone": "narrow"}[width]
    displayed = run(
        "return [...document.querySelectorAll('figure svg')]"
        ".filter(s => getComputedStyle(s).display !== 'none').map(s => s.classList[0])"
    )
    assert displayed and set(displayed) == {shown}
    assert run("return performance.getEntriesByType('resource').map(r => r.name)"
               ".filter(n => !n.startsWith('data:'))") == []  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_paper(
    browser: Any, pages: dict[str, Path], scheme: str
) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.get(pages["one"].as_uri())
    names = ["--ink", "--muted", "--accent", "--good", "--bad", *(f"--side-{i}" for i in range(5))]
    contrasts = browser.execute_script(CONTRASTS, names)
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 3 * 128) == (scheme == "dark")


def test_every_figure_has_a_name_and_every_scrolling_table_is_reachable(
    browser: Any, pages: dict[str, Path]
) -> None:
    browser.get(pages["full"].as_uri())
    run = browser.execute_script
    assert run(
        "return [...document.querySelectorAll('svg')].every("
        "  s => document.getElementById(s.getAttribute('aria-labelledby')).textContent)"
    )
    assert run(
        "return [...document.querySelectorAll('.scroll')].every("
        "  e => e.tabIndex === 0 && e.getAttribute('aria-label'))"
    )
    assert run("return document.documentElement.lang") == "en"
