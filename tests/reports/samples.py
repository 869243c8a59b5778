"""Made-up but plausible results, for the pages' tests: 7 arms x 8 seeds, and a small model's conditioning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ARMS = (
    "default",
    "default(redraw)",
    "conditioned",
    "conditioned(scale=matched)",
    "default(scale=conditioned)",
    "default(std=faithful)",
    "mimetic",
)
CELLS = {
    "cL": "conditioned",
    "cS": "conditioned(scale=matched)",
    "dL": "default(scale=conditioned)",
    "dS": "default",
}
EFFECTS = {
    "scale": {"cL": 0.5, "cS": -0.5, "dL": 0.5, "dS": -0.5},
    "spectrum": {"cL": 0.5, "cS": 0.5, "dL": -0.5, "dS": -0.5},
    "interaction": {"cL": 1.0, "cS": -1.0, "dL": -1.0, "dS": 1.0},
}
HOSTILE = "</script><img src=x onerror=alert(1)>"
_GAIN = {"conditioned": 0.012, "default(scale=conditioned)": 0.01, "default(std=faithful)": 0.008, "mimetic": -0.004}
_T7 = 2.3646  # two-sided 95 % point of Student's t with 7 degrees of freedom


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _sd(values: list[float]) -> float:
    m = _mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))


def study(seeds: int = 8) -> dict[str, Any]:
    """An analysis of a study in the form of `kappaone.studies`."""
    rng = np.random.default_rng(7)
    level = rng.normal(0, 0.004, seeds)
    values = {
        arm: {str(s): 0.93 + _GAIN.get(arm, 0.0) + level[s] + rng.normal(0, 0.0035) for s in range(seeds)}
        for arm in ARMS
    }
    steps = list(range(0, 401, 20))
    declared = [
        {"name": f"{a} vs default", "kind": "arm", "weights": {a: 1.0, "default": -1.0}} for a in ARMS if a != "default"
    ]
    declared += [
        {"name": name, "kind": "causal", "weights": {CELLS[c]: w for c, w in by_cell.items()}}
        for name, by_cell in EFFECTS.items()
    ]
    curves: dict[str, Any] = {"test_accuracy": {}, "train_loss": {}}
    for arm in ARMS:
        end = _mean(list(values[arm].values()))
        rise = 60 if arm in _GAIN else 85
        mean = [0.1 + (end - 0.1) * (1 - math.exp(-s / rise)) for s in steps]
        loss = [0.08 + 2.2 * math.exp(-s / rise) for s in steps]
        for metric, line, width in (("test_accuracy", mean, 0.03), ("train_loss", loss, 0.12)):
            half = [width * math.exp(-s / 150) + 0.003 for s in steps]
            curves[metric][arm] = {
                "steps": steps,
                "mean": line,
                "low": [m - h for m, h in zip(line, half, strict=True)],
                "high": [m + h for m, h in zip(line, half, strict=True)],
            }
    contrasts = []
    for contrast in declared:
        d = {str(s): sum(w * values[a][str(s)] for a, w in contrast["weights"].items()) for s in range(seeds)}
        mean, sd = _mean(list(d.values())), _sd(list(d.values())) if seeds > 1 else 0.0
        half = 1.35 * _T7 * sd / math.sqrt(seeds)
        inner = 1.895 * sd / math.sqrt(seeds)
        if abs(mean) > half:
            verdict = ("positive" if mean > 0 else "negative") if contrast["kind"] == "causal" else ""
            verdict = verdict or ("better" if mean > 0 else "worse")
        else:
            verdict = "equivalent" if abs(mean) + inner < 0.005 else "inconclusive"
        contrasts.append(
            contrast
            | {
                "differences": d,
                "mean": mean,
                "sd": sd,
                "interval": [mean - half, mean + half],
                "interval90": [mean - inner, mean + inner],
                "p_maxt": 0.0078 if abs(mean) > half else 0.31,
                "verdict": verdict,
                "words": f"{contrast['name']}: {verdict} on test_accuracy by {mean:+.4f}, within [{mean - half:+.4f}, "
                f"{mean + half:+.4f}] at 95 % simultaneous confidence.",
            }
        )
    target_rows = []
    reference_steps = {str(s): 260 + 20 * (s % 3) for s in range(seeds)}
    for arm in ARMS:
        early = {"default": 0, "default(redraw)": 0, "mimetic": -40}.get(arm, 80)
        found: dict[str, int | None] = {
            s: n - early + (20 * ((int(s) * 7 + len(arm)) % 3 - 1) if arm != "default" else 0)
            for s, n in reference_steps.items()
        }
        if arm == "mimetic" and seeds > 2:
            found["2"] = None
        moved = [(400 if found[s] is None else found[s]) - reference_steps[s] for s in found]
        half = _T7 * _sd(moved) / math.sqrt(seeds) if seeds > 1 else 0.0
        reference = arm == "default"
        target_rows.append(
            {
                "arm": arm,
                "steps": found,
                "reached": sum(n is not None for n in found.values()),
                "n": seeds,
                "difference": None if reference else _mean(moved),
                "interval": None if reference else [_mean(moved) - half, _mean(moved) + half],
                "words": f"{arm} held the target in {sum(n is not None for n in found.values())} of {seeds} runs.",
            }
        )

    def ends(first: float, last: float, spread: float) -> dict[str, Any]:
        return {
            when: {"mean": x, "low": x * (1 - spread), "high": x * (1 + spread)}
            for when, x in (("first", first), ("last", last))
        }

    wide = {"conditioned", "default(scale=conditioned)"}
    tracked = {
        "logit_std": {a: ends(1.0 if a in wide else 0.08, 1.6 if a in wide else 0.9, 0.15) for a in ARMS},
        "kappa_J": {a: ends(9e1 if a in wide else 4.7e3, 4e2 if a in wide else 2e3, 0.4) for a in ARMS},
    }
    noise = contrasts[0]
    return {
        "schema": 1,
        "plan": {
            "schema": 1,
            "name": "digits",
            "arms": list(ARMS),
            "seeds": list(range(seeds)),
            "reference": "default",
            "noise_arm": "default(redraw)",
            "metric": "test_accuracy",
            "higher_is_better": True,
            "margin": 0.005,
            "diverged_value": None,
            "contrasts": declared,
            "cells": CELLS,
            "target": {"metric": "test_accuracy", "grid": None, "window": 3, "consecutive": 3, "tail": 0.05},
            "tracked": ["logit_std", "kappa_J"],
            "runner": {
                "command": [
                    "python",
                    "train.py",
                    "--arm={arm}",
                    "--seed",
                    "{seed}",
                    "--hf-token",
                    "hunter2",
                    "--lr",
                    "0.1",
                ],
                "options": {"epochs": 3, "env": {"WANDB_API_KEY": "hunter3"}},
            },
        },
        "provenance": {
            "kappaone": "0.1.0",
            "plan_hash": "5d41402abc4b2a76b9719d911017c592ae2f8c1d",
            "versions": {"python": "3.11.7", "torch": "2.14.1", "scipy": "1.17.0"},
            "machine": "x86_64, Linux",
            "cores": 2,
            "started": "2026-11-30T18:00:00Z",
            "finished": "2026-11-30T18:07:12Z",
        },
        "arms": [
            {
                "name": arm,
                "n": seeds,
                "mean": _mean(list(values[arm].values())),
                "sd": _sd(list(values[arm].values())) if seeds > 1 else None,
                "values": values[arm],
                "diverged": [],
                "failed": [],
            }
            for arm in ARMS
        ],
        "curves": curves,
        "noise_floor": {
            "arm": "default(redraw)",
            "mean": noise["mean"],
            "sd": noise["sd"],
            "interval": noise["interval"],
            "n": seeds,
            "words": "Another draw of the same initialization moves test_accuracy by this much.",
        },
        "pairing": {
            "correlation": 0.55,
            "interval": [0.21, 0.83],
            "variance_ratio": 0.45,
            "words": "Pairing by seed left 45 % of the variance of an unpaired difference.",
        },
        "mde": {
            "value": 0.0061,
            "low": 0.0043,
            "high": 0.0104,
            "power": 0.8,
            "alpha": 0.05,
            "words": "Effects below this are more likely missed than found.",
        },
        "exact_test": {
            "n": seeds,
            "smallest_p": 2 / 2**seeds,
            "words": f"{seeds} pairs have {2**seeds} sign patterns.",
        },
        "contrasts": contrasts,
        "causal": {
            "effects": ["scale", "spectrum", "interaction"],
            "cells": {c: _mean(list(values[a].values())) for c, a in CELLS.items()},
            "arms": dict(CELLS),
            "words": "The scale raises test_accuracy; about the spectrum this study is inconclusive.",
        },
        "target": {
            "rule": {"metric": "test_accuracy", "grid": None, "window": 3, "consecutive": 3, "tail": 0.05},
            "rows": target_rows,
            "horizon": 400,
            "words": "Target of a seed: default's test_accuracy at its end, by one rule for all arms.",
        },
        "tracked": tracked,
        "warnings": [],
    }


def conditioning(layers: int = 12, heads: int = 12, kv_heads: int = 4, example: bool = True) -> dict[str, Any]:
    """A conditioning report in the form of `kappaone.conditioning`: grouped keys and values, some statuses."""
    rng = np.random.default_rng(11)

    def spectrum(size: int, kappa: float, status: str = "ok") -> dict[str, Any]:
        top = 0.55 * float(rng.uniform(0.9, 1.1))
        return {
            "sigma_max": top,
            "sigma_min": top / kappa,
            "condition_number": kappa if status != "zero" else "NaN",
            "frobenius_norm": 0.02 * math.sqrt(768 * size),
            "stable_rank": size * float(rng.uniform(0.5, 0.7)),
            "rank": size,
            "status": status,
        }

    found = []
    for place in range(layers):
        roles = {}
        for role in "qkvo":
            count = kv_heads if role in "kv" else heads
            blocks = [spectrum(64, 1.8 * 10 ** float(rng.uniform(0, 0.2 + place / layers))) for _ in range(count)]
            roles[role] = {"role": role, "heads": blocks, "stacked": spectrum(768, 10 ** float(rng.uniform(2.5, 3.5)))}
        if place == 2:
            roles["v"]["heads"][1] = spectrum(64, 4e14, "rank_deficient")
            roles["v"]["heads"][2] = spectrum(64, 1.0, "zero")
        layer: dict[str, Any] = {
            "name": f"blocks.{place}.attn",
            "kind": "Attention",
            "weights": {"roles": roles, "fused": spectrum(768, 1e3), "one_parameter": True},
            "heads": [],
            "summary": {},
            "notes": ["W_V of the example's layer is shared by three query heads"] if place == 2 else [],
        }
        for head in range(heads if example else 0):
            bounded, zero = place == 5 and head == 7, place == 9 and head == 3
            kappa_P = 10 ** float(rng.uniform(4, 5.5))
            layer["heads"].append(
                {
                    "head": head,
                    "kv_head": head * kv_heads // heads,
                    "logit_std": 0.31 + 0.05 * float(rng.normal()),
                    "attention_entropy": 3.8 + 0.05 * float(rng.normal()),
                    "relative_entropy": 0.97 + 0.01 * float(rng.normal()),
                    "kappa_X": 55.0 + place,
                    "rank_X": 50,
                    "kappa_P": {
                        "condition_number": kappa_P,
                        "status": "rank_deficient" if bounded else "ok",
                        "rank": 49,
                    },
                    "bound": {
                        "value": "inf",
                        "b_plus": 2.3e5,
                        "kappa_X": 55.0 + place,
                        "kappa_X_kv": 55.0 + place,
                        "kappa_P": kappa_P,
                        "kappa_plus_Lambda": 421.0,
                        "kappa_W_Q": 1.8,
                        "kappa_W_K": 1.8,
                        "kappa_W_V": 1.8,
                        "logits_term": 2.2e5,
                        "value_term": 1.0e4,
                        "shares": {"X": 3.0},
                        "log_shares": {"X": 0.5},
                        "statuses": {"X": "ok", "P": "rank_deficient" if bounded else "ok"},
                        "why_infinite": "every block of Lambda(P) maps the all-ones vector to zero",
                        "b_plus_label": "a heuristic, not a bound: kappa(J) can exceed it",
                    },
                    "kappa_J": {
                        "status": "zero_operator" if zero else "bounded" if bounded else "ok",
                        "condition_number": "nan" if zero else 10 ** float(rng.uniform(5, 6.5)),
                        "relative_error": 1e-9,
                        "note": "numerical rank 3100 of generic rank 3200" if bounded else "J is zero" if zero else "",
                    },
                }
            )
        found.append(layer)
    return {
        "schema": "kappaone/conditioning-report",
        "schema_version": 1,
        "kappaone_version": "0.1.0",
        "model": "VisionTransformer",
        "example": "1 sample of shape (3, 224, 224)",
        "notes": ["one sample was measured"],
        "layers": found,
    }


def hostile(value: Any) -> Any:
    """A result in which every name that a user chooses ("default" and the like, layers, words) would be code."""
    if isinstance(value, dict):
        return {hostile(k): hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return value.replace("conditioned", HOSTILE).replace("blocks", HOSTILE) if isinstance(value, str) else value


PAGES = {"study": study, "conditioning": conditioning}
