"""Latent caches and what is read from them."""
