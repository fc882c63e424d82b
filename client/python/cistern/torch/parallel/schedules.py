# SPDX-License-Identifier: Apache-2.0
"""Schedules of pipelines: the program ``cistern schedule`` makes the list of actions, torch runs it.

stage = pipelining.PipelineStage(module, rank, world, device)
schedule = schedules.runtime("zb-h1", stage, 8, loss_fn=loss_fn)
schedule.step(x, target=y, losses=losses)  # x in the first stage, y and losses in the last one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cistern.torch.parallel.pipelining import Runtime, kind_of, stage_of
from cistern.torch.parallel.recomputation import Recomputed
from cistern.torch.stages import Absent

Counts = int | bool | Sequence[int | bool]


def runtime(
    kind: str | os.PathLike[str],
    stages: Any,
    n_micro_batches: int,
    *,
    loss_fn: Callable[..., torch.Tensor] | None,
    recompute: Counts = 0,
) -> Runtime:
    """Return what runs a step of a pipeline, with the ``stages`` of this rank.

    - ``kind``: a name that ``cistern schedule`` has ("gpipe", "1f1b", "interleaved", "zb-h1", "early",
      "shifted"), or the path of a file such as "list.csv", as torch writes and reads it (compute_only).
    - ``stages``: the ``torch.distributed.pipelining.PipelineStage`` of this rank, or several as a list.
    - ``loss_fn``: returns the part of a micro-batch in the loss of a step. Gradients are not divided by
      the number of micro-batches.
    - ``recompute``: how many of its first layers each stage keeps only the inputs of, and computes again
      for the backward pass; True: the whole stage. A number for all stages that the schedule has as ones
      that do this, or else for all, or a list with one for each stage. With 0, "early", "shifted"
      and files with such actions ("0UNSHARD5") repeat whole stages; a list overrides that.

    Stages may be in a store, whose ``micro_batches`` are those of all stages of a rank together:
    ``n_micro_batches`` times the stages.

    ValueError: there is no such schedule, it is not legal, or it is one of other ranks, stages or
    micro-batches than these; or a stage has no layers. RuntimeError: the program ``cistern`` cannot be run.
    ImportError: this torch has another runtime than this works with.
    """
    of_rank = list(stages) if isinstance(stages, list | tuple) else [stages]
    found = _found(kind, of_rank, n_micro_batches)
    _check(str(kind), found, of_rank, n_micro_batches)
    counts = _counts(recompute, [bool(stage["recompute"]) for stage in found["stages"]])
    recomputed = {
        stage.stage_index: _recomputed(stage.submod, counts[stage.stage_index], stage.stage_index)
        for stage in of_rank
    }
    lists = [
        [a for a in actions if kind_of(a) != "R" or counts[stage_of(a)]]
        for actions in found["ranks"]
    ]
    return Runtime(of_rank, lists, n_micro_batches, loss_fn, recomputed)


def _found(kind: str | os.PathLike[str], stages: Sequence[Any], n_micro: int) -> dict[str, Any]:
    """Return what ``cistern schedule`` says of ``kind``. ValueError: what it refuses."""
    first = stages[0]
    if isinstance(kind, str) and not Path(kind).suffix and os.sep not in kind:
        command = [kind, "--stages", str(first.num_stages), "--micro-batches", str(n_micro)]
        command += ["--ranks", str(first.group_size)]
    else:
        command = ["check", os.fspath(kind)]
    try:
        ran = subprocess.run(
            ["cistern", "schedule", "--json", *command], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RuntimeError(
            f"cistern: the program cistern, which makes schedules, cannot be run: {error}"
        ) from None
    if ran.returncode != 0:
        raise ValueError(ran.stderr.strip() or f"cistern schedule ended with {ran.returncode}")
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def _check(kind: str, found: dict[str, Any], stages: Sequence[Any], n_micro: int) -> None:
    """Raise ValueError if the schedule is one for others than ``stages`` and their ranks."""
    first = stages[0]
    for what, of_list, here in (
        ("ranks", len(found["ranks"]), first.group_size),
        ("stages", len(found["stages"]), first.num_stages),
        ("micro-batches", found["micro_batches"], n_micro),
    ):
        if of_list != here:
            raise ValueError(f"cistern: schedule {kind} has {of_list} {what}, and here are {here}")
    mine = [i for i, stage in enumerate(found["stages"]) if stage["rank"] == first.group_rank]
    here = sorted(stage.stage_index for stage in stages)
    if mine != here:
        raise ValueError(
            f"cistern: schedule {kind} gives rank {first.group_rank} the stages {mine}, and here are {here}"
        )


def _counts(recompute: Counts, repeats: list[bool]) -> list[int | bool]:
    """Return how many layers each stage recomputes. ``repeats``: whether it does so in the schedule."""
    if isinstance(recompute, Sequence):
        counts = list(recompute)
        if len(counts) != len(repeats):
            raise ValueError(
                f"cistern: recompute has {len(counts)} numbers, and there are {len(repeats)} stages"
            )
    elif any(repeats):
        counts = [(recompute or True) if here else 0 for here in repeats]
    else:
        counts = [recompute] * len(repeats)
    if any(not isinstance(n, int) or n < 0 for n in counts):
        raise ValueError(
            "cistern: recompute is a number of layers of each stage, 0 or more, or True for all, or a list"
            f" with one for each stage, not {recompute!r}"
        )
    return counts


def _recomputed(stage: nn.Module, n: int | bool, number: int) -> list[Recomputed]:
    """Let the first ``n`` layers of ``stage`` keep only their inputs, and no others; True: all of it."""
    for module in stage.modules():
        Recomputed.undo(module)
    if n is True:
        return [Recomputed(stage, f"stage {number}")]
    layers = _layers_of(stage) if n else []
    if n and not layers:
        raise ValueError(
            f"cistern: stage {number} has no list of layers (ModuleList, ModuleDict, Sequential), of which the first {n}"
            " could be recomputed: give recompute=True for the whole stage"
        )
    return [Recomputed(layer, f"layer {i} of stage {number}") for i, layer in enumerate(layers[:n])]


def _layers_of(stage: nn.Module) -> list[nn.Module]:
    """Return the layers that ``stage`` has: the members of its list with the most parameters."""
    lists = [
        [layer for layer in module.children() if not isinstance(layer, Absent)]
        for module in stage.modules()
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    ]
    sizes = [sum(p.numel() for layer in found for p in layer.parameters()) for found in lists]
    return lists[sizes.index(max(sizes))] if lists and max(sizes) > 0 else []
