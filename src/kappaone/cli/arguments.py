"""Arguments that several commands share, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kappaone.errors import SpecError

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[
    str,
    typer.Argument(
        help="timm:NAME, hf:TYPE, torchvision:NAME, file.py:function, a folder, a .safetensors file, or MODEL@FILE.safetensors."
    ),
]
Scheme = Annotated[str, typer.Option(help="For instance 'conditioned(value=per_head, scale=matched)'.")]
Data = Annotated[
    str | None, typer.Option(help="An image, a .safetensors file of named inputs, or 'none'. Default: a sample.")
]

Layouts = Annotated[
    Path | None,
    typer.Option("--layouts", help="A TOML file of [[layout]] tables, for attention that kappaone does not know."),
]


def writable(option: str, path: Path | None, ending: str = "") -> None:
    """Say before the work, not after it, that its result could not be written.

    Raises:
        SpecError: if the folder does not exist, the name is that of a folder, or it does not end as it must.

    Examples:
        >>> writable("--out", Path("weights.pt"), ".safetensors")
        Traceback (most recent call last):
        ...
        kappaone.errors.SpecError: --out 'weights.pt' does not end in .safetensors
          what to do: end the name in .safetensors
    """
    if path is None:
        return
    if ending and path.suffix != ending:
        raise SpecError(f"{option} {str(path)!r} does not end in {ending}", f"end the name in {ending}")
    if path.is_dir():
        raise SpecError(f"{option} {str(path)!r} is a folder", "give a file's name")
    if not path.parent.is_dir():
        raise SpecError(f"{option} {str(path)!r}: there is no folder {str(path.parent)!r}", "make the folder first")
