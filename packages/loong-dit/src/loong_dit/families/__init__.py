"""Families of diffusion transformers: a diffusers `config.json` to a module, and its weights' names."""
