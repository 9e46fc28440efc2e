"""LLaVA-OneVision-1.5 (arXiv:2509.23661) read plainly; transformers has no class of it.

Its language model is Qwen3's, which is transformers' own; the tower and the merger are written out patch by patch.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F


class PlainBlock(nn.Module):
    """Pre-norm attention over one frame, then `fc2(gelu(fc1(x)))`."""

    def __init__(self, width: int, heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, width)})

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """`x` is `[tokens, width]`, `turn` cosine and sine, `[tokens, head_dim / 2]` each."""
        q, k, v = self.attn["qkv"](self.norm1(x)).view(len(x), 3, self.heads, -1).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", _turned(q, *turn), _turned(k, *turn)) / q.shape[-1] ** 0.5
        x = x + self.attn["proj"](torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(x), -1))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class PlainRice(nn.Module):
    """Frame by frame: a class token, the patches in squares, all blocks; then the merger."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.merge, self.angles = config["spatial_merge_size"], width // config["num_heads"] // 2
        size = config["patch_size"]
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, size, size, bias=False)})
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.class_pos_emb = nn.Parameter(torch.empty(1, self.angles))
        self.pre_layernorm = nn.LayerNorm(width, eps=eps)
        block = (width, config["num_heads"], config["intermediate_size"], eps)
        self.blocks = nn.ModuleList(PlainBlock(*block) for _ in range(config["depth"]))
        joined = width * self.merge**2
        layers = nn.Sequential(nn.Linear(joined, joined), nn.GELU(), nn.Linear(joined, config["text_hidden_size"]))
        self.merger = nn.ModuleDict({"ln_q": nn.LayerNorm(width, eps=eps), "mlp": layers})

    def forward(self, patches: Tensor, grids: list[list[int]]) -> Tensor:
        """Features of all squares; `patches` is `[patches, 3 * size * size]`."""
        kernel = self.patch_embed["proj"].weight
        embedded = self.patch_embed["proj"](patches.view(-1, *kernel.shape[1:])).flatten(1)
        found, start = [], 0
        for frames, rows, columns in grids:
            places = [
                (row + down, column + right)
                for row in range(0, rows, self.merge)
                for column in range(0, columns, self.merge)
                for down in range(self.merge)
                for right in range(self.merge)
            ]
            for _ in range(frames):
                found.append(self._frame(embedded[start : start + rows * columns], places))
                start += rows * columns
        normed = self.merger["ln_q"](torch.cat(found))
        return self.merger["mlp"](normed.view(-1, normed.shape[-1] * self.merge**2))

    def _frame(self, patches: Tensor, places: list[tuple[int, int]]) -> Tensor:
        frequencies = 1 / 10000 ** (torch.arange(0, self.angles, 2).float() / self.angles)
        of_patches = torch.tensor([[*(row * frequencies), *(column * frequencies)] for row, column in places])
        turn = (  # angles of patches are float32, as in the authors' code
            torch.cat([self.class_pos_emb.cos(), of_patches.cos().to(patches.dtype)]),
            torch.cat([self.class_pos_emb.sin(), of_patches.sin().to(patches.dtype)]),
        )
        x = self.pre_layernorm(torch.cat([self.class_embedding[None], patches]))
        for block in self.blocks:
            x = block(x, turn)
        return x[1:]


class PlainLlavaOneVision(nn.Module):
    """Features in the place of placeholder tokens, then Qwen3 with the positions of plain text."""

    def __init__(self, hf: dict[str, Any]) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        super().__init__()
        self.hf = hf
        self.visual = PlainRice(hf["vision_config"])
        config = AutoConfig.for_model(**{**hf["text_config"], "model_type": "qwen3"})
        self.text = AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation="sdpa")
        self.double()

    def forward(self, input_ids: Tensor, **shown: Any) -> SimpleNamespace:
        """`shown` holds patches and grids of images and of videos, as transformers' Qwen classes take them."""
        embedded = self.text.get_input_embeddings()(input_ids[0])
        for token, patches, grid in (
            (self.hf["image_token_id"], "pixel_values", "image_grid_thw"),
            (self.hf["video_token_id"], "pixel_values_videos", "video_grid_thw"),
        ):
            if patches in shown:
                features = self.visual(shown[patches], shown[grid].tolist())
                rows = (input_ids[0] == token).nonzero()[:, 0]
                embedded = embedded.index_put((rows,), features)
        return SimpleNamespace(logits=self.text(inputs_embeds=embedded[None]).logits)

    def save_pretrained(self, folder: Path) -> None:
        """In the names of the hub."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name.removeprefix("text."): value.detach() for name, value in self.named_parameters()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.hf))
