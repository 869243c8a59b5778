from __future__ import annotations

import json
import os
import stat

import pytest

from kappaone.cli import doctor


def test_a_sound_installation(command):
    answer = command("doctor")
    assert answer.code == 0
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    for name in ("torch", "safetensors", "timm", "plotly", "this folder", "images to compare on"):
        assert name in answer.out
    found = json.loads(command("doctor", "--json").out)
    assert {row["package"] for row in found["packages"]} >= {"torch", "numpy", "rich", "typer", "scipy"}
    assert found["checks"][0]["check"] == "torch"
    assert all(set(row) == {"check", "needed_by", "found", "todo"} for row in found["checks"])


def test_what_is_missing_or_too_old_has_a_command(command, monkeypatch):
    versions = {"timm": "0.9.0", "torch": "1.13"}

    def version(name: str) -> str:
        if name == "plotly":
            raise doctor.PackageNotFoundError(name)
        return versions.get(name, "99.0")

    monkeypatch.setattr(doctor, "version", version)
    rows = {row["package"]: row for row in doctor.packages()}
    assert rows["timm"]["todo"] == "pip install 'kappaone[models]'"
    assert rows["plotly"]["found"] == "missing"
    assert rows["plotly"]["todo"] == "pip install 'kappaone[report]'"
    assert rows["torch"]["todo"].startswith("pip install 'torch>=")
    assert rows["numpy"]["todo"] == ""
    assert command("doctor").code == 1  # every command needs torch


def test_an_optional_package_is_no_failure(command, monkeypatch):
    real = doctor.version

    def version(name: str) -> str:
        if name == "plotly":
            raise doctor.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", version)
    answer = command("doctor")
    assert answer.code == 0
    assert "missing" in answer.out


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written(folder):
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert doctor._weights()["todo"]
    finally:
        folder.chmod(stat.S_IRWXU)


def test_data_that_is_missing_is_said(monkeypatch):
    import kappaone.recipes
    from kappaone.errors import StudyError

    def nothing(*_: object) -> None:
        raise StudyError("no images", "install some")

    monkeypatch.setattr(kappaone.recipes, "find_images", nothing)
    assert doctor._images()["todo"] == "install some"
