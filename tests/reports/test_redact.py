import copy

import pytest

from kappaone.reports.redact import MASK, is_secret, redact, redact_text

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    "name",
    [
        "--token", "--hf-token", "HF_TOKEN", "api_key", "--api-key", "apikey", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "clientSecret",
        "client_secret_file", "PASSWORD", "db.password", "passwd", "PGPASSWORD_VALUE".replace("PGPASSWORD", "PG_PASSWORD"),
        "credentials", "Authorization", "authToken",
    ],
)  # fmt: skip
def test_secret_names(name):
    assert is_secret(name)
    assert redact({name: SECRET}) == {name: MASK}
    assert redact({name: {"deep": [SECRET, 12345]}}) == {name: {"deep": [MASK, MASK]}}


@pytest.mark.parametrize(
    "name",
    [
        "tokens",
        "max_tokens",
        "tokenizer",
        "loss_per_tokens",
        "key_dim",
        "qk",
        "monkey",
        "metric",
        "kv_heads",
        "author",
        "",
    ],
)
def test_innocent_names(name):
    assert not is_secret(name)
    assert redact({name: "kept"}) == {name: "kept"}


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--token", SECRET, "--lr", "0.1"],
        ["train", f"--token={SECRET}", "--lr", "0.1"],
        ["env", f"HF_TOKEN={SECRET}", "train", "--lr", "0.1"],
        ["train", "-password", SECRET, "--lr", "0.1"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}", "--lr", "0.1"],
        ["git", "clone", f"https://user:{SECRET}@host/x", "--lr", "0.1"],
        f"train --api-key '{SECRET}' --lr 0.1",
        f'train --api-key "{SECRET}" --lr 0.1',
        f"HF_TOKEN={SECRET} train --lr 0.1",
        f"train --secret:{SECRET} --lr 0.1",
    ],
)
def test_command_lines(command):
    shown = redact({"command": command})["command"]
    assert SECRET not in str(shown)
    assert MASK in str(shown)
    assert "0.1" in str(shown)


def test_an_option_without_a_value_masks_nothing_after_it():
    assert redact(["--token", "--lr", "0.1"]) == ["--token", "--lr", "0.1"]


def test_the_input_is_left_alone_and_other_values_stay():
    given = {"a": [1, 2.5, None, True, "text"], "env": {"KEY": SECRET, "flag_token": None}}
    before = copy.deepcopy(given)
    assert redact(given) == {"a": [1, 2.5, None, True, "text"], "env": {"KEY": MASK, "flag_token": None}}
    assert given == before


def test_schemes_and_placeholders_are_not_secrets():
    text = "train --arm={arm} --seed {seed} --init conditioned(value=per_head, scale=matched)"
    assert redact_text(text) == text
