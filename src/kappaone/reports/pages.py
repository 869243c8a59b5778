"""One self-contained HTML page for any result: its kind is told from its dict, and nothing is fetched by the page.

The page carries plotly.js, its data and its style in itself. Its Content-Security-Policy names the digests of its own
scripts and forbids everything else: a name that were to break out of its place could still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kappaone.errors import MissingExtra, SpecError
from kappaone.reports.conditioning_page import conditioning_context
from kappaone.reports.parts import script_json, strict
from kappaone.reports.redact import redact
from kappaone.reports.study_page import study_context

_TEMPLATES = Path(__file__).parent / "templates"
_SCHEMA = 1
# What a result may hold of command lines and environments; names of arms and metrics are left as they are.
_PRINTED = ("plan", "provenance", "warnings", "command", "environment")


def report(result: Any, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write a result as one HTML page that needs no network, now or later.

    Args:
        result: the analysis of a study (`kappaone.compare`) or a `ConditioningReport` (`kappaone.inspect`), or the
            dict that its `to_dict()` gives.
        path: where the page goes; folders that do not exist are made, a file that exists is replaced at once.
        title: the page's title; by default the study's or the model's name.

    Returns:
        The path of the page.

    Raises:
        SpecError: the result is of no known kind, or of a newer schema, or lacks a part.
        MissingExtra: Plotly or Jinja is not installed.

    Examples:
        >>> import tempfile
        >>> arms = [{"name": name, "n": 2, "mean": 0.9, "sd": 0.1, "values": {}} for name in ("default", "conditioned")]
        >>> plan = {"name": "demo", "arms": ["default", "conditioned"], "reference": "default", "metric": "accuracy"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = report({"schema": 1, "plan": plan, "arms": arms, "contrasts": []}, f"{folder}/page.html")
        ...     page.name, page.stat().st_size > 1e6
        ('page.html', True)
    """
    page = render(result, title=title)
    target = Path(path)
    if target.is_dir():
        raise SpecError(f"the page's path is a folder: {str(target)!r}", "give a file's name, such as page.html")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and moved there, so that nobody ever opens half a page.
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(page, encoding="utf-8", newline="\n")
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def render(result: Any, *, title: str | None = None) -> str:
    """The page of a result as text; see `report`.

    Args:
        result: as in `report`.
        title: as in `report`.

    Returns:
        HTML.

    Raises:
        SpecError: as in `report`.
        MissingExtra: as in `report`.
    """
    raw = strict(_as_dict(result))
    kind, context_of = _kind(raw)
    shown = {key: redact(value) if key in _PRINTED else value for key, value in raw.items()}
    context = context_of(shown)
    environment = _environment()
    libraries = _libraries()
    own = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    watch = (_TEMPLATES / "watch.js").read_text(encoding="utf-8")
    template = environment.get_template(f"{kind}.html.j2")
    page: str = template.render(
        **(context | {"title": title or context["title"]}),
        kind=kind,
        data=shown,
        redacted=shown != raw,
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        scripts={"watch": watch, "plotly": libraries, "page": own},
        policy=_policy(watch, libraries, own),
    )
    return page


def _as_dict(result: Any) -> Mapping[str, Any]:
    given = result.to_dict() if hasattr(result, "to_dict") else result
    if not isinstance(given, Mapping):
        raise SpecError(
            f"a page can be made from a result or its dict; found {type(result).__name__}",
            "pass what kappaone.compare or kappaone.inspect returned",
        )
    return given


def _kind(result: Mapping[str, Any]) -> tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
    if "contrasts" in result or "plan" in result:
        _check_schema(result.get("schema"))
        return "study", study_context
    if "layers" in result:
        _check_schema(result.get("schema_version"))
        return "conditioning", conditioning_context
    raise SpecError(
        "a page needs a study's analysis (with 'plan' and 'contrasts') or a conditioning report (with 'layers'); "
        f"found the keys {sorted(map(str, result))}",
        "pass what kappaone.compare or kappaone.inspect returned",
    )


def _check_schema(schema: object) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= _SCHEMA:
        raise SpecError(
            f"this kappaone reads results of schema 1 to {_SCHEMA}; found schema {schema!r}",
            "make the page with the kappaone that made the result, or a newer one",
        )


def _environment() -> Any:
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise MissingExtra("kappaone.report", "jinja2", "report") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # script_json leaves nothing that could end the script element; pretty_json is escaped like any text.
    environment.filters["script_json"] = lambda value: markupsafe.Markup(script_json(value))
    environment.filters["pretty_json"] = _pretty
    environment.filters["breakable"] = lambda text: markupsafe.Markup(
        re.sub(r"(?<=[(=_,.])", "<wbr>", str(markupsafe.escape(text)))
    )
    return environment


def _pretty(value: Any) -> str:
    return json.dumps(strict(value), indent=2, ensure_ascii=False, allow_nan=False)


def _libraries() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("kappaone.report", "plotly", "report") from error
    # An HTML parser turns every line end into \n before a script's digest is taken.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(s.encode("utf-8")).digest()).decode("ascii") for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
