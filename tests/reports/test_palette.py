import itertools

import numpy as np
import pytest

from kappaone.reports.palette import COLOURS, DARK_PAGE, LIGHT_PAGE, NEUTRAL, looks

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return linear(colour) @ [0.2126, 0.7152, 0.0722]


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colour", [NEUTRAL, *COLOURS])
@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
def test_every_colour_stands_out_from_both_pages(colour, page):
    high, low = sorted((luminance(colour), luminance(page)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 3


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_differ_for_every_sight(sight):
    seen = [lab(SIGHTS[sight] @ linear(c)) for c in (NEUTRAL, *COLOURS)]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= 19.5


def test_no_two_arms_look_alike_even_with_more_arms_than_colours():
    found = looks([f"arm {i}" for i in range(30)], "arm 3")
    assert len({(v.colour, v.dash, v.symbol) for v in found.values()}) == 30
    assert len({v.group for v in found.values()}) == 30
    assert found["arm 3"].colour == NEUTRAL


def test_an_arm_named_twice_has_one_look():
    assert list(looks(["a", "b", "a"], "a")) == ["a", "b"]
