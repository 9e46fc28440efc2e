"""Projectors: from a tower's features to what a language model reads. They register by `loong.projectors`."""
