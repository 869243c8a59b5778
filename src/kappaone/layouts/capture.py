"""What an attention layer reads, and the q, k, v and mask that it hands to its softmax, on an example.

Fused kernels show no attention probabilities, so we listen one step earlier: at the call of
`scaled_dot_product_attention`, where rotary embeddings, norms and biases are already in q and k and the mask is
explicit. An eager layer calls softmax instead: there q and k come from the layer's own weights, and the mask (with
any additive bias) is what the logits have beyond scale * q k^T.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kappaone.errors import MeasureError
from kappaone.layouts.blocks import bias_blocks, named_modules, stacked_blocks
from kappaone.layouts.facts import FACTS, explain
from kappaone.layouts.layout import QKV, AttentionLayout, Role
from kappaone.layouts.running import evaluating, hooked, run


@dataclass(frozen=True)
class Recorded:
    """One call of one attention layer.

    Attributes:
        tokens: (B, N, width) what the queries are made from.
        kv_tokens: (B, M, width) what the keys and values are made from.
        q: (B, heads, N, head_dim), as they enter the softmax, before the scale.
        k: (B, kv_heads, M, head_dim).
        v: (B, kv_heads, M, value_dim).
        mask: additive, broadcastable to (B, heads, N, M), -inf where masked, causal included; None if nothing is.
        scale: the factor on q.k.
        args: positional inputs of the module.
        kwargs: keyword inputs of the module.
        calls: how often the module was called in this forward (the first is recorded).
    """

    tokens: Tensor
    kv_tokens: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    calls: int = 1


@dataclass
class Heard:
    """What was heard while a module ran: its inputs, the attention calls in it, and what each projection was given.

    `read` is by layout and role, for projections that are modules of their own.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    sdpa: dict[str, Any] | None = None
    softmax: Tensor | None = None
    mha: dict[str, Any] | None = None
    calls: int = 0
    read: dict[tuple[str, Role], Tensor] = field(default_factory=dict)


def listen(model: nn.Module, layouts: Sequence[AttentionLayout], example: Any) -> dict[str, Heard]:
    """Run the model once and note, for each layer, its first call.

    Raises:
        MeasureError: if the model fails on the example.
    """
    readers: dict[str, list[tuple[str, Role]]] = {}
    for layout in layouts:
        for role in QKV:
            owner = layout.role(role).parameter.rpartition(".")[0]
            if owner != layout.module:
                readers.setdefault(owner, []).append((layout.name, role))
    heard = hear(model, {layout.module for layout in layouts}, example, readers=readers)
    return {layout.name: heard[layout.module] for layout in layouts}


def hear(
    model: nn.Module,
    names: Collection[str],
    example: Any,
    *,
    readers: Mapping[str, Sequence[tuple[str, Role]]] | None = None,
) -> dict[str, Heard]:
    """Run the model once and note the first call of each of these modules.

    Args:
        model: the model.
        names: of the modules.
        example: an input.
        readers: modules that hold a projection, with the layouts and roles that read by it.

    Raises:
        MeasureError: if the model fails on the example.
    """
    heard = {name: Heard() for name in names}
    stack: list[Heard] = []
    mha_signature = inspect.signature(F.multi_head_attention_forward)

    class Ear(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if stack and stack[-1].calls == 1:
                layer = stack[-1]
                if func is F.scaled_dot_product_attention and layer.sdpa is None:
                    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
                    layer.sdpa = {**dict(zip(names, args, strict=False)), **kwargs}
                elif func is F.multi_head_attention_forward:
                    bound = mha_signature.bind(*args, **kwargs)
                    bound.apply_defaults()
                    layer.mha = dict(bound.arguments)
                elif func in (F.softmax, torch.softmax, Tensor.softmax) and layer.softmax is None:
                    layer.softmax = args[0] if args else kwargs["input"]
            return func(*args, **kwargs)

    def before(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            layer = heard[name]
            layer.calls += 1
            if layer.calls == 1:
                layer.args, layer.kwargs = args, kwargs
            stack.append(layer)

        return hook

    def leave(*_: Any) -> None:
        stack.pop()

    def reading(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if stack and stack[-1].calls == 1 and args and isinstance(args[0], Tensor):
                for reader in (readers or {})[name]:
                    stack[-1].read.setdefault(reader, args[0].detach())

        return hook

    every = dict(named_modules(model))
    modules = {name: every[name] for name in every if name in heard}
    with ExitStack() as hooks:
        for name in set(readers or ()) & set(every):
            hooks.callback(every[name].register_forward_pre_hook(reading(name)).remove)
        with evaluating(model), hooked(modules, before, lambda _: leave), Ear():
            run(model, example)
    return heard


def record(model: nn.Module, layouts: Sequence[AttentionLayout], example: Any) -> dict[str, Recorded]:
    """For each attention layer that the example reaches: its tokens and the q, k, v, mask of its first call.

    Args:
        model: the model; its mode, weights and the random state are left as they are (dropout is off meanwhile).
        layouts: its layers, from `find_attention`.
        example: an input.

    Raises:
        MeasureError: if the model fails on the example, or a layer's attention cannot be heard.
    """
    return {
        layout.name: _recorded(model, layout, heard)
        for layout, heard in zip(layouts, listen(model, layouts, example).values(), strict=True)
        if heard.calls
    }


def _recorded(model: nn.Module, layout: AttentionLayout, heard: Heard) -> Recorded:
    kwargs = heard.kwargs or {}
    told = [name for name in layout.facts if layout.facts[name] and not FACTS[name].recorded]
    if told:
        raise MeasureError(
            f"layer {layout.name!r} cannot be measured on data yet: {explain(told[0])}",
            "its weights are measured; leave it out to measure the others",
        )
    if heard.mha is not None:
        return _from_mha(model, layout, heard)
    tokens = _tokens(layout, heard, "q")
    kv_tokens = _tokens(layout, heard, "k")
    if not _same(kv_tokens, _tokens(layout, heard, "v")):
        raise MeasureError(
            f"layer {layout.name!r} reads its values from other tokens than its keys, which is not measured yet",
            "its weights are measured; leave it out to measure the others",
        )
    if _same(tokens, kv_tokens):
        kv_tokens = tokens
    if heard.sdpa is not None:
        call = heard.sdpa
        q, k, v = (call[n].detach() for n in ("query", "key", "value"))
        mask = _additive(call.get("attn_mask"), bool(call.get("is_causal", False)), q, k)
        scale = call.get("scale")
        k, v = _ungrouped(k, layout), _ungrouped(v, layout)
        if q.shape[-2] != tokens.shape[1] or len(q) != len(tokens):
            raise MeasureError(
                f"layer {layout.name!r} attends to its {tuple(tokens.shape[:2])} tokens in pieces of {tuple(q.shape[::2])}",
                "its weights are measured; leave it out to measure the others",
            )
        return Recorded(
            tokens,
            kv_tokens,
            q,
            k,
            v,
            mask,
            q.shape[-1] ** -0.5 if scale is None else float(scale),
            heard.args,
            kwargs,
            heard.calls,
        )
    if heard.softmax is None:
        raise MeasureError(
            f"layer {layout.name!r} called neither scaled_dot_product_attention nor softmax on the example",
            "load the model with its 'sdpa' or 'eager' attention (attn_implementation='sdpa')",
        )
    if layout.facts.get("rotary") or layout.facts.get("qk_norm"):
        raise MeasureError(
            f"layer {layout.name!r} ran eager attention with rotary embeddings or QK-norm, whose q and k cannot be heard",
            "load the model with attn_implementation='sdpa'",
        )
    q = _project(model, layout, "q", tokens)
    k, v = (_project(model, layout, role, kv_tokens) for role in ("k", "v"))
    scale = layout.scale if layout.scale is not None else layout.head_dim**-0.5
    logits = heard.softmax.detach()
    keys = k.repeat_interleave(layout.heads // layout.kv_heads, 1)
    extra = (logits.double() - scale * q.double() @ keys.double().mT).to(logits.dtype)
    # Anything near the dtype's minimum is a mask. What is finite is an additive bias (ALiBi, relative positions), or no
    # more than the rounding of q, k and their product: then it is none.
    extra = extra.masked_fill(extra < torch.finfo(logits.dtype).min / 4, float("-inf"))
    finite = extra > float("-inf")
    norms = [float(torch.linalg.vector_norm(t.double(), dim=-1).max()) for t in (q, k)]
    noise = max(16.0, q.shape[-1] ** 0.5) * torch.finfo(logits.dtype).eps * abs(scale) * norms[0] * norms[1]
    if bool((extra[finite].abs() <= noise).all()):
        extra = torch.zeros_like(extra).masked_fill(~finite, float("-inf"))
    quiet = bool((extra == 0).all())
    return Recorded(tokens, kv_tokens, q, k, v, None if quiet else extra, scale, heard.args, kwargs, heard.calls)


def _tokens(layout: AttentionLayout, heard: Heard, role: Role) -> Tensor:
    """(B, N, width): what the projection of a role reads, batch first.

    What its module was given; where it has none, the first input of the layer (of this width, behind the queries').
    """
    width, kwargs = layout.role(role).width, heard.kwargs or {}
    value = heard.read.get((layout.name, role))
    if value is None:
        given = [t for t in (*heard.args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()]
        value = next((t for t in given if t.ndim >= 3), None)
    if value is not None and value.ndim == 4 and value.shape[-1] != width and value.shape[1] == width:
        value = value.movedim(1, -1)  # a convolution's
    if value is None or value.shape[-1] != width:
        found = "no such tensor" if value is None else f"{tuple(value.shape)}"
        raise MeasureError(
            f"layer {layout.name!r} was called without tokens of width {width} (found {found})",
            "report this layer with the arguments that it takes",
        )
    if layout.facts.get("batch_first") is False and value.ndim == 3:
        value = value.transpose(0, 1)
    return value.detach().reshape(value.shape[0] if value.ndim > 2 else 1, -1, width)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _project(model: nn.Module, layout: AttentionLayout, role: Role, tokens: Tensor) -> Tensor:
    """(B, N, width) -> (B, heads of the role, N, size), by the layout."""
    weight = stacked_blocks(model, layout, role)
    out = torch.einsum("bnw,hsw->bhns", tokens, weight)
    bias = bias_blocks(model, layout, role)
    return out if bias is None else out + bias[None, :, None, :]


def _ungrouped(tensor: Tensor, layout: AttentionLayout) -> Tensor:
    """Keys or values repeated for every query head, back to one for each key/value head."""
    if tensor.shape[1] == layout.kv_heads or layout.kv_heads == layout.heads:
        return tensor
    first = [next(h for h in range(layout.heads) if layout.kv_head(h) == g) for g in range(layout.kv_heads)]
    return tensor[:, first]


def _additive(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask of an SDPA call as one additive tensor."""
    out: Tensor | None = None
    if mask is not None:
        zero = torch.zeros((), dtype=q.dtype, device=q.device)
        out = mask.detach() if mask.dtype != torch.bool else zero.masked_fill(~mask.detach(), float("-inf"))
        out = out.masked_fill(out <= torch.finfo(out.dtype).min / 4, float("-inf"))
        if bool((out == 0).all()):
            out = None
    if causal:
        n, m = q.shape[-2], k.shape[-2]
        lower = torch.ones(n, m, dtype=torch.bool, device=q.device).tril()
        triangle = torch.zeros(n, m, dtype=q.dtype, device=q.device).masked_fill(~lower, float("-inf"))
        out = triangle if out is None else out + triangle
    return out


def _from_mha(model: nn.Module, layout: AttentionLayout, heard: Heard) -> Recorded:
    """nn.MultiheadAttention computes everything in one function: q, k, v follow from its arguments."""
    call = heard.mha or {}
    if call.get("bias_k") is not None or call.get("add_zero_attn"):
        raise MeasureError(
            f"layer {layout.name!r} adds rows to its keys (bias_k or add_zero_attn), which is not measured yet",
            "leave this layer out, or build it without them",
        )
    query, key = (call[n].detach() for n in ("query", "key"))
    if query.ndim == 2:
        query, key = query[:, None], key[:, None]
    tokens, kv_tokens = query.transpose(0, 1), key.transpose(0, 1)  # the function takes (N, B, E)
    if call["value"].shape[-1] != kv_tokens.shape[-1] or call["value"].data_ptr() != call["key"].data_ptr():
        raise MeasureError(
            f"layer {layout.name!r} reads its values from other tokens than its keys, which is not measured yet",
            "measure a layer whose key and value inputs are the same",
        )
    q = _project(model, layout, "q", tokens)
    k, v = (_project(model, layout, role, kv_tokens) for role in ("k", "v"))
    mask: Tensor | None = None
    batch, heads, n, m = len(tokens), layout.heads, q.shape[-2], k.shape[-2]
    given, padding = call.get("attn_mask"), call.get("key_padding_mask")
    if given is not None:
        given = given if given.ndim == 2 else given.reshape(batch, heads, n, m)
        mask = _additive(~given if given.dtype == torch.bool else given, False, q, k)
    elif call.get("is_causal"):
        mask = _additive(None, True, q, k)
    if padding is not None:
        extra = _additive(~padding if padding.dtype == torch.bool else padding, False, q, k)
        if extra is not None:
            extra = extra.reshape(batch, 1, 1, m)
            mask = extra if mask is None else mask + extra
    scale = layout.scale if layout.scale is not None else layout.head_dim**-0.5
    return Recorded(tokens, kv_tokens, q, k, v, mask, scale, heard.args, heard.kwargs, heard.calls)
