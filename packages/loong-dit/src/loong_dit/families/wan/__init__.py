"""Wan 2.1 and 2.2: text to video, image to video, and both."""

from __future__ import annotations

from importlib.resources import files

from loong_dit.families.family import DiffusionFamily

WAN = DiffusionFamily(
    name="wan",
    class_name="WanTransformer3DModel",
    room="loong_dit.families.wan",
    configs=files("loong_dit") / "configs" / "wan",
    original_class_name="WanModel",
    text_length=512,
)
