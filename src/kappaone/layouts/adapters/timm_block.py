"""timm's parallel blocks (ViT-22B): attention and MLP in one module, with one projection of rows [MLP|Q|K|V].

The attention is no module of its own, so the block is the layer.
"""

from __future__ import annotations

from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.adapters.timm_shared import has, layout, linear_laws, number, only, qk_norms, scale, truthy
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

SOURCE = "timm.block"
_NEEDED = ("num_heads", "head_dim", "scale", "in_norm", "in_proj", "in_split", "q_norm", "k_norm", "mlp_act")
_KNOWN = {
    "in_norm", "in_proj", "q_norm", "k_norm", "mlp_act", "mlp_drop", "attn_out_proj", "mlp_out_proj", "out_proj", "ls",
    "drop_path", "sub_norm",
}  # fmt: skip
_LAMBDAS = {"lambda_a", "lambda_b", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of a parallel block, or None."""
    if not has(site, *_NEEDED) or not only(site, _KNOWN, {"mlp_bias", *_LAMBDAS}):
        return None
    heads, size, split = number(site, "num_heads"), number(site, "head_dim"), site.attribute("in_split")
    fused, apart, joint = site.projection("in_proj"), site.projection("attn_out_proj"), site.projection("out_proj")
    if fused is None or heads is None or size is None or not isinstance(split, (list, tuple)) or len(split) != 4:
        return None
    differential = 2 if "sub_norm" in site.children() else 1
    hidden, width = int(split[0]), int(split[1])
    if list(split[1:]) != [width] * 3 or width != heads * size * differential:
        return None
    out = apart if apart is not None else joint
    if out is None or out.inputs != width + (0 if apart is not None else hidden):
        return None
    if differential == 1:
        rows = fused_rows(fused, "q k v", heads=heads, size=size, offset=hidden)
    elif fused.outputs == hidden + 3 * width:
        rows = {
            "q": fused.rows(range(hidden, hidden + width, size), size),
            "k": fused.rows(range(hidden + width, hidden + 2 * width, size), size),
            "v": fused.rows(range(hidden + 2 * width, hidden + 3 * width, 2 * size), 2 * size),
        }
    else:
        return None
    facts = truthy(
        parallel=True,
        partial=f"the first {hidden} rows of in_proj belong to the MLP",
        qk_norm=qk_norms(site),
        differential=differential == 2,
        output_norm=differential == 2,
        extra="a layer norm stands in front of the projections",
    )
    # The attention comes first in what a joint output projection reads.
    columns = out.columns(heads, size=width // heads)
    return layout(site, SOURCE, rows, columns, facts, factor=scale(site), laws=linear_laws(fused), zero_bias=True)
