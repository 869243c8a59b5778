"""The vocabulary of facts: what may be true of an attention layer beyond where its rows live.

Reports and `inspect` show them, schemes and measurements decide by them. To add one: its line here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """One thing that a layout can state.

    Attributes:
        meaning: in one line, for reports.
        scale_free: a gain on W_Q and W_K has no effect on the forward pass.
        exact: the logits are still scale * q k^T plus something that does not depend on the weights, so that the
            Jacobian's closed form holds.
        fits: the logits that enter the softmax are one multiple of q k^T, of the tokens that the projections read, so
            that the factor can be fitted; as `exact` if None.
        recorded: each query head has one softmax over tokens, so that its probabilities can be recorded.
    """

    meaning: str
    scale_free: bool = False
    exact: bool = True
    fits: bool | None = None
    recorded: bool = True

    @property
    def plain_logits(self) -> bool:
        """Whether the factor on q.k can be fitted to the logits."""
        return self.exact if self.fits is None else self.fits


FACTS: dict[str, Fact] = {
    "batch_first": Fact("tokens come as (batch, token, width); False: (token, batch, width)"),
    "kv_map": Fact('"modulo": query head h reads key/value head h mod kv_heads'),
    "cross": Fact("keys and values are read from other tokens than queries"),
    "rotary": Fact("q and k are turned by rotary position embeddings", exact=False),
    "position_bias": Fact("a position-dependent bias is added to the logits (relative positions, ALiBi)", fits=False),
    "relative": Fact("the logits have further terms from projected positions", exact=False),
    "qk_norm": Fact(
        'q and k are normalized (head by head; "whole": all heads at once): a gain on W_Q and W_K has no effect',
        scale_free=True,
        exact=False,
    ),
    "cosine": Fact("logits are cosines: a gain on W_Q and W_K has no effect", scale_free=True, exact=False),
    "projection_norm": Fact(
        "a batch or layer norm follows the projections: their gain has no effect in training",
        scale_free=True,
        exact=False,
    ),
    "v_norm": Fact("the values are normalized after their projection", exact=False, fits=True),
    "unscaled": Fact("no 1/sqrt(head_dim): the initialization of W_Q carries it"),
    "softcap": Fact("logits are capped by tanh", exact=False),
    "clamped": Fact("q, k and v are clamped to a range", exact=False),
    "sinks": Fact("a learned logit without a value takes part in the softmax", exact=False),
    "talking_heads": Fact("logits or probabilities are mixed between heads", exact=False, recorded=False),
    "differential": Fact(
        "two softmaxes are subtracted; q and k have two sub-heads for each value head", exact=False, recorded=False
    ),
    "gate": Fact("the output is multiplied by a gate before the output projection"),
    "output_norm": Fact("the output is normalized before the output projection"),
    "channel_attention": Fact(
        "channels attend to channels over all tokens (cross-covariance), not tokens to tokens",
        exact=False,
        recorded=False,
    ),
    "pooled": Fact(
        "q, k or v are pooled, convolved or normalized between their projection and the softmax", exact=False
    ),
    "activated": Fact(
        "an activation follows q, k or v, or stands between the attention and its output projection", exact=False
    ),
    "reduced_keys": Fact("keys and values read fewer tokens than queries (spatial reduction)"),
    "one_query": Fact("only one token, or learned ones, ask"),
    "windows": Fact("tokens attend within windows, blocks or bands", fits=False),
    "approximate": Fact("the softmax is approximated; the value names the method", exact=False, recorded=False),
    "low_rank": Fact(
        "roles are products of two stored weights (multi-head latent attention)", exact=False, recorded=False
    ),
    "partial": Fact("some rows of the projections play no role here (a gate, a rotary part); the value says which"),
    "parallel": Fact("the block runs attention and MLP side by side on one input"),
    "bias_kv": Fact("a learned key and value are appended", exact=False),
    "add_zero_attn": Fact("a zero key and value are appended", exact=False),
    "shared": Fact("one module serves several layers of the model"),
    "extra": Fact("the value names something else in the forward pass that changes its result", exact=False),
}


def explain(name: str) -> str:
    """The meaning of a fact.

    Examples:
        >>> explain("unscaled")
        'no 1/sqrt(head_dim): the initialization of W_Q carries it'
    """
    return FACTS[name].meaning
