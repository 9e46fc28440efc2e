"""Layers that diffusion transformers share."""
