"""Qwen-Image and Qwen-Image-Edit: text to image, and images changed as text says."""

from __future__ import annotations

from importlib.resources import files

from loong_dit.families.family import DiffusionFamily

QWEN_IMAGE = DiffusionFamily(
    name="qwen_image",
    class_name="QwenImageTransformer2DModel",
    room="loong_dit.families.qwen_image",
    configs=files("loong_dit") / "configs" / "qwen_image",
    condition="tokens",
    channels_last=False,
    centred=True,
    shares_context=False,
)
