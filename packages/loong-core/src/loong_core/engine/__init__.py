"""Engines: what trains a plain module over a layout of ranks."""
