"""Checkpoints: canonical pieces of state, resume checkpoints, and Hugging Face folders."""
