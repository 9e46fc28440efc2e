"""GR00T N1.7 as a whole against lerobot's policy, whose results `oracle/write_groot_policy_golden.py` wrote down."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from groot_policy_case import CAMERAS, EMBODIMENTS, LONE_TASKS, recorded
from groot_toys import ALONE, groot_batch, groot_config, groot_policy, normalisers, samples, tokenizer
from safetensors.torch import load_file
from torch import Tensor

from loong_core.errors import UserError
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.families.groot.batch import GrootCollator
from loong_vla.families.groot.policy import groot_policy_loss, prepared
from loong_vla.families.groot.prompt import CHAT_TEMPLATE, plain_task, turn
from loong_vla.families.groot.weights import groot_weight_map, handed_on


@cache
def golden() -> dict[str, Tensor]:
    return load_file(Path(__file__).parent / "golden" / "lerobot_groot_n1_7_policy.safetensors")


def test_what_the_model_is_shown_is_what_lerobots_processor_makes_of_the_recordings() -> None:
    batch = groot_batch(groot_config())
    assert batch.there is None
    assert torch.equal(batch.vision.tokens[batch.rows], golden()["input/input_ids"])
    assert torch.equal(batch.vision.pictures.grid_thw, golden()["input/image_grid_thw"])
    torch.testing.assert_close(batch.vision.pictures.patches, golden()["input/pixel_values"], rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.acted.state[:, None], golden()["input/state"], rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.acted.actions, golden()["input/action"], rtol=0, atol=1e-6)
    assert torch.equal(batch.acted.trained, golden()["input/action_mask"].bool())


def test_loss_and_every_gradient_are_lerobots() -> None:
    config = groot_config()
    policy, batch = groot_policy(config).eval(), groot_batch(config)
    acted = batch.acted
    assert acted.actions is not None
    assert acted.trained is not None
    error = (policy(batch) - (acted.actions - acted.noise)).square() * acted.trained
    loss = error.sum() / (acted.trained.sum() + 1e-6)
    loss.backward()
    torch.testing.assert_close(loss, golden()["loss"], rtol=1e-6, atol=0)
    left = {name.removeprefix("gradient/") for name in golden() if name.startswith("gradient/")}
    for parameter, placement in groot_weight_map(config).placements(policy, ALONE):
        for piece, own in zip(placement.pieces, placement.from_local(parameter.grad), strict=True):
            name = piece.name.replace("model.lm_head", "model.model.language_model.embed_tokens")
            whole = golden()[f"gradient/{name}"].double()
            atol = 1e-5 * float(whole.abs().max()) + 1e-9
            torch.testing.assert_close(
                own, whole[piece.slices], rtol=1e-4, atol=atol, msg=lambda text, n=name: f"{n}: {text}"
            )
            left.discard(name)
    # What is left belongs to the final norm, which no action depends on.
    assert all(not golden()[f"gradient/{name}"].any() for name in left)


def test_actions_sampled_from_the_same_noise_are_lerobots_also_in_the_robots_units() -> None:
    config = groot_config()
    actions = groot_policy(config).eval().sample(groot_batch(config))
    own = actions[..., : config.action_dim]
    torch.testing.assert_close(own, golden()["actions"], rtol=1e-5, atol=1e-6)
    restored = torch.from_numpy(normalisers()[ACTION].restore(own.float().numpy()))
    moving = slice(0, 2)  # the last one's range is given room here before it is told to lerobot
    torch.testing.assert_close(restored[..., moving], golden()["restored"][..., moving], rtol=1e-5, atol=1e-5)


def test_a_sample_among_longer_prompts_acts_as_lerobots_does_alone() -> None:
    config = groot_config()
    policy, given = groot_policy(config).eval(), recorded()
    pictures = [{camera: given[camera][row].numpy() for camera in CAMERAS} for row in range(2)]
    states = [normalisers()[STATE].normalise(given["state"][row].numpy()) for row in range(2)]
    embodiments = [f"robot {each}" for each in EMBODIMENTS[:2]]
    seen = GrootCollator(config, tokenizer(), seed=0).observed(pictures, states, LONE_TASKS, embodiments)
    assert seen.there is not None
    actions = policy.sample(prepared(seen, config).with_noise(given["noise"][:2]))[..., : config.action_dim]
    for number in range(2):
        torch.testing.assert_close(actions[number], golden()[f"alone/{number}"][0], rtol=1e-5, atol=1e-6)


def test_written_names_are_all_of_lerobots_but_the_second_one_of_the_table() -> None:
    names = set(bytes(golden()["names"]).decode().split("\n"))
    config = groot_config(held=("robot 2", "robot 5"))
    written = set(groot_weight_map(config).tensors(config.num_layers)) | {each.name for each in handed_on(config)}
    assert written == names - {"_groot_model.backbone.model.model.language_model.embed_tokens.weight"}


def test_weights_of_embodiments_that_are_held_and_of_those_handed_on_make_whole_banks() -> None:
    config = groot_config(held=("robot 5", "robot 2"))
    elements: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    placements = groot_weight_map(config).placements(groot_policy(config), ALONE)
    kept = [piece for _, each in placements for piece in each.pieces]
    for piece in (*kept, *handed_on(config)):
        elements[piece.name] = elements.get(piece.name, 0) + int(torch.tensor(piece.sizes).prod())
        shapes[piece.name] = piece.global_shape
    assert elements == {name: int(torch.tensor(shape).prod()) for name, shape in shapes.items()}


def test_holding_the_embodiments_of_the_data_only_changes_neither_loss_nor_gradients() -> None:
    results = []
    for config in (groot_config(), groot_config(held=("robot 5", "robot 2"))):
        policy = groot_policy(config)
        terms = groot_policy_loss(policy.eval(), groot_batch(config), None)
        terms.loss_sum.backward()
        results.append((terms.loss_sum.detach(), dict(policy.named_parameters())))
    (loss, whole), (own_loss, own) = results
    torch.testing.assert_close(own_loss, loss, rtol=1e-12, atol=0)
    for name, parameter in own.items():
        expected = whole[name].grad
        assert expected is not None
        if expected.shape != parameter.shape:
            expected = expected[[5, 2]]
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-12)


def test_every_parameter_that_is_kept_has_a_gradient() -> None:
    config = groot_config(held=("robot 2", "robot 5"))
    policy = groot_policy(config)
    groot_policy_loss(policy.eval(), groot_batch(config), None).loss_sum.backward()
    idle = [name for name, each in policy.named_parameters() if each.grad is None or not each.grad.any()]
    assert idle == []
    assert not [name for name, _ in policy.named_parameters() if "language.layers.3" in name or "language.norm" in name]


def test_a_camera_that_a_sample_lacks_takes_no_token_and_changes_nobody_else() -> None:
    config = groot_config()
    policy, every = groot_policy(config).eval(), samples()
    blind = replace(every[1], pictures={CAMERAS[1]: every[1].pictures[CAMERAS[1]]})
    mixed = groot_batch(config, [every[0], blind, every[2]])
    assert mixed.there is not None
    velocity = policy(mixed)
    whole = policy(groot_batch(config))
    torch.testing.assert_close(velocity[[0, 2]], whole[[0, 2]], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(velocity[1], policy(groot_batch(config, [blind]))[0], rtol=1e-9, atol=1e-11)
    assert (velocity[1] - whole[1]).abs().max() > 1e-3


def test_pictures_of_unlike_sizes_are_brought_to_one_on_the_host() -> None:
    config = groot_config()
    every = samples()
    front = CAMERAS[0]
    larger = every[0].pictures[front].repeat(2, axis=0).repeat(2, axis=1)
    batch = groot_batch(config, [replace(every[0], pictures=every[0].pictures | {front: larger}), *every[1:]])
    assert batch.framed
    alike = groot_batch(config).vision.pictures.patches
    torch.testing.assert_close(batch.vision.pictures.patches[16:], alike[16:], rtol=0, atol=0)


def test_states_are_dropped_in_training_only_and_alike_whenever_a_sample_comes_up() -> None:
    config = groot_config()
    config = replace(config, model={**config.model, "state_dropout_prob": 0.5})
    collate = GrootCollator(config, tokenizer(), seed=3)
    told = [collate([replace(samples()[0], number=number)]).acted.keep_state for number in range(40)]
    kept = torch.cat([each for each in told if each is not None])
    assert 8 < int(kept.sum()) < 32
    again = collate([replace(samples()[0], number=number) for number in range(40)]).acted.keep_state
    assert again is not None
    assert torch.equal(again, kept)
    policy = groot_policy(config)
    batch = groot_batch(config)
    dropped = replace(batch, acted=replace(batch.acted, keep_state=torch.tensor([False, True, True])))
    training, evaluating = policy.train()(dropped), policy.eval()(dropped)
    torch.testing.assert_close(evaluating, policy(batch), rtol=1e-12, atol=0)
    torch.testing.assert_close(training[1:], evaluating[1:], rtol=1e-10, atol=1e-12)
    assert (training[0] - evaluating[0]).abs().max() > 1e-4


def test_what_is_dropped_within_layers_depends_on_the_samples_alone() -> None:
    config = groot_config()
    dit = {**config.model["diffusion_model_cfg"], "dropout": 0.3}
    config = replace(config, model={**config.model, "diffusion_model_cfg": dit})
    policy, batch = groot_policy(config).train(), groot_batch(config)
    first = groot_policy_loss(policy, batch, None).loss_sum
    torch.rand(7)
    assert torch.equal(groot_policy_loss(policy, batch, None).loss_sum, first)
    assert not torch.equal(groot_policy_loss(policy, replace(batch, seed=batch.seed + 1), None).loss_sum, first)


def test_a_prompt_is_written_alike_with_and_without_a_chat_template() -> None:
    layout = groot_config().parts.meeting.layout
    plain = copy(tokenizer())
    plain.chat_template = None
    ours = copy(tokenizer())
    ours.chat_template = CHAT_TEMPLATE
    told = {turn(each, layout, 2, plain_task("Put the Ball!")) for each in (tokenizer(), plain, ours)}
    assert len(told) == 1
    assert "put the ball<|im_end|>" in told.pop()


@pytest.mark.parametrize(("change", "message"), [
    ({"select_layer": 9}, "select_layer is 9, the vision-language model has 4 layers"),
    ({"select_layer": 2}, "adds features of pictures after its first 2 layers; keep more"),
])  # fmt: skip
def test_a_layer_that_cannot_be_the_last_is_told(change: dict[str, int], message: str) -> None:
    config = groot_config()
    with pytest.raises(UserError, match=message):
        _ = replace(config, model={**config.model, **change}).parts


def test_operations_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = groot_config(held=("robot 2",))
    policy = groot_policy(config).eval()
    batch = groot_batch(config, [replace(samples()[0], embodiment="robot 2")])
    prompt = batch.rows.shape[1] - len(CAMERAS) * config.features
    with FlopCounterMode(display=False) as counted:
        policy(batch)
    # The counter knows no attention on a CPU: of two products over pairs of tokens, half of the causal ones.
    length, acting, seen = batch.rows.shape[1], config.head.horizon + 1, 2 * prompt + 1 * len(CAMERAS) * config.features
    attention = 2 * 64 * 3 * length**2  # three layers of the language model
    attention += 4 * 16 * 4 * len(CAMERAS) * 16**2  # four of the tower, on 16 patches a picture
    attention += 4 * 24 * 2 * length**2  # two among what is seen
    attention += 4 * 16 * acting * (3 * acting + seen)  # the head's: three among actions, two on text, one on pictures
    told = config.flops_per_sample(len(CAMERAS), prompt) / 3
    assert told == pytest.approx(counted.get_total_flops() + attention, rel=0.02)
    frozen = config.flops_per_sample(len(CAMERAS), prompt, backbone_trained=False)
    assert config.flops_per_sample(len(CAMERAS), prompt) / 3 < frozen < config.flops_per_sample(len(CAMERAS), prompt)
