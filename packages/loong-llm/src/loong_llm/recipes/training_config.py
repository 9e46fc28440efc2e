"""The run file of `loong-llm train`, whatever the stage. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loong_core.config import MAY_CHANGE, REQUIRED, RunConfig, Section
from loong_core.config.sections import Count, Fp8Section, Fraction, NonNegative, Positive, Whole


class ModelSection(Section):
    """What is trained; `model: NAME` is short for `model: {source: NAME}`.

    Attributes:
        source: a named size (`loong models` lists them), or a Hugging Face folder.
        initialise: `random` draws weights, `weights` loads the folder's, `auto` loads them where there are any.
        overrides: keys of the model's `config.json` to replace.
    """

    shorthand = "source"

    source: Annotated[str, REQUIRED] = ""
    initialise: Literal["auto", "random", "weights"] = "auto"
    overrides: dict[str, Any] = Field(default_factory=dict)


class SourceSection(Section):
    """One source: a file, a folder (a dataset too), a glob, the prefix of a .bin/.idx pair; a path is short for it.

    Attributes:
        path: where it is.
        weight: its share in the blend, relative to the others'; all sources have one, or none.
        format: stages midtrain and sft: form of the conversations, `messages` (OpenAI), `sharegpt` or `alpaca`, and in
            midtrain `documents`; found out by default.
        fields: stages midtrain and sft: our names of a conversation's fields to the file's, such as
            `{instruction: question, output: answer}`.
    """

    shorthand = "path"

    path: Annotated[str, REQUIRED] = ""
    weight: Positive | None = None
    format: Literal["documents", "messages", "sharegpt", "alpaca"] | None = None
    fields: dict[str, str] = Field(default_factory=dict)


class BlendPointSection(Section):
    """The weights of the training sources at one step; between two points they change in a straight line.

    Attributes:
        step: the step.
        weights: one for each source of `data.train`, in their order; 0 for a source that rests.
    """

    step: Annotated[Whole, REQUIRED] = 0
    weights: Annotated[list[NonNegative], REQUIRED] = Field(default_factory=list)


class DataSection(Section):
    """Documents (stage pretrain), conversations (stage sft) or both (midtrain), and how they become sequences.

    Attributes:
        train: one or several sources.
        blend_schedule: weights of the sources that change with the steps; before the first point the sources' own.
        validation: held-out sources.
        validation_fraction: share of the training documents or conversations to hold out instead.
        sequence_length: tokens of a sequence.
        cache: folder for token ids, seen by all ranks; `cache` in the run folder by default.
        workers: processes that tokenise, at the start of the run.
        text_key: of documents: field of JSON lines, or column of parquet and arrow files, that holds the text.
        attend_across_documents: of documents: whether attention and labels ignore their boundaries within a sequence.
        chat_template: of conversations: how they are written, a shipped template's name (alpaca, chatml, deepseek,
            llama2, llama3, minimax, mistral, plain) or a `.jinja` file; the tokenizer's own by default.
        template_variables: of conversations: values for the template's own variables.
        train_on: of conversations: what is learnt: all that the assistant says, what it says after the user's last
            message, or prompts too.
        bad_samples: of conversations: whether a record that cannot be trained on stops the run, or is left out and
            counted.
        long_samples: of conversations: what becomes of one longer than a sequence.
        packing: of conversations: whether they share sequences; each is read apart from its neighbours.
    """

    train: Annotated[list[SourceSection], REQUIRED] = Field(default_factory=list)
    blend_schedule: list[BlendPointSection] = Field(default_factory=list)
    validation: list[SourceSection] = Field(default_factory=list)
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    sequence_length: Count = 1024
    cache: Annotated[str | None, MAY_CHANGE] = None
    workers: Annotated[Count, MAY_CHANGE] = 1
    text_key: str = "text"
    attend_across_documents: bool = False
    chat_template: str | None = None
    template_variables: dict[str, Any] = Field(default_factory=dict)
    train_on: Literal["assistant", "last_turn", "everything"] = "assistant"
    bad_samples: Literal["stop", "skip"] = "stop"
    long_samples: Literal["truncate", "split", "drop", "stop"] = "truncate"
    packing: bool = True


class LoraSection(Section):
    """Low-rank adapters in place of all weights (LoRA).

    Attributes:
        rank: inner width of an adapter.
        alpha: an adapter's output is multiplied by `alpha / rank`.
        dropout: share of an adapter's inputs that is dropped in training.
        targets: patterns of Hugging Face layer names (`q_proj`, `layers.3.mlp.*`), `all-linear`, or `experts`.
        rslora: whether to multiply by `alpha / sqrt(rank)` instead.
        dora: whether to train the magnitude of each row of a matrix apart from its direction.
        base: `nf4` keeps the frozen matrices of the blocks in 4 bits (QLoRA), rounded as they are loaded; by default
            they stay in the precision of the run. Needs the extra `qlora`.
        merge: whether to write the whole model with the adapters in it (`hf/`), not the adapters alone (`adapter/`).
    """

    rank: Count = 16
    alpha: Positive = 32.0
    dropout: Fraction = 0.0
    targets: str | list[str] = "all-linear"
    rslora: bool = False
    dora: bool = False
    base: Literal["nf4"] | None = None
    merge: Annotated[bool, MAY_CHANGE] = False


class SamplesSection(Section):
    """Texts that the model writes while it trains: on the console, and in `samples.jsonl` of the run folder.

    Attributes:
        prompts: beginnings of texts; in stage sft what a user says, written by the chat template.
        every: steps from one time to the next; also before the first step and after the last.
        max_new_tokens: written after each prompt, at most.
        temperature: 0 takes the best token every time.
    """

    prompts: Annotated[list[str], REQUIRED] = Field(default_factory=list)
    every: Count = 500
    max_new_tokens: Count = 64
    temperature: NonNegative = 0.0


class TrainingConfig(RunConfig):
    """A training run of a language model.

    Attributes:
        stage: `pretrain` learns documents from random or given weights, `sft` learns to answer in conversations,
            `midtrain`, between the two, takes both.
        model: what is trained.
        tokenizer: a Hugging Face folder, or `bytes` for the built-in one; the model folder's by default.
        data: what it is trained on.
        lora: adapters to train in place of the weights, if the section is given; `lora: {}` takes the defaults.
        samples: what the model writes while it trains, if the section is given.
        fp8: which products are made in 8 bits, if the section is given; `fp8: {}` takes the defaults. Needs precision
            bf16.
    """

    stage: Literal["pretrain", "midtrain", "sft"] = "pretrain"
    model: Annotated[ModelSection, REQUIRED] = ModelSection()
    tokenizer: str | None = None
    data: DataSection = DataSection()
    lora: LoraSection | None = None
    samples: Annotated[SamplesSection | None, MAY_CHANGE] = None
    fp8: Annotated[Fp8Section | None, MAY_CHANGE] = None
