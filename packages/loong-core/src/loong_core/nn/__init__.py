"""Layers of transformer models, written as mathematics over the axes of a `ParallelContext`."""
