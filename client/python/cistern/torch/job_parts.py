# SPDX-License-Identifier: Apache-2.0
"""The tensors and operators of a job, which all ranks declare, as one of them uses them."""

from __future__ import annotations

import math

import torch

from cistern._abi import GROUP_ALL, Dtype, Pattern, State, Status, TensorUpdate
from cistern._abi import Optimizer as Rule
from cistern.errors import PoolTooSmall
from cistern.job import Job
from cistern.results import Plan
from cistern.torch import weights
from cistern.torch.parts import Joined, Operator, Part, Rank, Use, alone


class JobParts:
    """Declares to ``job`` what ``joined`` has, or what all ranks have if they are like ``rank``."""

    def __init__(self, job: Job, rank: Rank, joined: Joined | None) -> None:
        self._job = job
        self._joined = alone(rank, job.world) if joined is None else joined
        self.is_plain = self._joined.is_plain
        self.is_pipeline = self._joined.is_pipeline
        self._groups: dict[tuple[int, ...], int] = {tuple(range(job.world)): GROUP_ALL}
        for part in self._joined.parts:
            if part.holders not in self._groups:
                self._groups[part.holders] = job.group(part.holders)
        self._of_parts = [self._declare(part) for part in self._joined.parts]
        self._boxes: dict[str, list[tuple[int, Part]]] = {}  # By the names of their wholes.
        for i, part in enumerate(self._joined.parts):
            self._boxes.setdefault(part.held.whole, []).append((i, part))
        of_operators = [self._declare_operator(operator) for operator in self._joined.operators]
        mine = self._joined.part_of[job.rank], self._joined.operator_of[job.rank]
        #: Numbers in the job of the parameters of this rank.
        self.numbers = {name: self._of_parts[part] for name, part in mine[0].items()}
        #: Numbers in the job of the units of this rank.
        self.operators = {unit: of_operators[operator] for unit, operator in mine[1].items()}

    def _declare(self, part: Part) -> int:
        """Declare ``part`` and return its number. ValueError: Muon cannot update it."""
        held, box = part.held, part.held.box
        is_box = not box.is_whole
        is_matrix = held.update is not TensorUpdate.ADAMW and len(box.shape) >= 2
        if is_box and held.trains and is_matrix and self._job.optimizer is Rule.MUON:
            raise ValueError(_MUON.format(held.whole))
        pattern = Pattern.FROZEN if not held.trains else Pattern.TENSOR if is_box else Pattern.SHARD
        return self._job.tensor(
            part.name,
            box.shape,
            group=self._groups[part.holders],
            external_names=held.file_names,
            pattern=pattern,
            whole_shape=box.whole if is_box else None,
            first=box.first if is_box else None,
            packed=(box.packed or None) if is_box else None,
            whole_name=held.whole if is_box else None,
            param_group=held.group,
            update=held.update,
            dtype=held.dtype,
        )

    def _declare_operator(self, operator: Operator) -> int:
        if operator.run.begins_stage:
            self._job.stage()
        return self._job.operator(
            operator.name,
            [self._of_parts[part] for part in operator.parts],
            flops=operator.run.flops,
            activation_bytes=operator.run.activation_bytes,
        )

    def check_pool(self, plan: Plan) -> None:
        """Raise PoolTooSmall if gradients that wait for other stages of a pipeline could fill the pool.

        A parameter that stages share, such as a tied embedding, has its gradient in a block until the first
        stage has computed its own part, which needs the rest of this backward pass. Those of earlier
        micro-batches leave their blocks whatever this stage does. A pool that has room for all weights and
        gradients at once is large enough.
        """
        mine = [self._joined.parts[i] for i in self._joined.part_of[self._job.rank].values()]
        shared = self._joined.shared_by_stages(self._job.rank) if self.is_pipeline else []
        for blocks in sorted(plan.classes, key=lambda c: c.chunk_elems):
            here = [p for p in shared if _pool_elems(p) <= blocks.chunk_elems]
            n_elems = sum(
                map(_pool_elems, [p for p in mine if _pool_elems(p) <= blocks.chunk_elems])
            )
            shared = [part for part in shared if part not in here]
            mine = [part for part in mine if _pool_elems(part) > blocks.chunk_elems]
            lacks = blocks.min_blocks + len(here) - blocks.n_blocks
            has_all = blocks.n_blocks * blocks.chunk_elems >= 2 * n_elems
            if here and lacks > 0 and not has_all:
                need = 2 * blocks.chunk_elems * lacks
                raise PoolTooSmall(
                    Status.EPOOL, _WAITING.format(here[0].name, plan.pool_bytes, need)
                )

    def use_of(self, name: str) -> Use:
        """Return what this rank does with its parameter ``name``."""
        return self._joined.use_of(self._job.rank, name)

    def meshes(self) -> list[tuple[int, ...]]:
        """Return the ranks of each mesh over which this rank has parameters divided, if one gives gradients of others."""
        return [] if self._joined.sums_replicas else self._joined.meshes_of(self._job.rank)

    def has_meshes(self) -> bool:
        """Return whether any rank has such a mesh."""
        n = len(self._joined.ranks)
        return not self._joined.sums_replicas and any(map(self._joined.meshes_of, range(n)))

    def name_of(self, name: str) -> str:
        """Return what the job calls the parameter ``name`` of this rank."""
        return self._joined.parts[self._joined.part_of[self._job.rank][name]].name

    def names(self, trained: bool) -> set[str]:
        """Return what the job calls its tensors, with those that are trained, or without."""
        return {part.name for part in self._joined.parts if trained or not part.held.trains}

    @property
    def n_groups(self) -> int:
        """The number of groups of the optimizer, on all ranks."""
        return 1 + max(part.held.group for part in self._joined.parts)

    def is_on_all_ranks(self, name: str) -> bool:
        """Return whether each rank has the parameter ``name`` of this one, or another part of its whole."""
        whole = self._joined.ranks[self._job.rank].held[name].whole
        return all(
            any(held.whole == whole for held in rank.held.values()) for rank in self._joined.ranks
        )

    def mean_of_ranks(self) -> float:
        """Return what makes the sum of gradients a mean over the ranks that compute with other data.

        ValueError: tensors have gradients of different numbers of ranks, so that this is not known.
        """
        counted = self._joined.contributions()
        numbers = sorted(set(counted.values()))
        if len(numbers) > 1:
            names = [next(name for name, n in counted.items() if n == number) for number in numbers]
            raise ValueError(_NO_MEAN.format(names[0], numbers[0], names[-1], numbers[-1]))
        if not numbers or numbers[0] == 0:
            return 1.0
        return self._job.world / (numbers[0] * self._job.all_ranks)

    def read(self, name: str, state: State) -> torch.Tensor:
        """Return a copy of a state of the whole of a parameter of this rank, whatever rank has its parts."""
        whole = self._joined.parts[self._joined.part_of[self._job.rank][name]].held
        boxes = self._boxes[whole.whole]
        shapes = [part.held.box.shape for _, part in boxes]
        read = [
            weights.read_state(self._job, self._of_parts[i], state, whole.dtype, shape)
            for (i, _), shape in zip(boxes, shapes, strict=True)
        ]
        if len(read) == 1 and whole.box.is_whole:
            return read[0]
        out = torch.zeros(whole.box.whole, dtype=read[0].dtype, device="cpu")
        for (_, part), values in zip(boxes, read, strict=True):
            there = part.held.box.of(out)
            there.copy_(values.reshape(there.shape))
        return out


def _pool_elems(part: Part) -> int:
    """Return the elements of a chunk that ``part`` takes: an fp32 element takes the place of two."""
    return math.prod(part.held.box.shape) * (2 if part.held.dtype is Dtype.FP32 else 1)


_WAITING = (
    "stages of the pipeline share '{0}', whose gradient waits in the pool for those of other ranks: a pool of"
    " {1} bytes lacks {2} bytes"
)
_MUON = (
    "cistern: '{0}' is divided among ranks, and Muon needs whole matrices: give attach muon=, a function that"
    " returns False for it, or another optimizer"
)
_NO_MEAN = (
    "cistern: '{0}' has gradients of {1} ranks and '{2}' of {3}, so that it is not known of how many ranks the"
    " mean is: give Store.optimizer grad_scale=, such as 1 / (number of ranks that compute with other data)"
)
