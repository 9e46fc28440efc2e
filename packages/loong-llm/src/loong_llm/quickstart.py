"""The quickstart: a small Qwen3, trained from random weights on the reference text of CPython, beside a bigram model.

It is an ordinary run: its run file is `run.yaml` in the output folder, its data are two JSONL files beside it.
"""

from __future__ import annotations

from pathlib import Path

from loong_core.cli.curves import draw_runs, read_run
from loong_core.config import CheckpointSection, LoggingSection, RunFolder, TrainSection
from loong_core.config.loading import Loaded
from loong_core.data.corpus import open_corpus
from loong_core.device import select
from loong_core.parallel.ranks import RankPlace
from loong_core.train.loop import Progress
from loong_core.train.metrics import read_rows
from loong_llm.check import checked
from loong_llm.data.bigram import bigram_loss
from loong_llm.generate import generate
from loong_llm.inference import open_for_inference
from loong_llm.recipes.stage import train_stage
from loong_llm.recipes.stage_data import cache_folder, corpus_settings
from loong_llm.recipes.training_config import DataSection, ModelSection, SourceSection, TrainingConfig
from loong_llm.sampling import Sampling
from loong_llm.tokenizer import BYTES, HuggingFaceEncoder, load_tokenizer

MODEL = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 352,
    "vocab_size": 259,
    "max_position_embeddings": 256,
}
"""What makes the small model out of Qwen3-0.6B's config: 0.8 million parameters over bytes."""

PROMPT = 'The "for" statement is used to'
"""How the sample of the model's writing begins."""


def quickstart_config(output: Path, data: Path) -> TrainingConfig:
    """The run, with sizes for two CPU cores and a minute and a half; `data` is where `write_python_topics` wrote."""
    return TrainingConfig(
        output=str(output),
        model=ModelSection(source="qwen3-0.6b", overrides=MODEL),
        tokenizer=BYTES,
        data=DataSection(
            train=[SourceSection(path=str(data / "train.jsonl"))],
            validation=[SourceSection(path=str(data / "held_out.jsonl"))],
            sequence_length=256,
        ),
        train=TrainSection(
            steps=500,
            global_batch_size=4,
            micro_batch_size=2,
            lr=5e-3,
            min_lr=1e-4,
            warmup_steps=40,
            validate_every=250,
        ),
        checkpoint=CheckpointSection(every=250),
        logging=LoggingSection(every=25),
    )


def quickstart(output: Path) -> None:
    """Train the quickstart's model into `output`, show what came of it, and say where it is. Collective over ranks.

    Args:
        output: the run folder; its `data` folder holds what `write_python_topics` writes.
    """
    place = RankPlace.from_env()
    config = quickstart_config(output, output / "data")
    checked(Loaded(config, [], frozenset()), place.world_size)
    progress = train_stage(config)
    if place.rank == 0:
        _show(config, progress)


def _show(config: TrainingConfig, progress: Progress) -> None:
    folder = RunFolder(Path(config.output))
    bigram = _bigram_loss(config)
    print(f"held-out loss of a bigram count model on the same split: {bigram:.4f} nats a byte")
    print(f"held-out loss of the model: {progress.first_val_loss:.4f} at the start, {progress.last_val_loss:.4f} now")
    model = open_for_inference(folder.hf, select(config.device).device.bind(0))
    sampling = Sampling(temperature=0.5)
    (written,) = generate(model, [PROMPT], sampling, max_new_tokens=200)
    print(f"\na sample of its writing:\n\n{written.prompt}{written.text}\n")
    draw_runs([read_run(folder.root)], folder.root / "loss.png")
    held_out = config.data.validation[0].path
    rows = read_rows(folder.metrics)
    speed = sorted(row["tokens_per_second"] for row in rows)[len(rows) // 2]
    print(f"the same loss from transformers: loong-llm eval {folder.hf} --data {held_out} --with-transformers")
    print(
        f"held-out loss {progress.first_val_loss:.4f} -> {progress.last_val_loss:.4f} (bigram model {bigram:.4f}), "
        f"{speed:,.0f} tokens/s, model in {folder.hf}"
    )


def _bigram_loss(config: TrainingConfig) -> float:
    """Held-out loss of a bigram count model, from the token ids that the run has cached."""
    encoder = HuggingFaceEncoder(load_tokenizer(BYTES))
    corpus = open_corpus(corpus_settings(config, cache_folder(config, Path(config.output))), encoder)
    held_out = corpus.held_out()
    assert held_out is not None
    return bigram_loss(corpus.train[0].stores[0], held_out.stores[0], encoder.vocab_size)
