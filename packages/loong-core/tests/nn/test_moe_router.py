import pytest
import torch
from torch.nn import functional as F

from loong_core.nn.moe.balance import move_biases
from loong_core.nn.moe.config import RouterConfig
from loong_core.nn.moe.router import Router
from loong_core.parallel.context import ParallelContext

HIDDEN = 8


def routed(config, tokens=20, dtype=torch.float64, bias=None):
    torch.manual_seed(0)
    router = Router(HIDDEN, config, ParallelContext.single(), dtype)
    torch.nn.init.normal_(router.weight)
    if bias is not None:
        router.bias.data.copy_(bias)
    x = torch.randn(tokens, HIDDEN, dtype=dtype)
    return router, x, router(x)


def test_a_softmax_router_takes_the_best_scores_and_divides_them_by_their_sum():
    router, x, routing = routed(RouterConfig(6, 2))
    scores = (x @ router.weight.T).softmax(-1)
    best, experts = scores.sort(-1, descending=True)
    assert torch.equal(routing.experts, experts[:, :2])
    torch.testing.assert_close(routing.weights, best[:, :2] / best[:, :2].sum(-1, keepdim=True))


def test_weights_that_are_not_normalised_are_the_scores_times_the_scaling():
    _, _, routing = routed(RouterConfig(6, 2, normalise=False, scaling=2.5))
    torch.testing.assert_close(routing.weights, 2.5 * routing.scores.gather(1, routing.experts))


def test_the_bias_decides_the_choice_and_not_the_weights():
    bias = torch.tensor([0.0, 0.0, 10.0, 0.0, 9.0, 0.0])
    router, x, routing = routed(RouterConfig(6, 2, scores="sigmoid", bias=True), bias=bias)
    assert routing.experts.tolist() == [[2, 4]] * 20
    scores = (x @ router.weight.T).sigmoid()[:, [2, 4]]
    torch.testing.assert_close(routing.weights, scores / scores.sum(-1, keepdim=True))


@pytest.mark.parametrize("group_best", [1, 2])
def test_group_limited_routing_stays_within_the_best_groups(group_best):
    config = RouterConfig(12, 3, scores="sigmoid", groups=4, top_groups=2, group_best=group_best)
    _, _, routing = routed(config)
    for scores, experts in zip(routing.scores, routing.experts):
        worth = [sum(sorted(group.tolist())[-group_best:]) for group in scores.split(3)]
        open_groups = sorted(range(4), key=lambda group: -worth[group])[:2]
        reachable = [expert for expert in range(12) if expert // 3 in open_groups]
        assert experts.tolist() == sorted(reachable, key=lambda expert: -scores[expert])[:3]


def test_negative_scores_of_open_groups_come_before_closed_groups():
    bias = torch.full((4,), -5.0)
    _, _, routing = routed(RouterConfig(4, 2, scores="sigmoid", bias=True, groups=2, top_groups=1), bias=bias)
    assert all(len({expert // 2 for expert in experts}) == 1 for experts in routing.experts.tolist())


def test_a_bfloat16_model_routes_in_float32():
    router, x, routing = routed(RouterConfig(6, 2, bias=True), dtype=torch.bfloat16)
    assert router.bias.dtype == routing.weights.dtype == torch.float32
    torch.testing.assert_close(routing.logits, F.linear(x.float(), router.weight.float()))


def test_biases_move_against_the_excess_of_the_load():
    router, _, _ = routed(RouterConfig(4, 1, bias=True, bias_rate=0.5))
    router.load.end_step(torch.tensor([6.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    move_biases([router])
    assert router.bias.tolist() == [-0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_experts": 6, "top_k": 7}, "top_k=7 of 6"),
        ({"num_experts": 6, "top_k": 1, "groups": 4}, "do not divide into 4 groups"),
        ({"num_experts": 6, "top_k": 3, "groups": 3}, "top_k=3 of 2"),
    ],
)
def test_impossible_routers_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        RouterConfig(**config)
