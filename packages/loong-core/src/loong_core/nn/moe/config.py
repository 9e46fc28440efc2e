"""The hyperparameters of a mixture of experts, as plain data; nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RouterConfig:
    """How each token chooses its experts, and what keeps their load even.

    Attributes:
        num_experts: experts to choose from.
        top_k: how many each token chooses.
        scores: what turns logits into scores: softmax over all experts, or a sigmoid for each.
        normalise: whether the chosen scores are divided by their sum.
        scaling: factor on the chosen scores, after that.
        groups: into how many runs of neighbouring experts they are divided; a token chooses from few groups only
            (group-limited routing, arXiv:2405.04434).
        top_groups: from how many.
        group_best: a group is as good as the sum of its best so many scores.
        bias: whether a bias is added to the scores when experts are chosen, though not to their weights; it is
            moved by the load after each step, against the sign of its excess (arXiv:2408.15664).
        bias_rate: by how much.
        aux_coefficient: factor of the auxiliary loss `num_experts * sum over experts of share of tokens * mean score`
            (arXiv:2101.03961), which is `top_k` when the load is even.
        aux_scope: `layer`: each layer's loss, the mean over layers. `model`: shares and scores are averaged over the
            layers first, as transformers does, so that layers may make up for each other.
        z_coefficient: factor of the mean square of the logits' log-sum-exp (arXiv:2202.08906), the mean over layers.
    """

    num_experts: int
    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    bias: bool = False
    bias_rate: float = 0.001
    aux_coefficient: float = 0.0
    aux_scope: Literal["layer", "model"] = "layer"
    z_coefficient: float = 0.0

    def __post_init__(self) -> None:
        if self.num_experts % self.groups:
            raise ValueError(f"{self.num_experts} experts do not divide into {self.groups} groups")
        if not 1 <= self.top_groups <= self.groups:
            raise ValueError(f"top_groups={self.top_groups} of {self.groups} groups")
        reachable = self.top_groups * (self.num_experts // self.groups)
        if not 1 <= self.top_k <= reachable:
            raise ValueError(f"top_k={self.top_k} of {reachable} experts that a token can reach")


@dataclass(frozen=True)
class MoEConfig:
    """A router, the gated feed-forwards that it chooses from, and perhaps one that every token passes.

    Attributes:
        router: how tokens choose.
        expert_size: width between up and down of each expert.
        shared_size: the same of the shared expert; 0 for none.
        shared_gate: whether the shared expert's output is multiplied by the sigmoid of a projection of the token.
        capacity_factor: experts take at most this many times their even share of a rank's tokens, and drop the rest;
            None: they take all. With it the result depends on which tokens share a rank.
        drop: which choices an expert drops: those with the lowest score, or the last.
    """

    router: RouterConfig
    expert_size: int
    shared_size: int = 0
    shared_gate: bool = False
    capacity_factor: float | None = None
    drop: Literal["score", "position"] = "score"

    def parameter_count(self, hidden_size: int) -> int:
        """How many parameters the feed-forward of a block of this width has (the router's bias is not one)."""
        return self._parameters(hidden_size, self.router.num_experts)

    def matmul_parameters(self, hidden_size: int) -> int:
        """How many of them multiply each token: the router's, the chosen experts', the shared expert's."""
        return self._parameters(hidden_size, self.router.top_k)

    def _parameters(self, hidden_size: int, experts: int) -> int:
        per_input = self.router.num_experts + 3 * (experts * self.expert_size + self.shared_size) + self.shared_gate
        return hidden_size * per_input
