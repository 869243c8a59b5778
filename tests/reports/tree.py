"""A page as a flat list of elements, read with the standard library's parser."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "link", "br", "img", "wbr", "hr", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    parents: tuple[str, ...]
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.pieces)).strip()


class Tree(HTMLParser):
    """Every element of a page, in order; the text of an element includes that of its children."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {[e.tag for e in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), tuple(e.tag for e in self._open))
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open, f"</{tag}> closes nothing"
            assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.pieces.append(data)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {k.rstrip("_").replace("_", "-"): v for k, v in attributes.items()}
        return [e for e in self.elements if e.tag == tag and all(e.attributes.get(k) == v for k, v in wanted.items())]

    def json(self, id: str) -> Any:
        (element,) = self.all("script", id=id)
        return json.loads("".join(element.pieces))

    def table(self, caption: str) -> list[list[str]]:
        """The cells of the table whose caption begins so, row by row, heads first."""
        rows: list[list[str]] = []
        inside = False
        for index, element in enumerate(self.elements):
            if element.tag == "table":
                following = self.elements[index + 1]
                inside = following.tag == "caption" and following.text.startswith(caption)
            elif inside and element.tag == "tr":
                rows.append([])
            elif inside and element.tag in ("th", "td"):
                rows[-1].append(element.text)
            elif element.tag in ("section", "h2"):
                inside = False
        assert rows, f"no table with the caption {caption!r}"
        return rows
