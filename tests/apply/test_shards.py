"""Sharded and wrapped models get the weights of the plain one, bit for bit; all ranks go on together, or none.

Each world of ranks is started once and runs many cases (sharded_cases.py); the tests look at what it returned.
"""

from __future__ import annotations

import json

import pytest
from filelock import FileLock

from tests.apply.worlds import run_world

PLAN = {
    1: ["the_same_everywhere", "forward_and_back"],
    2: [
        "every_scheme",
        "bfloat16",
        "dim_1",
        "parallel_meshes",
        "the_same_everywhere",
        "wrappers",
        "wrapped_names",
        "flat_parameters",
        "accelerated",
        "offloaded",
        "forward_and_back",
        "materialised_in_parts",
        "ties_survive",
        "one_rank_fails",
        "ddp_ranks_disagree",
        "loaded_weights",
        "what_is_refused",
        "reports",
        "measured_on_an_example",
        "spectra_of_shards",
        "what_is_sent",
    ],
    4: [
        "every_scheme",
        "parallel_meshes",
        "grids",
        "strided_and_trained",
        "the_same_everywhere",
        "materialised_in_parts",
        "one_rank_fails",
        "reports",
        "what_is_sent",
    ],
}


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """What each rank returned, by the number of ranks; each world runs once, whichever worker asks first."""
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent  # workers of one run share this

    def results(ranks: int) -> dict[str, list[dict]]:
        found = shared / f"world-{ranks}.json"
        with FileLock(f"{found}.lock"):
            if not found.exists():
                found.write_text(json.dumps(run_world(ranks, PLAN[ranks], shared / f"world-{ranks}")))
        return json.loads(found.read_text())

    return results


def ranks_of(world, ranks: int, case: str) -> list[dict]:
    """The results of one case; a rank that raised fails the test with its traceback."""
    results = world(ranks)[case]
    for rank, result in enumerate(results):
        assert "error" not in result, f"{case}, rank {rank} of {ranks}:\n{result['error']}"
    return [{key: value for key, value in result.items() if key not in ("seconds", "cpu")} for result in results]


def assert_equal_weights(results: list[dict]) -> None:
    """Every comparison of a plain and a wrapped model found the same bits and the same report, on every rank."""
    for rank, result in enumerate(results):
        for name, found in result.items():
            where = f"{name}, rank {rank}"
            assert found["different"] == [], f"{where}: {found['different']} differ from the plain model"
            assert found["checksums"], f"{where}: checksums differ from the plain model's"
            assert found["norms"], f"{where}: norms differ from the plain model's"
            assert found["biases"] and found["remarks"], where
            assert found["weights"] and all(found["weights"]), where
            assert found["weights"] == results[0][name]["weights"], f"{where}: the ranks' reports differ"


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp2_gets_the_weights_of_the_plain_model_for_every_scheme(world, ranks):
    assert_equal_weights(ranks_of(world, ranks, "every_scheme"))


@pytest.mark.parametrize("case", ["bfloat16", "dim_1"])
def test_fsdp2_in_other_dtypes_and_along_the_other_dimension(world, case):
    assert_equal_weights(ranks_of(world, 2, case))


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel_and_placed_by_hand(world, ranks):
    assert_equal_weights(ranks_of(world, ranks, "parallel_meshes"))


def test_meshes_of_two_dimensions(world):
    assert_equal_weights(ranks_of(world, 4, "grids"))
    for result in ranks_of(world, 4, "strided_and_trained"):
        assert result["strided"]
        assert result["apart"] < 1e-5  # tensor parallel adds in another order


def test_wrappers_that_do_not_shard(world):
    assert_equal_weights(ranks_of(world, 2, "wrappers"))


def test_names_and_layouts_under_wrappers(world):
    for result in ranks_of(world, 2, "wrapped_names"):
        assert result["renamed"] == ["FSDPVisionTransformer"]  # the block list is a Sequential in timm
        assert result["layouts"] == {"fsdp2": True, "ddp": True, "compiled": True}
        assert result["survey"] == 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_written_outlives_a_forward_pass(world, ranks):
    for result in ranks_of(world, ranks, "forward_and_back"):
        assert result["gathered"], "the case no longer shows what it is about"
        assert result == {"gathered": True, "identity": True, "apart": 0.0, "different": [], "check": True}


def test_accelerate(world):
    for result in ranks_of(world, 2, "accelerated"):
        assert result["sharded"] > 2
        assert result == {"sharded": result["sharded"], "different": [], "apart": 0.0, "blocks": 16, "trained": True}


def test_fsdp1_is_refused_with_a_recipe_that_works(world):
    for result in ranks_of(world, 2, "flat_parameters"):
        for kind, text in result["refused"]:
            assert kind == "WriteError" and "FSDP1" in text and "summon_full_params" in text
        assert result["different True"] == result["different False"] == []
        assert result["check True"] and result["check False"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_meta_then_sharded_then_given_memory(world, ranks):
    for result in ranks_of(world, ranks, "materialised_in_parts"):
        assert "meta" in result["refused"]
        assert result["equal"] == [True, True]
        assert result["types"] == ["DTensor"]
        assert result["fraction"] < 1.05 / ranks, "more than a rank's share was made"


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_failure_of_one_rank_is_the_failure_of_all(world, ranks):
    results = ranks_of(world, ranks, "one_rank_fails")
    last = f"rank {ranks - 1} of {ranks}: "
    expected = {
        "loaded": ("WriteError", last, "transformers marks it as loaded", "no rank has written anything"),
        "not finite": ("WriteError", f" of {ranks}: ", "nan", "every rank has put its weights back"),
        "RuntimeError": ("WriteError", last, "the disk is full", "every rank has put its weights back"),
        "RuntimeError reading": ("WriteError", last, "the disk is full", "every rank has put its weights back"),
        "KeyboardInterrupt": ("WriteError", last, "KeyboardInterrupt", "every rank has put its weights back"),
        "KeyboardInterrupt reading": ("WriteError", last, "KeyboardInterrupt", "every rank has put its weights back"),
        "seed": (
            "WriteError",
            "the ranks do not do the same",
            "seed=0",
            f"rank {ranks - 1}: init_('conditioned', seed=1",
        ),
        "scheme": ("WriteError", "the ranks do not do the same", "conditioned", f"rank {ranks - 1}: init_('mimetic'"),
        "spelling": ("SpecError", last, "mimetik", "no rank has written anything"),
        "layouts": ("WriteError", "the ranks do not do the same", "layouts", f"rank {ranks - 1}: 2 attention layers"),
        "everyone": ("SpecError", "has no option 'std'"),
    }
    for name, (kind, *parts) in expected.items():
        errors = [result[name] for result in results]
        interrupted = errors.pop() if name.startswith("KeyboardInterrupt") else None
        if interrupted is not None:
            assert interrupted[0] == "KeyboardInterrupt" and interrupted[2], name
        for found, text, unchanged, seconds in errors:
            assert found == kind, (name, text)
            assert all(part in text for part in parts), (name, text)
            assert text == errors[0][1], f"{name}: the ranks say different things"
            assert unchanged, f"{name}: something was written"
            assert seconds < 20, f"{name}: {seconds} s"
    assert [result["fine"][0] for result in results] == [False] * ranks  # no error, and weights changed


def test_ranks_of_a_ddp_model_must_agree(world):
    texts = [result["seed"] for result in ranks_of(world, 2, "ddp_ranks_disagree")]
    assert texts[0] == texts[1]
    assert "rank 1: init_('conditioned', seed=1" in texts[0][1]


def test_loaded_weights_are_seen_in_shards(world):
    results = ranks_of(world, 2, "loaded_weights")
    assert results[0] == results[1]
    assert "'blocks.1.attn.qkv.weight' of layer 'blocks.1.attn' seems to hold loaded" in results[0]["trained"][1]
    assert results[0]["again"] == []
    assert "holds what kappaone wrote before" in results[0]["matched"][1]


def test_what_cannot_be_done_on_shards_is_refused_with_the_reason(world):
    for result in ranks_of(world, 2, "what_is_refused"):
        assert "verify before sharding" in result["verify"][1]
        assert "placement P" in result["partial"][1]
        assert "tensor parallelism" in result["logit under tp"][1]


@pytest.mark.parametrize("ranks", [2, 4])
def test_reports_are_equal_and_printed_once(world, ranks):
    results = ranks_of(world, ranks, "reports")
    assert all(result["json"] == results[0]["json"] for result in results)
    assert "W_Q" in results[0]["printed"] or "heads" in results[0]["printed"]
    assert all(result["printed"].count("\n") == 0 and "first rank" in result["printed"] for result in results[1:])
    for result in results:
        assert "on every rank" in result["unmeasured"]
        assert result["kappas"] and result["spreads"] and result["checked"] and result["remembered"]
        assert result["changed"] == [f"model.layers.1.self_attn.v_proj.weight, role v, head {h}" for h in (0, 1)]


def test_measurements_on_an_example(world):
    results = ranks_of(world, 2, "measured_on_an_example")
    same = [{k: v for k, v in result.items() if not k.startswith("own ")} for result in results]
    assert_equal_weights(same)
    for name in set(results[0]) - set(same[0]):
        assert results[0][name] == results[1][name], f"{name}: each rank followed its own data"
        assert results[0][name]["check"]


def test_spectra_of_shards(world):
    assert all(result["same"] for result in ranks_of(world, 2, "spectra_of_shards"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_few_collectives_and_only_the_blocks_that_a_rank_holds(world, ranks):
    for result in ranks_of(world, ranks, "what_is_sent"):
        assert result["1"]["all_reduces"] == result["3"]["all_reduces"] <= 10
        assert result["1"]["others"] == result["3"]["others"] == 0
        # 144 fused rows over 2 or 4 ranks: 12 blocks of 12 rows a layer, which the cuts at 72 and 36 do not divide.
        assert result["3"]["computed"] == 3 * 12 // ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_scheme_on_every_model_in_every_dtype(ranks, tmp_path):
    results = run_world(ranks, ["every_scheme_on_every_model"], tmp_path, seconds=900)["every_scheme_on_every_model"]
    for result in results:
        assert "error" not in result, result["error"]
        del result["seconds"], result["cpu"]
    assert_equal_weights(results)
