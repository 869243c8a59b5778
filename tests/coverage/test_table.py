"""Percentages are counted as they are named, and the page says what the rows say."""

from __future__ import annotations

import json

from kappaone.coverage.rows import Kind, Row, Verdict, confirmed_by
from kappaone.coverage.table import cells, markdown, to_json, totals

A, B = Kind("Attention", "one", "timm.vit: q k v"), Kind("Window | odd", "two", "timm.swin: q k v")
YES, NO = Verdict(True, by="vit"), Verdict(False, "1 of 3: row 5 behaves as k", "swin")


def rows():
    vit = Row("timm", "vit", "handled", layers=12, kinds=("Attention",), details=(A,))
    swin = Row("timm", "swin", "handled", layers=4, kinds=("Window | odd",), details=(B,))
    known = {A.key: YES, B.key: NO}
    return [
        confirmed_by(vit, known),
        confirmed_by(swin, known),
        Row("timm", "odd", "refused", refused=("Odd: has qkv (3 layers)",)),
        Row("timm", "linear", "outside", outside=("Linear: linear attention (2 layers)",)),
        Row("timm", "resnet", "no attention"),
        Row("timm", "huge", "error", note="took more than 300 s"),
    ]


def test_percentages():
    found = totals(rows())
    assert found.by_status == {"handled": 2, "refused": 1, "outside": 1, "no attention": 1, "error": 1}
    assert abs(found.handled - 200 / 3) < 1e-12  # 2 of 3
    assert found.strictly == 50.0  # 2 of 4
    assert (found.kinds, found.confirmed, found.contradicted) == (2, 1, 1)
    assert "handled: 66.6 % of architectures with softmax attention, 50.0 % of those with any" in found.lines()[1]
    assert "1 of 2 distinct kinds of attention confirmed, 1 contradicted, 0 could not" in found.lines()[2]


def test_a_percentage_is_never_rounded_up_to_100():
    many = [Row("timm", str(i), "handled") for i in range(9999)] + [Row("timm", "x", "refused")]
    assert "99.9 %" in totals(many).lines()[1]
    assert totals([]).handled is None
    assert totals([Row("timm", "x", "outside")]).strictly == 0.0


def test_the_page():
    page = markdown("timm", "9.9", rows(), "kappaone coverage timm --probe")
    assert page.startswith("# Coverage of timm 9.9\n")
    assert "| Attention | timm.vit: q k v | 1 | 1 of 1 (vit) |" in page
    assert "| Window \\| odd | timm.swin: q k v | 1 | 0 of 1 **contradicted** |" in page
    assert "| Odd: has qkv | 1 | odd |" in page
    assert "| Linear: linear attention | 1 | linear |" in page
    assert "| swin | handled | 4 | Window \\| odd | NO | Window \\| odd: 1 of 3: row 5 behaves as k |" in page
    assert "| huge | error | - | - | - | took more than 300 s |" in page
    assert page.endswith("## Architectures without attention\n\nresnet.\n")
    assert page == markdown("timm", "9.9", rows(), "kappaone coverage timm --probe")


def test_json_and_cells():
    data = json.loads(json.dumps(to_json(rows()), allow_nan=False))
    assert data["schema"] == 1
    assert data["totals"]["strictly_percent"] == 50.0
    assert [row["name"] for row in data["rows"]] == ["vit", "swin", "odd", "linear", "resnet", "huge"]
    assert cells(rows()[0]) == ["vit", "handled", "12", "Attention", "yes", ""]
    assert cells(rows()[4]) == ["resnet", "no attention", "-", "-", "-", ""]
