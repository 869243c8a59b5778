"""Mask secrets in what a page prints: options and variables that are named as a token, key, secret or password.

This is a net for accidents (a command line with `--hf-token`, an environment with `WANDB_API_KEY`), by the names of
things. A secret that stands under an innocent name cannot be told from any other word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "‹redacted›"

# Anywhere in a name.
_ALWAYS = {
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
    "apikey",
    "authorization",
}
# Only at the end of a name, or before "id" or "value": key_dim, tokens_per_step and tokenizer are no secrets.
_AT_END = {"token", "key", "auth", "bearer", "cookie"}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(?P<mid>\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&'\"]+)")
_OPTION = re.compile(r"(?P<name>(?<![\w-])--?[A-Za-z][\w.-]*)(?P<mid>\s+)(?P<value>\"[^\"]*\"|'[^']*'|(?!-)[^\s'\"]+)")
_HEADER = re.compile(r"(?i)\b(?P<kind>bearer|basic)\s+[\w.~+/=-]{6,}")
_IN_URL = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@]+@")


def is_secret(name: str) -> bool:
    """Whether a name of an option, a variable or a field says that its value is a secret.

    Examples:
        >>> [is_secret(n) for n in ("--hf-token", "WANDB_API_KEY", "dbPassword", "AWS_ACCESS_KEY_ID")]
        [True, True, True, True]
        >>> [is_secret(n) for n in ("tokenizer", "max_tokens", "key_dim", "monkey", "metric")]
        [False, False, False, False, False]
    """
    words = [w for w in re.split(r"[^a-z0-9]+", _CAMEL.sub("_", name).lower()) if w]
    while words and words[-1] in ("id", "value"):
        words.pop()
    return bool(words) and (words[-1] in _AT_END or not _ALWAYS.isdisjoint(words))


def redact_text(text: str) -> str:
    """Mask the secrets in one string: `--token x`, `TOKEN=x`, `token: x`, `Bearer x`, `https://user:x@host`.

    Examples:
        >>> redact_text("python train.py --hf-token abc --lr 0.1 API_KEY=xyz")
        'python train.py --hf-token ‹redacted› --lr 0.1 API_KEY=‹redacted›'
    """

    def mask(match: re.Match[str]) -> str:
        return match["name"] + match["mid"] + MASK if is_secret(match["name"]) else match[0]

    text = _IN_URL.sub(lambda m: f"{m['scheme']}{MASK}@", text)
    text = _HEADER.sub(lambda m: f"{m['kind']} {MASK}", text)
    return _OPTION.sub(mask, _ASSIGNED.sub(mask, text))


def redact(value: Any) -> Any:
    """A copy of a JSON-like value with the secrets masked.

    Under a secret name every text and whole number is masked, at any depth. In a list (a command line), the word
    after an option with a secret name is masked. Every other text goes through `redact_text`.

    Args:
        value: nested mappings, lists, texts and numbers.

    Returns:
        The same shape; the input is left as it is.

    Examples:
        >>> redact({"command": ["train", "--api-key", "abc", "--lr", "0.1"], "env": {"HF_TOKEN": "abc"}})
        {'command': ['train', '--api-key', '‹redacted›', '--lr', '0.1'], 'env': {'HF_TOKEN': '‹redacted›'}}
    """
    return _walk(value, secret=False)


def _walk(value: Any, *, secret: bool) -> Any:
    if isinstance(value, Mapping):
        return {k: _walk(v, secret=secret or (isinstance(k, str) and is_secret(k))) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        after_secret = False
        for item in value:
            option = isinstance(item, str) and re.fullmatch(r"--?[A-Za-z][\w.-]*", item) is not None
            items.append(_walk(item, secret=secret or (after_secret and not option)))
            after_secret = option and is_secret(item)
        return items
    if secret:
        return value if value is None or isinstance(value, (bool, float)) else MASK
    return redact_text(value) if isinstance(value, str) else value
