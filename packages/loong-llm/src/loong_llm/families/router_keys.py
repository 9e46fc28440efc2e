"""The keys of a `config.json` by which routers are taught to spread their load.

`output_router_logits` and `router_aux_loss_coef` mean what they mean to transformers: with the first the second's
auxiliary loss is trained on. The others are this project's own; transformers ignores them.
"""

from __future__ import annotations

from typing import Any

from loong_llm.families.config_reader import ConfigReader

ROUTER_KEYS = (
    "output_router_logits",
    "router_aux_loss_coef",
    "router_aux_loss_scope",
    "router_z_loss_coef",
    "expert_capacity_factor",
    "expert_drop",
)
"""Keys that a config of a mixture of experts may leave out.

`router_aux_loss_scope`: `model` (as transformers: shares and scores are averaged over the layers before they are
multiplied) or `layer` (each layer's loss, then the mean; the one that pipeline ranks can take).
`router_z_loss_coef`: factor of the mean square of the logits' log-sum-exp.
`expert_capacity_factor`: how many times its even share of a rank's tokens an expert takes; absent, it takes all.
`expert_drop`: which choices beyond that it drops, those of lowest `score` or last in `position`.
"""


def router_losses(read: ConfigReader) -> dict[str, Any]:
    """The losses' part of a `RouterConfig`."""
    trained = read.flag("output_router_logits", False)
    coefficient = read.coefficient("router_aux_loss_coef", 0.001)
    return {
        "aux_coefficient": coefficient if trained else 0.0,
        "aux_scope": read.choice("router_aux_loss_scope", "model", "layer"),
        "z_coefficient": read.coefficient("router_z_loss_coef"),
    }


def expert_room(read: ConfigReader) -> dict[str, Any]:
    """The capacity's part of an `MoEConfig`."""
    limited = read.hf.get("expert_capacity_factor") is not None
    return {
        "capacity_factor": read.number("expert_capacity_factor") if limited else None,
        "drop": read.choice("expert_drop", "score", "position"),
    }


def chosen_experts(read: ConfigReader, *keys: str) -> tuple[int, int]:
    """How many experts there are, by the first of `keys` that is present, and how many each token chooses."""
    experts = read.integer(next((key for key in keys if read.hf.get(key) is not None), keys[0]))
    top_k = read.integer("num_experts_per_tok")
    if top_k > experts:
        read.fault("num_experts_per_tok", f"is {top_k}, of {experts} experts")
        top_k = experts
    return experts, top_k
