"""A folder with a small random model and the built-in tokenizer, and a tokenizer trained on a few sentences."""

from __future__ import annotations

from pathlib import Path

from toy_models import randomise

WORDS = "the quick brown fox jumps over the lazy dog while a small model learns to write about it "


def byte_model(folder: Path, model_type: str = "qwen3", **changes: object) -> Path:
    """Save a transformers model of 259 ids with the built-in tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from loong_llm.tokenizer.byte_level import byte_tokenizer

    shape = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 259,
        "max_position_embeddings": 128,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
    }
    config = AutoConfig.for_model(model_type, **(shape | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def trained_tokenizer(folder: Path, *, eos: bool = True, vocab_size: int = 300) -> Path:
    """Save a byte-level BPE tokenizer without a begin-of-text token, as Qwen's are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"] if eos else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([WORDS] * 20, trainer)
    named = {"eos_token": "<|endoftext|>"} if eos else {}
    PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named).save_pretrained(
        folder
    )
    return folder
