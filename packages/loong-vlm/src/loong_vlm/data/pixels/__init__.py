"""Decoded images and videos as patches, with the very pixels that Hugging Face's processors give.

Equal to the processors on torchvision (the default, "fast" ones), which resize with `torch.nn.functional.interpolate`;
torchvision itself is not needed. Patches stay uint8 until `normalised`, since all that comes before moves bytes only.
"""
