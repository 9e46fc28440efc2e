"""What only several ranks show: megatron-core allocates receive buffers inside collectives, also within backward."""

import torch
import torch.distributed as dist

from loong_core.device.cpu import CpuDevice
from loong_core.device.megatron_on_cpu import answering


def gather_and_its_gradient():
    """This rank's gathered sequence, and the gradient that the reduce-scatter in `Function.backward` gives it."""
    with answering(CpuDevice()):
        from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

        own = torch.full((2, 1), float(dist.get_rank() + 1), requires_grad=True)
        gathered = gather_from_sequence_parallel_region(own, group=dist.group.WORLD)
        (gathered * torch.arange(1.0, 5.0)[:, None]).sum().backward()
    return gathered.flatten().tolist(), own.grad.flatten().tolist()


def sizes_from_the_neighbour():
    """Sizes of the activations that the other pipeline stage sends, which are not known beforehand."""
    with answering(CpuDevice()):
        from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
        from megatron.core.transformer.transformer_config import TransformerConfig

        config = TransformerConfig(
            num_layers=2,
            hidden_size=4,
            num_attention_heads=1,
            pipeline_model_parallel_size=2,
            pipeline_dtype=torch.float32,
            variable_seq_lengths=True,
            moe_token_dispatcher_type="alltoall",
        )
        stages = P2PCommunicator(pp_group=dist.group.WORLD, config=config)
        if dist.get_rank() == 0:
            stages.send_forward(torch.ones(3, 1, 4), is_last_stage=False)
            return None
        return list(stages.recv_forward((1, 1, 4), is_first_stage=False).shape)


def test_sequence_parallel_buffers_are_on_the_cpu_in_forward_and_backward(ranks):
    assert ranks.run(2, gather_and_its_gradient) == [
        ([1.0, 1.0, 2.0, 2.0], [2.0, 4.0]),
        ([1.0, 1.0, 2.0, 2.0], [6.0, 8.0]),
    ]


def test_a_stage_receives_activations_whose_size_it_did_not_know(ranks):
    assert ranks.run(2, sizes_from_the_neighbour) == [None, [3, 1, 4]]
