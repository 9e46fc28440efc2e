"""The built-in tokenizer: a token is a byte of UTF-8. It needs no files, and no text is foreign to it.

Ids 0 to 255 are the bytes themselves, then come `<|begin|>` (256, before each text), `<|end|>` (257) and `<|pad|>`
(258). It is byte-level BPE without a single merge, so a saved folder holds nothing but a `tokenizer.json` that every
Hugging Face tool opens, and decoding gives back the text to the byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
VOCAB_SIZE = 259


def byte_alphabet() -> dict[int, str]:
    """The visible character that stands for each byte in byte-level BPE (Radford et al. 2019, GPT-2).

    Printable bytes stand for themselves; the others get the characters from U+0100 on, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A new built-in tokenizer of 259 ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: byte for byte, character in byte_alphabet().items()}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BEGIN, END, PAD])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, 256)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
