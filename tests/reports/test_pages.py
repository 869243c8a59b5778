"""What holds for every page: structure, safety, one file."""

import base64
import hashlib
import itertools
import os
import re

import pytest

import kappaone.reports.pages as pages
from kappaone.errors import MissingExtra, SpecError
from kappaone.reports import report
from kappaone.reports.pages import render

from .samples import HOSTILE, PAGES, conditioning, hostile, study
from .tree import Tree


@pytest.fixture(scope="module", params=list(PAGES))
def text(request):
    return render(PAGES[request.param]())


@pytest.fixture(scope="module")
def page(text):
    return Tree(text)


def test_landmarks_and_language(page):
    assert page.all("html")[0].attributes["lang"] == "en"
    for tag in ("header", "main", "nav", "footer", "h1", "title"):
        assert len(page.all(tag)) == 1, tag
    assert page.all("a", class_="skip")[0].attributes["href"] == "#main"


def test_headings_never_skip_a_level(page):
    levels = [int(e.tag[1]) for e in page.elements if re.fullmatch("h[1-6]", e.tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_tables_have_captions_and_scopes(page):
    assert page.all("table")
    for index, element in enumerate(page.elements):
        if element.tag == "table":
            assert page.elements[index + 1].tag == "caption"
            assert page.elements[index + 1].text
        if element.tag == "th":
            assert element.attributes.get("scope") in ("row", "col")


def test_every_figure_has_a_text_alternative_and_its_data(page):
    figures = page.all("figure")
    assert figures
    assert all(len(e.attributes["aria-label"]) > 30 for e in page.all("div", role="img"))
    assert len(page.all("div", role="img")) == len(figures)
    inside = [e for e in page.all("table") if "figure" in e.parents]
    assert len(inside) >= len(figures)


def test_ids_are_unique_and_references_lead_somewhere(page):
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for element in page.elements:
        for key in ("aria-labelledby", "aria-controls", "data-plot", "data-plot-id", "data-save", "data-download"):
            assert element.attributes.get(key, ids[0]) in ids
        if element.tag == "a" and (element.attributes.get("href") or "").startswith("#"):
            assert element.attributes["href"][1:] in ids


def test_nothing_is_fetched(text, page):
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(?i)(https?:)?//[a-z0-9]", own)
    for element in page.elements:
        assert not any(key.startswith("on") for key in element.attributes)
        if element.tag in ("script", "img", "iframe", "object", "embed", "video", "audio"):
            assert "src" not in element.attributes
    assert [e.attributes["href"] for e in page.all("link")] == ["data:,"]
    assert "@import" not in own
    assert "url(" not in own


def test_the_policy_allows_the_three_scripts_and_nothing_else(text):
    policy = Tree(text).all("meta", http_equiv="Content-Security-Policy")[0].attributes["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts}
    assert len(scripts) == 3
    assert set(rules["script-src"].split()) == digests
    assert "connect-src" not in rules


def test_the_page_is_below_six_megabytes_and_carries_plotly_once(text):
    assert len(text.encode()) < 6e6
    assert len(re.findall(r"\* plotly\.js v", text)) == 1


@pytest.mark.parametrize("kind", list(PAGES))
def test_hostile_names_stay_text(kind):
    harmless, hostile_page = Tree(render(PAGES[kind]())), Tree(render(hostile(PAGES[kind]())))
    assert len(hostile_page.all("script")) == len(harmless.all("script"))
    assert not hostile_page.all("img")
    assert HOSTILE in " ".join(e.text for e in hostile_page.all("th"))
    for script in hostile_page.all("script", type="application/json"):
        assert "<" not in "".join(script.pieces)
    for element in hostile_page.all("div", role="img"):
        plot = hostile_page.json(element.attributes["data-plot"])
        for words in _texts(plot["data"]) + _texts(plot["layout"]):
            assert set(re.findall(r"<[^>]*>", words)) <= {"<br>", "<b>", "</b>"}, words


def _texts(value):
    if isinstance(value, dict):
        return [t for v in value.values() for t in _texts(v)]
    if isinstance(value, list):
        return [t for v in value for t in _texts(v)]
    return [value] if isinstance(value, str) else []


def test_a_title_of_ones_own_is_escaped():
    tree = Tree(render(study(), title="<b>&Mine"))
    assert tree.all("h1")[0].text == "<b>&Mine"
    assert tree.all("title")[0].text == "<b>&Mine"


def test_an_object_with_to_dict_is_as_good_as_its_dict():
    class Result:
        def to_dict(self):
            return study()

    assert render(Result()) == render(study())


@pytest.mark.parametrize("result", [3, None, [], {}, {"schema": 1, "rows": []}])
def test_what_is_no_result_is_refused(result):
    with pytest.raises(SpecError, match="found"):
        render(result)


@pytest.mark.parametrize("schema", [2, 0, "1", True])
def test_another_schema_is_refused(schema):
    with pytest.raises(SpecError, match="schema"):
        render(study() | {"schema": schema})
    with pytest.raises(SpecError, match="schema"):
        render(conditioning() | {"schema_version": schema})


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.html"
    assert report(study(), path) == path
    assert path.read_text(encoding="utf-8") == render(study())
    path.write_text("before", encoding="utf-8")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report(study(), path)
    assert path.read_text(encoding="utf-8") == "before"
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_a_folder_is_no_place_for_a_page(tmp_path):
    with pytest.raises(SpecError, match="folder"):
        report(study(), tmp_path)


@pytest.mark.parametrize("package", ["plotly.graph_objects", "plotly.offline", "jinja2"])
def test_a_missing_library_says_what_to_install(package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtra, match=r"kappaone\[report\]"):
        pages.render(study())
