"""transformers' token mixers that are no softmax(Q K^T) V, and attention that no layout can state: left alone by name.

Each is recognised by the projections that it holds; what the reason says was read in the library's source (5.24).
"""

from __future__ import annotations

from kappaone.layouts.site import Outside, Refusal, Site

_BOTH_WAYS = {"vision_proj", "text_proj", "values_vision_proj", "values_text_proj", "out_vision_proj", "out_text_proj"}


def describe(site: Site) -> Outside | Refusal | None:
    """Why a module has no layout, or None."""
    children, own = site.children(), site.own_parameters()
    if {"sampling_offsets", "attention_weights"} <= children:
        return Outside("deformable attention: its weights come from the query alone, its values from sampled points")
    if {"to_query", "to_key", "final"} <= children and "w_g" in own:
        return Outside("additive attention: one global query for all tokens, without a softmax over keys")
    if {"tokenLearner", "feat"} <= children:
        return Outside("tokens are pooled by maps that convolutions make, without queries or keys")
    if children == _BOTH_WAYS:
        return Refusal("one product of two projections is read in both directions, each with values of its own")
    if {"query_key", "value"} == children:
        return Refusal("queries and keys are one projection, and tokens attend within hashed buckets")
    if {"k_proj", "v_proj", "output_proj"} == children and "cls_token" in own:
        return Refusal("the query is a learned token itself: there is no query projection")
    return None
