"""Training on media that are encoded as they are asked for is training on their cache, and damaged media are met."""

import pytest
import torch
from dit_toys.media import tiny_pipeline, write_media
from dit_toys.runs import loaded_run, run_toy

from loong_core.errors import UserError
from loong_core.train.metrics import read_rows
from loong_dit.check import check_run
from loong_dit.codecs.opening import open_text_encoder, open_vae
from loong_dit.media.buckets import Buckets
from loong_dit.media.reading import read_list
from loong_dit.model_source import open_source
from loong_dit.recipes.make_cache import make_cache
from loong_dit.recipes.online_samples import open_online, plan_online
from loong_dit.recipes.sample_encoder import EncodingSettings
from loong_dit.recipes.training_config import OnlineSection

SIZES, FRAMES = ((16, 32), (32, 16)), (1, 5)


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("online")
    media = write_media(folder / "media")
    media.write_text(media.read_text() + "moves.mp4,it moves tall\n")
    return media, tiny_pipeline(folder / "pipeline")[1]


def section(media, **more):
    return OnlineSection(media=str(media), sizes=["16x32", "32x16"], frames=list(FRAMES), **more)


def of_run(media, **more):
    keys = {"media": str(media), "sizes": "[16x32, 32x16]", "frames": "[1, 5]"} | more
    return ("train.steps=3", *(f"data.online.{key}={value}" for key, value in keys.items()))


def encoders(pipeline):
    device = torch.device("cpu")
    return open_vae(pipeline, device), open_text_encoder(pipeline, 512, device)


def test_a_run_on_media_is_the_run_on_their_cache(toys, ranks, tmp_path):
    media, pipeline = toys
    settings = EncodingSettings(Buckets(SIZES, FRAMES), torch.bfloat16)
    make_cache(tmp_path / "cache", read_list(media), open_source(pipeline), *encoders(pipeline), settings)
    more = ("data.caption_dropout=0.5", "samples.every=3", "samples.steps=1", "samples.count=1")
    ranks.run(1, run_toy, tmp_path / "cached", pipeline, tmp_path / "cache", "train.steps=3", *more)
    ranks.run(2, run_toy, tmp_path / "online", pipeline, None, *of_run(media), *more)
    cached, online = (
        [(row["loss"], row["grad_norm"]) for row in read_rows(tmp_path / run / "metrics.jsonl")]
        for run in ("cached", "online")
    )
    assert [loss for loss, _ in online] == pytest.approx([loss for loss, _ in cached], rel=1e-6)
    assert [norm for _, norm in online] == pytest.approx([norm for _, norm in cached], rel=1e-5)
    assert (tmp_path / "online" / "samples" / "step-00000003.png").is_file()


def test_what_is_read_is_what_a_cache_stores_and_takes_no_gradient(toys, tmp_path):
    media, pipeline = toys
    source = open_source(pipeline)
    online = open_online(section(media), source, torch.device("cpu"), plan_online(section(media), source))
    assert online.encoder.weight_bytes > 0
    for number, known in enumerate(online.samples):
        sample = online.read(number)
        assert tuple(sample.latents.shape[1:]) == known.size
        assert not sample.latents.requires_grad
        assert not sample.text.requires_grad
    assert online.told().startswith("encoded online: 4 samples, ")


def test_check_opens_no_weights_and_tells_all_faults(toys, tmp_path):
    media, pipeline = toys

    def told(*overrides, media=media):
        found = check_run(loaded_run(tmp_path / "run", pipeline, None, *of_run(media), *overrides), 1)
        return found, "\n".join(map(str, found.faults))

    weights = [file for file in pipeline.rglob("*.safetensors") if "transformer" not in file.parts]
    assert weights
    kept = [(file, file.read_bytes()) for file in weights]
    try:
        for file in weights:
            file.unlink()
        found, said = told()
    finally:
        for file, values in kept:
            file.write_bytes(values)
    assert said == ""
    assert found.facts["encoding"].startswith("online, in fp32")
    assert found.facts["data"].startswith("4 samples of ")
    _, said = told("data.online.sizes=[15x32]", "data.online.vae=pixels", "data.online.text_encoder=words-8")
    assert "data.online.sizes: 15 rows are not a multiple of 2" in said
    assert "data.online.vae: pixels makes latents of 3 channels" in said
    assert "data.online.text_encoder: words makes embeddings of width 8" in said
    assert "give one of them" in told("data.cache=x")[1]
    found = check_run(loaded_run(tmp_path / "run", pipeline, None, "data.batching=sizes"), 1)
    assert "data.cache: is missing" in str(found.faults[0])
    (tmp_path / "list.csv").write_text("image,prompt\ngone.png,nothing\nlost.mp4,neither\n")
    _, said = told(media=tmp_path / "list.csv")
    assert "gone.png is not there" in said
    assert "lost.mp4 is not there" in said


def test_damaged_media_are_a_fault_or_left_out_before_the_run_and_replaced_within_it(toys, tmp_path):
    _, pipeline = toys
    media, source = write_media(tmp_path / "media"), open_source(pipeline)
    media.write_text(media.read_text() + "other.png,wide\n")
    whole = (media.parent / "wide.png").read_bytes()
    (media.parent / "other.png").write_bytes(whole)
    (media.parent / "tall.png").write_bytes(b"no picture")
    found = check_run(loaded_run(tmp_path / "run", pipeline, None, *of_run(media)), 1)
    assert "tall.png cannot be read" in str(found.faults[0])
    assert "data.online.bad_media=skip" in str(found.faults[0])
    skipping, stopping = section(media, bad_media="skip"), section(media)
    plan = plan_online(skipping, source)
    assert len(plan.listed) == 3
    assert "tall.png" in plan.left_out[0]
    (media.parent / "wide.png").write_bytes(whole[: len(whole) // 2])  # its header still tells its size
    online = open_online(skipping, source, torch.device("cpu"), plan_online(skipping, source))
    assert torch.equal(online.read(0).latents, online.read(2).latents)
    assert "2 files left out" in online.told()
    with pytest.raises(UserError, match=r"wide.png cannot be read.*data.online.bad_media=skip"):
        open_online(stopping, source, torch.device("cpu"), plan).read(0)
