"""Pages as a reader sees them: drawn in a headless Chromium, at the width of a phone and of a desk, light and dark.

Set KAPPAONE_SCREENSHOTS to a folder to keep the pictures.
"""

import os
from pathlib import Path

import pytest

from kappaone.reports import report

from .samples import HOSTILE, PAGES, hostile, study
from .test_study_page import diverged, identical, one_seed

ERRORS = "document.documentElement.dataset.errors || ''"
DRAWN = "document.querySelectorAll('[data-drawn] .main-svg .plot, [data-drawn] .main-svg .hm').length"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {kind: report(make(), folder / f"{kind}.html") for kind, make in PAGES.items()}


def check(chromium, page):
    """No error, no request but for the page itself, every figure drawn, no sideways scrolling."""
    assert chromium.value(ERRORS) == ""
    assert chromium.messages == []
    assert [r for r in chromium.requests if not r.startswith("data:")] == [page.resolve().as_uri()]
    figures = chromium.value("document.querySelectorAll('[data-plot]').length")
    assert chromium.value("Number(document.documentElement.dataset.plots)") == figures
    assert chromium.value("document.querySelectorAll('[data-plot] .main-svg').length") >= figures
    assert chromium.value("document.documentElement.scrollWidth <= window.innerWidth")


CLIPPED = """(() => {
  const bad = [];
  for (const plot of document.querySelectorAll('[data-drawn]')) {
    const box = plot.getBoundingClientRect();
    for (const text of plot.querySelectorAll('.main-svg text')) {
      const own = text.getBoundingClientRect();
      if (own.width && (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1
          || own.bottom > box.bottom + 1)) bad.push(plot.id + ': ' + text.textContent);
    }
  }
  return bad;
})()"""

OVERLAPPING = """(() => {
  const bad = [];
  for (const plot of document.querySelectorAll('[data-drawn]')) {
    const texts = [...plot.querySelectorAll('.main-svg text')].filter(t => t.textContent && t.getBoundingClientRect().width);
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
      const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
      if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
          && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3) bad.push(a.textContent + ' / ' + b.textContent);
    }));
  }
  return bad;
})()"""

# Contrast of every text in a plot with the page behind it (WCAG 2.2, 1.4.3).
FAINT = """(() => {
  const light = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const ratio = c => { const l = light(c); return (Math.max(l, page) + 0.05) / (Math.min(l, page) + 0.05); };
  const bad = [];
  for (const text of document.querySelectorAll('[data-drawn] .main-svg text'))
    if (text.textContent && ratio(getComputedStyle(text).fill) < 4.5) bad.push(text.textContent);
  for (const part of document.querySelectorAll('p, li, td, th, dd, dt, h1, h2, h3, summary, figcaption, .badge'))
    if (ratio(getComputedStyle(part).color) < 4.5) bad.push(part.textContent);
  return bad;
})()"""


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", list(PAGES))
def test_a_page_is_drawn_whole_and_readable(chromium, pages, kind, width):
    chromium.open(pages[kind], width=width)
    check(chromium, pages[kind])
    assert chromium.value(CLIPPED) == []
    assert chromium.value(OVERLAPPING) == []
    for dark, background in ((False, "rgb(255, 255, 255)"), (True, "rgb(20, 23, 26)")):
        # The colours follow the reader's setting at once, without a reload.
        chromium.scheme(dark=dark)
        assert chromium.value("getComputedStyle(document.body).backgroundColor") == background
        assert chromium.value(FAINT) == []
        if folder := os.environ.get("KAPPAONE_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            shot = chromium.screenshot(Path(folder) / f"{kind}-{width}-{'dark' if dark else 'light'}.png")
            assert shot.stat().st_size > 50_000


# The others are without plots, or drawn like these; their pages are read in test_study_page.py.
@pytest.mark.parametrize("change", [diverged, identical, one_seed], ids=lambda f: f.__name__)
def test_edges_are_drawn(chromium, tmp_path, change):
    result = study()
    change(result)
    page = report(result, tmp_path / "page.html")
    chromium.open(page, width=390)
    check(chromium, page)


@pytest.mark.parametrize("kind", list(PAGES))
def test_hostile_names_do_not_run(chromium, tmp_path, kind):
    page = report(hostile(PAGES[kind]()), tmp_path / "page.html", title=HOSTILE)
    chromium.open(page, width=390)
    check(chromium, page)
    assert chromium.value("document.title") == HOSTILE
    assert chromium.value("document.querySelectorAll('img, a[href^=javascript]').length") == 0


def test_the_watch_sees_what_goes_wrong(chromium, tmp_path):
    page = report(study(), tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(
        text.replace('<main id="main"', '<img src="https://example.invalid/x.png"><main id="main"'), encoding="utf-8"
    )
    chromium.open(broken)
    assert "policy: img-src" in chromium.value(ERRORS)
    broken.write_text(text.replace('{"data":', '{"data":!', 1).replace('{"data": ', '{"data": !', 1), encoding="utf-8")
    chromium.open(broken)
    assert chromium.value(ERRORS) != ""
    assert "could not be drawn" in chromium.value("document.querySelector('[data-plot]').textContent")


def test_an_arm_can_be_switched_off_and_the_result_downloaded(chromium, pages):
    chromium.open(pages["study"])
    shown = "document.getElementById('curve-0-plot').data.filter(t => t.visible !== false).length"
    before = chromium.value(shown)
    chromium.value("document.querySelector('#curve-0 button[data-group]').click()")
    assert chromium.value("document.querySelector('#curve-0 button').getAttribute('aria-pressed')") == "false"
    assert chromium.value(shown) == before - 2
    chromium.value("document.querySelector('#curve-0 button[data-group]').click()")
    assert chromium.value(shown) == before
    chromium.value(
        "(() => { const a = document.querySelector('a[data-download=result]'); a.addEventListener('click', e => "
        "e.preventDefault()); a.click(); })()"
    )
    assert chromium.value("document.querySelector('a[data-download=result]').href").startswith("blob:")
    assert chromium.value("JSON.parse(document.getElementById('result').textContent).schema") == 1


def test_a_page_prints(chromium, pages, tmp_path):
    chromium.open(pages["study"], dark=True)
    printed = chromium.pdf(tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 4 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 25


def test_without_scripts_the_data_is_still_there(chromium, pages):
    chromium.open(pages["study"], scripts=False)
    assert chromium.value("document.querySelectorAll('table').length") > 10
