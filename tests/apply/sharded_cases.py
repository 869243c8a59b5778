"""What each rank of a world does; every function returns what its test looks at, as JSON."""

from __future__ import annotations

import copy
import os
import time
import warnings
from dataclasses import replace

import timm
import torch
import torch.distributed as dist
import transformers
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import kappaone
from kappaone.apply.check import last_report
from kappaone.errors import KappaoneError
from kappaone.layouts.blocks import parameters_by_name
from kappaone.layouts.shards import local

SCHEMES = (
    "conditioned",
    "conditioned(value=per_head)",
    "conditioned(scale=matched)",
    "conditioned(scale=matched(group=role))",
    "default(std=faithful)",
    "default(redraw)",
    "default(scale=conditioned)",
    "trunc_normal",
    "fan_in",
    "xavier_per_role",
    "xavier_fused",
    "orthogonal",
    "mimetic",
)


def vit() -> nn.Module:
    """timm's ViT, 162 fused rows of q, k, v: uneven over 4 ranks."""
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=54, depth=2, num_heads=3, num_classes=4)


def gpt2() -> nn.Module:
    """Conv1D: weights stored (in, out)."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=48, n_layer=2, n_head=3, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Grouped queries, separate projections."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config)


def narrow() -> nn.Module:
    """torch's own layer at width 3: over 4 ranks some hold nothing of a weight."""
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(3, 1, dim_feedforward=4, batch_first=True)


MODELS = {"vit": vit, "gpt2": gpt2, "llama": llama, "narrow": narrow}


def shard(model: nn.Module, dim: int = 0, mesh=None) -> nn.Module:
    """FSDP2 on every block and the root."""

    def place(parameter):
        even = parameter.ndim > dim and parameter.shape[dim] % dist.get_world_size() == 0
        return Shard(dim if even else 0)

    for module in model.modules():
        if isinstance(module, (nn.ModuleList,)):
            for block in module:
                fully_shard(block, shard_placement_fn=place, mesh=mesh)
    fully_shard(model, shard_placement_fn=place, mesh=mesh)
    return model


def full(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach()
        for name, p in parameters_by_name(model).items()
    }


def differences(plain: nn.Module, sharded: nn.Module) -> list[str]:
    """Names of the parameters whose bits differ."""
    one, other = full(plain), full(sharded)
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def shapes(model: nn.Module) -> list[list[int]]:
    return [list(p.to_local().shape) if isinstance(p, DTensor) else list(p.shape) for p in model.parameters()]


def compare(name: str, scheme: str, wrap, dtype=torch.float32, **options) -> dict:
    """Set a plain and a wrapped model; what differs, and what the reports say."""
    plain = MODELS[name]().to(dtype)
    wrapped = wrap(copy.deepcopy(plain))
    one = kappaone.init_(plain, scheme, seed=7, **options)
    other = kappaone.init_(wrapped, scheme, seed=7, **options)
    entries = [[e for layer in report.layers for e in layer.roles.values()] for report in (one, other)]
    norms = [torch.tensor([n for e in found for n in (*e.norms_before, *e.norms_after)]) for found in entries]
    return {
        "different": differences(plain, wrapped),
        "checksums": [e.fingerprints for e in entries[0]] == [e.fingerprints for e in entries[1]],
        "norms": bool(torch.allclose(*norms, rtol=1e-5, equal_nan=True)),
        "biases": [e.bias for e in entries[0]] == [e.bias for e in entries[1]],
        "weights": entries[1][0].fingerprints,
        "remarks": one.remarks == other.remarks,
    }


# Drawn entry by entry: two ranks show all that there is to see.
SIMPLE = ("fan_in", "xavier_per_role", "xavier_fused", "conditioned(value=per_head)", "default(scale=conditioned)")


# Every scheme on one model of each kind; which one goes round, so that all meet within a few worlds.
def every_scheme() -> dict:
    out = {}
    for i, scheme in enumerate(SCHEMES):
        if dist.get_world_size() > 2 and scheme in SIMPLE:
            continue
        name = ("vit", "gpt2", "llama")[(i + dist.get_world_size() // 2) % 3]
        out[f"{name} {scheme}"] = compare(name, scheme, shard)
    for scheme in ("conditioned", "mimetic", "conditioned(scale=matched)"):
        out[f"narrow {scheme}"] = compare("narrow", scheme, shard, overwrite=True)
    return out


def every_scheme_on_every_model() -> dict:
    """The slow one: all combinations, in two dtypes."""
    return {
        f"{name} {scheme} {dtype}": compare(
            name, scheme, shard, dtype, overwrite=dtype != torch.float32 or name == "narrow"
        )
        for scheme in SCHEMES
        for name in MODELS
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        if "redraw" not in scheme or (name != "narrow" and dtype == torch.float32)
    }


def bfloat16() -> dict:
    pairs = (
        ("vit", "conditioned"),
        ("gpt2", "mimetic"),
        ("llama", "conditioned(scale=matched)"),
        ("vit", "trunc_normal"),
    )
    return {f"{name} {scheme}": compare(name, scheme, shard, torch.bfloat16, overwrite=True) for name, scheme in pairs}


def dim_1() -> dict:
    pairs = (("vit", "mimetic"), ("gpt2", "conditioned"), ("gpt2", "mimetic"), ("llama", "conditioned(scale=matched)"))
    return {f"{name} {scheme}": compare(name, scheme, lambda model: shard(model, 1)) for name, scheme in pairs}


def the_same_everywhere() -> dict:
    """Compared between worlds by the test: nothing here may depend on the number of ranks."""
    out = {}
    for name in ("vit", "gpt2", "llama"):
        report = kappaone.init_(shard(MODELS[name]()), "conditioned(scale=matched)", seed=7)
        data = report.to_dict(measure=False)
        del data["seconds"]
        out[name] = data
    return out


def tensor_parallel(model: nn.Module, mesh) -> nn.Module:
    """Llama's usual plan: rows of q, k, v and the up-projections, columns of o and the down-projection."""
    plan = {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[name] = ColwiseParallel()
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def mesh_1d():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def mesh_2d(*names: str):
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=names)


def run(model: nn.Module, name: str) -> torch.Tensor:
    torch.manual_seed(1)
    if name == "vit":
        return model(torch.randn(2, 3, 32, 32))
    return model(torch.arange(12).reshape(2, 6)).logits


def placed(model: nn.Module, place) -> nn.Module:
    """Every matrix of the attention as a DTensor placed by hand."""
    for module in list(model.modules()):
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.ndim == 2:
                mesh, placements = place(parameter)
                module._parameters[key] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements))
    return model


def parallel_meshes() -> dict:
    """Tensor parallel and matrices placed by hand, on any number of ranks."""
    tp, out = mesh_1d(), {}
    for scheme in ("conditioned", "mimetic", "conditioned(scale=matched)"):
        out[f"tp llama {scheme}"] = compare("llama", scheme, lambda model: tensor_parallel(model, tp))
    for name in ("vit", "gpt2"):
        for dim in (0, 1):  # 54, 162, 48 and 144 over 2 or 4 ranks: uneven too, which FSDP2 refuses in dimension 1
            wrap = lambda model, dim=dim: placed(model, lambda _: (tp, [Shard(dim)]))  # noqa: E731
            out[f"placed {name} {dim}"] = compare(name, "mimetic", wrap)
    out["replicated"] = compare("gpt2", "conditioned", lambda m: placed(m, lambda _: (tp, [Replicate()])))
    return out


def fsdp_over_tp(model: nn.Module, mesh) -> nn.Module:
    return shard(tensor_parallel(model, mesh["tp"]), mesh=mesh["dp"])


def grids() -> dict:
    """Meshes of two dimensions, on four ranks."""
    hsdp, both, out = mesh_2d("replicate", "shard"), mesh_2d("dp", "tp"), {}
    for scheme in ("conditioned", "conditioned(scale=matched)"):
        out[f"hsdp vit {scheme}"] = compare("vit", scheme, lambda model: shard(model, mesh=hsdp))
    for scheme in ("conditioned", "mimetic", "default(std=faithful)"):
        out[f"fsdp over tp llama {scheme}"] = compare("llama", scheme, lambda model: fsdp_over_tp(model, both))
    for place in ([Shard(0), Shard(0)], [Shard(1), Shard(0)], [Replicate(), Shard(1)]):
        wrap = lambda m, place=place: placed(m, lambda _: (both, place))  # noqa: E731
        out[f"placed {place}"] = compare("gpt2", "mimetic", wrap)
    return out


def strided_and_trained() -> dict:
    """FSDP over TP: the parts are strided, and the model computes what the plain one computes."""
    both = mesh_2d("dp", "tp")
    plain = llama()
    model = fsdp_over_tp(copy.deepcopy(plain), both)
    placements = {repr(p.placements) for p in model.parameters()}
    kappaone.init_(plain, "mimetic", seed=1)
    kappaone.init_(model, "mimetic", seed=1)
    return {
        "strided": any("Strided" in text for text in placements),
        "apart": float((run(plain, "llama") - run(model, "llama")).detach().abs().max()),
    }


def forward_and_back() -> dict:
    """After a forward pass FSDP2 leaves the root's parameters gathered; what is written must outlive that."""
    plain, model = vit(), vit()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run(model, "vit").sum().backward()
    run(model, "vit")
    gathered = not any(isinstance(p, DTensor) for p in model.parameters())
    before = {name: _identity(p) for name, p in parameters_by_name(_rested(model)).items()}
    run(model, "vit")
    kappaone.init_(model, "mimetic", seed=2)
    kappaone.init_(plain, "mimetic", seed=2)
    after = {name: _identity(p) for name, p in parameters_by_name(model).items()}
    out = run(model, "vit")
    out.sum().backward()
    optimizer.step()
    return {
        "gathered": gathered,
        "identity": before == after,
        "apart": float((out.detach() - run(plain, "vit").detach()).abs().max()),
        "different": differences(plain, _rested(model)),
        "check": bool(kappaone.check(model)),
    }


def _rested(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return model


def _identity(p: torch.Tensor) -> list:
    here = p.to_local() if isinstance(p, DTensor) else p
    return [id(p), str(p.dtype), str(p.device), p.requires_grad, here.data_ptr(), list(here.stride()), list(here.shape)]


def materialised_in_parts() -> dict:
    """On meta, sharded, given memory, initialised: each rank has its shard only."""
    plain = vit()
    with torch.device("meta"):
        model = shard(vit())
    try:
        kappaone.init_(model, "conditioned", seed=3)
        refused = ""
    except KappaoneError as error:
        refused = error.what
    model.to_empty(device="cpu")
    kappaone.init_(model, "conditioned", seed=3, overwrite=True)
    kappaone.init_(plain, "conditioned", seed=3)
    attention = [name for name in parameters_by_name(plain) if name.endswith("qkv.weight")]
    one, other = full(plain), full(model)
    parts = {type(p).__name__ for p in model.parameters()}
    return {
        "refused": refused,
        "equal": [bool(torch.equal(one[name], other[name])) for name in attention],
        "types": sorted(parts),
        "fraction": sum(p.to_local().numel() for p in model.parameters()) / sum(p.numel() for p in plain.parameters()),
    }


def ties_survive() -> dict:
    """A tied model through fully_shard and init_."""
    model = shard(gpt2())
    tied = model.lm_head.weight is model.transformer.wte.weight
    kappaone.init_(model, "conditioned", seed=0)
    return {"before": tied, "after": model.lm_head.weight is model.transformer.wte.weight}


def wrappers() -> dict:
    """What wraps without sharding: the same names, so the same weights."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.nn.parallel import DistributedDataParallel

    def checkpointed(model):
        blocks = tuple({type(b) for m in model.modules() if isinstance(m, nn.ModuleList) for b in m})
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, blocks))
        return model

    def recomputing(model):
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        return model.train()

    def compiled_blocks(model):
        for layer in model.model.layers:
            layer.compile()
        return model

    wraps = {
        "compiled vit": torch.compile,
        "ddp vit": DistributedDataParallel,
        "checkpointed vit": checkpointed,
        "ddp of compiled gpt2": lambda m: DistributedDataParallel(torch.compile(m)),
        "compiled ddp llama": lambda m: torch.compile(DistributedDataParallel(m)),
        "recomputing llama": recomputing,
        "compiled blocks llama": compiled_blocks,
        "fsdp2 of checkpointed vit": lambda m: shard(checkpointed(m)),
        "compiled fsdp2 llama": lambda m: torch.compile(shard(m)),
    }
    return {name: compare(name.split()[-1], "conditioned(scale=matched)", wrap) for name, wrap in wraps.items()}


def wrapped_names() -> dict:
    """Names and class names under every wrapper; FSDP2 renames classes, and nobody reads that."""
    from torch.nn.parallel import DistributedDataParallel

    plain = [layer.to_dict() for layer in kappaone.find_attention(vit())]
    sharded = shard(vit())
    found = {
        "fsdp2": kappaone.find_attention(sharded),
        "ddp": kappaone.find_attention(DistributedDataParallel(vit())),
        "compiled": kappaone.find_attention(torch.compile(vit())),
    }
    return {
        "renamed": [type(m).__name__ for m in sharded.modules() if isinstance(m, FSDPModule)],
        "layouts": {name: [layer.to_dict() for layer in layers] == plain for name, layers in found.items()},
        "survey": len(kappaone.find_attention(sharded, torch.zeros(1, 3, 32, 32))),
    }


def flat_parameters() -> dict:
    """FSDP1 is refused with a recipe, and the recipe works."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    plain = vit()
    kappaone.init_(plain, "mimetic", seed=4)
    out: dict = {"refused": []}
    for original in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = FullyShardedDataParallel(vit(), use_orig_params=original, device_id=torch.device("cpu"))
            out["refused"].append(_error(lambda model=model: kappaone.init_(model, "mimetic", seed=4)))
            with FullyShardedDataParallel.summon_full_params(model):
                kappaone.init_(model, "mimetic", seed=4)
                out[f"check {original}"] = bool(kappaone.check(model))
            with FullyShardedDataParallel.summon_full_params(model):
                out[f"different {original}"] = differences(plain, model)
    return out


def accelerated() -> dict:
    """Accelerate's own preparation for FSDP2 (its front door lets only accelerators in, so the state is set by hand)."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, DistributedType

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    AcceleratorState._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}
    plain = llama()
    model = copy.deepcopy(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    kappaone.init_(plain, "conditioned", seed=5)
    report = kappaone.init_(model, "conditioned", seed=5)
    different = differences(plain, model)
    apart = float((run(plain, "llama") - run(model, "llama")).detach().abs().max())
    accelerator.backward(run(model, "llama").square().mean())
    optimizer.step()
    return {
        "sharded": sum(isinstance(m, FSDPModule) for m in model.modules()),
        "different": different,
        "apart": apart,
        "blocks": report.blocks_set,
        "trained": not kappaone.check(_rested(model)),
    }


def offloaded() -> dict:
    """FSDP2 with CPU offload: each rank has its own numbers, and nobody's random state moves."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    model = vit()
    for block in model.blocks:
        fully_shard(block, offload_policy=CPUOffloadPolicy(pin_memory=False))
    fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))
    plain = vit()
    torch.manual_seed(11 + dist.get_rank())
    state = torch.random.get_rng_state()
    kappaone.init_(model, "trunc_normal", seed=6)
    kappaone.init_(plain, "trunc_normal", seed=6)
    return {
        "state kept": bool(torch.equal(state, torch.random.get_rng_state())),
        "mine": hash(tuple(model.blocks[0].attn.qkv.weight.to_local().flatten().tolist())),
        "different": differences(plain, model),
    }


def _error(call) -> list[str]:
    try:
        call()
    except KappaoneError as error:
        return [type(error).__name__, str(error)]
    return []


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: local(p).clone() for name, p in parameters_by_name(model).items()}


def _unchanged(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    now = parameters_by_name(model)
    return all(torch.equal(local(now[name]).view(torch.int32), old.view(torch.int32)) for name, old in before.items())


def one_rank_fails() -> dict:
    """Loaded weights, a failure while writing, an interrupt, other arguments, other models: on the last rank only."""
    import kappaone.apply.fill as fill

    last = dist.get_rank() == dist.get_world_size() - 1
    out: dict = {}
    model = shard(llama())
    before = _weights(model)

    def note(name: str, call) -> None:
        started = time.monotonic()
        try:
            out[name] = _error(call)
        except KeyboardInterrupt:
            out[name] = ["KeyboardInterrupt", ""]
        out[name] += [_unchanged(model, before), time.monotonic() - started]

    if last:
        model.model.layers[1].self_attn.k_proj.weight._is_hf_initialized = True
    note("loaded", lambda: kappaone.init_(model, "conditioned", seed=0))
    if last:
        del model.model.layers[1].self_attn.k_proj.weight._is_hf_initialized
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight.to_local()[0, 0] = float("nan")
            before["model.layers.0.self_attn.q_proj.weight"][0, 0] = float("nan")
    note("not finite", lambda: kappaone.init_(model, "conditioned(scale=matched)", seed=0, overwrite=True))
    if last:
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight.to_local()[0, 0] = 0
            before["model.layers.0.self_attn.q_proj.weight"][0, 0] = 0
    rounded, calls = fill.rounded, []

    def failing(kind):
        def instead(values, dtype, name):
            calls.append(name)
            if last and len(calls) == 5:
                raise kind("the disk is full")
            return rounded(values, dtype, name)

        return instead

    try:
        for kind in (RuntimeError, KeyboardInterrupt):
            calls.clear()
            fill.rounded = failing(kind)
            note(kind.__name__, lambda: kappaone.init_(model, "conditioned", seed=0, overwrite=True))
            calls.clear()
            fill.rounded = failing(kind)
            note(f"{kind.__name__} reading", lambda: kappaone.init_(model, "default(std=0.1)", seed=0, overwrite=True))
    finally:
        fill.rounded = rounded
    note("seed", lambda: kappaone.init_(model, "conditioned", seed=int(last), overwrite=True))
    note("scheme", lambda: kappaone.init_(model, "mimetic" if last else "conditioned", seed=0, overwrite=True))
    note("spelling", lambda: kappaone.init_(model, "mimetik" if last else "conditioned", seed=0, overwrite=True))
    note("everyone", lambda: kappaone.init_(model, "conditioned(std=1)", seed=0))
    # A layout of this rank's own: keys and values change places.
    own = kappaone.find_attention(model)
    own = [replace(own[0], k=own[0].v, v=own[0].k), *own[1:]] if last else None
    note("layouts", lambda: kappaone.init_(model, "conditioned", seed=0, overwrite=True, layouts=own))
    note("fine", lambda: kappaone.init_(model, "conditioned", seed=0, overwrite=True))
    return out


def ddp_ranks_disagree() -> dict:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(vit())
    return {"seed": _error(lambda: kappaone.init_(model, "conditioned", seed=dist.get_rank()))}


def loaded_weights() -> dict:
    """Trained weights, half of them on another rank, are refused alike; our own are not."""
    model = shard(vit())
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.mul_(1.7)
    out = {"trained": _error(lambda: kappaone.init_(model, "conditioned", seed=0))}
    kappaone.init_(model, "conditioned", seed=0, overwrite=True)
    out["again"] = _error(lambda: kappaone.init_(model, "mimetic", seed=1))
    out["matched"] = _error(lambda: kappaone.init_(model, "conditioned(scale=matched)", seed=1))
    return out


def what_is_refused() -> dict:
    model = shard(vit())
    example = torch.zeros(1, 3, 32, 32)
    partial = vit()
    qkv = partial.blocks[0].attn.qkv
    mesh = mesh_1d()
    qkv.weight = nn.Parameter(DTensor.from_local(qkv.weight.detach(), mesh, [Partial()], run_check=False))
    tp = tensor_parallel(llama(), mesh)
    tokens = {"input_ids": torch.arange(12).reshape(2, 6)}
    return {
        "verify": _error(lambda: kappaone.init_(model, "conditioned", seed=0, example=example, verify=True)),
        "partial": _error(lambda: kappaone.init_(partial, "conditioned", seed=0, overwrite=True)),
        "logit under tp": _error(lambda: kappaone.init_(tp, "fan_in(scale=logit(1))", seed=0, example=tokens)),
    }


def reports() -> dict:
    plain, model = llama(), shard(llama())
    one, other = (kappaone.init_(m, "conditioned(scale=matched)", seed=0) for m in (plain, model))
    text = other.to_json()
    printed = str(other)
    if dist.get_rank() == 0:
        str(other)  # on one rank alone: it must not wait for the others
    unmeasured = other.to_dict()["not_measured"]
    other.measure()
    one.measure()
    kappas = [
        [s.to_dict() for layer in r.layers for e in layer.roles.values() for s in e.kappa_heads] for r in (one, other)
    ]
    spreads = [[x for layer in r.layers for x in layer.logit_std] for r in (one, other)]
    checked = bool(kappaone.check(model))
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.mul_(2)
    return {
        "json": text,
        "printed": printed,
        "unmeasured": unmeasured,
        "kappas": kappas[0] == kappas[1],
        "spreads": spreads[0] == spreads[1],
        "checked": checked,
        "changed": list(kappaone.check(model).changed),
        "remembered": last_report(model) is other,
    }


def measured_on_an_example() -> dict:
    """scale=logit and procedures run the sharded model; each rank may bring its own data."""
    out: dict = {}
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    for scheme in ("fan_in(scale=logit(1))", "unit_logits(std=2)"):
        out[scheme] = compare("vit", scheme, shard, example=images)
    own = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(dist.get_rank()))
    for scheme in ("fan_in(scale=logit(1))", "unit_logits(std=2)"):
        model = shard(vit())
        report = kappaone.init_(model, scheme, seed=0, example=own)
        out[f"own {scheme}"] = {
            "gains": [layer.gain for layer in report.layers],
            "weights": [e.fingerprints for layer in report.layers for e in layer.roles.values()],
            "check": bool(kappaone.check(model)),
        }
    return out


def spectra_of_shards() -> dict:
    """`inspect` reads a sharded model as it reads a plain one, on every rank."""
    plain, model = gpt2(), shard(gpt2())
    tables = [kappaone.inspect(m).to_dict() for m in (plain, model)]
    return {"same": tables[0]["layers"] == tables[1]["layers"]}


def what_is_sent() -> dict:
    """How many collectives an init_ makes, for 1 and 3 layers, and how many blocks each rank computes."""
    import kappaone.apply.fill as fill

    counts: dict = {}
    reduce, fingerprint = dist.all_reduce, fill.fingerprint
    for depth in (1, 3):
        model = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, embed_dim=48, depth=depth, num_heads=4, num_classes=4
        )
        model = shard(model)
        sent, computed = [], []
        try:
            torch.distributed.all_reduce = lambda t, *a, sent=sent, **k: (sent.append(t.numel()), reduce(t, *a, **k))[1]
            fill.fingerprint = lambda b, computed=computed: (computed.append(1), fingerprint(b))[1]
            with CommDebugMode() as other:
                kappaone.init_(model, "conditioned(scale=matched)", seed=0)
        finally:
            torch.distributed.all_reduce, fill.fingerprint = reduce, fingerprint
        counts[str(depth)] = {
            "all_reduces": len(sent),
            "others": other.get_total_counts() - len(sent),
            "computed": len(computed),
        }
    return counts
