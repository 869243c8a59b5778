"""Weights on disk: safetensors only, with provenance in their metadata, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappaone.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from kappaone.apply import InitReport

MODEL_KEY, SEED_KEY, REPORT_KEY = "kappaone.model", "kappaone.build_seed", "kappaone.report"


def save(model: nn.Module, path: Path, *, spec: str, seed: int, report: InitReport) -> None:
    """Write a model's weights with what they are.

    Args:
        model: the model.
        path: the .safetensors file; replaced in one step.
        spec: MODEL as written.
        seed: seed under which the model was built.
        report: of its initialization.

    Raises:
        SpecError: if the name does not end in .safetensors.
    """
    if path.suffix != ".safetensors":
        raise SpecError(f"--out {str(path)!r}: weights are written as safetensors only", "end the name in .safetensors")
    from safetensors.torch import save_model

    metadata = {MODEL_KEY: spec, SEED_KEY: str(seed), REPORT_KEY: report.to_json(measure=False), "format": "pt"}
    replace_file(path, lambda part: save_model(model, str(part), metadata))


def replace_file(path: Path, write: Any) -> None:
    """Let `write` make a file beside the path, then move it there in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file.

    Raises:
        SpecError: if it is not one.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise SpecError(f"{str(path)!r} cannot be read as safetensors: {error}", "check the path") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name.

    Raises:
        SpecError: if it is not one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise SpecError(f"{str(path)!r} cannot be read as safetensors: {error}", "check the path") from error


def read_report(path: Path) -> InitReport:
    """The init report in a safetensors file's metadata, or in a JSON file.

    Raises:
        SpecError: if there is none.
    """
    from kappaone.apply import InitReport

    try:
        text = (
            read_metadata(path).get(REPORT_KEY) if path.suffix == ".safetensors" else path.read_text(encoding="utf-8")
        )
        if text is None:
            raise SpecError(f"{str(path)!r} holds no report of an initialization", "write it with kappaone init --out")
        return InitReport.from_dict(json.loads(text))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{str(path)!r} is not an init report: {error}", "pass what kappaone init wrote") from error
