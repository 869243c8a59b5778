"""Adapters: one function a family, from a site to its layout, or None where the site is something else.

An adapter is asked only if its library is already imported: kappaone never imports timm or transformers itself.
To add one: write the file, add its line here, one in docs/layouts.md, one row in the conformance suite.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kappaone.layouts.adapters import (
    diffusers_attention,
    litgpt_attention,
    open_clip_attention,
    reference_code,
    timm_block,
    timm_conv,
    timm_outside,
    timm_pool,
    timm_qkv,
    timm_separate,
    timm_vit,
    torch_mha,
    torchvision_windows,
    transformers_bert,
    transformers_fused,
    transformers_gpt2,
    transformers_latent,
    transformers_linear,
    transformers_outside,
    transformers_proj,
    transformers_qkv,
    transformers_relative,
    transformers_separate,
    vit_pytorch_attention,
    x_transformers_attention,
)
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Outside, Refusal, Site
from kappaone.plugins import found as brought_by_packages
from kappaone.plugins import load as load_brought

Answer = AttentionLayout | Sequence[AttentionLayout] | Outside | Refusal | None


@dataclass(frozen=True)
class Adapter:
    """A named way to describe attention.

    Attributes:
        name: how reports call it.
        library: the top-level package that must be loaded for it to be asked.
        describe: from a site to its layout (or layouts, where one module holds several attentions), `Outside` for
            what is no softmax attention, `Refusal` for attention that no layout can state, None for anything else.
        reads_code: it makes sure itself that the forward does what it says, and what it says is tried on the module
            (`kappaone.layouts.alone`); else its answer counts only for modules that run the library's own code
            (`kappaone.layouts.origin`).
    """

    name: str
    library: str
    describe: Callable[[Site], Answer]
    reads_code: bool = False


ADAPTERS: tuple[Adapter, ...] = (
    Adapter("torch.mha", "torch", torch_mha.describe),
    Adapter("timm.vit", "timm", timm_vit.describe),
    Adapter("timm.qkv", "timm", timm_qkv.describe),
    Adapter("timm.separate", "timm", timm_separate.describe),
    Adapter("timm.conv", "timm", timm_conv.describe),
    Adapter("timm.pool", "timm", timm_pool.describe),
    Adapter("timm.block", "timm", timm_block.describe),
    Adapter("timm.outside", "timm", timm_outside.describe),
    Adapter("transformers.gpt2", "transformers", transformers_gpt2.describe),
    Adapter("transformers.bert", "transformers", transformers_bert.describe),
    Adapter("transformers.fused", "transformers", transformers_fused.describe),
    Adapter("transformers.qkv", "transformers", transformers_qkv.describe),
    Adapter("transformers.relative", "transformers", transformers_relative.describe),
    Adapter("transformers.separate", "transformers", transformers_separate.describe),
    Adapter("transformers.outside", "transformers", transformers_outside.describe),
    Adapter("transformers.proj", "transformers", transformers_proj.describe),
    Adapter("transformers.latent", "transformers", transformers_latent.describe),
    Adapter("transformers.linear", "transformers", transformers_linear.describe),
    Adapter("torchvision.windows", "torchvision", torchvision_windows.describe),
    Adapter("open_clip.attention", "open_clip", open_clip_attention.describe),
    Adapter("x_transformers.attention", "x_transformers", x_transformers_attention.describe),
    Adapter("vit_pytorch.attention", "torch", vit_pytorch_attention.describe, reads_code=True),
    Adapter("diffusers.attention", "diffusers", diffusers_attention.describe),
    Adapter("reference.code", "torch", reference_code.describe, reads_code=True),
    Adapter("litgpt.attention", "litgpt", litgpt_attention.describe),
)


def all_adapters() -> tuple[Adapter, ...]:
    """Our adapters, and those of installed packages whose library is loaded.

    Raises:
        SpecError: if such a package cannot be loaded.
    """
    ready = [
        point
        for name, point in brought_by_packages("kappaone.adapters").items()
        if name.partition(".")[0] in sys.modules
    ]
    return (*ADAPTERS, *(load_brought(point, (Adapter,)) for point in ready))
