"""Opening a tokenizer by what a run file says. Only folders of this machine, and never code that a folder brings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loong_core.config.files import user_path
from loong_core.errors import UserError
from loong_core.json_text import read_json_object
from loong_llm.tokenizer.byte_level import byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BYTES = "bytes"
"""Name of the built-in tokenizer in a run file."""

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_tokenizer(spec: str | None, model_dir: Path | None = None) -> PreTrainedTokenizerBase:
    """Open a tokenizer.

    Args:
        spec: `bytes`, a Hugging Face folder, or None for that of the model's folder.
        model_dir: the model's folder, if it comes from one.

    Raises:
        UserError: no tokenizer is named, the folder is missing, holds none, needs its own code or is damaged.
    """
    if spec == BYTES:
        return byte_tokenizer()
    if spec is None and model_dir is None:
        raise UserError(
            f"no tokenizer: a model that comes without a folder needs one; set tokenizer to a folder, or to {BYTES!r} "
            "for the built-in one"
        )
    folder = user_path(spec) if spec is not None else model_dir
    if folder is None or not folder.is_dir():
        raise UserError(
            f"tokenizer: {folder} is no folder on this machine; give a Hugging Face folder (nothing is downloaded), or "
            f"{BYTES!r} for the built-in tokenizer"
        )
    return _open(folder)


def _open(folder: Path) -> PreTrainedTokenizerBase:
    config = _config(folder)
    if not any((folder / name).is_file() for name in _FILES):
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"tokenizer: {folder} holds none of {', '.join(_FILES)} (it holds {found}); copy the tokenizer's files "
            f"there, or set tokenizer to another folder or {BYTES!r}"
        )
    if "AutoTokenizer" in config.get("auto_map", {}) and not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"tokenizer: {folder} needs Python code of its own ({config['auto_map']['AutoTokenizer']}), which is never "
            "run; convert it to a tokenizer.json first"
        )
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # A folder that names no class but the generic one means its tokenizer.json as it is; AutoTokenizer would replace
    # it by the class of the model's type for some types (transformers 5.17: qwen2).
    generic = config.get("tokenizer_class") in _GENERIC and (folder / "tokenizer.json").is_file()
    opener: Any = PreTrainedTokenizerFast if generic else AutoTokenizer
    try:
        return opener.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a library makes of a damaged file, the user needs to know which folder
        raise UserError(f"tokenizer: {folder} cannot be opened: {type(error).__name__}: {error}") from error


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    return read_json_object(path)
