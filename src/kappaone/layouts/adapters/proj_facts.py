"""Facts of attention with `q_proj`, `k_proj`, `v_proj`: from the module's attributes, its configuration and its forward.

What each stands for was read in the library's source (transformers 5.24).
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from kappaone.laws import Law
from kappaone.layouts.adapters.mentions import Mentions, words_in
from kappaone.layouts.adapters.transformers_common import inputs_of, is_cross, nearest_law, real
from kappaone.layouts.site import Projection, Site

QK_NORMS = ("q_norm", "q_layernorm", "query_layernorm", "q_layer_norm", "qk_norm")
GATES = ("gate_proj", "g_proj")
OUTPUT_NORMS = ("o_norm", "attn_sub_norm", "inner_attn_ln")
# Tokens to which positions are added: q and k (of whoever has them) read tokens + positions, v the tokens.
_ADDED = {
    "object_queries",
    "encoder_position_embeddings",
    "key_value_position_embeddings",
    "spatial_position_embeddings",
}
# Names under which layers hold attention over other tokens than their own.
_CROSS = ("cross", "x_attn", "pre_assign_attn", "encoder_attn", "encoder_attention", "token_to_image", "image_to_token")
_RELATIVE = {
    "relative_k_proj",
    "relative_position_embedding",
    "rel_pos_emb",
    "emb_rel_k",
    "gru_rel_pos_linear",
    "rel_logits_proj",
}
# Models whose layers turn q and k in their windows only, though nothing but the code says so.
_ROTARY_IN_WINDOWS = {
    "beam",
    "cohere2",
    "cohere2_moe",
    "exaone4",
    "exaone4_5_text",
    "exaone_moe",
    "flint",
    "kolibri1",
    "lara_mini",
}


def proj_facts(site: Site, said: Mentions, q: Projection, heads: int) -> dict[str, Any]:
    """Facts of one attention; those that are None or False do not hold."""
    norm = next((name for name in QK_NORMS if name in site.children() and name in said.own), None)
    extra = _extra(site, said)
    blocked = _blocked(site, said)
    relative = bool(said.own & _RELATIVE) or _adds_relative(site, said)
    return {
        # Only fairseq's translation models have tokens first, and say which of their attentions is cross attention.
        "batch_first": False if "encoder_decoder_attention" in vars(site.module) else None,
        "cross": crosses(site) or None,
        "rotary": is_turned(site, said),
        "qk_norm": None if norm is None or _before(site, norm) else _norm(site, norm, q, heads),
        "v_norm": "v_norm" in said.own and "v_norm" in site.children(),
        "softcap": any(
            real(site, name) is not None for name in ("attn_logit_softcapping", "attention_logits_soft_cap")
        ),
        "sinks": bool(said.own & (site.own_parameters() | site.children()) & {"sinks", "sink_proj"}),
        "gate": bool(said.own & site.children() & set(GATES)),
        "output_norm": bool(said.own & site.children() & set(OUTPUT_NORMS)),
        "clamped": ("clamp_" in said.words and _configured(site, "clip_qkv") is not None) or None,
        "position_bias": _has_bias(site, said) and not relative,
        "relative": relative,
        "reduced_keys": (real(site, "sequence_reduction_ratio") or 1) > 1,
        "windows": blocked,
        "pooled": "k_sconv" in said.own,
        "one_query": "pooling_attention_query" in said.own,
        "extra": extra,
    }


def crosses(site: Site) -> bool:
    """Whether keys and values are read from other tokens than queries."""
    if is_cross(site) or site.attribute("encoder_decoder_attention") is True:
        return True
    if any(part in _held_as(site) for part in _CROSS):
        return True
    return {"latents", "context"} <= inputs_of(site)


def _held_as(site: Site) -> str:
    """The attribute under which the parent holds the module, or the list that it is in."""
    parts = [part for part in site.name.split(".") if not part.isdigit()]
    # GroupViT holds it in a layer of its own, as "pre_assign_attn.attn".
    return ".".join(parts[-2:] if parts[-1:] == ["attn"] else parts[-1:])


def is_turned(site: Site, said: Mentions) -> bool:
    """Whether rotary embeddings turn q and k in this layer: some layers of some models go without."""
    if not said.calls("rotary", "rope"):
        return False
    kind = _configured(site, "model_type")
    window, sliding = site.attribute("sliding_window"), site.attribute("is_sliding")
    if kind in _ROTARY_IN_WINDOWS:
        if sliding is not None:
            return window is None or bool(sliding)
        return window is not None or site.attribute("force_rope") is True
    if "rotary_pos_emb" in inputs_of(site):
        return _configured(site, "use_rotary_embedding") is True
    if "use_rope" in said.own:
        return bool(site.attribute("use_rope"))
    if "is_local_attention" in said.own:
        return bool(site.attribute("is_local_attention"))
    if "rotary_emb" in vars(site.module) and site.attribute("rotary_emb") is None:
        return False
    layer = site.attribute("layer_idx")
    thetas = _configured(site, "layer_rope_theta")
    if isinstance(thetas, (list, tuple)) and isinstance(layer, int):
        return bool(thetas[layer])
    if _configured(site, "position_embedding_type") == "nope" or _configured(site, "use_mem_rope") is False:
        return False
    return not ("rotary_emb" in said.own and crosses(site)) and not (
        crosses(site) and "position_embeddings" not in _required(site)
    )


# Words of an `_init_weights` that draws projections in a way of its own.
_OWN_LAW = {
    "Linear",
    "kaiming_normal_",
    "kaiming_uniform_",
    "lecun_normal_",
    "q_proj",
    "xavier_normal_",
    "xavier_uniform_",
}


# And any other word for drawing.
_DRAWS = _OWN_LAW | {"trunc_normal_", "normal_", "uniform_", "orthogonal_", "sqrt"}


def drawn_by(site: Site) -> tuple[Law, ...]:
    """The law by which the library draws the projections, where the model leaves them to the library's common rule.

    Models with an `_init_weights` of their own that draws linear maps (CLIP by depth, Wav2Vec 2 by Kaiming's rule) have
    none here: no law is better than a wrong one.
    """
    model = next((module for module in site.ancestors() if hasattr(module, "_init_weights")), None)
    for kind in () if model is None else type(model).__mro__:
        rule = vars(kind).get("_init_weights")
        code = getattr(rule, "__code__", None)
        if rule is None or code is None:
            continue
        words = words_in(code)
        if {"get_text_config", "LSTM"} <= words:  # the common rule
            return nearest_law(site)
        # Cut at +-2 whatever the width, so N(0, width^2): DINOv2 draws linear maps by it, ViT tables of positions only.
        truncated = {"trunc_normal_", "weight"} <= words
        if truncated and words & _DRAWS == {"Linear", "trunc_normal_"} and "initializer_range" in words:
            return nearest_law(site)
        if "super" not in words or words & _OWN_LAW or truncated:
            return ()
    return ()


def layer_kind(site: Site) -> str | None:
    """The kind of a layer of a model that has several, such as "sliding_attention"."""
    for name in ("layer_type", "attention_type"):
        if isinstance(site.attribute(name), str):
            return str(site.attribute(name))
    kinds, layer = _configured(site, "layer_types"), site.attribute("layer_idx")
    if isinstance(kinds, (list, tuple)) and isinstance(layer, int) and 0 <= layer < len(kinds):
        return str(kinds[layer])
    return None


def clamps(target: nn.Module) -> bool:
    """Whether a wrapped linear map clamps what it reads and gives (Gemma 4's towers)."""
    return "input_min" in target._buffers or getattr(target, "use_clipped_linears", False) is True


def _configured(site: Site, name: str) -> Any:
    return getattr(site.attribute("config"), name, None)


def _required(site: Site) -> set[str]:
    given = inspect.signature(site.module.forward).parameters.values()
    return {p.name for p in given if p.default is inspect.Parameter.empty}


def _before(site: Site, norm: str) -> bool:
    """Whether the norms stand in front of the projections (BLT's cross attention), so that q and k are not normalized."""
    weight = getattr(site.attribute(norm), "weight", None)
    q = site.projection("q_proj")
    if q is None or not isinstance(weight, Tensor) or weight.numel() != q.inputs:
        return False
    return "cross_attention_states" in inputs_of(site) and "hidden_size" in vars(site.module)


def _norm(site: Site, norm: str, q: Projection, heads: int) -> bool | str:
    weight = getattr(site.attribute(norm), "weight", None)
    if not isinstance(weight, Tensor) or heads == 1:
        return True
    return "whole" if weight.ndim == 1 and weight.numel() == q.outputs else True


def _blocked(site: Site, said: Mentions) -> bool:
    if said.own & {"context_size", "chunk_size", "block_size"}:
        return True
    kind = layer_kind(site)
    if kind is not None and kind != "linear_attention":
        return any(part in kind for part in ("sliding", "chunk", "local", "window"))
    if "is_sliding" in vars(site.module) and not site.attribute("is_sliding"):
        return False
    if "sliding_window" in vars(site.module):
        return site.attribute("sliding_window") is not None
    return "sliding_window" in said.words and _configured(site, "sliding_window") is not None


def _has_bias(site: Site, said: Mentions) -> bool:
    tables = _configured(site, "use_relative_position_bias"), _configured(site, "use_shared_relative_position_bias")
    return "relative_position_bias" in said.own or any(item is True for item in tables)


def _adds_relative(site: Site, said: Mentions) -> bool:
    """Biases that depend on the tokens: a projected table that the encoder passes on, or one read from the tokens."""
    if "position_bias" in inputs_of(site) and "gru_rel_pos_const" not in said.own:
        return site.attribute("is_decoder") is False
    return "relative_position_bias" in said.own and "sink_proj" in said.own


def _extra(site: Site, said: Mentions) -> str | None:
    """What else changes the result, in words."""
    arguments = inputs_of(site)
    words: list[str] = []
    turned = said.calls("rotary", "rope")
    added = arguments & _ADDED or ("position_embeddings" in arguments and not turned and not said.own & _RELATIVE)
    if added:
        words.append("positions are added to the tokens that q and k read, not to those of v")
    if "positional_encoding" in arguments:
        words.append("positions are added to keys and values after their projection")
    if {"query", "key", "value"} <= arguments:
        words.append("queries, keys and values are given one by one and may be of different tokens")
    if "get_llama_4_attn_scale" in said.functions or "attention_scaling" in arguments:
        words.append("queries are scaled by their position")
    if (
        "attn_temperature_tuning" in said.own
        and site.attribute("attn_temperature_tuning")
        and not site.attribute("use_rope")
    ):
        words.append("queries are scaled by their position")
    if "log_scaling_n_floor" in said.words and _configured(site, "log_scaling_n_floor") is not None:
        words.append("queries are scaled by their position")
    if "per_dim_scale" in said.own or "scaling" in site.own_parameters():
        words.append("queries are scaled by a learned factor for each dimension")
    if "sqk" in said.own:
        words.append("queries are scaled by a learned factor for each dimension")
    if "v_scale" in said.own and real(site, "v_scale") not in (None, 1.0):
        words.append(f"values are multiplied by {real(site, 'v_scale'):g}")
    if "value_rot" in said.words and is_turned(site, said):
        words.append("values are turned too")
    if "indexer" in said.own and isinstance(site.attribute("indexer"), nn.Module):
        words.append("an indexer chooses which tokens are attended to")
    if "context_hidden_states" in arguments:
        words.append("keys and values read further tokens beside their own")
    if "merged_attention_mask" in arguments:
        words.append("keys and values read the encoder's tokens beside their own")
    if "attn_prompt" in arguments and _configured(site, "use_prompt") is True:
        words.append("learned keys and values are put in front")
    if "fsmn" in said.own and isinstance(site.attribute("fsmn"), nn.Module):
        words.append("a memory of the values is added to the output")
    if "emb_rel_v" in said.own:
        words.append("learned vectors for relative positions are added to the values")
    if any(name in site.children() and _before(site, name) for name in QK_NORMS):
        words.append("norms in front of the projections and the residual are part of the module")
    return "; ".join(dict.fromkeys(words)) or None
