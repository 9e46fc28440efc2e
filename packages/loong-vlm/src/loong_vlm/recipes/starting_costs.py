"""What samples cost before any step was measured: floating-point operations by the shapes of a model's parts."""

from __future__ import annotations

from loong_vlm.balance.cost import CostModel
from loong_vlm.parts import ModelParts


def starting_costs(parts: ModelParts) -> CostModel:
    """The costs that balancing begins with."""
    language = parts.language.config
    attention = language.attention
    return CostModel.from_shapes(
        text_parameters=language.matmul_parameters(),
        text_layers=language.num_layers,
        text_attention_width=attention.num_heads * attention.head_dim,
        tower_parameters=parts.tower.parameter_count() + parts.projector.parameter_count(),
        tower_layers=parts.tower.num_layers,
        tower_width=parts.tower.width,
    )
