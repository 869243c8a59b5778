"""Each scheme's formula, against its definition written out plainly."""

import numpy as np
import pytest

from kappaone.errors import SpecError
from kappaone.laws import Law
from kappaone.schemes import understand
from kappaone.schemes.base import LayerShape, RoleShape
from kappaone.streams import LayerStream

D, H, d = 24, 4, 6


def shape(*, kv=H, width=D, size=d, heads=H, output=True, current=None, laws=(), fused=True):
    rows = {"q": heads * size, "k": kv * size, "v": kv * size}
    stored = {r: sum(rows.values()) if fused else rows[r] for r in rows}
    roles = {r: RoleShape(heads if r == "q" else kv, size, width, stored[r]) for r in rows}
    if output:
        roles["o"] = RoleShape(heads, size, width, width)
    return LayerShape(
        "layer",
        roles,
        tuple(h // (heads // kv) for h in range(heads)),
        0,
        1,
        laws,
        current or (lambda role, head: np.zeros((size, width))),
    )


def blocks(text, layer, seed=0):
    spec = understand(text)
    stream = LayerStream(seed, dict.fromkeys("qkvo", "w"))
    out = {}
    for job in spec.entry.jobs(layer, stream, spec.parts, spec.options):
        found = job.compute()
        assert set(found) == set(job.blocks)
        out |= found
    return out


def stacked(found, role):
    heads = sorted(h for r, h in found if r == role)
    return np.concatenate([found[role, h] for h in heads], axis=1 if role == "o" else 0)


def kappa(matrix):
    values = np.linalg.svd(matrix, compute_uv=False)
    return values[0] / values[-1]


def test_conditioned_is_the_paper():
    found = blocks("conditioned", shape())
    for role in "qk":
        for head in range(H):
            W = found[role, head]
            assert np.allclose(W @ W.T, np.eye(d), atol=1e-13)
        assert not np.allclose(stacked(found, role) @ stacked(found, role).T, np.eye(D), atol=0.1)
    assert np.array_equal(stacked(found, "v"), np.eye(D))


def test_conditioned_options():
    literal = blocks("conditioned(value=per_head)", shape())
    assert all(np.array_equal(literal["v", h], np.eye(d, D)) for h in range(H))
    joint = stacked(blocks("conditioned(qk=joint)", shape()), "q")
    assert np.allclose(joint @ joint.T, np.eye(D), atol=1e-12)


def test_conditioned_under_grouped_and_wide_values():
    grouped = blocks("conditioned", shape(kv=2))
    assert np.array_equal(stacked(grouped, "v"), np.eye(2 * d, D))
    wide = stacked(blocks("conditioned", shape(width=8)), "v")
    assert np.linalg.norm(wide, axis=1).min() == 1, "a value channel is dead"
    assert np.array_equal(wide, np.eye(8)[np.arange(24) % 8])


def test_trunc_normal_has_its_std_and_bound():
    layer = shape(width=300, size=50)
    for sigma in (1.0, 2.0, 100.0):
        W = stacked(blocks(f"trunc_normal(std=0.02, truncate_at_sigma={sigma})", layer), "q")
        assert W.std() == pytest.approx(0.02, rel=0.02)
        law = __import__("scipy.stats", fromlist=["truncnorm"]).truncnorm(-sigma, sigma)
        assert np.abs(W).max() <= 0.02 * sigma / law.std() * (1 + 1e-12)
        assert ((W / 0.02) ** 4).mean() == pytest.approx(law.moment(4) / law.std() ** 4, rel=0.05)
    with pytest.raises(SpecError, match="std > 0"):
        blocks("trunc_normal(std=0)", layer)


def test_scales_of_the_gaussian_and_uniform_schemes():
    layer = shape(width=200, size=50)
    rows = 4 * 50
    cases = {
        "fan_in": 200**-0.5,
        "fan_in(gain=2)": 2 * 200**-0.5,
        "xavier_per_role": (2 / (200 + rows)) ** 0.5,
        "xavier_per_role(fan=head)": (2 / (200 + 50)) ** 0.5,
        "xavier_per_role(distribution=normal)": (2 / (200 + rows)) ** 0.5,
        "xavier_fused": (2 / (200 + 3 * rows)) ** 0.5,
    }
    for text, std in cases.items():
        assert stacked(blocks(text, layer), "k").std() == pytest.approx(std, rel=0.02), text


def test_xavier_fused_is_torchs_own_defect():
    """pytorch#166378: at embed_dim 64, std .088 where .125 is meant."""
    layer = shape(width=64, size=16)
    assert stacked(blocks("xavier_fused", layer), "q").std() == pytest.approx(0.0884, rel=0.03)
    assert stacked(blocks("xavier_per_role", layer), "q").std() == pytest.approx(0.125, rel=0.03)


def test_orthogonal_has_kappa_one_at_both_levels():
    found = blocks("orthogonal(gain=3)", shape())
    for role in "qkv":
        assert kappa(stacked(found, role)) == pytest.approx(1, abs=1e-9)
        assert all(kappa(found[role, h]) == pytest.approx(1, abs=1e-9) for h in range(H))
        assert np.linalg.norm(found[role, 0], 2) == pytest.approx(3)


def target(seed, role, head, a, b, width=D):
    Z = LayerStream(seed, dict.fromkeys("qkvo", "w")).normal((width, width), role, head, "target") / width**0.5
    return a * Z + b * np.eye(width)


def best(T, rank):
    U, S, Vt = np.linalg.svd(T)
    return (U[:, :rank] * S[:rank]) @ Vt[:rank]


@pytest.mark.parametrize(("signs", "sign"), [("vision", 1), ("language", -1)])
def test_mimetic_products(signs, sign):
    """W_Q W_K^T is the best rank-d approximation of a1 Z + b1 I, W_V W_O is a2 Z - b2 I (tokens times weight)."""
    found = blocks(f"mimetic(signs={signs})", shape())
    for head in range(H):
        W_Q, W_K = found["q", head].T, found["k", head].T
        assert np.allclose(W_Q @ W_K.T, best(target(0, "q", head, 0.7, sign * 0.7), d), atol=1e-10)
        assert np.linalg.norm(W_Q) == pytest.approx(np.linalg.norm(W_K))
    W_V, W_O = stacked(found, "v").T, stacked(found, "o").T
    assert np.allclose(W_V @ W_O, target(0, "v", None, 0.4, -sign * 0.4), atol=1e-10)


def test_mimetic_as_published_is_far_from_its_target():
    """schemes.md: the widespread code computes R L where the target is L R; relative distance about .96."""
    big = shape(width=192, size=48)
    found = blocks("mimetic(as_published)", big)
    T = target(0, "v", None, 0.4, -0.4, 192)
    product = stacked(found, "v").T @ stacked(found, "o").T
    assert np.linalg.norm(product - T) / np.linalg.norm(T) == pytest.approx(0.96, abs=0.1)
    assert np.allclose(np.linalg.svd(stacked(found, "v"))[1], np.linalg.svd(stacked(found, "o"))[1])


def test_mimetic_under_grouped_queries():
    found = blocks("mimetic", shape(kv=2))
    for kv, heads in ((0, (0, 1)), (1, (2, 3))):
        T = np.concatenate([target(0, "q", h, 0.7, 0.7) for h in heads])
        product = np.concatenate([found["q", h].T for h in heads]) @ found["k", kv]
        assert np.allclose(product, best(T, d), atol=1e-10)
    total = sum(found["v", h // 2].T @ found["o", h].T for h in range(H))
    assert np.allclose(total, best(target(0, "v", None, 0.4, -0.4), 2 * d), atol=1e-10)


def test_mimetic_says_when_it_cannot():
    with pytest.raises(SpecError, match="no known output projection"):
        blocks("mimetic", shape(output=False))
    assert blocks("mimetic(parts=qk)", shape(output=False))
    with pytest.raises(SpecError, match="square"):
        blocks("mimetic(as_published)", shape(kv=2))


def test_default_keeps_rescales_or_redraws():
    weights = {(r, h): 0.02 * np.random.default_rng(h).standard_normal((d, D)) for r in "qkv" for h in range(H)}
    layer = shape(current=lambda r, h: weights[r, h], laws=(Law("normal", 0.02, "here"),))
    spec = understand("default")
    assert all(
        job.keeps for job in spec.entry.jobs(layer, LayerStream(0, dict.fromkeys("qkvo", "w")), "qkv", spec.options)
    )
    faithful = blocks("default(std=faithful)", layer)
    rms = np.sqrt(np.mean(stacked(faithful, "q") ** 2))
    assert rms == pytest.approx(0.02 * (768 / D) ** 0.5)
    ratio = stacked(faithful, "q") / np.concatenate([weights["q", h] for h in range(H)])
    assert np.allclose(ratio, ratio[0, 0])
    redrawn = stacked(blocks("default(redraw)", layer), "q")
    assert redrawn.std() == pytest.approx(0.02, rel=0.15)
    assert abs(np.corrcoef(redrawn.ravel(), np.concatenate([weights["q", h] for h in range(H)]).ravel())[0, 1]) < 0.2


def test_default_redraw_refuses_to_guess():
    layer = shape(
        current=lambda r, h: 0.05 * np.random.default_rng(h).standard_normal((d, D)),
        laws=(Law("normal", 0.02, "here"),),
    )
    with pytest.raises(SpecError, match="follow none"):
        blocks("default(redraw)", layer)
