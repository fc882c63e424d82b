# SPDX-License-Identifier: Apache-2.0
"""What the calls of a job take and return, with the names of the structs of <cistern/cistern.h>."""

from __future__ import annotations

from typing import NamedTuple


class HyperParams(NamedTuple):
    """Parameters of the update of a step. 0 stands for the default, except in ``lr``."""

    lr: float  #: Learning rate.
    beta1: float = 0.0  #: Below 1. If both betas are 0, 0.9. With SGD it is the momentum.
    beta2: float = 0.0  #: Below 1. 0: 0.99 for Lion, 0.999 for the other optimizers.
    eps: float = 0.0  #: 0: 1e-8.
    weight_decay: float = 0.0
    clip_norm: float = 0.0  #: Largest L2 norm of all gradients together. 0: no clipping.
    grad_scale: float = 0.0  #: Factor on the gradients after their sum over the ranks. 0: 1.
    loss: float = 0.0  #: Loss of this rank, for reports, NaN too; 0: unknown. Ranks may differ.
    tokens: int = 0  #: Tokens of the step, of all ranks together, for reports. 0: not known.


class StepResult(NamedTuple):
    """A committed step."""

    step: int  #: Number of committed steps, including this one.
    skipped: bool  #: The norm was NaN, infinite or too large: the states did not change.
    grad_norm: float  #: L2 norm of all gradients, after grad_scale, before clipping.
    clip: float  #: Factor by which clipping scaled the gradients; 1: no clipping.
    loss: float  #: Mean of the losses of the ranks.
    n_skipped: int  #: Number of skipped steps since the job began.
    overflow: bool  #: The norm was NaN, infinite or too large, with early updates, too.


class PauseResult(NamedTuple):
    """What ``Client.pause`` has done."""

    step: int  #: Number of committed steps.
    wait_s: float  #: Time from the request until no step was under way.
    update_s: float  #: Time from then until all updates were over.
    release_s: float  #: Time from the end of the step until others could use the pools' memory.
    released_bytes: int  #: Memory of the pools that was given back; 0: none.
    already: bool  #: The job was paused before, and nothing has changed.


class ResumeResult(NamedTuple):
    """What ``Client.resume`` has done."""

    step: int  #: Number of committed steps.
    paused_s: float  #: Time for which the job was paused.
    resume_s: float  #: Time that the resume took.
    pool_bytes: int  #: Memory that was taken for the pools; 0: they were there.


class PlanClass(NamedTuple):
    """The chunks of one capacity."""

    chunk_elems: int  #: Capacity in bf16 elements. A block has 2 * chunk_elems bytes.
    n_blocks: int  #: Number of blocks in the pool of this rank.
    min_blocks: int  #: Smallest number of blocks with which the model can run.


class Plan(NamedTuple):
    """The plan of a committed job."""

    n_params: int  #: Number of elements of all tensors.
    chunk_elems: int  #: Chunk capacity of size class 0, in bf16 elements.
    n_chunks: int  #: Number of chunks of all size classes.
    n_blocks: int  #: Number of blocks of size class 0 in the pool of this rank.
    min_blocks: int  #: Smallest number of these blocks with which the model can run.
    block_bytes: int  #: Bytes of a block of size class 0.
    pool_bytes: int  #: Bytes of the pool of this rank.
    arena_bytes: int  #: Bytes of host memory for the states, for all ranks together.
    classes: tuple[PlanClass, ...]  #: By size class.


class RankStat(NamedTuple):
    """Counters of one rank. Each granted fetch of weights counts in one of hits, late and misses."""

    hits: int  #: Fetches whose weights were in the pool before the worker waited for them.
    late: int  #: Fetches whose weights were being copied when the worker began to wait.
    misses: int  #: All other fetches.
    weight_wait_seconds: float  #: Time for which the worker waited for weights.
    evictions: int  #: Blocks that were emptied for other chunks.
    prefetches: int  #: Weights that the daemon copied to the pool before their request.
    surprises: int  #: Uses that the daemon did not expect from the order of earlier steps.
    bytes_up: int  #: Bytes copied from host memory to the pool.
    bytes_down: int  #: Bytes of gradients copied from the pool to host memory.
    pool_bytes: int  #: Size of the pool; 0 before the commit.
    step: int  #: Number of committed steps.
    step_seconds: float  #: Time between the last two commits; 0 before the second one.
    #: Time by which the steps of the job would have been shorter if updates took no time.
    exposed_seconds: float
    n_skipped: int  #: How many of these steps have changed nothing.


class LoadResult(NamedTuple):
    """What was loaded from a checkpoint."""

    step: int  #: Number of committed steps.
    converted: bool  #: The moments were converted to the format of the job.
    params: HyperParams  #: Those of the last step before the checkpoint; all 0: unknown.
    warning: str  #: What differs from the saved job and may not be intended; "": nothing.


class LoadModelResult(NamedTuple):
    """What was loaded from model files of other programs."""

    n_tensors: int  #: Tensors of the job that were loaded.
    n_ignored: int  #: Tensors of the files that the job does not have.
    ignored: str  #: Names of the first ones of these.
