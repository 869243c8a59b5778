"""Numbers of a result as people read them: non-finite ones survive JSON as strings, intervals share their decimals."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Results of studies write "NaN" and "Infinity", those of conditioning "nan" and "inf".
_WORDS = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf, "inf": math.inf, "-inf": -math.inf}
MISSING = "–"


def number(value: object) -> float | None:
    """A number of a result: a float, or None where there is none.

    Args:
        value: an int, a float, None, or one of "NaN", "Infinity", "-Infinity", "nan", "inf" and "-inf".

    Examples:
        >>> number("Infinity"), number(3), number(None), number("many")
        (inf, 3.0, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return _WORDS.get(value.lower()) if isinstance(value, str) else None


def finite(value: object) -> float | None:
    """Like `number`, with None for what cannot be drawn (NaN and the infinities).

    Examples:
        >>> finite("NaN"), finite(2)
        (None, 2.0)
    """
    x = number(value)
    return x if x is not None and math.isfinite(x) else None


def pair(value: object) -> tuple[float, float] | None:
    """The two finite ends of an interval, or None.

    Examples:
        >>> pair([1, 2]), pair(None), pair(["NaN", 1])
        ((1.0, 2.0), None, None)
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    low, high = finite(value[0]), finite(value[1])
    return None if low is None or high is None else (low, high)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def show(value: object, digits: int = 4, *, signed: bool = False) -> str:
    """A number in `digits` significant digits.

    Examples:
        >>> show(0.123456), show(1234567.0), show(120), show(None), show("NaN"), show("-Infinity")
        ('0.1235', '1.235e6', '120', '–', 'NaN', '−∞')
        >>> show(0.5, signed=True), show(-3e-7), show(900621.4)
        ('+0.5', '−3e−7', '9.006e5')
    """
    x = number(value)
    if x is None:
        return MISSING
    if math.isnan(x):
        return "NaN"
    sign = "+" if signed and x > 0 else ""
    if math.isinf(x):
        return sign + ("∞" if x > 0 else "−∞")
    if x == int(x) and abs(x) < 1e6:
        return sign + _minus(str(int(x)))
    if 1e-3 <= abs(x) < 10.0 ** (digits + 1):
        # Positional with `digits` significant digits, trailing zeros dropped.
        places = max(0, digits - 1 - math.floor(math.log10(abs(x))))
        text = f"{x:.{places}f}"
        return sign + _minus(text.rstrip("0").rstrip(".") if "." in text else text)
    mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return sign + _minus(f"{mantissa}e{int(exponent)}")


def show_interval(ends: object, *, signed: bool = False) -> str:
    """An interval as "[low, high]", both ends rounded to three significant digits of its width.

    Examples:
        >>> show_interval([0.00213, 0.02264]), show_interval([-310.2, 12.7], signed=True), show_interval(None)
        ('[0.0021, 0.0226]', '[−310, +13]', '–')
    """
    return show_with_interval(None, ends, signed=signed)


def show_with_interval(value: object, ends: object, *, signed: bool = False) -> str:
    """A value and its interval, with the same number of decimals.

    Examples:
        >>> show_with_interval(0.01234, [0.00213, 0.02264], signed=True)
        '+0.0123 [+0.0021, +0.0226]'
        >>> show_with_interval(0.5, None)
        '0.5 (no interval)'
    """
    if pair(ends) is None:
        return MISSING if number(value) is None else f"{show(value, signed=signed)} (no interval)"
    middle, interval = show_apart(value, ends, signed=signed)
    return interval if number(value) is None else f"{middle} {interval}"


def show_apart(value: object, ends: object, *, signed: bool = False) -> tuple[str, str]:
    """A value and its interval for two columns of a table, with the same number of decimals.

    Examples:
        >>> show_apart(0.01234, [0.00213, 0.02264]), show_apart(0.5, None)
        (('0.0123', '[0.0021, 0.0226]'), ('0.5', '–'))
    """
    limits = pair(ends)
    if limits is None:
        return show(value, signed=signed), MISSING
    low, high = limits
    scale = max(abs(low), abs(high))
    width = high - low
    if width <= 0 or scale >= 1e6 or scale < 1e-3 or width < 1e-7:
        text = [show(x, signed=signed) for x in (low, high)]
        middle = show(value, signed=signed)
    else:
        places = max(0, 2 - math.floor(math.log10(width)))

        def one(x: float) -> str:
            # Python rounds -0.0004 to "-0.000"; a signed zero would claim a direction.
            rounded = round(x, places) + 0.0
            return _minus(f"{rounded:{'+' if signed and rounded else ''}.{places}f}")

        text = [one(low), one(high)]
        x = finite(value)
        middle = show(value) if x is None else one(x)
    return middle, f"[{text[0]}, {text[1]}]"
