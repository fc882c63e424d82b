# SPDX-License-Identifier: Apache-2.0
"""How a model comes to a store."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from cistern import checks, standbys
from cistern._abi import Masters, Moments, Overlap, Status, Unused
from cistern._abi import Optimizer as Rule
from cistern.calls import Path
from cistern.client import Client
from cistern.errors import CstError, DaemonGone, Mismatch, StepVoid
from cistern.job import Job
from cistern.job_file import JobFile
from cistern.torch import adapters, arguments, parts, stages, weights
from cistern.torch.advice import advice
from cistern.torch.arguments import first
from cistern.torch.declaration import GroupOf, IsMatrix, IsTrainable, declare
from cistern.torch.device import name_of, take_gpu
from cistern.torch.origin import Origin, open_job
from cistern.torch.sizes import in_bytes
from cistern.torch.store import Store


def attach(
    model: nn.Module | list[nn.Module] | tuple[nn.Module, ...],
    job: str | None = None,
    *,
    config: Path | None = None,
    socket: Path | None = None,
    rank: int | None = None,
    world: int | None = None,
    device: str | torch.device | None = None,
    pool: float | str | None = None,
    activations: float | str = 0,
    disk: Path | Collection[Path] | None = None,
    disk_bytes: float | str | None = None,
    durable: bool | None = None,
    plan_file: Path | None = None,
    units: Collection[str] = (),
    micro_batches: int | None = None,
    tokens: int = 0,
    param_group: GroupOf | None = None,
    base: str | None = None,
    optimizer: Rule | str | None = None,
    muon: IsMatrix | None = None,
    masters: Masters | str | None = None,
    moments: Moments | str | None = None,
    overlap: Overlap | str | None = None,
    unused: Unused | str | None = None,
    trainable: IsTrainable | None = None,
    replicas: str = "once",
    load: Path | None = None,
    resume: Path | None = None,
    reshape: bool | None = None,
    chunk_elems: int | None = None,
    versions: int | None = None,
    copies: int | None = None,
    block_ranks: int | None = None,
    timeout_ms: int = 0,
    ttl_s: int = 0,
) -> Store:
    """Move the weights of ``model`` into a job of the daemon, and return the store.

    If the job has weights already, it keeps them, with a warning: the process goes on with the step
    ``Store.step_no``. Else rank 0 writes them: those of ``model``, or of the safetensors files at
    the path ``load``, or the states of the checkpoint at the path ``resume``. Parameters may be on
    the meta device if there is such a path, or if the job has weights, and buffers may not.
    Persistent buffers are read from these files in each process. A job that has no weights when this
    function fails is removed.

    - ``model``: what this rank has of the model. Ranks whose models have different parameters, or
      parameters that are divided (DTensor), have parts of one model: parameters with the same name are
      the same, and a parameter that is divided has the name of the whole. Torch connects the ranks then
      (torch.distributed). Several stages of a pipeline are given as a list. What ``parallelize`` returns
      needs no further arguments.
    - ``job``: its name; by default that of the torchrun job.
    - ``config``: a file with options, see cistern-job.json(5): its sections ``job``, ``parallel``,
      ``memory`` and ``optimizer``, and ``resume`` of ``checkpoints``. Arguments override it. The other
      options in it are the program's own business.
    - ``rank``, ``world``: among the ranks on this machine; by default what torchrun, srun or mpirun say,
      or else 0 and 1. A job can have ranks on several machines: the launcher says which ones.
      In a standby (``cistern run --standby``), this function waits until a rank of the job has died, and
      takes its number, which is ``Store.job.rank`` then. What comes before, such as the model, must not
      depend on it: ``standby`` tells the number earlier.
    - ``device``: where the pool is, such as "cuda" or "cpu"; by default the current GPU of torch, or
      the host if torch has none. Parameters and buffers move there; inputs are the caller's.
    - ``pool``: memory for weights and gradients in use, in bytes or as "6G", or a percentage of
      the weights that this rank has, such as "25%"; 0, the default: the daemon chooses.
    - ``activations``: memory of the GPU that PyTorch needs for everything but the weights:
      activations and its cache, in bytes or as "6G". The daemon leaves as much beside the pools if
      their size is its choice ([gpu] pool = auto); 0: unknown, for which it leaves a tenth.
    - ``disk``: directories, one on each drive, in which rank 0 makes files for the states: master
      weights and moments then lie there, and weights and gradients in host memory. Each step reads and
      writes all states there, and results are the same. If the job exists, they must be on the drives
      that it has, unless ``reshape`` moves its states; None: those that it has. ``disk_bytes``: of the states, what is kept
      there, in bytes or as "200G"; 0, the default: all. ``durable``: True keeps the files, under the
      name of the job, twice as large, and makes each step last: after a crash of the machine,
      ``cistern adopt`` makes a checkpoint of the last step. Needs all states there, and
      ``unused`` "zero", which is then the default. Frozen weights are written there once; those of
      fp32 parameters, and all with ``masters`` "split", in each step.
    - ``plan_file``: a plan that ``plan`` has saved. The job has exactly its chunks and pools.
    - ``units``: names of modules that are operators as a whole, in addition to those that are found:
      the members of a ModuleList or a Sequential of one class, and modules with parameters of their
      own. If a module has parameters of its own and such members below it, its operator has its own
      parameters alone. The weights of an operator are in the pool together. "" is the name of the
      whole model.
    - ``micro_batches``: the largest number of backward passes in a step; by default 1. With what
      ``parallelize`` returns: the number of calls of its ``step`` in one of the optimizer.
    - ``tokens``: their number in a micro-batch of one rank, from which the daemon estimates how long
      operators run when it plans the job; 0: unknown.
    - ``param_group``: returns the number of the optimizer's group for a parameter and its name; by
      default all are in group 0.
    - ``optimizer``: a ``cistern.Optimizer``, or its name, such as "muon"; by default AdamW.
    - ``muon``: with the optimizer Muon, returns whether Muon updates a parameter with its name, or
      else AdamW; by default Muon updates hidden matrices, which are those that are neither
      embeddings nor in the first or the last unit. cistern-optimizer(7) says more.
    - ``unused``: what a step does with parameters that have no gradient on any rank. By default they
      are skipped, as by torch.optim ("skip"). With "zero", the default with early updates
      (``Overlap.EARLY``), their gradient is zero: moments and weight decay change them.
    - ``trainable``: returns whether a parameter with its name, which needs no gradient now, can be
      trained later, by ``requires_grad_(True)``. It has states in the daemon from the beginning. Needs
      ``unused`` "skip".
    - ``replicas``: what becomes of gradients of parameters that ranks have whole while others are
      divided among them (DTensor). "once": all these ranks compute the same gradient, and it counts
      once, as with tensor parallelism; the first step checks that. "sum": they compute with other
      data, and gradients are summed, as with experts that are divided among data ranks.
    - ``base``: a job whose frozen tensors are used. Frozen parameters of a model of PEFT have the
      names there that they have without PEFT, and can be on the meta device.
    - ``reshape``: if the job exists and no process uses it, open it in place with the number of ranks,
      the pool and other options that this call gives. Its states stay in the daemon, and its
      parameters have the types that they had.
    - ``versions``: how many versions of the weights readers can have at once, 1 or 2. With 2, a version
      lasts until the step after the next one, and takes 2 more bytes for each element. By default 1, and
      2 with early or delayed updates.
    - ``copies``, ``block_ranks``: of a job on several machines, how many of them have the states of each
      chunk, by default 1; and how many ranks add their gradients first, by default all of a machine, so
      that 1 gives the same bits however many ranks a machine has.
    - The others are options of ``cistern.Job``.

    Parameters that are bf16 or fp32 keep their type. Those of other types become bf16, with a
    warning; their master weights have the exact values in fp32. Parameters that need no gradient and
    are not ``trainable`` are frozen for good: ``step`` raises RuntimeError if one needs a gradient then.
    Those that are trained can be frozen by ``requires_grad_(False)`` for some steps. Parameters that come to the model later are not in the store.

    Raises TypeError for arguments of a wrong type, parameters that cannot be in a store and buffers on
    the meta device, ValueError for arguments that are out of range, if there are no parameters and if
    the job has not reached the step of ``resume``, and what ``Job``, ``Job.commit`` and ``Job.sync``
    raise.
    """
    for argument, path in (("config", config), ("load", load), ("resume", resume)):
        checks.path(argument, path)
    options = JobFile(config)
    part = model if isinstance(model, stages.Divided) else None
    if part is not None:
        model, device = part.model, device or part.device
    arguments.refuse(options, part)
    name = arguments.job_name(job, options)
    waits = standbys.is_standby()
    if waits:
        arguments.check_standby(rank)
    numbers = arguments.ranks(0 if waits else rank, world, options)
    rank, world = numbers["rank"], numbers["world"]
    try:
        if isinstance(model, list | tuple):
            model = stages.joined(model)
        declaration = declare(model, units, param_group, tokens, muon, trainable)
        if part is not None:
            declaration = part.declared(declaration)
        declaration = declaration._replace(activations=in_bytes("activations", activations))
    except Exception as error:
        parts.tell(error, rank, world)
        raise
    sums_replicas = arguments.sums_replicas(replicas)
    joined = parts.joined(declaration.rank(), rank, world)
    if joined is not None:
        joined = joined._replace(sums_replicas=sums_replicas)
        joined.check_meshes()
    origin = Origin(model, load, first(resume, options.text("resume"), None))
    size = pool if pool is not None else options.text("pool") or 0
    rule = optimizer if optimizer is not None else options.text("optimizer") or Rule.ADAMW
    kinds = arguments.kinds(masters, moments, overlap, options)
    is_dispatched = bool(declaration.edges)
    keeps = checks.flag("durable", first(durable, options.boolean("durable"), False))
    kinds["unused"] = arguments.unused(unused, kinds["overlap"], options, is_dispatched, keeps)
    if trainable is not None and kinds["unused"] is not Unused.SKIP:
        raise ValueError("cistern: trainable= needs unused='skip': frozen parameters are skipped")
    n_micro_batches = arguments.micro_batches(micro_batches, options, part)
    n_block_ranks = first(block_ranks, options.integer("block_ranks"), 0)
    if is_dispatched:
        arguments.check_dispatched(numbers, n_block_ranks)
    socket = first(socket, options.text("socket"), None)
    device = first(device, options.text("device"), None)
    chosen: dict[str, Any] = {
        "versions": first(versions, options.integer("versions"), 0),
        "copies": first(copies, options.integer("copies"), 0),
        "block_ranks": n_block_ranks,
        "pool_bytes": in_bytes("pool", size, weights.bytes_in_pool(model)),
        "disk": arguments.directories(first(disk, options.text("disk"), None)),
        "disk_bytes": in_bytes(
            "disk_bytes", arguments.size(disk_bytes, options.text("disk_bytes"))
        ),
        "durable": keeps,
        "chunk_elems": first(chunk_elems, options.integer("chunk"), 0),
        "timeout_ms": timeout_ms,
        "ttl_s": ttl_s,
        "reshape": first(reshape, options.boolean("reshape"), False),
        "plan_file": first(plan_file, options.text("plan"), None),
        "micro_batches": n_micro_batches,
        "base": first(base, options.text("base"), None),
        "optimizer": checks.member(Rule, "optimizer", rule),
        "model_config": arguments.model_config(model),
        "adapter_config": adapters.config_text(model),
    }
    if waits:  # Nothing that takes time comes after this.
        numbers = arguments.ranks(standbys.standby(name, socket=socket), world, options)
        rank = numbers["rank"]
        take_gpu(device, rank)
    opened = open_job(name, socket=socket, device=name_of(device), **numbers, **kinds, **chosen)
    is_new = not opened.initialised
    try:
        with advice(name):
            store = Store(
                opened, model, declaration, options, kinds["unused"], joined, n_micro_batches
            )
        # The states can have come from other machines at the commit, which Store makes.
        is_new = not opened.initialised
        store._prepares = kinds["overlap"] is Overlap.EARLY
        if part is not None:
            store.takes_parts_of(part)
        if not is_new:
            origin.check_kept(opened, warns=rank == 0 and not waits)
        elif rank == 0:
            origin.warn_of_missing_buffers()
        if is_new and joined is not None and load is None and origin.resume is None:
            _warn_of_others(joined.others_values(rank))
        store._begin(origin if is_new else None, base is not None)
    except BaseException as error:
        _leave(opened, error)
        # Ranks that have not heard of a disagreement yet are told of it while the job exists. The
        # daemon removes a job that was not committed when all ranks have left.
        disagrees = isinstance(error, Mismatch) and not opened.committed
        if is_new and rank == 0 and not disagrees:
            _remove_unused(opened)
        raise
    return store


def _warn_of_others(names: list[tuple[str, int]]) -> None:
    """Warn of ``names`` of this rank, whose values another rank, which is with them, has otherwise."""
    if names:
        warnings.warn(
            f"cistern: {len(names)} parameters of this rank, such as '{names[0][0]}', have other values than"
            f" those of the same name on rank {names[0][1]}, which are used. If they are other parameters, as"
            " those of another stage of a pipeline, give them the names that they have in the whole model",
            stacklevel=3,
        )


def _leave(job: Job, error: BaseException) -> None:
    """Leave ``job`` when ``attach`` has failed with ``error``, so that its rank is free at once.

    If the daemon has ended, leaving would wait for the next one before the error is seen.
    """
    try:
        if not job.client.is_pending and not isinstance(error, DaemonGone | StepVoid):
            job.leave()
    except CstError:  # Such as DaemonGone. Why ``attach`` has failed says more.
        pass
    finally:
        job.close()


def _remove_unused(job: Job) -> None:
    """Remove ``job``, which has no weights, when ``attach`` has failed."""
    try:
        with Client(job.client.socket) as client:
            client.remove_job(job.name)
    except CstError as error:
        if error.status != Status.ENOTFOUND:  # The daemon removes a job whose commit fails.
            warnings.warn(f"cistern: job '{job.name}' remains: {error}", stacklevel=3)
