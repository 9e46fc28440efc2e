import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from loong_core.nn.moe.balance import take_load
from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_core.nn.moe.layer import MixtureOfExperts
from loong_core.nn.moe.load import RoutingRecord
from loong_core.parallel.context import ParallelContext

HIDDEN, SIZE, TOKENS, TRAINED = 8, 6, 20, 13
ONE = ParallelContext.single()


def mixture(router, layer=0, **settings):
    torch.manual_seed(layer)
    module = MixtureOfExperts(HIDDEN, MoEConfig(router, SIZE, **settings), ONE, torch.float64, layer)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def some_tokens():
    return torch.randn(TOKENS, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def feed_forward(x, gate_up, down):
    gate, up = (x @ gate_up.T).chunk(2, -1)
    return (F.silu(gate) * up) @ down.T


def by_hand(module, x):
    """Every expert over every token, weighted by what the router gave it (0 where it was not chosen)."""
    routing = module.router(x)
    weights = torch.zeros_like(routing.scores).scatter(1, routing.experts, routing.weights)
    experts = zip(weights.T, module.experts.gate_up, module.experts.down)
    return sum(weight[:, None] * feed_forward(x, gate_up, down) for weight, gate_up, down in experts)


def gradients(module, loss):
    names, parameters = zip(*[(name, each) for name, each in module.named_parameters() if each.requires_grad])
    return dict(zip(names, torch.autograd.grad(loss, parameters)))


def test_a_mixture_is_the_weighted_sum_of_its_experts():
    module, x = mixture(RouterConfig(5, 2)), some_tokens()
    torch.testing.assert_close(module(x, TOKENS), by_hand(module, x))
    upstream = torch.randn_like(x)
    ours = gradients(module, (module(x, TOKENS) * upstream).sum())
    torch.testing.assert_close(ours, gradients(module, (by_hand(module, x) * upstream).sum()))


@pytest.mark.parametrize("gated", [False, True])
def test_every_token_passes_the_shared_expert(gated):
    module, x = mixture(RouterConfig(5, 2), shared_size=7, shared_gate=gated), some_tokens()
    shared = feed_forward(x, module.shared.gate_up.weight, module.shared.down.weight)
    gate = (x @ module.shared_gate.weight.T).sigmoid() if gated else 1.0
    torch.testing.assert_close(module(x, TOKENS), by_hand(module, x) + gate * shared)


def test_an_ample_capacity_changes_nothing():
    module, x = mixture(RouterConfig(5, 2)), some_tokens()
    roomy = mixture(RouterConfig(5, 2), capacity_factor=5.0)
    torch.testing.assert_close(roomy(x, TOKENS), module(x, TOKENS))
    torch.testing.assert_close(
        gradients(roomy, roomy(x, TOKENS).square().sum()), gradients(module, module(x, TOKENS).square().sum())
    )


@pytest.mark.parametrize("drop", ["score", "position"])
def test_beyond_its_capacity_an_expert_drops_choices_and_counts_them(drop):
    module, x = mixture(RouterConfig(5, 1, normalise=False), capacity_factor=0.5, drop=drop), some_tokens()
    routing = module.router(x)
    keep = torch.zeros(TOKENS, dtype=torch.bool)
    for expert in range(5):
        chosen = (routing.experts[:, 0] == expert).nonzero()[:, 0]
        if drop == "score":
            chosen = chosen[routing.weights[chosen, 0].argsort(descending=True)]
        keep[chosen[:2]] = True  # half of 20 tokens / 5 experts
    y = module(x, TOKENS, RoutingRecord(TOKENS, torch.tensor(TRAINED), 1))
    torch.testing.assert_close(y, by_hand(module, x) * keep[:, None])
    y.sum().backward()
    dropped = take_load([module], ONE)["expert_dropped"]
    assert dropped == pytest.approx(1 - keep.float().mean().item())
    assert dropped > 0


def aux_by_hand(routings, scope, experts):
    shares = [F.one_hot(each.experts, experts).double().sum((0, 1)) / TOKENS for each in routings]
    scores = [each.scores / each.scores.sum(-1, keepdim=True) for each in routings]
    means = [each.mean(0) for each in scores]
    if scope == "model":
        return experts * (sum(shares) / len(shares) * sum(means) / len(means)).sum()
    return sum(experts * (share * mean).sum() for share, mean in zip(shares, means)) / len(shares)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("scope", ["layer", "model"])
def test_auxiliary_losses_join_in_backward_once_for_each_trained_token(scope, scores):
    router = RouterConfig(5, 2, scores=scores, aux_coefficient=0.3, aux_scope=scope, z_coefficient=0.2)
    layers = [mixture(router, layer) for layer in range(2)]
    x = some_tokens()

    def run(record):
        return layers[1](layers[0](x, TOKENS, record), TOKENS, record)

    model = torch.nn.ModuleList(layers)
    ours = gradients(model, run(RoutingRecord(TOKENS, torch.tensor(TRAINED), 2)).sum())
    routings = [layers[0].router(x), layers[1].router(layers[0](x, TOKENS))]
    aux = aux_by_hand(routings, scope, 5)
    z = sum(each.logits.logsumexp(-1).square().mean() for each in routings) / 2
    torch.testing.assert_close(ours, gradients(model, run(None).sum() + TRAINED * (0.3 * aux + 0.2 * z)))
    load = take_load(layers, ONE)
    assert load["router_aux_loss"] == pytest.approx(aux.item(), rel=1e-12)
    assert load["router_z_loss"] == pytest.approx(z.item(), rel=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        RoutingRecord(TOKENS // 2, torch.tensor(TRAINED), 2),  # a tensor or context rank's own tokens
        RoutingRecord(TOKENS, torch.tensor(TOKENS), 2),  # every token, trained on or not
        RoutingRecord(TOKENS, torch.tensor(TRAINED), 1),  # a pipeline rank's own layers
    ],
    ids=["tokens", "trained", "layers"],
)
def test_a_wrong_divisor_of_the_auxiliary_loss_is_noticed(wrong):
    layers = [mixture(RouterConfig(5, 2, aux_coefficient=0.3), layer) for layer in range(2)]
    model, x = torch.nn.ModuleList(layers), some_tokens()

    def found(record):
        return gradients(model, layers[1](layers[0](x, TOKENS, record), TOKENS, record).sum())

    right = found(RoutingRecord(TOKENS, torch.tensor(TRAINED), 2))
    torch.testing.assert_close(found(RoutingRecord(TOKENS, torch.tensor(TRAINED), 2)), right)
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(found(wrong), right)


def test_an_even_load_has_an_auxiliary_loss_of_top_k():
    module = mixture(RouterConfig(4, 2, aux_coefficient=1.0))
    torch.nn.init.zeros_(module.router.weight)  # every score equal
    module(some_tokens(), TOKENS, RoutingRecord(TOKENS, torch.tensor(TRAINED), 1)).sum().backward()
    assert take_load([module], ONE)["router_aux_loss"] == pytest.approx(2.0)


def load_after(run):
    module, x = mixture(RouterConfig(5, 2, aux_coefficient=0.1)), some_tokens().requires_grad_()
    run(module, x, RoutingRecord(TOKENS, torch.tensor(TRAINED), 1))
    counts = module.router.load.counts
    return counts, take_load([module], ONE), module


def test_load_is_counted_over_microbatches_and_taken_once():
    def twice(module, x, record):
        for _ in range(2):
            module(x, TOKENS, record).sum().backward()

    counts, load, module = load_after(twice)
    assert counts.sum() == 2 * TOKENS * 2
    assert load["expert_load_max"] == pytest.approx(counts.max().item() / 16)
    assert load["expert_load_min"] == pytest.approx(counts.min().item() / 16)
    assert module.router.load.counts is None
    assert torch.equal(module.router.load.step_counts, counts)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_are_counted_once(reentrant):
    plain, load, module = load_after(lambda module, x, record: module(x, TOKENS, record).sum().backward())
    again, same, recomputed = load_after(
        lambda module, x, record: checkpoint(module, x, TOKENS, record, use_reentrant=reentrant).sum().backward()
    )
    assert torch.equal(plain, again)
    assert load == same
    torch.testing.assert_close(module.router.weight.grad, recomputed.router.weight.grad)


def test_evaluation_is_not_counted():
    def evaluate(module, x, record):
        with torch.no_grad():
            module(x, TOKENS, record)

    assert load_after(evaluate)[0] is None


def test_parameters_are_as_many_as_the_config_says():
    for settings in ({}, {"shared_size": 7}, {"shared_size": 7, "shared_gate": True}):
        module = mixture(RouterConfig(5, 2), **settings)
        assert sum(each.numel() for each in module.parameters()) == module.config.parameter_count(HIDDEN)
    active = HIDDEN * (5 + 3 * 2 * SIZE + 3 * 7 + 1)
    assert module.config.matmul_parameters(HIDDEN) == active
