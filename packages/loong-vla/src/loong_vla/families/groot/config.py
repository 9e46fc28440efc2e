"""What a GR00T action head is. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loong_core.errors import ConfigError, Fault


@dataclass(frozen=True)
class GrootHeadConfig:
    """The action head of GR00T N1.6 or N1.7; the defaults are N1.7's published sizes.

    Attributes:
        version: N1.6's head normalises what the vision-language model gives; N1.7's also attends among it.
        vl_width: width of what the vision-language model gives.
        num_layers: blocks of the diffusion transformer, a multiple of 4 where it alternates.
        num_heads, head_dim: of its attention; together its width.
        output_width: what it gives to the decoder.
        hidden_width: inner width of the embodiments' own layers.
        vl_layers, vl_heads, vl_head_dim: of the attention among vision-language tokens (N1.7).
        text_every: every how many cross-attending blocks one reads text, and not pictures.
        state_dim, action_dim: widths that states and actions are padded to.
        horizon: actions predicted at once.
        state_history: states told at once.
        embodiments: banks of weights that a checkpoint holds.
        active: the embodiments that are trained or used; others' weights are neither held nor computed with.
        max_positions: rows of the position embedding.
        time_buckets: numbers that a time in [0, 1] is told by.
        beta_alpha, beta_beta, noise_s: a training time is `(1 - Beta(alpha, beta)) * noise_s`.
        inference_steps: Euler steps of sampling.
        state_dropout: share of samples whose state is dropped in training.
        dropout: within blocks, in training.
    """

    version: Literal["n1.6", "n1.7"] = "n1.7"
    vl_width: int = 2048
    num_layers: int = 32
    num_heads: int = 32
    head_dim: int = 48
    output_width: int = 1024
    hidden_width: int = 1024
    vl_layers: int = 4
    vl_heads: int = 32
    vl_head_dim: int = 64
    text_every: int = 2
    state_dim: int = 132
    action_dim: int = 132
    horizon: int = 40
    state_history: int = 1
    embodiments: int = 32
    active: tuple[int, ...] = tuple(range(32))
    max_positions: int = 1024
    time_buckets: int = 1000
    beta_alpha: float = 1.5
    beta_beta: float = 1.0
    noise_s: float = 0.999
    inference_steps: int = 4
    state_dropout: float = 0.2
    dropout: float = 0.2

    @property
    def width(self) -> int:
        """Of the diffusion transformer."""
        return self.num_heads * self.head_dim

    @property
    def text_blocks(self) -> tuple[int, ...]:
        """Blocks that attend to tokens that are no pictures."""
        return tuple(range(0, self.num_layers, 2 * self.text_every))

    @property
    def image_blocks(self) -> tuple[int, ...]:
        """Blocks that attend to pictures."""
        return tuple(number for number in range(0, self.num_layers, 2) if number not in self.text_blocks)


N16 = GrootHeadConfig(version="n1.6", vl_layers=0, state_dim=128, action_dim=128, horizon=50, state_dropout=0.0)
"""GR00T N1.6's published sizes."""

_SERVED = {"use_alternate_vl_dit": True, "use_vlln": True, "add_pos_embed": True}


def read_head_config(where: str, values: Mapping[str, Any], active: tuple[int, ...] | None = None) -> GrootHeadConfig:
    """The head that a GR00T N1.7 or N1.6 checkpoint's `config.json` describes.

    Args:
        where: the file, for errors.
        values: what it says; its `model_type` is `Gr00tN1d6` of N1.6.
        active: embodiments to hold; all by default.

    Raises:
        ConfigError: with everything in it that is not served.
    """
    faults = [
        Fault(where, f"{key} is {values[key]!r}", f"only {served} is served")
        for key, served in _SERVED.items()
        if values.get(key, served) != served
    ]
    published = N16 if values.get("model_type") == "Gr00tN1d6" else GrootHeadConfig()
    dit, vl = values.get("diffusion_model_cfg") or {}, values.get("vl_self_attention_cfg") or {}
    if published.version == "n1.6" and values.get("state_dropout_prob"):
        what = f"state_dropout_prob is {values['state_dropout_prob']}, and N1.6 puts a learnt token in a state's place"
        faults.append(Fault(where, what, "only 0 is served"))
    embodiments = values.get("max_num_embodiments", published.embodiments)
    chosen = tuple(range(embodiments)) if active is None else active
    if unknown := [each for each in chosen if not 0 <= each < embodiments]:
        faults.append(Fault("embodiment", f"{unknown} is not known", f"the checkpoint has 0 to {embodiments - 1}"))
    if faults:
        raise ConfigError(faults)
    return GrootHeadConfig(
        version=published.version,
        vl_width=values.get("backbone_embedding_dim", published.vl_width),
        num_layers=dit.get("num_layers", published.num_layers),
        num_heads=dit.get("num_attention_heads", published.num_heads),
        head_dim=dit.get("attention_head_dim", published.head_dim),
        output_width=dit.get("output_dim", published.output_width),
        hidden_width=values.get("hidden_size", published.hidden_width),
        vl_layers=vl.get("num_layers", published.vl_layers),
        vl_heads=vl.get("num_attention_heads", published.vl_heads),
        vl_head_dim=vl.get("attention_head_dim", published.vl_head_dim),
        text_every=values.get("attend_text_every_n_blocks", published.text_every),
        state_dim=values.get("max_state_dim", published.state_dim),
        action_dim=values.get("max_action_dim", published.action_dim),
        horizon=values.get("action_horizon", published.horizon),
        state_history=values.get("state_history_length", published.state_history),
        embodiments=embodiments,
        active=chosen,
        max_positions=values.get("max_seq_len", published.max_positions),
        time_buckets=values.get("num_timestep_buckets", published.time_buckets),
        beta_alpha=values.get("noise_beta_alpha", published.beta_alpha),
        beta_beta=values.get("noise_beta_beta", published.beta_beta),
        noise_s=values.get("noise_s", published.noise_s),
        inference_steps=values.get("num_inference_timesteps", published.inference_steps),
        state_dropout=values.get("state_dropout_prob", published.state_dropout),
        dropout=dit.get("dropout", published.dropout),
    )
