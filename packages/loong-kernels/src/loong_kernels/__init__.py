"""Ops for training: a PyTorch reference for each, and faster implementations behind one registry."""
