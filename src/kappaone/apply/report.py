"""What `init_` did: found, set, left, refused, and why; with norms, condition numbers and expected logits."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kappaone.apply.gathered import Whole
from kappaone.apply.write import fingerprint
from kappaone.errors import MeasureError, SpecError
from kappaone.layouts.blocks import block_view, parameters_by_name
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.shards import at_rest
from kappaone.linalg.spectra import Spectrum, spectrum
from kappaone.linalg.workers import ordered
from kappaone.randomness import python_random_kept

SCHEMA = 1
# Below this many multiplications the stacked roles are measured when the report is printed; above it, on request.
_QUICK = 3e8


@dataclass
class RoleReport:
    """One role of one layer.

    Attributes:
        parameter: where it lives.
        status: "set", "left", or "tied" to a block that was set before.
        dtype: of the parameter.
        norms_before: Frobenius norm of each head's block before.
        norms_after: and after.
        fingerprints: checksum of the bits of each block that was set.
        kappa_heads: condition number of each head's block (after `measure`).
        kappa_role: of the stacked blocks.
        bias: "none", "zeroed", "left" or "zero".
    """

    parameter: str
    status: str
    dtype: str
    norms_before: list[float] = field(default_factory=list)
    norms_after: list[float] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    kappa_heads: list[Spectrum] = field(default_factory=list)
    kappa_role: Spectrum | None = None
    bias: str = "none"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        out = dict(vars(self))
        out["kappa_heads"] = [value.to_dict() for value in self.kappa_heads]
        out["kappa_role"] = None if self.kappa_role is None else self.kappa_role.to_dict()
        return out


@dataclass
class LayerReport:
    """One attention layer.

    Attributes:
        layout: where it lives.
        roles: what happened, by role.
        why_left: why nothing was set, if nothing was.
        kappa_fused: of the whole stored weight where q, k and v share one (after `measure(stacked=True)`).
        logit_std: expected std of the logits of each head on tokens of identity covariance.
        gain: gain on q and k that scale=logit found.
    """

    layout: AttentionLayout
    roles: dict[str, RoleReport] = field(default_factory=dict)
    why_left: str = ""
    kappa_fused: Spectrum | None = None
    logit_std: list[float] = field(default_factory=list)
    gain: float | None = None

    @property
    def set_roles(self) -> str:
        """Letters of the roles that were set."""
        return "".join(role for role, report in self.roles.items() if report.status == "set")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {
            "layout": self.layout.to_dict(),
            "set": self.set_roles,
            "why_left": self.why_left,
            "roles": {role: report.to_dict() for role, report in self.roles.items()},
            "kappa_fused": None if self.kappa_fused is None else self.kappa_fused.to_dict(),
            "logit_std": self.logit_std,
            "gain": self.gain,
        }


@dataclass
class InitReport:
    """Everything that `init_` found and did. Print it for a table; `to_dict` and `to_json` for a file.

    Attributes:
        scheme: canonical text of the scheme.
        seed: the seed.
        prefix: prefix of the parameter names in the streams' keys.
        layers: every attention layer, set or left.
        refused: attention that was noticed and not described, in words.
        remarks: what a careful user should know.
        provenance: versions of kappaone, torch and the streams.
        seconds: time that it took.
    """

    scheme: str
    seed: int
    prefix: str
    layers: list[LayerReport]
    refused: list[str]
    remarks: list[str]
    provenance: dict[str, Any]
    seconds: float
    _sharded: bool = field(default=False, repr=False)
    _first: bool = field(default=True, repr=False)
    _model: weakref.ReferenceType[nn.Module] | None = field(default=None, repr=False)
    _stacked: bool = field(default=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the link to the model, which no file and no other process can hold."""
        return {**self.__dict__, "_model": None}

    @property
    def blocks_set(self) -> int:
        """Number of blocks that were written."""
        return sum(len(r.fingerprints) for layer in self.layers for r in layer.roles.values() if r.status == "set")

    def measure(self, *, stacked: bool = True) -> InitReport:
        """Fill in condition numbers and expected logits, from the weights as they were set.

        On a sharded model every rank must call this: weights are gathered, one at a time.

        Args:
            stacked: also per role and fused, which takes a singular value decomposition of each stacked matrix.

        Returns:
            The report itself.

        Raises:
            MeasureError: if the model is gone, or its weights have changed since.
        """
        done = all(layer.logit_std for layer in self.layers)
        if done and (self._stacked or not stacked):
            return self
        model = None if self._model is None else self._model()
        if model is None:
            raise MeasureError(
                "the model of this report is gone, so that it cannot be measured", "measure before dropping the model"
            )
        at_rest(model)
        parameters = Whole(parameters_by_name(model))
        changed = next(changed_blocks(self, parameters), None)
        if changed is not None:
            raise MeasureError(
                f"the weights have changed since init_ ({changed})",
                "call report.measure() right after init_, or kappaone.inspect(model) now",
            )
        for layer in self.layers:
            _measure(layer, parameters, stacked)
        self._stacked = self._stacked or stacked
        return self

    def measure_if_possible(self) -> str:
        """Measure what is quick, as printing and exporting do; returns what is left out and why, "" if nothing is."""
        stacked = quick(self)
        if self._sharded and not all(layer.logit_std for layer in self.layers):
            # Printing must not wait for other ranks: people print on one.
            return "condition numbers are not shown: the model is sharded; call report.measure() on every rank"
        try:
            self.measure(stacked=stacked)
        except MeasureError as error:
            return f"condition numbers are not shown: {error.what}"
        if stacked or self._stacked:
            return ""
        return "kappa of stacked roles and fused weights takes longer: report.measure() in Python, or kappaone inspect"

    def to_dict(self, *, measure: bool = True) -> dict[str, Any]:
        """Plain JSON-ready form.

        Args:
            measure: first measure what is quick, if the weights are still those that were set; `not_measured` says
                what is left out and why.
        """
        left_out = self.measure_if_possible() if measure else "not asked for"
        return {
            "not_measured": left_out,
            "schema": SCHEMA,
            "kind": "init_report",
            "scheme": self.scheme,
            "seed": self.seed,
            "prefix": self.prefix,
            "provenance": self.provenance,
            "seconds": self.seconds,
            "layers": [layer.to_dict() for layer in self.layers],
            "refused": self.refused,
            "remarks": self.remarks,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> InitReport:
        """A report read back, for `check`; what was measured is left out.

        Raises:
            SpecError: if the data is not an init report of a known schema.
        """
        if data.get("kind") != "init_report" or data.get("schema") != SCHEMA:
            raise SpecError(
                f"this is {data.get('kind', 'something')!r} of schema {data.get('schema')}; expected an init_report of schema {SCHEMA}",
                "pass what kappaone init --report wrote",
            )
        layers = []
        for item in data["layers"]:
            names = ("parameter", "status", "dtype", "norms_before", "norms_after", "fingerprints", "bias")
            roles = {role: RoleReport(**{name: entry[name] for name in names}) for role, entry in item["roles"].items()}
            layers.append(
                LayerReport(AttentionLayout.from_dict(item["layout"]), roles, item["why_left"], gain=item["gain"])
            )
        plain = ("scheme", "seed", "prefix", "refused", "remarks", "provenance", "seconds")
        return cls(**{name: data[name] for name in plain}, layers=layers)

    def to_json(self, *, measure: bool = True) -> str:
        """The same as JSON text (NaN and infinity as strings)."""
        return json.dumps(_plain(self.to_dict(measure=measure)), indent=1)

    def __str__(self) -> str:
        if not self._first:  # the report is the same on every rank: it is printed once
            return f"{self.scheme}: {self.blocks_set} blocks set; the table is the same as on the first rank, which prints it"
        with python_random_kept():
            from kappaone.apply.table import render

            return render(self)


def changed_blocks(report: InitReport, parameters: Mapping[str, Tensor]) -> Iterator[str]:
    """Names of the blocks whose bits are not those that were set, one by one."""
    for layer in report.layers:
        for role, entry in layer.roles.items():
            if entry.status != "set":
                continue
            weight = parameters.get(entry.parameter)
            if weight is None:
                yield f"{entry.parameter} is gone"
                continue
            rows = layer.layout.role(_role(role))
            for head, expected in enumerate(entry.fingerprints):
                if fingerprint(block_view(weight, rows, _role(role), head)) != expected:
                    yield f"{entry.parameter}, role {role}, head {head}"


def role_fingerprints(layout: AttentionLayout, role: Role, parameters: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Checksum of each block of one role as it is now; empty where the layout has no such role or no such weight."""
    if (role == "o" and layout.o is None) or layout.role(role).parameter not in parameters:
        return ()
    rows = layout.role(role)
    weight = parameters[rows.parameter]
    return tuple(fingerprint(block_view(weight, rows, role, head)) for head in range(rows.heads))


def stack(weight: Tensor, layout: AttentionLayout, role: Role) -> Tensor:
    """The blocks of one role in float64: (heads, size, width), for o (heads, width, size)."""
    rows = layout.role(role)
    return torch.stack([block_view(weight, rows, role, head) for head in range(rows.heads)]).to("cpu", torch.float64)


def _measure(layer: LayerReport, parameters: Mapping[str, Tensor], stacked: bool) -> None:
    layout = layer.layout
    blocks = {}
    for role, entry in layer.roles.items():
        blocks[role] = stack(parameters[entry.parameter], layout, _role(role))
        if not entry.kappa_heads:
            entry.kappa_heads = list(ordered(partial(spectrum, block) for block in blocks[role]))
        if stacked and entry.kappa_role is None:
            axis = 1 if role == "o" else 0
            entry.kappa_role = spectrum(torch.cat(list(blocks[role]), dim=axis))
    if stacked and layer.kappa_fused is None and layout.fused():
        layer.kappa_fused = spectrum(parameters[layout.q.parameter].detach().flatten(1))
    q, k = blocks["q"], blocks["k"]
    if layout.scale is not None and q.shape[-1] == k.shape[-1] and not layer.logit_std:
        keys = k[[layout.kv_head(head) for head in range(layout.heads)]]
        # On tokens of identity covariance, var(x^T W_Q^T W_K y) = |W_Q^T W_K|_F^2 = <W_Q W_Q^T, W_K W_K^T>.
        grams = (q @ q.mT) * (keys @ keys.mT)
        layer.logit_std = [layout.scale * float(value) for value in grams.sum((-2, -1)).clamp(min=0).sqrt()]
    elif not layer.logit_std:
        layer.logit_std = [float("nan")] * layout.heads


def quick(report: InitReport) -> bool:
    """Whether the stacked roles are measured without asking."""
    cost = 0.0
    for layer in report.layers:
        for role in layer.roles:
            rows = layer.layout.role(_role(role))
            small, large = sorted((rows.rows, rows.width))
            cost += 4.0 * small * small * large
    return cost < _QUICK


def _role(role: str) -> Role:
    return "q" if role == "q" else "k" if role == "k" else "v" if role == "v" else "o"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
