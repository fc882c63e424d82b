# SPDX-License-Identifier: Apache-2.0
"""How the ranks of torch.distributed divide a model and its batches, in the words of the job file.

Rank ((d PP + p) CP + c) TP + t has part t of the tensors, of stage p, and tokens c of the rows d.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cistern import checks
from cistern._abi import MAX_MICRO_BATCHES
from cistern.job_file import JobFile
from cistern.torch.parallel.modes import MODES
from cistern.torch.parallel.sequences import KINDS

_SIZES = ("dp", "pp", "cp", "tp")


class Degrees(NamedTuple):
    """The degrees, and what is said of them."""

    dp: int = 1  #: Ranks that compute with other rows of a batch.
    pp: int = 1  #: Ranks that have other layers.
    cp: int = 1  #: Ranks that have other tokens of each sequence.
    tp: int = 1  #: Ranks that have other parts of each tensor.
    tensor: str = "1d"  #: How tp ranks divide tensors: a mode of ``modes``.
    sequence: str = "ring"  #: How cp ranks share sequences.
    schedule: str = "1f1b"  #: In which order a rank runs stages and micro-batches.
    micro_batches: int = 1  #: Of each data rank in a step.
    borders: tuple[int, ...] | None = None  #: Layers before which stages 1, 2, ... begin.
    #: Layers of each stage, its first ones, whose forward pass is repeated; True: all layers.
    recompute: tuple[int, ...] | int | bool = 0

    @property
    def n_stages(self) -> int:
        """The number of stages of all ranks, of which each has as many."""
        if self.borders is not None:
            return len(self.borders) + 1
        return self.pp * (2 if self.schedule == "interleaved" else 1)


def parse(given: Mapping[str, Any], n_ranks: int) -> Degrees:
    """Return what ``given`` says of ``n_ranks`` ranks.

    ValueError: there is no such key or value, or the product of the degrees is another number of ranks; the
    words have what is possible. TypeError: a value has another type.
    """
    for key in given:
        if key not in Degrees._fields:
            near = difflib.get_close_matches(str(key), Degrees._fields, n=1)
            hint = (
                f"did you mean '{near[0]}'?" if near else f"keys are {', '.join(Degrees._fields)}"
            )
            raise ValueError(f"cistern: parallelize has no key '{key}': {hint}")
    said = {key: value for key, value in given.items() if value is not None}
    for key in (*_SIZES, "micro_batches"):
        if key in said:
            said[key] = checks.integer(key, said[key], 1, MAX_MICRO_BATCHES)
    for key, kinds in (("tensor", MODES), ("sequence", KINDS)):
        if key in said and said[key] not in kinds:
            checks.refuse_value(key, said[key], f"one of {', '.join(kinds)}")
    checks.instance("schedule", said.get("schedule", ""), str, "a name, or the path of a file")
    said.setdefault("dp", _rest(said, n_ranks))
    if "borders" in said:
        said["borders"] = tuple(checks.integers("borders", said["borders"], 1))
    if not isinstance(said.get("recompute", 0), int):
        said["recompute"] = tuple(checks.integers("recompute", said["recompute"]))
    elif said.get("recompute", 0) < 0:
        checks.refuse_value("recompute", said["recompute"], "0 or more layers, or True for all,")
    _refuse_without_ranks(said)
    said.setdefault("micro_batches", said.get("pp", 1))
    found = Degrees(**said)
    _check(found, n_ranks)
    return found


def of_file(path: str | os.PathLike[str]) -> Mapping[str, Any] | None:
    """Return what a file says: a plan, or the section ``parallel`` of a job file, which has other keys too.

    None: the section says "parallel": "auto", and no degrees. OSError: it cannot be read. ValueError: it is no
    JSON object, no job file, or says what only cistern-gpt does.
    """
    place = f"cistern: {os.fspath(path)}"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 (it is what a file has)
            f"{place} has no JSON object with keys such as tp, pp and dp"
        )
    if not any(isinstance(value, dict) for value in found.values()):
        return found
    section = JobFile(path).section("parallel")
    if not section:
        raise ValueError(f"{place} has no section 'parallel', with keys such as tp, pp and dp")
    kind = section.get("parallel", "data")
    said = {key: value for key, value in section.items() if key in Degrees._fields}
    if kind == "auto" and not said.keys() & set(_SIZES):
        return None
    if kind == "dispatch":
        raise ValueError(f"{place}: for dispatch, give a dictionary, and dispatch=True")
    if kind == "pipeline" and said.get("pp", 1) == 1:
        raise ValueError(f"{place} has a pipeline without pp: give the number of ranks with stages")
    n_stages = Degrees(**said).n_stages
    if section.get("stages", n_stages) != n_stages:
        raise ValueError(
            f"{place} has stages={section['stages']}, and other keys make {n_stages}: give as many borders, less"
            " one, or leave stages out"
        )
    return said


def _refuse_without_ranks(said: Mapping[str, Any]) -> None:
    """Raise ValueError for what is said of ranks that there are not: it would change nothing."""
    for key, degree in (
        ("borders", "pp"),
        ("schedule", "pp"),
        ("tensor", "tp"),
        ("sequence", "cp"),
    ):
        value = said.get(key)
        if value and value != Degrees._field_defaults[key] and said.get(degree, 1) == 1:
            raise ValueError(
                f"cistern: {key}={value!r} is for several ranks of {degree}, and {degree} is 1: give {degree}, or"
                f" leave {key} out"
            )


def _rest(said: Mapping[str, Any], n_ranks: int) -> int:
    """Return the number of data ranks that is left to ``n_ranks``. ValueError: there is none."""
    names = [key for key in ("pp", "cp", "tp") if said.get(key, 1) > 1]
    n = 1
    for key in names:
        n *= said[key]
    if n_ranks % n:
        legal = [k for k in range(1, n_ranks + 1) if n_ranks % k == 0]
        raise ValueError(
            f"cistern: {' x '.join(f'{key}={said[key]}' for key in names)} is {n}, and torch.distributed has"
            f" {n_ranks} ranks: give degrees whose product is one of {', '.join(map(str, legal))}"
        )
    return n_ranks // n


def _check(found: Degrees, n_ranks: int) -> None:
    """Raise ValueError if what is said contradicts itself."""
    n = found.dp * found.pp * found.cp * found.tp
    if n != n_ranks:
        raise ValueError(
            f"cistern: dp x pp x cp x tp = {found.dp} x {found.pp} x {found.cp} x {found.tp} = {n}, and"
            f" torch.distributed has {n_ranks} ranks: dp={n_ranks // (n // found.dp)} fits the other degrees"
        )
    if found.n_stages % found.pp:
        raise ValueError(
            f"cistern: {found.n_stages - 1} borders make {found.n_stages} stages, which pp={found.pp} ranks"
            f" cannot share: give a multiple of {found.pp}, less one"
        )
    if isinstance(found.recompute, tuple) and len(found.recompute) != found.n_stages:
        raise ValueError(
            f"cistern: recompute has {len(found.recompute)} numbers, and there are {found.n_stages} stages"
        )
