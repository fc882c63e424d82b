# SPDX-License-Identifier: Apache-2.0
"""Plans of models that are not loaded yet, by the program ``cistern``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from cistern import checks
from cistern._abi import Masters, Moments, Overlap, Unused
from cistern._abi import Optimizer as Rule
from cistern.calls import Path
from cistern.job_file import JobFile
from cistern.torch import arguments
from cistern.torch.declaration import GroupOf, IsMatrix, IsTrainable, declare
from cistern.torch.sizes import in_bytes, in_words


class Forecast(NamedTuple):
    """What ``plan`` expects of a job. ``str`` of it is a text for people.

    If ``fits`` is False, ``pool_bytes`` and ``host_bytes`` are what a plan would need, or 0 where
    no limit was given, and the fields after ``details`` are 0.
    """

    fits: bool
    why_not: str  #: Which memory is too small, and by how much; "": it fits.
    pool_bytes: int  #: Pool of each rank.
    host_bytes: int  #: States of all ranks, and pools that are in host memory.
    details: dict[str, Any]  #: The output of ``cistern plan --json``.
    n_chunks: int = 0
    step_seconds: float = 0.0
    tokens_per_second: float = 0.0  #: Of all ranks together.
    bottleneck: str = ""  #: What a faster plan would need more of; "" with ``parallel``.
    #: With ``parallel`` of ``plan``: degrees, cuts and schedule, with the keys of ``parallelize``.
    #: ``pool_bytes`` then has activations in it, and ``host_bytes`` is 0, which is not known.
    parallel: dict[str, Any] | None = None

    def __str__(self) -> str:
        if not self.fits:
            return f"does not fit: {self.why_not}"
        if self.parallel is not None:
            return self._of_product(self.parallel)
        pool = f"{in_words(self.pool_bytes)} for the pool of each rank"
        host = f"{in_words(self.host_bytes)} of the host"
        return (
            f"fits: {pool}, {host}\n"
            f"step: {self.step_seconds:.3g} s, {self.tokens_per_second:.3g} tokens/s\n"
            f"bottleneck: {self.bottleneck}"
        )

    def _of_product(self, found: dict[str, Any]) -> str:
        product = self.details["products"][0]
        stages = f"stages begin at layers {', '.join(map(str, (0, *found['borders'])))}"
        cuts = f": {found['schedule']}, {stages}" if found["pp"] > 1 else ""
        repeated = ", ".join(map(str, found["recompute"]))
        text = (
            f"fits: {in_words(self.pool_bytes)} of each rank\n"
            f"data {found['dp']} x tensor {found['tp']} x pipeline {found['pp']}{cuts}\n"
            f"micro-batches of each data rank: {found['micro_batches']}; layers of each stage that repeat their"
            f" forward pass: {repeated}\n"
            f"step: {self.step_seconds:.3g} s, {self.tokens_per_second:.3g} tokens/s; of it"
            f" {product['commit_s']:.3g} s for gradients, updates and weights; ranks wait"
            f" {100 * product['bubble']:.3g} % of the rest"
        )
        return "\n".join([text, *(f"assumed: {note}" for note in self.details["notes"])])


def describe(
    model: nn.Module,
    *,
    tokens: int = 0,
    world: int = 1,
    units: Collection[str] = (),
    param_group: GroupOf | None = None,
    muon: IsMatrix | None = None,
    trainable: IsTrainable | None = None,
    batch: Mapping[str, Any] | None = None,
) -> str:
    """Return ``model``, which can be on the meta device, as the JSON that ``cistern plan`` reads.

    The other arguments are those of ``attach``, and raise what they raise there. For each token,
    the forward pass of a unit is taken to have two operations per element of its matrices.

    With ``batch``, a micro-batch, what units compute, keep and give to each other is found out by one
    forward pass, ``model(**batch)``, for which nothing is computed and no memory allocated. ``cistern plan
    --parallel auto`` reads such a description. ValueError: the model cannot run so.
    """
    declaration = declare(model, units, param_group, tokens, muon, trainable)
    if batch is None:
        return declaration.to_json(type(model).__name__, world)
    from cistern.torch.parallel import proxy

    found = proxy.profile(model, batch, declaration.modules)
    return declaration.to_json(type(model).__name__, world, found)


def plan(
    model: nn.Module,
    *,
    tokens: int = 0,
    batch: Mapping[str, Any] | None = None,
    parallel: str | Mapping[str, Any] | None = None,
    pool: int | str = 0,
    host: int | str = 0,
    world: int = 1,
    micro_batches: int = 1,
    units: Collection[str] = (),
    param_group: GroupOf | None = None,
    optimizer: Rule | str = Rule.ADAMW,
    muon: IsMatrix | None = None,
    trainable: IsTrainable | None = None,
    masters: Masters | str = Masters.FP32,
    moments: Moments | str = Moments.FP32,
    overlap: Overlap | str = Overlap.COMMIT,
    unused: Unused | str | None = None,
    disk: int | Path | Collection[Path] | None = None,
    disk_bytes: float | str = 0,
    durable: bool = False,
    tbw: float = 0.0,
    rates: Path | None = None,
    on: str | None = None,
    flops: float = 0.0,
    save: Path | None = None,
) -> Forecast:
    """Return whether ``model`` fits and how fast it trains, without a daemon or a GPU.

    The model can be on the meta device. The program ``cistern`` must be in ``$PATH``. It simulates
    steps with the measured rates of a machine (``cistern probe``).

    - ``tokens``: their number in a micro-batch of one rank. Activations are not in the plan, and
      neither are the operations of attention that no weight is part of.
    - ``parallel``: "auto" searches for the fastest data, tensor and pipeline parallelism of ``world`` ranks
      for steps of ``batch``, all its rows, as in ``model(**batch)``. Activations are in this plan. A mapping such
      as {"tp": 2, "schedule": "1f1b"} keeps what it names: ``dp``, ``tp``, ``pp``, ``schedule``,
      ``micro_batches`` (here of each data rank), ``recompute`` (True: all layers). ``save`` is then a file that
      ``parallelize`` reads. Of the others, ``pool`` (with activations), ``units``, ``rates``, ``on`` and
      ``flops`` count.
    - ``pool``: the largest pool of a rank, in bytes or as "6G"; 0: what the daemon gives on the whole
      GPU ([gpu] pool = auto), or as much as can be used if the rates do not know its memory.
    - ``host``: memory of the machine for the states; 0: as much as can be used.
    - ``disk``: the number of drives that have the states, or their directories, which need not exist.
      ``details["disk"]`` then has what a step reads and writes. The rates must have those of drives
      (``cistern probe --disk``). With ``tbw``, the terabytes that may be written to each drive in its life,
      it also has the ``days`` of training until then.
    - ``rates``: a file of rates, by default that of this machine, or "a100" for published ones.
    - ``on``: the kind of device of each rank, by its name in the rates; by default the first one.
    - ``flops``: floating-point operations per second of this device. The rates of ``cistern probe``
      have them for the host alone.
    - ``save``: a file for the plan, which ``attach(..., plan_file=save)`` follows exactly.
    - The others are those of ``attach``.

    Raises FileNotFoundError without ``cistern``, RuntimeError with its message if it cannot plan,
    such as without rates, and what ``attach`` raises for a model that cannot be in a store.
    """
    if isinstance(disk, bool):
        checks.refuse_type("disk", disk, "a number of drives, or their directories,")
    drives = str(disk) if isinstance(disk, int) else arguments.directories(disk)
    if parallel is not None:
        if drives is not None:
            raise ValueError(
                "cistern: plan with parallel= plans no memory of the host: leave disk= out, then plan"
                " the states on drives with disk= and world=, without parallel="
            )
        limits = {"memory": pool, "units": units, "rates": rates, "on": on, "flops": flops}
        return _parallel(model, batch, world, parallel, limits, save)
    checks.integer("tokens", tokens, 1)
    when = checks.member(Overlap, "overlap", overlap)
    options: dict[str, object] = {
        "--micro-batches": micro_batches,
        "--device": in_bytes("pool", pool) or None,
        "--host": in_bytes("host", host) or None,
        "--optimizer": checks.member(Rule, "optimizer", optimizer).name.lower(),
        "--masters": checks.member(Masters, "masters", masters).name.lower(),
        "--moments": checks.member(Moments, "moments", moments).name.lower(),
        "--overlap": when.name.lower(),
        "--unused": arguments.unused(
            unused, when, JobFile(None), is_durable=checks.flag("durable", durable)
        ).name.lower(),
        "--disk": drives,
        "--disk-bytes": in_bytes("disk_bytes", disk_bytes) or None,
        "--tbw": tbw or None,
        "--rates": rates,
        "--on": on,
        "--flops": flops or None,
        "--save": save,
    }
    text = describe(
        model,
        tokens=tokens,
        world=world,
        units=units,
        param_group=param_group,
        muon=muon,
        trainable=trainable,
    )
    return _forecast(run_program(text, options, ["--durable"] if durable else [])[0])


def run_program(
    text: str, options: Mapping[str, object], flags: Iterable[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return what ``cistern plan --json`` says of the model that ``text`` describes, and its error message.

    ``options`` that are None are left out. FileNotFoundError: there is no ``cistern``. RuntimeError, with its
    message: it cannot plan.
    """
    command = ["cistern", "plan", "-", "--json", *flags]
    for option, value in options.items():
        command += [] if value is None else [option, str(value)]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    said = ran.stderr.strip().replace(_RATES, _RATES_HERE)
    if not ran.stdout:
        raise RuntimeError(said or f"cistern plan ended with {ran.returncode}")
    return json.loads(ran.stdout), said


_KEPT = ("dp", "tp", "pp", "schedule", "micro_batches", "recompute")


def _parallel(
    model: nn.Module,
    batch: Mapping[str, Any] | None,
    world: int,
    wanted: str | Mapping[str, Any],
    limits: dict[str, Any],
    save: Path | None,
) -> Forecast:
    from cistern.torch.parallel import auto

    if batch is None:
        raise TypeError("cistern: plan with parallel= needs batch=, with which the model is called")
    if isinstance(wanted, str) and wanted != "auto":
        checks.refuse_value("parallel", wanted, "'auto' or a mapping such as {'tp': 2}")
    kept = {} if isinstance(wanted, str) else wanted
    for key in kept:
        if key not in _KEPT:
            raise ValueError(
                f"cistern: plan searches with parallel= and cannot keep '{key}': keys are {', '.join(_KEPT)}"
            )
    found = auto.search(model, batch, world, **kept, **limits)
    if found.product is None:
        return Forecast(False, found.why_not, 0, 0, found.details)
    if save is not None:
        auto.write(found.product, save)
    product, ids = found.details["products"][0], batch.get("input_ids")
    return Forecast(
        fits=True,
        why_not="",
        pool_bytes=product["rank_bytes"],
        host_bytes=0,
        details=found.details,
        step_seconds=product["step_s"],
        tokens_per_second=0 if ids is None else ids.numel() / product["step_s"],
        parallel=found.product,
    )


_RATES = "or use --rates FILE or --rates a100"
_RATES_HERE = "or give plan rates=FILE or rates='a100'"


def _forecast(found: dict[str, Any]) -> Forecast:
    if not found["fits"]:
        least = found["least"]
        pool, host = least["device_bytes"] or 0, least["host_bytes"] or 0
        return Forecast(False, found["why"], pool, host, found)
    chosen = found["plan"]
    return Forecast(
        fits=True,
        why_not="",
        pool_bytes=chosen["pool_bytes"],
        host_bytes=chosen["host_bytes"],
        details=found,
        n_chunks=chosen["n_chunks"],
        step_seconds=chosen["predicted"]["step_s"],
        tokens_per_second=chosen["tokens_per_s"],
        bottleneck=chosen["binds"],
    )
