"""The engine on megatron-core: plain modules under its data parallel buffers, distributed optimizer and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.weight_map import Placement, WeightMap
from loong_core.data.context_cut import own_shares
from loong_core.device.megatron_on_cpu import answering
from loong_core.device.protocol import Device
from loong_core.engine.base import ForwardStep, LedEngine, StepLoss
from loong_core.engine.megatron import optimizer_state
from loong_core.engine.megatron.arrivals import announce_arrivals
from loong_core.engine.megatron.configs import ddp_config, optimizer_config, transformer_config
from loong_core.engine.megatron.optimizer_state import OwnedRange
from loong_core.engine.megatron.stage import MegatronStage, schedule_step, stage_of
from loong_core.engine.reduction import LossTally, global_loss
from loong_core.engine.settings import EngineSettings
from loong_core.engine.shards import fragments
from loong_core.errors import UserError
from loong_core.nn.moe.balance import move_biases, take_load
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.megatron_import import import_megatron

if TYPE_CHECKING:
    from megatron.core.optimizer import MegatronOptimizer


class MegatronEngine(LedEngine):
    """Trains plain modules with megatron-core.

    Parameters' attributes (`tensor_model_parallel`, `sequence_parallel`, `shared`, `allreduce`) are the model's to set
    before; a stage with a `tied_table` has its gradient summed over first and last stage.

    Args:
        stages: this rank's modules, one a virtual pipeline stage, on the context's device.
        weight_map: what their parameters are called outside.
        context: from `ParallelContext.build`.
        device: the run's device.
        settings: precision, AdamW, clipping.
        hidden_size: width of the hidden states between stages. With it, and where all microbatches of a step have
            equally many tokens, pipeline ranks need not tell each other sizes.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        weight_map: WeightMap,
        context: ParallelContext,
        device: Device,
        settings: EngineSettings,
        *,
        hidden_size: int | None = None,
    ) -> None:
        layout = context.layout
        if len(stages) != layout.virtual_pipeline:
            raise ValueError(f"{len(stages)} stages given, layout.virtual_pipeline={layout.virtual_pipeline}")
        self.stages = list(stages)
        self.weight_map = weight_map
        self.context = context
        self.device = device
        self.settings = settings
        self.updates = 0
        self._has_routers = any(getattr(stage, "has_routers", False) for stage in self.stages)
        self._hidden_size = hidden_size
        self._grad_norm: float | None = None
        self._sum_norm: Tensor | None = None
        self._gradient_scale = 1.0
        self._tally = LossTally(context.device)
        self._result: StepLoss | None = None
        self._optimizer: MegatronOptimizer | None = None
        self._gradient_nodes: list[Any] = []
        import_megatron()
        _check_dtypes(self.stages, settings)
        with self._megatron():
            self._chunks = self._wrap()
            if settings.has_optimizer:
                self._optimizer = self._make_optimizer()
        self._lr_scales = {
            id(parameter): settings.lr_scale(name, parameter)
            for stage in self.stages
            for name, parameter in stage.named_parameters()
        }
        self._placements = {
            id(parameter): placement
            for stage in self.stages
            for parameter, placement in weight_map.placements(stage, context)
        }

    def _megatron(self) -> AbstractContextManager[None]:
        """Around every call into megatron-core."""
        return answering(self.device)

    def _wrap(self) -> list[Any]:
        """Each stage in megatron's data parallel wrapper."""
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

        context, settings = self.context, self.settings
        self._config = transformer_config(settings, context, self._hidden_size or 1)
        finalize = WeakMethod(self._finalize)
        self._config.finalize_model_grads_func = lambda *args, **kwargs: _alive(finalize)(*args, **kwargs)
        buffers = ddp_config(settings, context)
        shared_bucket_size = buffers.bucket_size or max(40_000_000, 1_000_000 * context.data.size)
        if settings.overlap_grad_reduce:
            self._gradient_nodes += [announce_arrivals(stage) for stage in self.stages]
        chunks = []
        for number, stage in enumerate(self.stages):
            first = context.is_first_stage and number == 0
            last = context.is_last_stage and number == len(self.stages) - 1
            if context.pipeline.size > 1 and (table := getattr(stage, "tied_table", None)) is not None:
                # A bucket of its own: first and last stage then divide the table among data ranks alike.
                table.shared_embedding = True
            one_bucket = not settings.overlap_grad_reduce or context.pipeline.rank > 0 or number > 0
            layout = None
            if settings.has_optimizer:
                groups = context.process_groups
                layout = DistributedOptimizer.compute_full_param_layout(
                    [parameter for parameter in stage.parameters() if parameter.requires_grad],
                    None if one_bucket else shared_bucket_size,
                    groups.intra_dp_cp.size(),
                    buffers,
                    expert_data_parallel_world_size=groups.intra_expt_dp.size(),
                )
            chunks.append(
                DistributedDataParallel(
                    self._config,
                    buffers,
                    MegatronStage(stage, self._config, first=first, last=last),  # type: ignore[arg-type]
                    disable_bucketing=number > 0,
                    pg_collection=context.process_groups,
                    full_param_layout=layout,
                )
            )
        for chunk in chunks:
            # Megatron's wrapper holds the nodes that hold its hooks that hold the wrapper, a circle that Python cannot
            # see through; the engine holds them instead, so that its memory and process groups go when it goes.
            self._gradient_nodes.append(chunk.grad_accs)
            chunk.grad_accs = []
        if settings.overlap_grad_reduce:
            no_sync = [chunk.no_sync for chunk in chunks]
            self._config.no_sync_func = no_sync if len(chunks) > 1 else no_sync[0]  # type: ignore[assignment]
        return chunks

    def _make_optimizer(self) -> MegatronOptimizer:
        from megatron.core.optimizer import ParamKey, get_megatron_optimizer
        from megatron.core.optimizer.optimizer_config import ParamWithNamePredicate

        undecayed = ParamWithNamePredicate(
            name="undecayed",
            fn=lambda parameter, name: not self.settings.decays(name.removeprefix("module.stage."), parameter),
        )
        optimizer = get_megatron_optimizer(
            optimizer_config(self.settings),
            self._chunks,
            config_overrides={ParamKey(with_name_predicate=undecayed): {"wd_mult": 0.0}},
            use_gloo_process_groups=False,
            pg_collection=self.context.process_groups,
        )
        optimizer_state.prepare(optimizer, self.settings.moments_dtype)
        return optimizer

    def accumulate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Forward and backward over this data rank's microbatches; gradients are then the global batch's mean's.

        Raises:
            UserError: too few microbatches for the interleaved schedule.
        """
        with self._megatron(), self.step_in_bits(training=True):
            self._zero_gradients()
            self._run(microbatches, forward_step, forward_only=False)
        assert self._result is not None
        result = self.with_precision(self._result)
        if self._has_routers:
            load = take_load(self.stages, self.context)
            return replace(result, metrics=result.metrics | load)
        return result

    def evaluate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Loss without gradient, modules in evaluation mode."""
        training = [stage.training for stage in self.stages]
        for stage in self.stages:
            stage.eval()
        with self._megatron(), torch.no_grad(), self.step_in_bits(training=False):
            self._run(microbatches, forward_step, forward_only=True)
        for stage, was_training in zip(self.stages, training, strict=True):
            stage.train(was_training)
        return self._reduce_loss()[0]

    @contextmanager
    def evaluation(self) -> Iterator[list[nn.Module]]:
        """The modules in evaluation mode; weights that are still being gathered are waited for."""
        with self._megatron():
            if self.settings.overlap_param_gather:
                for chunk in self._chunks:
                    chunk.start_param_sync(force_sync=True)
            with super().evaluation() as stages:
                yield stages

    def _run(self, microbatches: Sequence[Any], forward_step: ForwardStep, *, forward_only: bool) -> None:
        """The schedule that the layout asks for."""
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

        if not microbatches:
            raise ValueError("no microbatches: every data rank brings at least one")
        microbatches = own_shares(microbatches, self.context)
        self._tally = LossTally(self.context.device)
        counted = len(microbatches)
        if forward_only and self.context.layout.virtual_pipeline > 1:
            # The interleaved schedule wants whole rounds; what is added to fill the last one is not counted.
            microbatches = [*microbatches, *[microbatches[-1]] * (-counted % self.context.layout.pipeline)]
        arguments: dict[str, Any] = {
            "forward_step_func": schedule_step(forward_step, self._tally, counted),
            "num_microbatches": len(microbatches),
            "seq_length": self._fix_sizes(microbatches),
            "micro_batch_size": 1,
            "forward_only": forward_only,
            "pg_collection": self.context.process_groups,
        }
        layout = self.context.layout
        if layout.pipeline == 1:
            schedules.forward_backward_no_pipelining(
                data_iterator=iter(microbatches), model=self._chunks[0], **arguments
            )
            return
        arguments["p2p_communicator"] = P2PCommunicator(self.context.process_groups.pp, self._config)
        if layout.virtual_pipeline == 1:
            schedules.forward_backward_pipelining_without_interleaving(
                data_iterator=iter(microbatches), model=self._chunks[0], **arguments
            )
            return
        if len(microbatches) % layout.pipeline:
            raise UserError(
                f"{len(microbatches)} microbatches a step on each data rank are not a multiple of layout.pipeline="
                f"{layout.pipeline}, which the interleaved schedule of layout.virtual_pipeline="
                f"{layout.virtual_pipeline} needs; change train.global_batch_size or train.micro_batch_size"
            )
        schedules.forward_backward_pipelining_with_interleaving(
            data_iterator=[iter(microbatches) for _ in self._chunks], model=self._chunks, **arguments
        )

    def _fix_sizes(self, microbatches: Sequence[Any]) -> int:
        """Tokens of every microbatch as megatron wants them if they are equal; else pipeline ranks exchange sizes."""
        sizes = {batch.tokens.shape[0] for batch in microbatches if isinstance(getattr(batch, "tokens", None), Tensor)}
        known = self._hidden_size is not None and len(sizes) == 1
        self._config.variable_seq_lengths = not known
        if not known:
            return 1
        # Megatron divides by the tensor and context ranks; these sizes are of one context rank's share already.
        tensor = self.context.tensor.size
        return -(-sizes.pop() // tensor) * tensor * self.context.context.size

    def _zero_gradients(self) -> None:
        self._grad_norm = self._sum_norm = None
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        if self._optimizer is not None:
            self._optimizer.zero_grad()

    every_rank_runs = False

    def begin_gradients(self) -> None:
        """As `LedEngine`.

        Raises:
            ValueError: the layout has several stages, or communication is to overlap with a backward that it must not
                wait for.
        """
        settings = self.settings
        if len(self.stages) > 1 or self.context.pipeline.size > 1:
            raise ValueError("an engine that is led has one stage: a schedule runs pipelines")
        if settings.overlap_grad_reduce or settings.overlap_param_gather:
            raise ValueError("an engine that is led reduces at the end: some ranks may have nothing to do")
        with self._megatron():
            self._zero_gradients()

    def before_backward(self, *, last: bool) -> None:
        """Nothing is to be done: gradients are summed where they arise."""

    def end_gradients(self, tokens: int) -> None:
        """As `LedEngine`."""
        with self._megatron():
            self._reduce_gradients(self._chunks, self.context.process_groups, force_all_reduce=False)
        self._gradient_scale = 1 / max(tokens, 1)

    def _finalize(
        self, model: list[Any], num_tokens: Any = None, *, pg_collection: Any, force_all_reduce: bool
    ) -> None:
        """Called by the schedules after the last backward: reduce gradients, and find what turns sums into means.

        The sums stay as they are; the factor, one over the global batch's tokens, is applied where they are used. Their
        norm is on its way before the loss is waited for.
        """
        self._reduce_gradients(model, pg_collection, force_all_reduce=force_all_reduce)
        self._result = self._reduce_loss()[0]
        self._gradient_scale = 1 / max(self._result.tokens, 1)

    def _reduce_gradients(self, model: list[Any], pg_collection: Any, *, force_all_reduce: bool) -> None:
        """Sum the gradients over ranks, and begin to compute the sums' norm."""
        from megatron.core.distributed import finalize_model_grads

        finalize_model_grads(model, None, pg_collection=pg_collection, force_all_reduce=force_all_reduce)
        if self._optimizer is not None:
            self._sum_norm = optimizer_state.gradient_norm(self._optimizer, self.context.device)

    def _reduce_loss(self) -> tuple[StepLoss, Tensor]:
        """The loss over all ranks, and its number of tokens as a float64 scalar on the device."""
        return global_loss(self._tally.vector(), sorted(self._tally.metrics), self.context)

    def grad_norm(self) -> float:
        """Euclidean norm of the accumulated gradients over all ranks, before clipping; NaN or Inf if any element is."""
        if self._grad_norm is None:
            with self._megatron():
                self._grad_norm = self._compute_grad_norm()
        return self._grad_norm

    def _compute_grad_norm(self) -> float:
        norm = self._whole_sum_norm() if self._sum_norm is None else float(self._sum_norm)
        return norm * self._gradient_scale

    def _whole_sum_norm(self) -> float:
        """Norm of the sums in their own precision, where each data rank holds all (no distributed optimizer)."""
        context = self.context
        dense, experts = torch.zeros(2, dtype=torch.float64, device=context.device)
        for stage in self.stages:
            for parameter in stage.parameters():
                of_expert = getattr(parameter, "allreduce", True) is False
                tensor = context.expert_tensor if of_expert else context.tensor
                counted = not getattr(parameter, "shared", False) and (
                    getattr(parameter, "tensor_model_parallel", False) or tensor.rank == 0
                )
                if parameter.requires_grad and counted:
                    square = parameter.main_grad.double().square().sum()  # type: ignore[attr-defined]
                    (experts if of_expert else dense).add_(square)
        dist.all_reduce(dense, group=context.process_groups.mp)
        dist.all_reduce(experts, group=context.process_groups.tp_ep_pp)
        return float((dense + experts).sqrt())

    def apply(self, lr: float, *, norm: float | None = None) -> None:
        """Clip the accumulated gradients to the configured norm and take one optimizer step; as `Engine.apply`.

        Raises:
            RuntimeError: at precision fp64, which has no optimizer.
        """
        if self._optimizer is None:
            raise RuntimeError("precision fp64 compares losses and gradients only: there is no optimizer to step")
        settings = self.settings
        scale = self._gradient_scale
        if settings.clip_grad > 0:
            scale *= min(1.0, settings.clip_grad / ((self.grad_norm() if norm is None else norm) + 1e-6))
        with self._megatron():
            optimizer_state.update(self._optimizer, self.updates + 1, lr, settings, scale, self._lr_scales)
            if not settings.overlap_param_gather:
                for chunk in self._chunks:
                    chunk.start_param_sync()
        move_biases(self.stages)
        self.updates += 1
        self._grad_norm = None

    def discard(self) -> None:
        """Drop the accumulated gradients; weights and optimizer state stay as they were."""
        with self._megatron():
            self._zero_gradients()

    def state_pieces(self, *, optimizer: bool = True) -> Iterator[StatePiece]:
        """This rank's share of the state: the flat ranges that its data rank owns, as boxes of canonical tensors.

        Without `optimizer`, weights only. Nothing is communicated.
        """
        for owned, placement in self._owned():
            if self.context.replicate.rank > 0 or not _is_written(owned.parameter, placement):
                continue
            tensors = owned.tensors() if optimizer else {"weight": owned.main.detach()}
            for fragment in fragments(placement, owned.start, owned.stop):
                for kind, flat in tensors.items():
                    yield StatePiece(kind, fragment.piece, fragment.view(flat))
        for parameter, placement in self._unowned():
            if placement.copies.rank == 0 and _is_written(parameter, placement):
                yield from _weights(parameter, placement)

    def gradient_pieces(self) -> Iterator[StatePiece]:
        """This rank's share of the accumulated gradients (kind `gradient`), divided into boxes as `state_pieces`."""
        if self._optimizer is None:
            for parameter, placement in self._unowned():
                if parameter.requires_grad and placement.copies.rank == 0 and _is_written(parameter, placement):
                    gradient = parameter.main_grad * self._gradient_scale  # type: ignore[attr-defined]
                    yield from _weights(gradient, placement, "gradient")
        for owned, placement in self._owned():
            if self.context.replicate.rank == 0 and _is_written(owned.parameter, placement):
                gradient = owned.gradient * self._gradient_scale
                for fragment in fragments(placement, owned.start, owned.stop):
                    yield StatePiece("gradient", fragment.piece, fragment.view(gradient))

    def weight_pieces(self) -> Iterable[StatePiece]:
        """The weights used in forward; of ranks that hold the same, the first yields them."""
        for stage in self.stages:
            for parameter in stage.parameters():
                placement = self._placements[id(parameter)]
                if placement.copies.rank == 0 and _is_written(parameter, placement):
                    yield from _weights(parameter, placement)

    def load_state(self, read: Callable[[StatePiece], Tensor | None], *, optimizer: bool = True) -> None:
        """Fill this rank's share; where `read` returns None the value stays."""
        with self._megatron(), torch.no_grad():
            for owned, placement in self._owned():
                tensors = owned.tensors() if optimizer else {"weight": owned.main.detach()}
                for fragment in fragments(placement, owned.start, owned.stop):
                    for kind, flat in tensors.items():
                        _fill(fragment.view(flat), read(StatePiece(kind, fragment.piece)))
            for parameter, placement in self._unowned():
                for piece in _weights(parameter, placement):
                    _fill(piece.tensor, read(StatePiece("weight", piece.piece)))
            self._publish_main_weights()

    def set_updates(self, updates: int) -> None:
        """Continue from this many optimizer steps (Adam's bias correction depends on it)."""
        self.updates = updates

    def _publish_main_weights(self) -> None:
        """Give every data rank the weights that the main weights now say."""
        if self._optimizer is None:
            return
        for each in optimizer_state.chained(self._optimizer):
            each._copy_main_params_to_model_params()
        for chunk in self._chunks:
            chunk.start_param_sync(force_sync=True)

    def _owned(self) -> Iterator[tuple[OwnedRange, Placement]]:
        if self._optimizer is not None:
            for owned in optimizer_state.owned_ranges(self._optimizer):
                yield owned, self._placements[id(owned.parameter)]

    def _unowned(self) -> Iterator[tuple[nn.Parameter, Placement]]:
        """Parameters that no optimizer keeps: frozen ones, or all without an optimizer."""
        for stage in self.stages:
            for parameter in stage.parameters():
                if self._optimizer is None or not parameter.requires_grad:
                    yield parameter, self._placements[id(parameter)]


def _alive(method: WeakMethod) -> Callable[..., Any]:
    """The method, whose object is there as long as its schedules run."""
    found = method()
    assert found is not None
    return found


def _check_dtypes(stages: Sequence[nn.Module], settings: EngineSettings) -> None:
    dtypes = {parameter.dtype for stage in stages for parameter in stage.parameters()}
    if settings.dtype not in dtypes:
        found = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"precision {settings.precision} wants parameters in {settings.dtype}, the model has {found}")


def _is_written(parameter: nn.Parameter, placement: Placement) -> bool:
    """Whether this rank writes it, among tensor ranks that hold the same and the two copies of a tied table."""
    return placement.writes and not getattr(parameter, "shared", False)


def _weights(values: Tensor, placement: Placement, kind: str = "weight") -> Iterator[StatePiece]:
    for piece, tensor in zip(placement.pieces, placement.from_local(values.detach()), strict=True):
        yield StatePiece(kind, piece, tensor)


def _fill(target: Tensor | None, values: Tensor | None) -> None:
    if target is not None and values is not None:
        target.copy_(values)


def modules_of(engine: MegatronEngine) -> list[MegatronStage]:
    """The engine's stages as megatron sees them, for tests of the seam."""
    return [stage_of(chunk) for chunk in engine._chunks]
