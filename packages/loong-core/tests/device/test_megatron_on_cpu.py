"""Every answer megatron-core gets on a CPU is needed, is enough, and is gone afterwards."""

import ast
import contextlib
import importlib
import inspect
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from loong_core.device.cpu import CpuDevice
from loong_core.device.megatron_on_cpu import ANSWERS, MODULES, UNREACHED, answering

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = CpuDevice()


class CudaLike(CpuDevice):
    torch_type = "cuda"


@pytest.fixture(scope="module")
def groups():
    """A world of one rank, with every process group of megatron-core set to it."""
    assert not dist.is_initialized(), "another test left its process group behind"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.process_groups_config import ProcessGroupCollection
    collection = ProcessGroupCollection()
    for name in ProcessGroupCollection.__dataclass_fields__:
        setattr(collection, name, dist.group.WORLD)
    yield collection
    dist.destroy_process_group()


class Stage(nn.Module):
    """A model as the schedules want it: it takes its input from `set_input_tensor` or from its call."""

    def __init__(self, config):
        from megatron.core.enums import ModelType

        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.layer = nn.Linear(4, 4)

    def set_input_tensor(self, tensor):
        pass

    def forward(self, inputs):
        return self.layer(inputs)


def config(**settings):
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, **settings)


def wrapped(groups, overlap=False, **settings):
    """A one-layer model under megatron's DDP."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    torch.manual_seed(0)
    plan = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=overlap)
    model_config = config(**settings)
    return DistributedDataParallel(model_config, plan, Stage(model_config), pg_collection=groups)


def optimizer_of(model, groups):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = OptimizerConfig(
        optimizer="adam", lr=0.1, use_distributed_optimizer=True, clip_grad=0.5, params_dtype=torch.float32
    )
    return get_megatron_optimizer(settings, [model], use_gloo_process_groups=False, pg_collection=groups)


def run_schedule(model, groups, forward_only=False):
    """One global batch of two microbatches; returns what the forward put out."""
    from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining

    seen = []

    def forward_step(batches, stage):
        output = stage(next(batches))
        seen.append(output.detach())
        return output, lambda out: (out.pow(2).mean(), {"loss": out.detach().pow(2).mean()})

    forward_backward_no_pipelining(
        forward_step_func=forward_step,
        data_iterator=iter([torch.ones(2, 4), torch.full((2, 4), 2.0)]),
        model=[model],
        num_microbatches=2,
        seq_length=2,
        micro_batch_size=1,
        forward_only=forward_only,
        pg_collection=groups,
    )
    return seen


def node(free_input=False):
    from megatron.core.pipeline_parallel.utils import ScheduleNode

    event = SimpleNamespace(wait=lambda stream: None, record=lambda stream: None)
    return ScheduleNode(lambda x: x * 2, stream=None, event=event, free_input=free_input)


def buffers_are_allocated(groups):
    assert wrapped(groups).buffers[0].grad_data.device.type == "cpu"


def the_norm_of_gradients_is_taken(groups):
    from megatron.core.optimizer.clip_grads import get_grad_norm_fp32

    gradient = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    assert get_grad_norm_fp32([gradient.detach()], 2, groups.dp) == pytest.approx(5.0)


def the_largest_gradient_is_found(groups):
    from megatron.core.optimizer.clip_grads import get_grad_norm_fp32

    assert get_grad_norm_fp32([torch.tensor([3.0, -4.0])], torch.inf, groups.dp) == 4.0


def the_forward_runs_under_autocast(groups):
    seen = run_schedule(wrapped(groups, enable_autocast=True, autocast_dtype=torch.bfloat16), groups, True)
    assert [output.dtype for output in seen] == [torch.bfloat16] * 2


def a_communication_stream_is_made(groups):
    from megatron.core.pipeline_parallel import utils

    utils._COMM_STREAM = None
    try:
        utils.set_streams(high_priority=True)
        assert utils.get_comm_stream().synchronize() is None
    finally:
        utils._COMM_STREAM = None


def gradients_are_reduced(groups):
    model = wrapped(groups)
    run_schedule(model, groups)
    model.finish_grad_sync()
    assert model.module.layer.weight.main_grad.abs().sum() > 0


def a_timer_runs(groups):
    from megatron.core.timers import Timer

    timer = Timer("step")
    timer.start()
    timer.stop()
    assert timer.elapsed() >= 0


def tracker(seed):
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    states = CudaRNGStatesTracker()
    states.add("rng", seed)
    return states


def seeds_make_states(groups):
    torch.manual_seed(1)
    assert not torch.equal(tracker(5).states_["rng"], tracker(6).states_["rng"])
    assert torch.equal(tracker(5).states_["rng"], tracker(5).states_["rng"])


def adding_a_seed_leaves_the_generator_alone(groups):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    tracker(5)
    assert torch.equal(torch.get_rng_state(), before)


def forked_states_go_on_by_themselves(groups):
    states = tracker(5)
    torch.manual_seed(1)
    outside = torch.get_rng_state()
    with states.fork("rng"):
        drawn = [torch.rand(1).item()]
    assert torch.equal(torch.get_rng_state(), outside)
    with states.fork("rng"):
        drawn.append(torch.rand(1).item())
    torch.manual_seed(5)
    assert drawn == [torch.rand(1).item(), torch.rand(1).item()]


@contextlib.contextmanager
def nvtx_of_a_torch_without_cuda():
    """NVTX profiling switched on, where torch has none to offer."""
    from megatron.core import utils

    class Missing:
        def __getattr__(self, name):
            raise RuntimeError("NVTX functions not installed")

    real, torch.cuda.nvtx._nvtx = torch.cuda.nvtx._nvtx, Missing()
    utils.configure_nvtx_profiling(True)
    try:
        yield utils
    finally:
        torch.cuda.nvtx._nvtx = real
        utils._nvtx_range_messages.clear()
        utils.configure_nvtx_profiling(False)


def ranges_are_pushed(groups):
    with nvtx_of_a_torch_without_cuda() as utils:
        utils.nvtx_range_push("step")


def ranges_are_popped(groups):
    with nvtx_of_a_torch_without_cuda() as utils:
        utils._nvtx_range_messages.append("step")
        utils.nvtx_range_pop("step")


def parameters_are_sorted_by_type(groups):
    assert optimizer_of(wrapped(groups), groups).param_groups


def a_loss_scale_is_loaded(groups):
    from megatron.core.optimizer.grad_scaler import DynamicGradScaler

    scaler = DynamicGradScaler(8.0, 1.0, 2.0, 0.5, 10, 1)
    state = scaler.state_dict()
    state["scale"] = torch.tensor([4.0])
    scaler.load_state_dict(state)
    assert scaler.scale.item() == 4.0


def parameters_are_offloaded(groups):
    model = wrapped(groups)
    before = model.module.layer.weight.detach().clone()
    model.buffers[0].offload_to_cpu()
    model.buffers[0].reload_from_cpu()
    assert torch.equal(model.module.layer.weight, before)


def a_node_frees_its_input(groups):
    inputs = torch.ones(2)
    node(free_input=True).forward(inputs)
    assert inputs.untyped_storage().size() == 0


SCENARIOS = {
    "torch.cuda.current_device": buffers_are_allocated,
    "torch.zeros": the_norm_of_gradients_is_taken,
    "torch.tensor": the_largest_gradient_is_found,
    "torch.autocast": the_forward_runs_under_autocast,
    "torch.cuda.Stream": a_communication_stream_is_made,
    "torch.cuda.current_stream": gradients_are_reduced,
    "torch.cuda.synchronize": a_timer_runs,
    "torch.cuda.manual_seed": seeds_make_states,
    "torch.cuda.get_rng_state": adding_a_seed_leaves_the_generator_alone,
    "megatron.core.tensor_parallel.random._get_cuda_rng_state": forked_states_go_on_by_themselves,
    "megatron.core.tensor_parallel.random._set_cuda_rng_state": forked_states_go_on_by_themselves,
    "torch.cuda.nvtx.range_push": ranges_are_pushed,
    "torch.cuda.nvtx.range_pop": ranges_are_popped,
    "Tensor.type": parameters_are_sorted_by_type,
    "Tensor.cuda": a_loss_scale_is_loaded,
    "Tensor.pin_memory": parameters_are_offloaded,
    "Tensor.record_stream": a_node_frees_its_input,
}

needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, CUDA itself answers")


def test_every_answer_has_its_scenario():
    assert set(SCENARIOS) == {answer.name for answer in ANSWERS}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_what_asks_for_a_name_works_with_the_answer(name, groups):
    with answering(CPU):
        SCENARIOS[name](groups)


@needs_no_cuda
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_what_asks_for_a_name_fails_without_the_answer(name, groups):
    rest = tuple(answer for answer in ANSWERS if answer.name != name)
    with answering(CPU, rest), pytest.raises((AssertionError, RuntimeError, TypeError, ValueError, AttributeError)):
        SCENARIOS[name](groups)


def asked_names(module):
    """CUDA names in a module's source: torch.cuda attributes, devices given as 'cuda', and tensor methods."""
    names = set()
    tree = ast.parse(inspect.getsource(module))
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for part in ast.walk(tree):
        if isinstance(part, ast.Attribute) and id(part) not in inner:
            dotted = ast.unparse(part)
            if dotted.startswith("torch.cuda.") and "(" not in dotted:
                names.add(dotted)
        if isinstance(part, ast.Call):
            given = [*part.args, *(keyword.value for keyword in part.keywords)]
            if any(isinstance(value, ast.Constant) and str(value.value).startswith("cuda") for value in given):
                names.add(ast.unparse(part.func))
            if isinstance(part.func, ast.Attribute) and part.func.attr in {
                "cuda",
                "type",
                "pin_memory",
                "record_stream",
            }:
                names.add(f"Tensor.{part.func.attr}")
    return names


def test_every_cuda_name_in_the_answered_modules_is_answered_or_explained(groups):
    asked = set().union(*(asked_names(importlib.import_module(name)) for name in MODULES))
    harmless = {"getattr", "hasattr", "torch.cuda.Stream.priority_range"}
    assert asked - {answer.name for answer in ANSWERS} - set(UNREACHED) - harmless == set()


def test_names_explained_as_unreached_are_still_in_the_source(groups):
    asked = set().union(*(asked_names(importlib.import_module(name)) for name in MODULES))
    assert set(UNREACHED) <= asked


def state_of_torch():
    """Everything that `answering` may touch."""
    import megatron.core.tensor_parallel.random as random

    return (
        [vars(importlib.import_module(name)).get("torch") for name in MODULES],
        dict(vars(torch.Tensor)),
        dict(vars(torch.cuda)),
        random._get_cuda_rng_state,
        random._set_cuda_rng_state,
    )


def test_everything_is_undone_afterwards_also_after_an_error(groups):
    before = state_of_torch()
    context = answering(CPU)
    with pytest.raises(KeyError), context:
        {}["missing"]
    with answering(CPU):
        assert state_of_torch() != before
    assert state_of_torch() == before


def test_inside_another_answering_context_the_answers_stay_until_the_outer_one_ends(groups):
    with answering(CPU):
        with answering(CPU):
            pass
        buffers_are_allocated(groups)
    import megatron.core.utils

    assert megatron.core.utils.torch is torch


def test_torch_itself_and_its_other_callers_see_no_difference(groups):
    cuda = dict(vars(torch.cuda))
    with answering(CPU):
        assert dict(vars(torch.cuda)) == cuda
        assert torch.ones(1).type() == "torch.FloatTensor"
        if not torch.cuda.is_available():
            with pytest.raises((RuntimeError, AssertionError)):
                torch.ones(1).cuda()


def test_a_cuda_like_device_is_left_alone(groups):
    import megatron.core.utils

    with answering(CudaLike()):
        assert megatron.core.utils.torch is torch


def test_code_compiled_inside_runs(groups):
    with answering(CPU):
        doubled = torch.compile(lambda x: x * 2 + torch.zeros(2), backend="aot_eager")(torch.ones(2))
    assert doubled.tolist() == [2.0, 2.0]


def weights_after_a_step(groups, overlap):
    with answering(CPU):
        model = wrapped(groups, overlap)
        optimizer = optimizer_of(model, groups)
        model.config.finalize_model_grads_func = None
        for _ in range(2):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            run_schedule(model, groups)
            model.finish_grad_sync()
            _, norm, _ = optimizer.step()
            assert norm > 0
    return model.module.layer.weight.detach().clone()


def test_gradients_reduced_from_backward_hooks_give_the_step_that_reduction_afterwards_gives(groups):
    assert torch.equal(weights_after_a_step(groups, True), weights_after_a_step(groups, False))


def test_a_plain_module_trains_to_the_weights_of_torch_adamw(groups):
    trained = weights_after_a_step(groups, False)
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    plain = torch.optim.AdamW(layer.parameters(), lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for _ in range(2):
        plain.zero_grad()
        for inputs in (torch.ones(2, 4), torch.full((2, 4), 2.0)):
            (layer(inputs).pow(2).mean() / 2).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
        plain.step()
    torch.testing.assert_close(trained, layer.weight.detach(), rtol=1e-5, atol=1e-6)


def test_megatron_is_answered_in_other_threads(groups):
    failures = []

    def work():
        try:
            buffers_are_allocated(groups)
            the_norm_of_gradients_is_taken(groups)
        except Exception as error:
            failures.append(error)

    with answering(CPU):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert failures == []


def test_recomputation_draws_the_numbers_of_the_forward_pass_again(groups):
    from megatron.core.tensor_parallel.random import checkpoint

    inputs = torch.ones(64, requires_grad=True)
    with answering(CPU):
        torch.manual_seed(3)
        output = checkpoint(lambda x: nn.functional.dropout(x, 0.5), False, inputs)
        torch.manual_seed(4)
        output.sum().backward()
    assert torch.equal(inputs.grad, output.detach())


def test_megatron_is_answered_in_function_backward_and_reentrant_recomputation(groups):
    from megatron.core.utils import GlobalMemoryBuffer

    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return GlobalMemoryBuffer().get_tensor(x.shape, x.dtype, "forward").copy_(x)

        @staticmethod
        def backward(context, gradient):
            return GlobalMemoryBuffer().get_tensor(gradient.shape, gradient.dtype, "backward").copy_(gradient) * 3

    inputs = torch.ones(2, requires_grad=True)
    with answering(CPU):
        torch.utils.checkpoint.checkpoint(Scratch.apply, inputs, use_reentrant=True).sum().backward()
    assert inputs.grad.tolist() == [3.0, 3.0]
