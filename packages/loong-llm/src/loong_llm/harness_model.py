"""Our decoder as a model of the lm-evaluation-harness, which has to be installed to import this.

Texts become ids as the harness's own Hugging Face model makes them, so that figures can be compared: with the special
tokens that the tokenizer adds, cut on the left to what the model can take. Sequences are packed, never padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from loong_core.data.batch import PackedBatch
from loong_core.errors import UserError
from loong_llm.generate import generate
from loong_llm.inference import OpenedModel
from loong_llm.sampling import Sampling

_DEFAULT_LENGTH = 2048
_DEFAULT_NEW_TOKENS = 256
_GENERATE_TOGETHER = 16
_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call the number of tokens to write, the first first."""

Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""Text, and ids of a context and of what follows it."""


class HarnessModel(TemplateLM):
    """Answers the harness's three kinds of requests.

    Args:
        model: what answers.
        batch_tokens: tokens of one forward pass, about.
    """

    def __init__(self, model: OpenedModel, batch_tokens: int = 4096) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = model.tokenizer
        self.batch_tokens = batch_tokens
        self.max_length = model.max_length or _DEFAULT_LENGTH
        self._device = model.device

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return self._id("eos_token_id")

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is: the token that begins a text, else the one that ends it."""
        return self._id("bos_token_id") if self.tokenizer.bos_token_id is not None else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """Distinguishes caches of requests."""
        return self.model.source.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of a text; by default with the special tokens that the tokenizer adds, unless they are in it."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(str(self.tokenizer.decode(self.prefix_token_id)))
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation written by the tokenizer's template."""
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text, in windows of the model's length that predict each token once."""
        windows: list[Request] = []
        owners = []
        for number, request in enumerate(requests):
            cut = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, following in map(make_disjoint_window, cut):
                windows.append((None, context, following))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What follows each context, up to the first of its stop sequences."""
        answers = [""] * len(requests)
        order = sorted(range(len(requests)), key=lambda number: str(_wanted(requests[number])))
        for together in _runs(order, lambda number: _wanted(requests[number])):
            until, length, sampling = _generation(dict(_wanted(requests[together[0]])))
            room = self.max_length - length
            if room < 1:
                raise UserError(f"a task asks for {length} new tokens, the model takes {self.max_length} in all")
            prompts = [self.tok_encode(requests[number].args[0])[-room:] for number in together]
            written = generate(self.model, prompts, sampling, max_new_tokens=length, stop=until)
            for number, each in zip(together, written, strict=True):
                answers[number] = postprocess_generated_text(each.text, until, None)
                self.cache_hook.add_partial("generate_until", requests[number].args, answers[number])
        return answers

    def _loglikelihood_tokens(self, requests: Sequence[Request], **kwargs: Any) -> list[tuple[float, bool]]:
        """Sum of the log-probabilities of what follows each context, and whether it is the best throughout."""
        answers: list[tuple[float, bool]] = []
        for batch in self._batches(requests):
            answers += self._answers(batch)
            for (text, _, _), answer in zip(batch, answers[-len(batch) :], strict=True):
                if text is not None:
                    self.cache_hook.add_partial("loglikelihood", text, answer)
        return answers

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        """Runs of requests of about `batch_tokens` tokens."""
        batch: list[Request] = []
        tokens = 0
        for request in requests:
            length = len(request[1]) + len(request[2])
            if batch and tokens + length > self.batch_tokens:
                yield batch
                batch, tokens = [], 0
            batch.append(request)
            tokens += length
        if batch:
            yield batch

    @torch.inference_mode()
    def _answers(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        inputs = [(context + following)[-(self.max_length + 1) :][:-1] for _, context, following in requests]
        lengths = [len(each) for each in inputs]
        tokens = torch.tensor([token for each in inputs for token in each])
        batch = PackedBatch.from_lengths(tokens, tokens, lengths)
        logits = self.model.decoder.logits(batch.to(self.model.device))
        ends = batch.cu_seqlens[1:].tolist()
        answers = []
        for (_, _, following), end in zip(requests, ends, strict=True):
            scores = logits[end - len(following) : end].float().log_softmax(-1)
            wanted = torch.tensor(following, device=scores.device)
            value = scores.gather(1, wanted[:, None]).sum().item()
            answers.append((value, bool((scores.argmax(-1) == wanted).all())))
        return answers

    def _id(self, name: str) -> int:
        token = getattr(self.tokenizer, name)
        if token is None:
            raise UserError(f"the tokenizer has no {name}, with which the harness begins or ends texts")
        return int(token)


def _wanted(request: Any) -> dict[str, Any]:
    """What a task says of how its answers are written."""
    return request.args[1]


def _runs(order: Sequence[int], key: Callable[[int], Any]) -> Iterator[list[int]]:
    """Neighbours that have the same key, so many at most."""
    run: list[int] = []
    for number in order:
        if run and (key(number) != key(run[0]) or len(run) == _GENERATE_TOGETHER):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _generation(wanted: dict[str, Any]) -> tuple[list[str], int, Sampling]:
    """Stop sequences, tokens to write, and how to choose them; from what a task calls `generation_kwargs`."""
    until = wanted.pop("until", None) or []
    lengths = [wanted.pop(name) for name in _NEW_TOKENS if wanted.get(name) is not None]
    sampled = wanted.pop("do_sample", None)
    temperature = float(wanted.pop("temperature", None) or 0.0)
    if sampled is False:
        temperature = 0.0
    elif sampled and not temperature:
        temperature = 1.0
    top_k, top_p = wanted.pop("top_k", None) or None, float(wanted.pop("top_p", None) or 1.0)
    if left := [name for name, value in wanted.items() if value is not None]:
        raise UserError(f"a task's generation_kwargs have {left[0]}, which is not served; take it out of the task")
    chosen = Sampling(temperature, top_k, top_p) if temperature else Sampling()
    return [until] if isinstance(until, str) else list(until), int((lengths or [_DEFAULT_NEW_TOKENS])[0]), chosen
