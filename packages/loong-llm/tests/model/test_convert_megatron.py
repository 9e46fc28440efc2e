"""Checkpoints of megatron-core's own models, saved by it under any layout, become Hugging Face folders."""

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))  # for the module beside; ranks of the pool get the same path

from megatron_ranks import PADDED_VOCABULARY, save_gpt

from loong_core.checkpoint.dcp_folder import DcpFolder
from loong_core.checkpoint.pieces import Piece
from loong_core.data.batch import PackedBatch
from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_llm.convert import convert
from loong_llm.model import build_stages, open_model

VOCABULARY = 61
TOKENS = [3, 60, 17, 17, 0, 42, 5]
_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
}
_MIXTURE = {"num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 16, "num_experts": 4}
MODELS = {
    "llama": _SHAPE | {"model_type": "llama"},
    "qwen2": _SHAPE | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": _SHAPE | {"model_type": "qwen3", "head_dim": 8},
    "qwen3_moe": _SHAPE | _MIXTURE | {"model_type": "qwen3_moe", "head_dim": 8},
    "qwen": _SHAPE | {"model_type": "qwen2", "num_key_value_heads": 4},
    "mixtral": _SHAPE | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}
"""What megatron-core builds; and but for the first Qwen, whose keys are its own, the `config.json`."""
FIRST_QWEN = {
    "model_type": "qwen",
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "kv_channels": 8,
    "vocab_size": VOCABULARY,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def checkpoint(ranks, tmp_path_factory):
    """`checkpoint(name)`: a folder with `megatron/` and `model/config.json`, and the logits that Megatron computes."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            (folder / "model").mkdir()
            config = FIRST_QWEN if name == "qwen" else MODELS[name]
            (folder / "model" / "config.json").write_text(json.dumps(config))
            made[name] = folder, *ranks.run(1, save_gpt, folder / "megatron", MODELS[name], TOKENS)
        return made[name]

    return make


def converted(folder, output, source="megatron", **options):
    convert(folder / source, output, described_by=str(folder / "model"), **options)
    return load_file(output / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_the_logits_are_those_that_megatron_computes(name, checkpoint, tmp_path):
    folder, logits = checkpoint(name)
    tensors = converted(folder, tmp_path / "out")
    table = "transformer.wte.weight" if name == "qwen" else "model.embed_tokens.weight"
    assert tensors[table].shape == (VOCABULARY, 32)
    (model,) = build_stages(open_model(tmp_path / "out"), ParallelContext.single())
    tokens = torch.tensor(TOKENS)
    ours = model.logits(PackedBatch.from_lengths(tokens, tokens, [len(TOKENS)]))
    assert logits.shape == (len(TOKENS), PADDED_VOCABULARY)
    torch.testing.assert_close(ours, logits[:, :VOCABULARY], rtol=1e-4, atol=1e-4)
    assert logits.std() > 0.1


@pytest.mark.parametrize(
    ("name", "layout"),
    [("qwen3", {"tensor": 2}), ("qwen3", {"pipeline": 2}), ("qwen3_moe", {"expert": 2})],
    ids=["tensor", "pipeline", "expert"],
)
def test_what_two_ranks_saved_is_what_one_saved(name, layout, checkpoint, ranks, tmp_path):
    folder, _ = checkpoint(name)
    ranks.run(2, save_gpt, folder / f"of_{next(iter(layout))}", MODELS[name], None, *_degrees(layout))
    one, two = (converted(folder, tmp_path / source, source) for source in ("megatron", f"of_{next(iter(layout))}"))
    assert one.keys() == two.keys()
    for key, tensor in one.items():
        assert torch.equal(tensor, two[key]), key


def _degrees(layout):
    return [layout.get(key, 1) for key in ("tensor", "pipeline", "expert")]


def test_an_iteration_is_found_in_the_folder_of_a_run(checkpoint, tmp_path):
    folder, _ = checkpoint("llama")
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "iter_0000007").symlink_to(folder / "megatron")
    (saved / "latest_checkpointed_iteration.txt").write_text("7\n")
    convert(saved, tmp_path / "out", described_by=str(folder / "model"))
    with pytest.raises(UserError, match="has no iteration 8; it has 7"):
        convert(saved, tmp_path / "other", step=8, described_by=str(folder / "model"))


def test_a_config_of_another_model_is_told_with_every_difference(checkpoint, tmp_path):
    folder, _ = checkpoint("llama")
    other = MODELS["llama"] | {"model_type": "qwen3", "head_dim": 8, "num_hidden_layers": 3, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(UserError) as caught:
        convert(folder / "megatron", tmp_path / "out", described_by=str(tmp_path))
    message = str(caught.value)
    assert "embedding.word_embeddings.weight is [64, 32], by config.json it is [100, 32]" in message
    assert "decoder.layers.mlp.linear_fc2.weight is [2, 32, 48], by config.json it is [3, 32, 48]" in message
    assert "q_layernorm.weight is missing" in message
    assert not (tmp_path / "out").exists()


def test_weights_that_the_model_has_no_place_for_are_told(checkpoint, tmp_path):
    folder, _ = checkpoint("qwen2")
    (tmp_path / "config.json").write_text(json.dumps(MODELS["qwen2"] | {"model_type": "llama"}))
    with pytest.raises(UserError, match=r"linear_qkv\.bias \[2, 64\] has no place in the model"):
        convert(folder / "megatron", tmp_path / "out", described_by=str(tmp_path))


def test_a_checkpoint_without_a_model_named_is_refused_and_so_is_a_model_named_for_nothing(checkpoint, tmp_path):
    folder, _ = checkpoint("llama")
    with pytest.raises(UserError, match=r"does not say which model it is of; name it, or .* loong-llm convert --model"):
        convert(folder / "megatron", tmp_path / "out")
    with pytest.raises(UserError, match="--model would be ignored"):
        convert(folder / "model", tmp_path / "out", described_by="qwen3-0.6b")
    with pytest.raises(UserError, match=r"is a checkpoint of Megatron's: loong-llm convert .* --model NAME makes"):
        open_model(folder / "megatron")


class _Harmful:
    def __reduce__(self):
        return print, ("this must not be called",)


def test_metadata_that_name_anything_else_are_refused_before_it_is_called(tmp_path, capsys):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Harmful()))
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(UserError, match=r"\.metadata is refused: it names builtins\.print"):
        convert(tmp_path, tmp_path / "out", described_by="qwen3-0.6b")
    assert "must not" not in capsys.readouterr().out


def test_a_truncated_file_is_told_with_both_sizes(checkpoint, tmp_path):
    folder, _ = checkpoint("llama")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (folder / "megatron").iterdir():
        (copy / file.name).write_bytes(file.read_bytes()[: None if file.name == ".metadata" else 5000])
    with pytest.raises(UserError, match=r"__0_0\.distcp is truncated: 5000 bytes where \.metadata promises \d+"):
        convert(copy, tmp_path / "out", described_by=str(folder / "model"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_layers_stored_one_by_one_under_other_names_are_found_too(checkpoint, tmp_path):
    """As Megatron stores layers that differ, with its own norms' names, and as programs with a prefix do."""
    folder, _ = checkpoint("qwen3_moe")
    stored, state = DcpFolder(folder / "megatron"), {}
    for name, tensor in stored.tensors.items():
        values = stored.read(Piece.whole(name, tensor.shape))
        name = name.replace("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight")
        name = name.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight")
        if name.startswith("decoder.layers."):
            rest = name.removeprefix("decoder.layers.")
            state |= {f"module.decoder.layers.{layer}.{rest}": part.clone() for layer, part in enumerate(values)}
        else:
            state[f"module.{name}"] = values
    state["optimizer.state.exp_avg.module.decoder.final_layernorm.weight"] = torch.zeros(32)
    dcp.save(state, checkpoint_id=folder / "one_by_one", no_dist=True)
    one, other = (converted(folder, tmp_path / source, source) for source in ("megatron", "one_by_one"))
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        assert torch.equal(tensor, other[key]), key
