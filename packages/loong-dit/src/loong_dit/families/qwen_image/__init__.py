"""Qwen-Image and Qwen-Image-Edit: text to image, and images changed as text says."""

from __future__ import annotations

from importlib.resources import files

from loong_dit.families.family import CaptionFrame, DiffusionFamily

QWEN_IMAGE = DiffusionFamily(
    name="qwen_image",
    class_name="QwenImageTransformer2DModel",
    room="loong_dit.families.qwen_image",
    configs=files("loong_dit") / "configs" / "qwen_image",
    channels_last=False,
    centred=True,
    joint_text=True,
    caption_frame=CaptionFrame(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
        "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
        "<|im_start|>assistant\n",
        dropped=34,
    ),
)
