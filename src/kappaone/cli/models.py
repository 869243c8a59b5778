"""MODEL on the command line: where a model comes from, and an input to try it on.

timm:vit_base_patch16_224        timm:vit_tiny_patch16_224(img_size=32, depth=2)
hf:gpt2                          a transformers model type, built from its default config, no weights
torchvision:vit_b_16
path/to/file.py:build            a function (or class) without arguments in the user's own file; it returns the model,
                                 or the model and an example input
path/to/folder                   config.json with safetensors weights, as transformers saves them
path/to/weights.safetensors      as written by `kappaone init --out`, which notes the model it was built from
MODEL@path/to/weights.safetensors   any of the above with other weights of the same names, such as a checkpoint

A weights file that names a `file.py:function` does not run it: user code runs only where the user writes it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kappaone.cli.weights import MODEL_KEY, SEED_KEY, read_metadata, read_tensors
from kappaone.errors import KappaoneError, MissingExtra, SpecError
from kappaone.schemes.syntax import Call, Range, parse, show
from kappaone.streams import generator

_OPTIONS = "write for instance timm:NAME(depth=2, qkv_bias=false)"
_HOW = (
    "write timm:NAME, hf:TYPE, torchvision:NAME, path/to/file.py:function, a folder with config.json, "
    "or a .safetensors file"
)


@dataclass
class LoadedModel:
    """A model with where it came from.

    Attributes:
        spec: MODEL as written.
        model: the module, in evaluation mode.
        loaded: weights came from a file.
        origin: how the model is built when its weights are elsewhere: MODEL without a weights file.
        seed: seed under which it was built.
        image_size: (channels, height, width) if it takes images.
        vocabulary: size of the vocabulary if it takes tokens.
        example: an input that came with the model, from a user's own function.
    """

    spec: str
    model: nn.Module
    loaded: bool = False
    origin: str = ""
    seed: int = 0
    image_size: tuple[int, int, int] | None = None
    vocabulary: int | None = None
    example: Any = None


def load_model(spec: str, *, seed: int = 0) -> LoadedModel:
    """Build or load a model.

    Args:
        spec: see the module's docstring.
        seed: seeds torch while the model is built, so that all its other weights are reproducible too.

    Raises:
        SpecError: if there is no such model.
    """
    path = Path(spec)
    if not spec.strip():
        raise SpecError("MODEL is empty", _HOW)
    if path.suffix == ".safetensors":
        model, at, weights = spec.rpartition("@")
        if at and not path.is_file():
            return _with_weights(model, Path(weights), seed)
        return _from_weights(path, seed)
    # Building a model draws numbers; a caller's global state is not ours to move.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = _built(spec, path)
    found.spec = found.origin = spec
    found.seed = seed
    found.model.eval()
    return found


def _built(spec: str, path: Path) -> LoadedModel:
    if (path / "config.json").is_file():
        return _from_folder(path)
    source, colon, rest = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    builders: dict[str, Callable[[str, dict[str, Any]], LoadedModel]] = {
        "timm": _timm, "hf": _transformers, "torchvision": _torchvision,
    }  # fmt: skip
    if source.endswith(".py") and colon:
        model, example = _from_file(Path(source), rest)
        return LoadedModel(spec, model, example=example)
    if source not in builders or not rest:
        what = "a folder without config.json" if path.is_dir() else "neither a file nor a known source"
        raise SpecError(f"MODEL is {spec!r}, which is {what}", _HOW)
    return builders[source](*_options(rest))


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
    if data is None and found.example is not None:
        return found.example, "the example that came with the model"
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
    try:
        arguments = parse(f"model({inner}").arguments
    except SpecError as error:
        raise SpecError(
            f"cannot read the options of MODEL, ({inner}: {error.what.partition(': ')[2]}", _OPTIONS
        ) from None
    out: dict[str, Any] = {}
    for key, value in arguments:
        if not key or isinstance(value, Range) or (isinstance(value, Call) and value.arguments):
            raise SpecError(f"MODEL option {show(value)!r}; expected NAME=VALUE with a plain value", _OPTIONS)
        plain = value.name if isinstance(value, Call) else value
        out[key] = {"true": True, "false": False, "none": None}.get(str(plain).lower(), plain)
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
    return LoadedModel(
        spec, model, loaded, image_size=image, vocabulary=None if image or not vocabulary else int(vocabulary)
    )


def _build(make: Callable[[], Any], name: str, todo: str = "check the options in brackets") -> Any:
    try:
        return make()
    except KappaoneError:
        raise
    except Exception as error:  # another library's: which errors it knows is its own affair
        first = str(error).strip().partition("\n")[0]
        raise SpecError(f"{name} cannot be built: {type(error).__name__}: {first}", todo) from error


def _from_file(path: Path, function: str) -> tuple[nn.Module, Any]:
    """The model that a function in a user's file returns, and the example input if it returns (model, example)."""
    if not path.is_file():
        raise SpecError(f"there is no file {str(path)!r}", "write path/to/file.py:function")
    # A name of its own: a user's file may well be called json.py or torch.py.
    spec = importlib.util.spec_from_file_location(f"kappaone_user_{path.stem}", path)
    if not function or spec is None or spec.loader is None:
        raise SpecError(f"'{path}:{function}' names no function", "write path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # As for a script, modules beside the file can be imported; last, so that they hide nothing.
    sys.path.append(str(path.parent.resolve()))
    mend = "correct the file; --debug shows where it happened"
    _build(lambda: spec.loader.exec_module(module), str(path), mend)  # type: ignore[union-attr]
    build = getattr(module, function, None)
    if not callable(build):
        raise SpecError(f"{str(path)!r} has no function {function!r}", "name a function or class without arguments")
    model = _build(build, f"{path}:{function}", mend)
    example = None
    if isinstance(model, tuple) and len(model) == 2:
        model, example = model
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"{path!s}:{function} gave {type(model).__name__}; expected a torch.nn.Module",
            "return the model, or the model and an example input",
        )
    return model, example


def _from_folder(path: Path) -> LoadedModel:
    try:
        import transformers
    except ImportError:
        raise MissingExtra(str(path), "transformers", "models") from None
    # Code that comes with a checkpoint is never run (trust_remote_code), nor asked about.
    local = {"local_files_only": True, "trust_remote_code": False}
    mend = "save the folder again with save_pretrained"
    config = _build(lambda: transformers.AutoConfig.from_pretrained(path, **local), str(path), mend)
    named: Any = getattr(transformers, (config.architectures or ["AutoModel"])[0], None)
    if not (isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)):
        named = transformers.AutoModel  # a class that this release does not have, or no class at all
    if not any(path.glob("*.safetensors")):
        raise SpecError(
            f"the folder {str(path)!r} has a config and no .safetensors weights", "save them with save_pretrained"
        )
    model = _build(lambda: named.from_pretrained(path, use_safetensors=True, **local), str(path), mend)
    return _describe(str(path), model, config, loaded=True)


def _from_weights(path: Path, seed: int) -> LoadedModel:
    metadata = read_metadata(path)
    origin = metadata.get(MODEL_KEY)
    if origin is None or origin.endswith(".safetensors"):
        raise SpecError(
            f"{str(path)!r} does not say which model it belongs to",
            f"write MODEL@{path}, for instance timm:NAME@{path}, or pass the folder with its config.json",
        )
    if ".py:" in origin:
        raise SpecError(
            f"{str(path)!r} was made from {origin!r}, and code that a weights file names is not run",
            f"if you trust that file, write it yourself: {origin}@{path}",
        )
    try:
        return _with_weights(origin, path, int(metadata.get(SEED_KEY, seed)))
    except SpecError as error:
        raise SpecError(f"{str(path)!r} was made from {origin!r}: {error.what}", error.todo) from error


def _with_weights(model: str, path: Path, seed: int) -> LoadedModel:
    """A model with the weights of a file, which must have the same names and shapes."""
    from safetensors.torch import load_model as load_into

    read_metadata(path)  # a missing or broken file is said before a large model is built
    found = load_model(model, seed=seed)
    try:
        load_into(found.model, path)
    except (RuntimeError, ValueError, KeyError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SpecError(
            f"the weights in {str(path)!r} are not those of {model}: {' '.join(lines[:3])}",
            "pass the model they belong to",
        ) from error
    found.loaded, found.spec = True, str(path)
    return found


def _image(size: tuple[int, int, int], data: str | None) -> tuple[torch.Tensor, str]:
    """One picture at the model's size, scaled to mean 0 and deviation 1: the user's, or a photograph that scikit-learn ships."""
    from PIL import Image, UnidentifiedImageError

    if data is None:
        try:
            load_sample_image = importlib.import_module("sklearn.datasets").load_sample_image
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
    spread = float(values.std())
    if spread == 0:
        raise SpecError(f"--data {words}: the picture has one colour only", "pass a picture that shows something")
    return (values - values.mean()) / spread, words
