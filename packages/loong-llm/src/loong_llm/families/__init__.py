"""Families of language models: from a Hugging Face `config.json` to a decoder and the names of its tensors."""
