"""What a run file says of precision, optimizer and engine is what the engine is given."""

from loong_core.config import RunConfig, load_run
from loong_core.engine.settings import EmaSettings, EngineSettings
from loong_core.train.run import Run


def settings_of(*overrides):
    config = load_run(RunConfig, None, ["output=x", "train.steps=1", *overrides]).config
    return Run(config, None, None, None, None, None).engine_settings


def test_every_key_reaches_the_engine():
    said = [
        "precision=bf16", "train.weight_decay=0.3", "train.beta1=0.8", "train.beta2=0.7", "train.eps=1e-6",
        "train.clip_grad=2.0", "train.moments=bf16", "train.ema.decay=0.5", "megatron.overlap=true",
        "fsdp.sharding=optimizer", "fsdp.compile=true",
    ]  # fmt: skip
    assert settings_of(*said) == EngineSettings(
        precision="bf16",
        weight_decay=0.3,
        betas=(0.8, 0.7),
        eps=1e-6,
        moments="bf16",
        clip_grad=2.0,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        ema=EmaSettings(0.5),
        sharding="optimizer",
        compile_layers=True,
    )


def test_nothing_said_is_the_engines_default():
    assert settings_of() == EngineSettings()
