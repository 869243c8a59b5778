"""The look of each arm, the same on every plot of a page: colour, dash and symbol.

The eight colours were searched for so that each has a contrast of at least 3 to 1 on the light and on the dark page
(WCAG 2.2, 1.4.11) and every pair stays at least 20 CIE Lab units apart for normal, protan, deutan and tritan sight
(simulation of Machado, Oliveira and Fernandes, 2009). Dashes and symbols differ as well, so that colour never is the
only sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14171a"
NEUTRAL = "#807676"
COLOURS = ("#1497f7", "#b55431", "#789e65", "#983eab", "#b28f00", "#7335fe", "#d46fbd")
DASHES = ("dash", "solid", "dashdot", "longdash", "dot", "longdashdot", "solid")
_PATTERNS = {
    "solid": "",
    "dash": "8 4",
    "dot": "3 3",
    "dashdot": "8 3 2 3",
    "longdash": "13 4",
    "longdashdot": "13 3 2 3",
}
SYMBOLS = ("square", "diamond", "triangle-up", "triangle-down", "star", "hexagon", "cross")


@dataclass(frozen=True)
class Look:
    """How one arm is drawn.

    Attributes:
        colour: "#rrggbb".
        dash: Plotly's name of the dash.
        symbol: Plotly's name of the marker.
        group: a name for scripts that holds nothing of the arm's own name ("a0", "a1", ...).
    """

    colour: str
    dash: str
    symbol: str
    group: str

    @property
    def dashes(self) -> str:
        """The dash as SVG writes it, for legends.

        Examples:
            >>> Look("#ff0080", "dot", "circle", "a0").dashes
            '3 3'
        """
        return _PATTERNS[self.dash]

    def faint(self, opacity: float) -> str:
        """The colour with an opacity, as CSS writes it.

        Examples:
            >>> Look("#ff0080", "solid", "circle", "a0").faint(0.2)
            'rgba(255,0,128,0.2)'
        """
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity:g})"


PLAIN = Look(NEUTRAL, "solid", "circle", "plain")


def looks(arms: Iterable[str], reference: str | None) -> dict[str, Look]:
    """One look per arm: the reference neutral and solid, the others in the order in which they stand in the plan.

    Args:
        arms: names of the arms.
        reference: the arm that the others are compared with, if there is one.

    Examples:
        >>> found = looks(["default", "conditioned"], "default")
        >>> found["default"].colour, found["conditioned"].symbol
        ('#807676', 'square')
    """
    result: dict[str, Look] = {}
    others = 0
    for index, arm in enumerate(dict.fromkeys(arms)):
        if arm == reference:
            result[arm] = Look(NEUTRAL, "solid", "circle", f"a{index}")
            continue
        # With more arms than colours the dashes and symbols shift by one each round, so that no two arms look alike.
        turn, place = divmod(others, len(COLOURS))
        shift = (place + turn) % len(COLOURS)
        result[arm] = Look(COLOURS[place], DASHES[shift], SYMBOLS[shift], f"a{index}")
        others += 1
    return result
