"""`loong-vlm plan RUN.yaml [key=value ...] --gpus N --device NAME`."""

from __future__ import annotations

from typing import Annotated

import typer

from loong_core.cli.run_arguments import Overrides, RunFile


def plan(
    run_file: RunFile,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Accelerators in all.")] = 8,
    device: Annotated[str, typer.Option(help="Their name, such as h200, or a YAML file that describes one.")] = "h200",
    nodes: Annotated[
        int | None, typer.Option(help="Machines that they are in; as few as hold them by default.", show_default=False)
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 10,
) -> None:
    """Memory and step time of the language model in each layout of a number of accelerators, and what images add.

    Tower and projector are counted as the run file places them: whole on every tensor rank of the first stage, or with
    the layout of its section `encoder` on all ranks.
    """
    from loong_core.config import load_run
    from loong_core.errors import ConfigError, UserError
    from loong_core.plan import report
    from loong_core.plan.devices import GIB, find_accelerator, make_cluster
    from loong_core.plan.nearest import impossible
    from loong_llm.planning import layout_of, own_candidate, request_of
    from loong_vlm.planning import vision_share
    from loong_vlm.recipes.run_parts import run_parts
    from loong_vlm.recipes.training_config import VisionTrainingConfig, encoder_layout

    loaded = load_run(VisionTrainingConfig, run_file, overrides or ())
    if loaded.faults:
        raise ConfigError(loaded.faults)
    config = loaded.config
    name, parts = run_parts(config)
    cluster = make_cluster(find_accelerator(device), gpus, nodes)
    fixed = [override.partition("=")[0] for override in overrides or ()]
    request = request_of(config, parts.language.config, cluster, fixed=fixed)
    found = request.search()
    if not found.fitting:
        raise UserError(impossible(request, found))
    own = own_candidate(request, layout_of(config))
    typer.echo(
        f"{name}, {parts.parameter_count():,} parameters, on {report.describe_cluster(cluster)}: "
        f"{report.describe_workload(request.work)}"
    )
    typer.echo(report.table(found, cluster, top, own))
    best = found.fitting[0].layout
    if config.encoder is not None:
        from loong_vlm.encoder_checks import encoder_layout_faults

        if faults := encoder_layout_faults(encoder_layout(config.encoder), parts, best, gpus):
            raise ConfigError(faults)
    share = vision_share(config, parts, best, cluster.accelerator, gpus)
    where = "on each rank of the first stage" if config.encoder is None else "on each rank, apart from the pipeline"
    waiting = f", a step's features {share.features / GIB:.2f} GiB on the first stage" if share.features else ""
    typer.echo(
        f"\nbeside the table, in its first layout: tower and projector take {share.state / GIB:.2f} GiB {where}, up to "
        f"{share.kept / GIB:.2f} GiB of what waits for backward{waiting}, and {1000 * share.seconds:.1f} ms of a "
        "microbatch whose images fill the sequence"
    )
