# SPDX-License-Identifier: Apache-2.0
"""What ``attach`` is given, by its caller, by a file of options or by a launcher."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from torch import distributed as dist
from torch import nn

from cistern import checks, launch
from cistern._abi import MAX_CONFIG_BYTES, MAX_MICRO_BATCHES, Masters, Moments, Overlap, Unused
from cistern.calls import Path
from cistern.job_file import JobFile
from cistern.torch.stages import Divided

_Value = TypeVar("_Value")

# Options of cistern-gpt that mean something for the job, and that it cannot have here otherwise.
NOT_HERE = {
    "activation_memory": 0,
    "recompute": False,
    "device_update": 0,
    "device_states": 0,
    "grad_over_weight": False,
    "rounding": "stochastic",
    "delay_from": 0,
    "parallel": "data",
    "stages": 0,
    "store": "daemon",
}


#: Options that ``parallelize`` has done.
_OF_PARTS = ("recompute", "parallel", "stages")
_DEGREES = {"dp": 1, "pp": 1, "cp": 1, "tp": 1}


def refuse(options: JobFile, part: Divided | None) -> None:
    """Raise ValueError if ``options`` has what is not done: degrees need a part, which ``parallelize`` returns."""
    if part is not None:
        options.refuse({k: v for k, v in NOT_HERE.items() if k not in _OF_PARTS}, "cistern.torch")
    else:
        options.refuse(NOT_HERE, "cistern.torch")
        options.refuse(_DEGREES, "attach of a model that parallelize has not divided")


def first(given: _Value | None, in_file: _Value | None, default: _Value) -> _Value:
    """Return the first that there is."""
    return given if given is not None else in_file if in_file is not None else default


def kinds(
    masters: Masters | str | None,
    moments: Moments | str | None,
    overlap: Overlap | str | None,
    options: JobFile,
) -> dict[str, Any]:
    """Return the members of enumerations that ``Job`` is given."""
    given: dict[str, tuple[Any, Any, Any]] = {
        "masters": (Masters, masters, Masters.FP32),
        "moments": (Moments, moments, Moments.FP32),
        "overlap": (Overlap, overlap, Overlap.COMMIT),
    }
    return {
        key: checks.member(kind, key, first(value, options.member(key, kind), default))
        for key, (kind, value, default) in given.items()
    }


def unused(
    given: Unused | str | None,
    overlap: Overlap,
    options: JobFile,
    is_dispatched: bool = False,
    is_durable: bool = False,
) -> Unused:
    """Return what a step does with parameters without a gradient. TypeError, ValueError: none such."""
    cannot = overlap is Overlap.EARLY or is_dispatched or is_durable
    default = Unused.ZERO if cannot else Unused.SKIP
    kind: Unused = checks.member(
        Unused, "unused", first(given, options.member("unused", Unused), default)
    )
    if kind is Unused.SKIP and overlap is Overlap.EARLY:
        raise ValueError(
            "cistern: early updates (Overlap.EARLY) begin before it is known which parameters have no"
            " gradient: they cannot be skipped (unused='skip')"
        )
    if kind is Unused.SKIP and is_dispatched:
        raise ValueError(
            "cistern: no worker of a model that is dispatched knows which parameters have no gradient: they"
            " cannot be skipped (unused='skip')"
        )
    return kind


def size(given: float | str | None, in_file: str | None) -> float | str:
    """Return the first that there is, or 0."""
    return given if given is not None else in_file or 0


def directories(given: Path | Collection[Path] | None) -> str | None:
    """Return the list of directories as ``Job`` has it. TypeError: one is no path; ValueError: it has a comma."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, os.PathLike | Collection):
        checks.refuse_type("disk", given, "a directory, or a list of them,")
    listed = [given] if isinstance(given, os.PathLike) else list(given)
    for path in listed:
        checks.path("disk", path)
        if "," in os.fspath(path):
            checks.refuse_value("disk", path, "a directory without a comma in its path")
    return ",".join(os.fspath(path) for path in listed)


def sums_replicas(given: str) -> bool:
    """Return whether gradients of what ranks of a mesh have whole are summed. ValueError: neither is said."""
    if not isinstance(given, str):
        checks.refuse_type("replicas", given, "'once' or 'sum'")
    if given not in ("once", "sum"):
        checks.refuse_value("replicas", given, "'once' or 'sum'")
    return given == "sum"


def micro_batches(given: int | None, options: JobFile, part: Divided | None) -> int:
    """Return the number of micro-batches of a step. TypeError, ValueError: there is no such number.

    That in ``options`` is the one of a ``part``, which has it already.
    """
    n = first(given, None if part is not None else options.integer("micro_batches"), 1)
    n = checks.integer("micro_batches", n, 1, MAX_MICRO_BATCHES)
    return (
        n
        if part is None
        else checks.integer("micro_batches", n * part.n_passes, 1, MAX_MICRO_BATCHES)
    )


def job_name(given: str | None, options: JobFile) -> str:
    """Return the name of the job. ValueError: it has none. TypeError: it is no string."""
    name = given or options.text("job") or os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        raise ValueError(
            "cistern: the job has no name: give attach one, such as attach(model, 'run7')"
        )
    return checks.instance("job", name, str, "a name such as 'run7'")


def ranks(rank: int | None, world: int | None, options: JobFile) -> dict[str, int]:
    """Return the number of this rank and of the ranks, on this node and in the job, as ``Job`` takes them.

    ValueError: there is no such rank, or the variables of the launcher are wrong. TypeError: a number is
    no integer.
    """
    for name, given, least in (("rank", rank, 0), ("world", world, 1)):
        if given is not None:
            checks.integer(name, given, least)
    found = launch.find(launch.Launch(rank, world))
    r = checks.integer("rank", first(found.rank, options.integer("rank"), 0))
    n = checks.integer("world", first(found.world, options.integer("world"), 1), 1)
    if r >= n:
        raise ValueError(
            f"cistern: rank is {r}, but the ranks of a job with world={n} are 0 to {n - 1}"
        )
    return {
        "rank": r,
        "world": n,
        "first_rank": first(found.first_rank, options.integer("first_rank"), 0),
        "all_ranks": first(found.all_ranks, options.integer("all_ranks"), 0),
    }


def check_standby(rank: int | None) -> None:
    """Check that this process, which is a standby, can take any rank. ValueError: it cannot."""
    if rank is not None:
        raise ValueError(
            f"cistern: rank is {rank}, but this process is a standby (CISTERN_STANDBY), which has no rank yet:"
            " leave rank out, or give what cistern.torch.standby(job) returns"
        )
    if dist.is_available() and dist.is_initialized():
        raise ValueError(
            "cistern: a standby cannot join ranks that torch connects (torch.distributed): start these anew"
            " when one dies (torchrun --max-restarts), or use a model that needs no process group"
        )


def check_dispatched(numbers: Mapping[str, int], block_ranks: int) -> None:
    """Check that all workers of a dispatched model share one batch. ValueError: they do not.

    ``numbers`` are those of ``ranks``.
    """
    world, n_all = numbers["world"], numbers["all_ranks"]
    if n_all > world:
        raise ValueError(
            f"cistern: a model that is dispatched trains on one node, and {n_all} ranks of the job are on several,"
            f" {world} of them here: leave dispatch=True of parallelize out, or give all ranks to one node"
        )
    if 0 < block_ranks < world:
        raise ValueError(
            f"cistern: block_ranks is {block_ranks}, but the {world} workers of a model that is dispatched share"
            " one batch: leave block_ranks out"
        )


def model_config(model: nn.Module) -> str | None:
    """Return the configuration of a model of transformers, for its checkpoints."""
    to_json = getattr(model.__dict__.get("config"), "to_json_string", None)
    text = None if to_json is None else str(to_json())
    return None if text is None or len(text.encode()) > MAX_CONFIG_BYTES else text
