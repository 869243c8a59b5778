"""The way schemes are written, in Python strings and on the command line alike: `name(option=value, flag)`.

A value is a number, a word, a call again, a list `[0, 2]`, or a range `0:6`. This file reads and prints the syntax
and knows no scheme; `kappaone.schemes.registry` gives it meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from kappaone.errors import SpecError

_DEEPEST = 20
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_][\w.]*)|(?P<mark>[()\[\],=:]))"
)


@dataclass(frozen=True)
class Call:
    """A name with arguments; a bare word is a call without any.

    Attributes:
        name: the word.
        arguments: (key, value) pairs; the key of a positional argument is "".
    """

    name: str
    arguments: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={show(value)}" if key else show(value) for key, value in self.arguments)
        return f"{self.name}({inner})" if inner else self.name


@dataclass(frozen=True)
class Range:
    """A range start:stop, stop excluded; either end may be missing."""

    start: int | None
    stop: int | None

    def __str__(self) -> str:
        return f"{'' if self.start is None else self.start}:{'' if self.stop is None else self.stop}"


Value = Call | Range | int | float | tuple[int | float, ...]


def show(value: Value) -> str:
    """A value as it is written."""
    return f"[{', '.join(map(repr, value))}]" if isinstance(value, tuple) else str(value)


def parse(text: str) -> Call:
    """Read one scheme string.

    Raises:
        SpecError: pointing at the place where the text stops making sense.

    Examples:
        >>> str(parse("conditioned( value=per_head,scale=matched(group=role) )"))
        'conditioned(value=per_head, scale=matched(group=role))'
    """
    if not isinstance(text, str):
        raise SpecError(f"a scheme is a string such as 'conditioned(value=per_head)'; found {text!r}", "pass a string")
    reader = _Reader(text)
    value = reader.value()
    reader.end()
    if not isinstance(value, Call):
        reader.fail("a scheme starts with its name")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.tokens: list[tuple[str, str, int]] = []
        position, stop = 0, len(text.rstrip())
        while position < stop:
            found = _TOKEN.match(text, position)
            if found is None:
                self.tokens.append(("bad", text[position:].strip()[:1], position))
                break
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind], found.start(kind)))
            position = found.end()

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else "end"

    def take(self, expected: str) -> None:
        if self.peek() != expected:
            self.fail(f"expected {expected!r}")
        self.at += 1

    def end(self) -> None:
        if self.at < len(self.tokens):
            self.fail("expected the end")

    def fail(self, why: str) -> NoReturn:
        position = self.tokens[self.at][2] if self.at < len(self.tokens) else len(self.text)
        found = repr(self.peek()) if self.at < len(self.tokens) else "the end"
        raise SpecError(
            f"cannot read the scheme {self.text!r}: {why}, found {found} at character {position + 1}",
            "write it like conditioned(value=per_head, scale=matched)",
        )

    def value(self) -> Value:
        if self.peek() == "[":
            return self.items()
        if self.peek() == ":" or (self.kind() == "number" and self.peek(1) == ":"):
            return self.range()
        if self.kind() == "number":
            return self.number()
        if self.kind() != "name":
            self.fail("expected a name or a value")
        name = self.peek()
        self.at += 1
        return Call(name, self.arguments() if self.peek() == "(" else ())

    def arguments(self) -> tuple[tuple[str, Value], ...]:
        self.take("(")
        self.depth += 1
        if self.depth > _DEEPEST:
            self.fail(f"more than {_DEEPEST} brackets in brackets")
        found: list[tuple[str, Value]] = []
        while self.peek() != ")":
            key = ""
            if self.kind() == "name" and self.peek(1) == "=":
                key = self.peek()
                self.at += 2
                if key in (other for other, _ in found):
                    self.at -= 2
                    self.fail(f"{key} is given twice")
            found.append((key, self.value()))
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        self.depth -= 1
        return tuple(found)

    def number(self) -> int | float:
        text = self.peek()
        self.at += 1
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)

    def integer(self) -> int:
        value = self.number() if self.kind() == "number" else self.fail("expected a whole number")
        if not isinstance(value, int):
            self.at -= 1
            self.fail("expected a whole number")
        return value

    def range(self) -> Range:
        start = self.integer() if self.kind() == "number" else None
        self.take(":")
        return Range(start, self.integer() if self.kind() == "number" else None)

    def items(self) -> tuple[int | float, ...]:
        self.take("[")
        found: list[int | float] = []
        while self.peek() != "]":
            if self.kind() != "number":
                self.fail("expected a number")
            found.append(self.number())
            if self.peek() != "]":
                self.take(",")
        self.take("]")
        return tuple(found)
