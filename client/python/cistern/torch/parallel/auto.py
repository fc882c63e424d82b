# SPDX-License-Identifier: Apache-2.0
"""The product of parallelism with which an unmodified model trains fastest, by the program ``cistern``."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from cistern.torch import planner
from cistern.torch.declaration import declare
from cistern.torch.parallel import cutting, degrees, proxy
from cistern.torch.sizes import in_bytes

_MOST = 1024  # Micro-batches that cistern plan takes.
# Of equally fast ones the first is taken: with one stage, gpipe keeps more than 1f1b.
_KINDS = ("1f1b", "gpipe", "interleaved", "zb-h1", "early", "shifted")
_ATTENTION = "{} calls of attention are fused: they keep no scores"
_FEW = "cistern: {} micro-batches are fewer than {} stages, of which some then have nothing to do"
_SCORES = "no fused attention: what attention keeps for its backward pass counts"


class Choice(NamedTuple):
    """What was found. If ``product`` is None, nothing fits, for the reason in ``why_not``."""

    product: dict[str, Any] | None  #: As ``choose`` returns it.
    why_not: str
    #: What ``cistern plan --parallel auto --json`` says of it, and ``notes``: what was assumed of the model.
    details: dict[str, Any]


def choose(
    model: nn.Module,
    batch: Mapping[str, Any],
    n_ranks: int,
    *,
    save: str | os.PathLike[str] | None = None,
    **limits: Any,
) -> dict[str, Any]:
    """Return how ``n_ranks`` ranks train ``model`` fastest with all rows of ``batch`` in a step, by a prediction.

    The keys are those of the section ``parallel`` of a job file: ``dp``, ``tp``, ``pp`` and ``cp``, the degrees;
    ``tensor``; ``schedule``; ``micro_batches``, those of each data rank; ``borders``, the layers before which
    stages 1, 2, ... begin; ``recompute``, how many layers of each stage, its first ones, repeat their forward
    pass. ``save`` is a file for them. The limits and what is raised are those of ``search``, and also RuntimeError
    with the refusals if nothing fits.
    """
    found = search(model, batch, n_ranks, **limits)
    if found.product is None:
        raise RuntimeError(f"cistern: no plan for {n_ranks} ranks: {found.why_not}")
    if save is not None:
        write(found.product, save)
    return found.product


def write(product: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write what ``choose`` returned to a file, which ``parallelize`` reads. Raises OSError."""
    Path(path).write_text(json.dumps(product) + "\n")


def search(
    model: nn.Module,
    batch: Mapping[str, Any],
    n_ranks: int,
    *,
    dp: int = 0,
    tp: int = 0,
    pp: int = 0,
    micro_batches: int = 0,
    schedule: str | None = None,
    recompute: bool = False,
    memory: int | str = 0,
    units: Collection[str] = (),
    rates: str | os.PathLike[str] | None = None,
    on: str | None = None,
    flops: float = 0.0,
) -> Choice:
    """Return the product of degrees, the cuts and the schedule whose simulated step is shortest.

    ``model`` can be on the meta device. ``batch`` has all rows of a step, of all data ranks and micro-batches.

    - ``dp``, ``tp``, ``pp``, ``schedule``, and ``micro_batches``, those of each data rank: given ones are kept.
    - ``recompute``: all layers repeat their forward pass; by default as few as the memory allows.
    - ``memory``: of each rank, for weights, gradients and activations; 0: what the rates know.
    - ``units``, ``rates``, ``on`` and ``flops`` are those of ``ct.plan``.

    A model without a plan for tensor parallelism is not divided by it, and one that ``stage_of`` cannot cut has
    no stages. Raises what ``ct.plan`` and ``proxy.profile`` raise, and ValueError: the batch has no rows.
    """
    declaration = declare(model, units, None, 0)
    whole = proxy.profile(model, batch, declaration.modules)
    if whole.n_rows == 0:
        raise ValueError(
            "cistern: the tensors of batch have no common number of rows, their first dimension, which data ranks"
            " and micro-batches divide"
        )
    notes = [_ATTENTION.format(whole.n_fused) if whole.n_fused else _SCORES]
    uncut = _uncut(model, whole.n_layers) if pp != 1 and n_ranks > 1 else ""
    if uncut and pp > 1:
        raise ValueError(uncut)
    if uncut:
        pp = 1
        notes.append(f"no stages: {uncut}")
    options: dict[str, object] = {
        "--tp": tp or None,
        "--pp": pp or None,
        "--device": in_bytes("memory", memory) or None,
        "--rates": rates,
        "--on": on,
        "--flops": flops or None,
    }
    flags = ("--parallel", "auto", *(("--recompute",) if recompute else ()))
    best: dict[str, Any] = {}
    refusals: dict[int, str] = {}  # By the number of micro-batches, of the first kind of schedule.
    most = n_ranks // (max(tp, 1) * max(pp, 1))
    for given, n in _numbers(whole.n_rows, most, dp, micro_batches):
        text = declaration.to_json(type(model).__name__, n_ranks, whole.share(n))
        for kind in [schedule] if schedule else _KINDS:
            options |= {"--dp": given or None, "--micro-batches": n, "--kind": kind}
            found, said = planner.run_program(text, options, flags)
            found = _accepted(found, n_ranks)
            if not found["products"]:
                refusals.setdefault(n, said or found["refused"][0]["why"])
            elif not best or found["products"][0]["step_s"] < best["products"][0]["step_s"]:
                best = found
    if not best:
        return Choice(None, refusals[max(refusals)], {"notes": notes})
    return Choice(_as_dict(best["products"][0]), "", {**best, "notes": notes})


def _accepted(found: dict[str, Any], n_ranks: int) -> dict[str, Any]:
    """Return what ``cistern plan`` has found, without the products that ``parallelize`` refuses."""
    products, refused = [], []
    for product in found["products"]:
        try:
            degrees.parse(_as_dict(product), n_ranks)
            if product["micro_batches"] < len(product["stages"]) > 1:
                raise ValueError(_FEW.format(product["micro_batches"], len(product["stages"])))
            products.append(product)
        except ValueError as error:
            names = ("data", "tensor", "pipeline")
            refused.append({**{name: product[name] for name in names}, "why": str(error)})
    return {**found, "products": products, "refused": [*refused, *found["refused"]]}


def _uncut(model: nn.Module, n_layers: int) -> str:
    """Return why no stages can be cut out of ``model``; "": they can."""
    if n_layers < 2:
        return "cistern: the model has no list of several layers (ModuleList) to cut between"
    for stage in range(2):
        memo: dict[int, Any] = {
            id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()
        }
        try:
            cutting.stage_of(copy.deepcopy(model, memo), stage, 2)
        except Exception as error:  # noqa: BLE001 (each model has its own reasons)
            return str(error)
    return ""


def _numbers(n_rows: int, most: int, dp: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the micro-batches of all data ranks together that are tried, each with a given ``dp``; 0: any.

    ``most`` is the highest degree of data parallelism, which the others divide.
    """
    if micro_batches == 0:
        tried = [(dp, n) for n in _divisors(n_rows)]
    else:
        degrees = [dp] if dp else _divisors(most)
        tried = [(d, d * micro_batches) for d in degrees if n_rows % (d * micro_batches) == 0]
    tried = [(d, n) for d, n in tried if n <= _MOST and n % max(d, 1) == 0]
    if not tried:
        wanted = f"dp={dp}" + (f" and micro_batches={micro_batches}" if micro_batches else "")
        raise ValueError(f"cistern: {n_rows} rows of batch do not divide with {wanted}")
    return tried


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def _as_dict(product: dict[str, Any]) -> dict[str, Any]:
    stages = product["stages"]
    return {
        "dp": product["data"],
        "tp": product["tensor"],
        "pp": product["pipeline"],
        "cp": 1,
        "tensor": "1d",
        "schedule": product["schedule"] if len(stages) > 1 else "1f1b",
        "micro_batches": product["micro_batches"],
        "borders": list(accumulate(stage["units"] for stage in stages[:-1])),
        "recompute": [stage["recomputed"] for stage in stages],
    }
