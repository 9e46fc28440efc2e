"""`loong-llm plan RUN.yaml [key=value ...] --gpus N --device NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loong_core.cli.run_arguments import Overrides, RunFile

if TYPE_CHECKING:
    from loong_core.plan.search import Candidate


def plan(
    run_file: RunFile,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Accelerators in all.")] = 8,
    device: Annotated[str, typer.Option(help="Their name, such as h200, or a YAML file that describes one.")] = "h200",
    nodes: Annotated[
        int | None, typer.Option(help="Machines that they are in; as few as hold them by default.", show_default=False)
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 10,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also plan to repeat forwards in backward where memory is short.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: bytes and seconds.")] = False,
) -> None:
    """Memory and step time of each layout of a number of accelerators, the fastest first, before any is paid for.

    Degrees and micro-batch sizes are searched; those given as key=value stay as they are.
    """
    import json
    import shlex

    from loong_core.config import load_run
    from loong_core.errors import ConfigError, UserError
    from loong_core.nn.parts import ALL_BLOCKS
    from loong_core.plan import report
    from loong_core.plan.devices import find_accelerator, make_cluster
    from loong_core.plan.nearest import impossible
    from loong_llm.model_config import read_model_config
    from loong_llm.planning import layout_of, own_candidate, request_of
    from loong_llm.recipes.training_config import TrainingConfig

    loaded = load_run(TrainingConfig, run_file, overrides or ())
    if loaded.faults:
        raise ConfigError(loaded.faults)
    config = loaded.config
    model = read_model_config(config.model.source, config.model.overrides)
    cluster = make_cluster(find_accelerator(device), gpus, nodes)
    request = request_of(
        config,
        model.config,
        cluster,
        fixed=[override.partition("=")[0] for override in overrides or ()],
        recompute=tuple(dict.fromkeys([config.recompute.parts, *([ALL_BLOCKS] if recompute else [])])),
        family=model.family,
    )
    found = request.search()
    if not found.fitting:
        raise UserError(impossible(request, found))
    own = own_candidate(request, layout_of(config))
    file = load_run(TrainingConfig, run_file).config
    found_anew = ("layout.", "train.micro_batch_size=", "recompute")
    given = [each for each in overrides or () if not each.startswith(found_anew)]

    def overrides_of(candidate: Candidate) -> str:
        changed = report.overrides(candidate, layout_of(file), file.train.micro_batch_size, file.recompute.parts)
        return " ".join([*map(shlex.quote, given), changed]).strip()

    if as_json:
        made = {"model": model.name} | report.as_object(
            request.work, cluster, found, top, own, overrides_of=overrides_of
        )
        typer.echo(json.dumps(made, indent=2))
        return
    typer.echo(
        f"{model.name}, {model.config.parameter_count():,} parameters, on {report.describe_cluster(cluster)}: "
        f"{report.describe_workload(request.work)}"
    )
    typer.echo(
        f"{found.layouts} layouts serve it, {len(found.fitting)} fit in {cluster.accelerator.memory / 2**30:.1f} GiB; "
        "memory in GiB, of the rank that needs most\n"
    )
    typer.echo(report.table(found, cluster, top, own))
    typer.echo(f"\nto run the first: {overrides_of(found.fitting[0]) or 'the run file as it is'}")
