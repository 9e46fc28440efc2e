"""The engine on torch's FSDP2: weights, gradients and optimizer state are divided among data ranks, as the layout says.

`shard` ranks divide the state and `replicate` groups of them hold copies of it. One group is fully sharded data
parallel, groups of one rank are plain data parallel (DDP), and what is between is HSDP. With `sharding: optimizer` the
weights stay whole and only the optimizer's state is divided (ZeRO-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.data.context_cut import own_shares
from loong_core.device.protocol import Device
from loong_core.engine.base import ForwardStep, LedEngine, LossTerms, StepLoss
from loong_core.engine.fsdp.ema import EMA, EmaWeights
from loong_core.engine.fsdp.shard import ParameterShard
from loong_core.engine.reduction import LossTally, global_loss
from loong_core.engine.settings import EngineSettings
from loong_core.engine.shards import fragments
from loong_core.errors import UserError
from loong_core.nn.moe.balance import move_biases, take_load
from loong_core.parallel.context import ParallelContext
from loong_kernels import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")


class FsdpEngine(LedEngine):
    """Trains a plain module with `fully_shard`.

    Weights are kept in float32 (at precision fp64 in float64), gathered in the precision's dtype for forward and
    backward, and gradients are reduced in float32 at every microbatch, so that no rank holds a whole gradient (but see
    `EngineSettings.sharding`). `layout.replicate` copies are kept of the sharded state (HSDP).

    Modules with an attribute `keeps_float32` are gathered and computed with as they are kept. What is handed to the
    model and its layers is not cast, as under the megatron engine: a module casts what it multiplies with its weights
    itself, and angles, times, modulation and the like stay in float32.

    Args:
        stages: one module, on the context's device. Each child of `layers`, its own or those of the modules in it, is
            gathered on its own.
        weight_map: what its parameters are called outside.
        context: from `ParallelContext.build`; tensor, pipeline and expert degrees are 1.
        device: the run's device.
        settings: precision, AdamW, clipping. Communication always overlaps; sizes follow the layers.

    Raises:
        UserError: the layout asks for more than this engine does.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        weight_map: WeightMap,
        context: ParallelContext,
        device: Device,
        settings: EngineSettings,
    ) -> None:
        _check_layout(context)
        (stage,) = stages
        self.stages = [stage]
        self.weight_map = weight_map
        self.context = context
        self.device = device
        self.settings = settings
        self.updates = 0
        self._grad_norm: float | None = None
        self._placements = {
            name: weight_map.placement(name, context) for name, _ in stage.named_parameters(remove_duplicate=True)
        }
        kept = torch.float64 if settings.precision == "fp64" else torch.float32
        stage.to(kept)
        self._shard(stage)
        self._shards = [
            ParameterShard.of(name, parameter, context.shard.rank, context.shard.size)
            for name, parameter in stage.named_parameters()
        ]
        self._ema = EmaWeights(self._trained(), settings.ema) if settings.ema else None
        self._optimizer = self._make_optimizer() if settings.has_optimizer else None

    def _shard(self, stage: nn.Module) -> None:
        policy = MixedPrecisionPolicy()
        if self.settings.precision == "bf16":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        mesh = _mesh(self.context)
        whole = self.settings.sharding == "optimizer"
        for module in list(stage.modules()):
            if getattr(module, "keeps_float32", False):
                fully_shard(module, mesh=mesh, reshard_after_forward=not whole)
        for layer in _layers(stage):
            if self.settings.compile_layers:
                layer.compile()
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not whole)
        fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=False if whole else None)
        if callable(getattr(stage, "logits", None)):
            register_fsdp_forward_method(stage, "logits")

    def _make_optimizer(self) -> torch.optim.AdamW:
        """AdamW over the local shards, its state allocated now so that what does not fit fails at the start."""
        settings = self.settings
        groups: dict[tuple[bool, float], list[nn.Parameter]] = {(True, 1.0): [], (False, 1.0): []}
        for shard in self._trained():
            kind = settings.decays(shard.name, shard.sharded), settings.lr_scale(shard.name, shard.sharded)
            groups.setdefault(kind, []).append(shard.local)
        optimizer = torch.optim.AdamW(
            [
                {"params": local, "weight_decay": settings.weight_decay if decayed else 0.0, "lr_scale": scale}
                for (decayed, scale), local in groups.items()
            ],
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )
        for shard in self._trained():
            moments = {name: torch.zeros_like(shard.local, dtype=settings.moments_dtype) for name in MOMENTS}
            optimizer.state[shard.local] = moments
            optimizer.state[shard.local]["step"] = torch.zeros((), dtype=torch.float32, device=shard.local.device)
        return optimizer

    def accumulate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Forward and backward over this data rank's microbatches; gradients are then the global batch's mean's."""
        self.discard()
        tally = LossTally(self.context.device)
        shares = own_shares(microbatches, self.context)
        with self.step_in_bits(training=True):
            for number, batch in enumerate(shares, 1):
                if self.settings.sharding == "optimizer":
                    self._hold_gradients(last=number == len(shares))
                terms = _loss_terms(forward_step(self.stages[0], batch, None))
                tally.add(terms)
                terms.loss_sum.backward()
        loss, tokens = self._reduce(tally)
        loss = self.with_precision(loss)
        self._take_gradients(tokens)
        if getattr(self.stages[0], "has_routers", False):
            loss = replace(loss, metrics=loss.metrics | take_load(self.stages, self.context))
        return loss

    every_rank_runs = True

    def begin_gradients(self) -> None:
        """As `LedEngine`."""
        self.discard()

    def before_backward(self, *, last: bool) -> None:
        """As `LedEngine`."""
        if self.settings.sharding == "optimizer":
            self._hold_gradients(last=last)

    def end_gradients(self, tokens: int) -> None:
        """As `LedEngine`."""
        self._take_gradients(torch.tensor(tokens, dtype=torch.float64, device=self.context.device))

    def _take_gradients(self, tokens: Tensor) -> None:
        """FSDP averages over the ranks that share and copy the state; the sum over them is divided by tokens."""
        scale = self.context.data_context.size / tokens.clamp(min=1)
        for shard in self._trained():
            shard.take_gradient(scale)

    def _hold_gradients(self, *, last: bool) -> None:
        """Whether this microbatch's gradients are reduced and the whole weights let go of: only the step's last are."""
        (stage,) = self.stages
        assert isinstance(stage, FSDPModule)
        stage.set_requires_gradient_sync(last)
        stage.set_reshard_after_backward(last)

    def evaluate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Loss without gradient, the module in evaluation mode and with averaged weights where there are some."""
        with self.evaluation() as (stage,):
            tally = LossTally(self.context.device)
            for batch in own_shares(microbatches, self.context):
                tally.add(_loss_terms(forward_step(stage, batch, None)))
            return self._reduce(tally)[0]

    @contextmanager
    def evaluation(self) -> Iterator[list[nn.Module]]:
        """As `Engine.evaluation`; with averaged weights where there are some. Every rank calls the modules alike."""
        with ExitStack() as stack:
            if self._ema is not None:
                self._let_go()
                stack.callback(self._let_go)
                stack.enter_context(self._ema.in_place())
            yield stack.enter_context(super().evaluation())

    def _let_go(self) -> None:
        """Forget gathered weights, so that the next forward gathers them anew."""
        for module in self.stages[0].modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _reduce(self, tally: LossTally) -> tuple[StepLoss, Tensor]:
        return global_loss(tally.vector(), sorted(tally.metrics), self.context)

    def grad_norm(self) -> float:
        """Euclidean norm of the accumulated gradients over all ranks, before clipping; NaN or Inf if any element is."""
        if self._grad_norm is None:
            square = torch.zeros((), dtype=torch.float64, device=self.context.device)
            gradients = self._gradients()
            if gradients:
                square += nn.utils.get_total_norm(gradients).double().square()
            dist.all_reduce(square, group=self.context.shard.group)
            self._grad_norm = float(square.sqrt())
        return self._grad_norm

    def apply(self, lr: float, *, norm: float | None = None) -> None:
        """Clip the accumulated gradients to the configured norm and take one optimizer step; as `Engine.apply`.

        Raises:
            RuntimeError: at precision fp64, which has no optimizer.
        """
        if self._optimizer is None:
            raise RuntimeError("precision fp64 compares losses and gradients only: there is no optimizer to step")
        total = torch.tensor(self.grad_norm() if norm is None else norm, device=self.context.device)
        if self.settings.clip_grad > 0:
            nn.utils.clip_grads_with_norm_([shard.local for shard in self._trained()], self.settings.clip_grad, total)
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        if self.settings.moments == "fp32":
            self._optimizer.step()
        else:
            self._step_narrow_moments(self._optimizer)
        move_biases(self.stages)
        self.updates += 1
        if self._ema is not None:
            self._ema.follow(self.updates)
        self._grad_norm = None

    def _step_narrow_moments(self, optimizer: torch.optim.AdamW) -> None:
        """The step where moments are not in the weights' dtype, which torch's own does not take."""
        for group in optimizer.param_groups:
            for local in group["params"]:
                state = optimizer.state[local]
                if local.grad is not None and local.numel():
                    adamw(
                        local.detach(), local.grad, *(state[name] for name in MOMENTS), step=self.updates + 1,
                        lr=group["lr"], betas=self.settings.betas, eps=self.settings.eps,
                        weight_decay=group["weight_decay"],
                    )  # fmt: skip

    def discard(self) -> None:
        """Drop the accumulated gradients; weights and optimizer state stay as they were."""
        self._grad_norm = None
        for shard in self._shards:
            shard.drop_gradient()

    def state_pieces(self, *, optimizer: bool = True) -> Iterator[StatePiece]:
        """This rank's shards as boxes of canonical tensors; of copies (HSDP) the first yields them."""
        yield from self._pieces(lambda shard: self._tensors(shard, optimizer))

    def gradient_pieces(self) -> Iterator[StatePiece]:
        """This rank's shards of the accumulated gradients, kind `gradient`."""
        yield from self._pieces(lambda shard: {} if shard.local.grad is None else {"gradient": shard.local.grad})

    def weight_pieces(self) -> Iterable[StatePiece]:
        """This rank's shards of the weights, averaged where averages are kept, in the dtype of forward."""

        def used(shard: ParameterShard) -> dict[str, Tensor]:
            average = self._ema.of(shard) if self._ema is not None else None
            return {"weight": (shard.local.detach() if average is None else average).to(self.settings.dtype)}

        yield from self._pieces(used)

    def load_state(self, read: Callable[[StatePiece], Tensor | None], *, optimizer: bool = True) -> None:
        """Fill this rank's shards; where `read` returns None the value stays."""
        for shard in self._shards:
            tensors = self._tensors(shard, optimizer)
            for fragment in fragments(self._placements[shard.name], shard.start, shard.stop):
                for kind, values in tensors.items():
                    stored = read(StatePiece(kind, fragment.piece))
                    if stored is not None:
                        fragment.view(values.view(-1)).copy_(stored)

    def set_updates(self, updates: int) -> None:
        """Continue from this many optimizer steps (Adam's bias correction depends on it)."""
        self.updates = updates
        if self._optimizer is not None:
            for state in self._optimizer.state.values():
                state["step"].fill_(updates)

    def _tensors(self, shard: ParameterShard, optimizer: bool) -> dict[str, Tensor]:
        tensors = {"weight": shard.local.detach()}
        if self._ema is not None and (average := self._ema.of(shard)) is not None:
            tensors[EMA] = average
        if optimizer and self._optimizer is not None and shard.trained:
            state = self._optimizer.state[shard.local]
            tensors |= {name: state[name] for name in MOMENTS}
        return tensors

    def _pieces(self, tensors_of: Callable[[ParameterShard], dict[str, Tensor]]) -> Iterator[StatePiece]:
        if self.context.replicate.rank > 0:
            return
        for shard in self._shards:
            tensors = tensors_of(shard)
            for fragment in fragments(self._placements[shard.name], shard.start, shard.stop):
                for kind, values in tensors.items():
                    yield StatePiece(kind, fragment.piece, fragment.view(values.view(-1)))

    def _trained(self) -> list[ParameterShard]:
        return [shard for shard in self._shards if shard.trained]

    def _gradients(self) -> list[Tensor]:
        return [shard.local.grad for shard in self._trained() if shard.local.grad is not None and shard.local.numel()]


def _layers(stage: nn.Module) -> Iterator[nn.Module]:
    """What is gathered on its own: the children of every `layers` in the module."""
    for module in list(stage.modules()):
        layers = getattr(module, "layers", None)
        if isinstance(layers, nn.Module):
            yield from layers.children()


def _check_layout(context: ParallelContext) -> None:
    unmet = [
        f"layout.{name}={degree}"
        for name in ("tensor", "pipeline", "virtual_pipeline", "expert", "expert_tensor")
        if (degree := getattr(context.layout, name)) > 1
    ]
    if unmet:
        raise UserError(
            f"engine fsdp divides a model among data ranks only, but {', '.join(unmet)}; set these to 1, or use "
            "engine: megatron"
        )


def _mesh(context: ParallelContext) -> DeviceMesh:
    """The data ranks as FSDP takes them: `[shard]`, or `[replicate, shard]` where there are copies."""
    shard, replicate = context.shard, context.replicate
    if shard.group is None or replicate.group is None:
        raise RuntimeError("ParallelContext.single has no process groups: use ParallelContext.build for an engine")
    if replicate.size == 1:
        return DeviceMesh.from_group(shard.group, context.device.type, mesh_dim_names=("shard",))
    ranks = torch.tensor(
        [
            [context.first_rank + copy * shard.size + place for place in range(shard.size)]
            for copy in range(replicate.size)
        ]
    )
    return DeviceMesh.from_group(
        [replicate.group, shard.group], context.device.type, mesh=ranks, mesh_dim_names=("replicate", "shard")
    )


def _loss_terms(result: LossTerms | Tensor) -> LossTerms:
    if not isinstance(result, LossTerms):
        raise TypeError("the forward step returned hidden states; with one stage it returns LossTerms")
    return result
