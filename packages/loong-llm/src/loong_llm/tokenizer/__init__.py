"""Tokenizers: any Hugging Face folder on this machine, or the built-in one of bytes."""

from loong_llm.tokenizer.encoder import HuggingFaceEncoder, tokenizer_faults
from loong_llm.tokenizer.loading import BYTES, load_tokenizer

__all__ = ["BYTES", "HuggingFaceEncoder", "load_tokenizer", "tokenizer_faults"]
