"""What is wrong with a run file is told together, before the first step, with the way out."""

import json

import pytest
from dit_toys.runs import loaded_run, write_cache, write_model
from dit_toys.wan import IMAGE_TO_VIDEO, TINY

from loong_dit.check import check_run


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    return write_model(folder / "model"), write_cache(folder / "cache")


def told(toys, tmp_path, *overrides, model=None, cache=None, world_size=1):
    loaded = loaded_run(tmp_path / "run", model or toys[0], cache or toys[1], *overrides)
    return "\n".join(map(str, check_run(loaded, world_size).faults))


def test_a_run_without_faults_is_described(toys, tmp_path):
    found = check_run(loaded_run(tmp_path / "run", *toys), 2)
    assert found.faults == []
    assert found.facts["data"].startswith("12 samples of 1 to 12 tokens")
    assert found.facts["a step"] == "4 samples in 1 microbatch a rank"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"channels": 3}, "has latents of 3 channels (made by pixels), and"),
        ({"text_dim": 8}, "has captions' embeddings of width 8 (by toy), and"),
        ({"condition_channels": 5}, "has 5 channels of conditions beside the latents, and"),
        ({"image_dim": 10}, "has condition images of width 10, and"),
        ({"sizes": ((1, 3, 4),)}, "which the model's patches of (1, 2, 2) do not divide"),
    ],
    ids=["channels", "text", "conditions", "images", "sizes"],
)
def test_a_cache_for_another_model(toys, tmp_path, more, expected):
    assert expected in told(toys, tmp_path, cache=write_cache(tmp_path / "cache", **more))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine=megatron", "engine: is megatron; diffusion transformers run on fsdp"),
        ("flow.range=[0.5, 0.2]", "flow.range: is [0.5, 0.2], not two rising levels from 0 to 1"),
        ("flow.std=2.0", "flow.std: would be ignored: flow.timesteps is uniform"),
        ("flow.shfit=2.0", "did you mean flow.shift?"),
        ("model.condition=first_frame", "model.condition: is first_frame, but"),
        ("model.initialise=weights", "model.initialise: is weights, but"),
        ("model.expert=high", "model.expert"),
        ("model.overrides.num_layer=3", "the nearest key is num_layers"),
        ("layout.tensor=2", "engine fsdp divides a model among data ranks only"),
        ("train.global_batch_size=64", "fewer than train.global_batch_size 64"),
        ("samples.captions=[another]", "'another' is no caption of the training data"),
        ("lora.targets=[to_z]", "lora.targets: 'to_z' matches nothing"),
        ("data.validation_fraction=0.1 data.validation=x", "give one of them"),
        ("train.validate_every=2", "there is no validation data"),
        ("recompute.modules=[nothing]", "'nothing' matches nothing"),
    ],
)
def test_a_value_that_cannot_be(toys, tmp_path, override, expected):
    assert expected in told(
        toys, tmp_path, *override.split(" d", 1)[:1], *(f"d{x}" for x in override.split(" d", 1)[1:]), world_size=2
    )


def test_a_context_of_more_ranks_than_tokens(toys, tmp_path):
    assert "more ranks than the 1 tokens of the smallest sample" in told(
        toys, tmp_path, "layout.context=2", "layout.ulysses=2", world_size=2
    )


def test_absent_caches_and_models_and_both_at_once(toys, tmp_path):
    said = told(toys, tmp_path, cache=tmp_path / "gone", model=tmp_path / "gone_too")
    assert "there is no such folder; `loong-dit cache` makes a cache" in said
    assert "gone_too: there is no such folder" in said


def test_a_config_with_faults_tells_all_of_them(toys, tmp_path):
    hf = {**TINY, "num_layers": 0, "qk_norm": "layer_norm", "new_key": 1}
    said = told(toys, tmp_path, model=write_model(tmp_path / "model", hf))
    for part in ("num_layers: is 0", "qk_norm: is 'layer_norm'", "new_key: is not known"):
        assert part in said


def test_a_cache_by_another_vae_of_as_many_channels(toys, tmp_path):
    pipeline = write_model(tmp_path / "pipeline", parts=("transformer",), _class_name="WanPipeline")
    assert "another VAE" not in told(toys, tmp_path, model=pipeline)
    (pipeline / "vae").mkdir()
    vae = {"_class_name": "AutoencoderKLWan", "z_dim": 4, "dim_mult": [1, 1], "temperal_downsample": [True]}
    (pipeline / "vae" / "config.json").write_text(json.dumps(vae))
    said = told(toys, tmp_path, model=pipeline)
    assert "data.cache: has latents by pixels, and" in said
    assert "has another VAE, AutoencoderKLWan" in said


def test_a_model_that_sees_images_wants_a_cache_with_them(toys, tmp_path):
    said = told(toys, tmp_path, model=write_model(tmp_path / "model", IMAGE_TO_VIDEO))
    assert "has 0 channels of conditions beside the latents" in said
    assert "has condition images of width None" in said
