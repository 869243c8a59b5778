"""MODEL on the command line: where a model comes from, and an input to try it on.

timm:vit_base_patch16_224        timm:vit_tiny_patch16_224(img_size=32, depth=2)
hf:gpt2                          a transformers model type, built from its default config, no weights
torchvision:vit_b_16
path/to/file.py:build            a function (or class) without arguments in the user's own file
path/to/folder                   config.json with safetensors weights, as transformers saves them
path/to/weights.safetensors      as written by `kappaone init --out`, which notes the model it was built from
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kappaone.cli.weights import MODEL_KEY, SEED_KEY, read_metadata, read_tensors
from kappaone.errors import MissingExtra, SpecError
from kappaone.schemes.syntax import Call, parse
from kappaone.streams import generator


@dataclass
class LoadedModel:
    """A model with where it came from.

    Attributes:
        spec: MODEL as written.
        model: the module, in evaluation mode.
        loaded: weights came from a file.
        image_size: (channels, height, width) if it takes images.
        vocabulary: size of the vocabulary if it takes tokens.
    """

    spec: str
    model: nn.Module
    loaded: bool = False
    image_size: tuple[int, int, int] | None = None
    vocabulary: int | None = None


def load_model(spec: str, *, seed: int = 0) -> LoadedModel:
    """Build or load a model.

    Args:
        spec: see the module's docstring.
        seed: seeds torch while the model is built, so that all its other weights are reproducible too.

    Raises:
        SpecError: if there is no such model.
    """
    path = Path(spec)
    if path.suffix == ".safetensors":
        return _from_weights(path, seed)
    if (path / "config.json").is_file():
        return _from_folder(path)
    source, colon, rest = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    builders: dict[str, Callable[[str, dict[str, Any]], LoadedModel]] = {
        "timm": _timm, "hf": _transformers, "torchvision": _torchvision,
    }  # fmt: skip
    torch.manual_seed(seed)
    if source.endswith(".py") and colon:
        return LoadedModel(spec, _from_file(Path(source), rest))
    if source not in builders or not rest:
        raise SpecError(
            f"MODEL is {spec!r}, which is neither a file nor a known source",
            "write timm:NAME, hf:TYPE, torchvision:NAME, path/to/file.py:function, a folder with config.json, or a .safetensors file",
        )
    name, options = _options(rest)
    found = builders[source](name, options)
    found.spec = spec
    found.model.eval()
    return found


def example_for(found: LoadedModel, data: str | None) -> tuple[Any, str]:
    """An input for a model, and what it is, in words.

    Args:
        found: the model.
        data: None for a default, "none" for no input, an image file, or a .safetensors file with named inputs.

    Raises:
        SpecError: if the data cannot be read, or no default input is known for the model.
    """
    if data == "none":
        return None, "no input"
    if data is not None and data.endswith(".safetensors"):
        return read_tensors(Path(data)), data
    if found.image_size is not None:
        return _image(found.image_size, data)
    if data is not None:
        raise SpecError(
            f"--data {data}: this model takes no image",
            "pass a .safetensors file whose tensors are named like the model's inputs",
        )
    if found.vocabulary is not None:
        tokens = generator(0, "command line example").integers(0, found.vocabulary, (1, 64))
        return {"input_ids": torch.from_numpy(tokens)}, "64 random tokens (seed 0)"
    return None, "no input (pass --data to measure activations)"


def _options(text: str) -> tuple[str, dict[str, Any]]:
    """`name(option=value)` as a name and keyword arguments."""
    name, bracket, inner = text.partition("(")
    if not bracket:
        return name, {}
    out: dict[str, Any] = {}
    for key, value in parse(f"model({inner}").arguments:
        if not key:
            raise SpecError(f"MODEL option {value} has no name", "write for instance timm:NAME(depth=2)")
        plain = value.name if isinstance(value, Call) else value
        out[key] = {"true": True, "false": False, "none": None}.get(str(plain), plain)
    return name, out


def _timm(name: str, options: dict[str, Any]) -> LoadedModel:
    try:
        import timm
    except ImportError:
        raise MissingExtra(f"timm:{name}", "timm", "models") from None
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:8]
        raise SpecError(
            f"timm has no model {name!r}", f"for instance {', '.join(near)}" if near else "see timm.list_models()"
        )
    model = _build(lambda: timm.create_model(name, pretrained=False, **options), f"timm:{name}")
    size = tuple((getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224)))
    grid = getattr(getattr(model, "patch_embed", None), "img_size", None)
    height, width = grid if grid else size[1:]
    channels = int(options.get("in_chans", size[0]))
    return LoadedModel(f"timm:{name}", model, image_size=(channels, int(height), int(width)))


def _torchvision(name: str, options: dict[str, Any]) -> LoadedModel:
    try:
        import torchvision
    except ImportError:
        raise MissingExtra(f"torchvision:{name}", "torchvision", "train") from None
    if name not in torchvision.models.list_models():
        raise SpecError(f"torchvision has no model {name!r}", "see torchvision.models.list_models()")
    model = _build(lambda: torchvision.models.get_model(name, weights=None, **options), f"torchvision:{name}")
    size = int(getattr(model, "image_size", 224))
    return LoadedModel(f"torchvision:{name}", model, image_size=(3, size, size))


def _transformers(name: str, options: dict[str, Any]) -> LoadedModel:
    try:
        import transformers
    except ImportError:
        raise MissingExtra(f"hf:{name}", "transformers", "models") from None
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    if name not in types:
        raise SpecError(
            f"transformers has no model type {name!r}",
            "hf: takes a model type such as gpt2, bert, llama, vit; for downloaded weights pass their folder",
        )
    config = _build(lambda: transformers.AutoConfig.for_model(name, **options), f"hf:{name}")
    return _describe(f"hf:{name}", _build(lambda: transformers.AutoModel.from_config(config), f"hf:{name}"), config)


def _describe(spec: str, model: nn.Module, config: Any, *, loaded: bool = False) -> LoadedModel:
    size, vocabulary = getattr(config, "image_size", None), getattr(config, "vocab_size", None)
    if isinstance(size, int):
        size = (size, size)
    image = (int(getattr(config, "num_channels", 3)), int(size[0]), int(size[1])) if size else None
    return LoadedModel(spec, model.eval(), loaded, image, None if image or not vocabulary else int(vocabulary))


def _build(make: Callable[[], Any], name: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} cannot be built: {error}", "check the options in brackets") from error


def _from_file(path: Path, function: str) -> nn.Module:
    if not path.is_file():
        raise SpecError(f"there is no file {str(path)!r}", "write path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{str(path)!r} cannot be imported", "it must be a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    build = getattr(module, function, None)
    if build is None:
        raise SpecError(f"{str(path)!r} has no {function!r}", "name a function or class without arguments")
    model = build()
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"{path!s}:{function} gave {type(model).__name__}; expected a torch.nn.Module", "return the model"
        )
    return model


def _from_folder(path: Path) -> LoadedModel:
    try:
        import transformers
    except ImportError:
        raise MissingExtra(str(path), "transformers", "models") from None
    config = _build(lambda: transformers.AutoConfig.from_pretrained(path, local_files_only=True), str(path))
    named = getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)
    if not any(path.glob("*.safetensors")):
        raise SpecError(
            f"the folder {str(path)!r} has a config and no .safetensors weights", "save them with save_pretrained"
        )
    model = _build(lambda: named.from_pretrained(path, local_files_only=True, use_safetensors=True), str(path))
    return _describe(str(path), model, config, loaded=True)


def _from_weights(path: Path, seed: int) -> LoadedModel:
    metadata = read_metadata(path)
    origin = metadata.get(MODEL_KEY)
    if origin is None or origin.endswith(".safetensors"):
        raise SpecError(
            f"{str(path)!r} does not say which model it belongs to",
            "pass the folder with its config.json, or weights written by kappaone init --out",
        )
    found = load_model(origin, seed=int(metadata.get(SEED_KEY, seed)))
    from safetensors.torch import load_model as load_into

    load_into(found.model, path)
    found.loaded, found.spec = True, str(path)
    return found


def _image(size: tuple[int, int, int], data: str | None) -> tuple[torch.Tensor, str]:
    """One picture at the model's size, scaled to mean 0 and deviation 1: the user's, or a photograph that scikit-learn ships."""
    from PIL import Image, UnidentifiedImageError

    if data is None:
        try:
            from sklearn.datasets import load_sample_image
        except ImportError:
            raise MissingExtra("a sample photograph", "scikit-learn", "train") from None
        picture, words = Image.fromarray(load_sample_image("china.jpg")), "photograph china.jpg of scikit-learn"
    else:
        try:
            picture, words = Image.open(data).convert("RGB"), data
        except (OSError, UnidentifiedImageError) as error:
            raise SpecError(f"--data {data}: {error}", "pass an image file, a .safetensors file, or none") from error
    channels, height, width = size
    picture = picture.convert("L" if channels == 1 else "RGB").resize((width, height))
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(height, width, -1)
    values = pixels.permute(2, 0, 1)[None].float()
    if values.shape[1] != channels:
        raise SpecError(
            f"the model takes {channels} channels; a picture has 1 or 3", "pass a .safetensors file with its input"
        )
    return (values - values.mean()) / values.std(), words


def json_text(data: Any) -> str:
    """JSON for --json."""
    return json.dumps(data, indent=1)
