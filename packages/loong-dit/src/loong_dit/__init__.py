"""Diffusion transformers."""
