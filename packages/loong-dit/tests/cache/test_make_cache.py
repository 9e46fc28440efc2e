"""`loong-dit cache`: what a tiny VAE and text encoder of diffusers make of pictures and videos, and what is refused."""

import pytest
import torch
from dit_toys.media import tiny_pipeline, write_media
from dit_toys.runs import write_model
from dit_toys.wan import TINY

from loong_core.errors import ConfigError, UserError
from loong_dit.codecs.codec import Pixels, Words
from loong_dit.codecs.opening import open_text_encoder, open_vae
from loong_dit.data.cache import LatentCache, draw_latents
from loong_dit.media.buckets import Buckets, parse_sizes
from loong_dit.media.reading import read_list, read_media
from loong_dit.model_source import open_source
from loong_dit.recipes.make_cache import make_cache
from loong_dit.recipes.sample_encoder import EncodingSettings

PIXEL_MODEL = {**TINY, "in_channels": 3, "out_channels": 3}


@pytest.fixture
def media(tmp_path):
    return write_media(tmp_path / "media")


def buckets(*sizes, frames=(1,)):
    return Buckets(parse_sizes(sizes), frames)


def test_media_are_fitted_to_the_nearest_shape_and_the_most_frames(media, tmp_path):
    model = open_source(write_model(tmp_path / "model", PIXEL_MODEL))
    made = buckets("16x24", "24x16", frames=(1, 3, 5))
    make_cache(tmp_path / "cache", read_list(media), model, Pixels(3), Words(16), EncodingSettings(made))
    cache = LatentCache(tmp_path / "cache")
    assert [each.size for each in cache.samples] == [(1, 16, 24), (1, 24, 16), (5, 16, 24)]
    assert [each.caption for each in cache.samples] == ["wide", "tall", "it moves"]
    assert torch.equal(cache.read(2).text, Words(16).encode(["it moves"])[0])
    assert torch.equal(cache.empty_text(), Words(16).encode([""])[0])
    assert not cache.damaged()
    whole = read_media(media.parent / "wide.png")
    assert float(cache.read(0).latents.mean()) == pytest.approx(float(whole.mean()), abs=0.1)


def test_latents_are_the_moments_of_diffusers_vae_and_every_use_draws_anew(media, tmp_path):
    vae, folder = tiny_pipeline(tmp_path / "pipeline")
    codec = open_vae(folder, torch.device("cpu"))
    words = open_text_encoder(folder, 16, torch.device("cpu"))
    assert codec.steps == (4, 8, 8)
    made = buckets("16x32", frames=(1, 5))
    manifest = make_cache(
        tmp_path / "cache", read_list(media), open_source(folder), codec, words, EncodingSettings(made)
    )
    cache = LatentCache(tmp_path / "cache")
    assert (manifest.kind, manifest.channels, cache.manifest.hash) == ("moments", 4, manifest.hash)
    assert cache.samples[2].size == (2, 2, 4)
    from loong_dit.media.buckets import fitted

    video = fitted(read_media(media.parent / "moves.mp4"), (16, 32))
    with torch.no_grad():
        found = vae.encode(video[None]).latent_dist
    mean, deviation = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = (found.mean[0] - mean.view(-1, 1, 1, 1)) / deviation.view(-1, 1, 1, 1)
    stored = cache.read(2)
    torch.testing.assert_close(draw_latents(stored, manifest, None), expected, rtol=1e-4, atol=1e-5)
    once, again = (draw_latents(stored, manifest, torch.randn(4, 2, 2, 4)) for _ in range(2))
    assert not torch.equal(once, again)
    assert stored.text.shape == (3, 16)  # two words and the end
    assert codec.decode(expected).shape == (3, 5, 16, 32)


def test_a_model_that_sees_a_first_frame_gets_it_as_latents_behind_a_mask(media, tmp_path):
    _, folder = tiny_pipeline(tmp_path / "pipeline")
    hf = {**TINY, "in_channels": 12}
    source = open_source(write_model(tmp_path / "model", hf))
    codec = open_vae(folder, torch.device("cpu"))
    made = EncodingSettings(buckets("16x16", frames=(1, 5)))
    make_cache(tmp_path / "cache", read_list(media), source, codec, Words(16), made)
    condition = LatentCache(tmp_path / "cache").read(2).condition
    assert condition.shape == (8, 2, 2, 2)
    assert torch.equal(condition[:4, 0], torch.ones(4, 2, 2))
    assert torch.equal(condition[:4, 1], torch.zeros(4, 2, 2))


def refused(tmp_path, listed, model, codec, words, settings, kind=UserError):
    with pytest.raises(kind) as error:
        make_cache(tmp_path / "refused", listed, model, codec, words, settings)
    assert not list(tmp_path.glob("*refused*"))  # nothing half-written
    return str(error.value)


def test_what_does_not_fit_is_told_together_before_anything_is_encoded(media, tmp_path):
    model = open_source(write_model(tmp_path / "model"))
    said = refused(
        tmp_path, read_list(media), model, Pixels(3), Words(8), EncodingSettings(buckets("15x16")), ConfigError
    )
    assert "15 rows are not a multiple of 2, as" in said
    assert "the nearest is 16" in said
    assert "latents of 3 channels" in said
    assert "takes 4" in said
    assert "embeddings of width 8" in said


def test_absent_media_are_all_told_and_damaged_ones_stop_or_are_counted(media, tmp_path):
    text = media.read_text() + "gone.png,nothing\ngone.mp4,neither\n"
    (media.parent / "more.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"sample 4: .*gone.png is not there(.|\n)*sample 5: .*gone.mp4 is not there"):
        read_list(media.parent / "more.csv")
    (media.parent / "tall.png").write_bytes(b"no picture")
    model = open_source(write_model(tmp_path / "model", PIXEL_MODEL))
    settings = buckets("16x16", frames=(1,))
    said = refused(tmp_path, read_list(media), model, Pixels(3), Words(16), EncodingSettings(settings))
    assert "tall.png cannot be read" in said
    assert "--bad-media skip" in said
    told = []
    kept = EncodingSettings(settings, bad_media="skip")
    make_cache(tmp_path / "kept", read_list(media), model, Pixels(3), Words(16), kept, say=told.append)
    assert len(LatentCache(tmp_path / "kept")) == 2
    assert "1 left out" in told[-1]


def test_a_cache_that_was_changed_or_cut_short_is_refused(media, tmp_path):
    model = open_source(write_model(tmp_path / "model", PIXEL_MODEL))
    settings = EncodingSettings(buckets("16x16"))
    make_cache(tmp_path / "cache", read_list(media), model, Pixels(3), Words(16), settings)
    shard = tmp_path / "cache" / "shard-00000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "does not match the manifest" in str(LatentCache(tmp_path / "cache").damaged()[0])
    shard.unlink()
    with pytest.raises(UserError, match=r"shard-00000.safetensors of the manifest is missing"):
        LatentCache(tmp_path / "cache")
    manifest = tmp_path / "cache" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"channels": 3', '"channels": 4'))
    with pytest.raises(UserError, match="does not match its own hash"):
        LatentCache(tmp_path / "cache")
    with pytest.raises(UserError, match="no finished cache"):
        LatentCache(tmp_path)
