# SPDX-License-Identifier: Apache-2.0
"""One declaration out of those of all ranks.

A tensor of the job is a box of a named whole, and its group are the ranks that hold that box. Data,
tensor, pipeline and expert parallelism differ in nothing else:

    data        all ranks hold the whole
    tensor      each rank holds another box of it
    pipeline    some ranks hold it, the others do not
    expert      each rank holds other experts, which are wholes or boxes of a whole

All ranks make the same job out of the same list, so that nothing else is agreed upon.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from cistern._abi import Dtype, TensorUpdate
from cistern.torch.shards import Box, Place, gives_gradients

_Key = TypeVar("_Key", bound=Hashable)


class Held(NamedTuple):
    """A parameter of one rank."""

    whole: str  #: The name of the whole.
    box: Box
    dtype: Dtype
    trains: bool
    group: int  #: Of the optimizer.
    update: TensorUpdate
    file_names: tuple[str, ...]
    place: Place | None  #: On a mesh of ranks; None: it is no DTensor.
    sample: tuple[float, ...] = ()  #: Of its values; (): it is on the meta device.


class Run(NamedTuple):
    """A unit of one rank."""

    name: str
    parameters: tuple[str, ...]
    flops: float
    activation_bytes: int
    begins_stage: bool = False


class Rank(NamedTuple):
    """What one rank declares."""

    held: dict[str, Held]  #: By the name of the parameter in the model.
    runs: dict[str, Run]  #: By the name of the module, in its order.
    #: Over which parameters are divided, those included of which this rank has no elements.
    meshes: tuple[Place, ...] = ()


class _Failed(NamedTuple):
    """A rank that declares nothing."""

    why: str


class Part(NamedTuple):
    """A tensor of the job."""

    name: str
    held: Held  #: Of the first rank that holds it.
    holders: tuple[int, ...]  #: The ranks that hold it.


class Operator(NamedTuple):
    """An operator of the job."""

    name: str
    parts: tuple[int, ...]  #: Numbers of parts.
    run: Run  #: Of the first rank that runs it.


class Use(NamedTuple):
    """What a rank does with a part that it holds."""

    box: Box
    is_alone: bool  #: No other rank computes the same gradient.
    gives: bool  #: Of ranks that compute the same gradient, this one hands it in.
    writes: bool  #: Of the ranks that hold the part, this one writes its states.


class Joined(NamedTuple):
    """What all ranks declare together, alike on each of them."""

    ranks: Sequence[Rank]
    parts: list[Part]
    operators: list[Operator]
    #: By rank and by the name of a parameter, the number of its part.
    part_of: list[dict[str, int]]
    operator_of: list[dict[str, int]]  #: By rank and by the name of a module.
    #: A rank lacks modules that another one has.
    is_pipeline: bool
    #: Ranks of a mesh compute with other data, so that gradients of what they have whole are summed.
    sums_replicas: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all ranks hold all parameters, which are whole."""
        n = len(self.ranks)
        return all(len(p.holders) == n and p.held.box.is_whole for p in self.parts)

    def use_of(self, rank: int, name: str) -> Use:
        """Return what ``rank`` does with its parameter ``name``."""
        part = self.parts[self.part_of[rank][name]]
        alone = self.sums_replicas or not self.meshes_of(rank)
        gives = alone or _gives(self.ranks[rank], name)
        return Use(part.held.box, alone, gives, part.holders[0] == rank)

    def meshes_of(self, rank: int) -> list[tuple[int, ...]]:
        """Return the ranks of each mesh over which ``rank`` has parameters divided."""
        return list(dict.fromkeys(place.ranks for place in self.ranks[rank].meshes))

    def shared_by_stages(self, rank: int) -> list[Part]:
        """Return what ``rank`` trains and other stages have in other units, such as a tied embedding."""
        units = [frozenset(run.name for run in of_rank.runs.values()) for of_rank in self.ranks]
        mine = [self.parts[i] for i in self.part_of[rank].values() if self.parts[i].held.trains]
        return [part for part in mine if any(units[r] != units[rank] for r in part.holders)]

    def contributions(self) -> dict[str, int]:
        """Return how many ranks hand in a gradient of each part that is in one unit alone, by name."""
        uses: dict[int, list[tuple[bool, list[str]]]] = {}
        for rank, mine in zip(self.ranks, self.part_of, strict=True):
            units: dict[str, list[str]] = {}
            for run in rank.runs.values():
                for name in run.parameters:
                    units.setdefault(name, []).append(run.name)
            for name, i in mine.items():
                gives = self.sums_replicas or _gives(rank, name)
                uses.setdefault(i, []).append((gives, units.get(name, [])))
        return {
            self.parts[i].name: sum(gives for gives, _ in of_part)
            for i, of_part in uses.items()
            if self.parts[i].held.trains and all(units == of_part[0][1] for _, units in of_part)
        }

    def check_meshes(self) -> None:
        """Raise ValueError if ranks of no mesh would hand in the gradients of what they share too often.

        Ranks over which parameters are divided hand in one gradient of the others. If a stage has ranks that
        divide nothing, but as many as the stages that do, each of them would hand in the same.
        """
        meshed = [bool(self.meshes_of(rank)) for rank in range(len(self.ranks))]
        if self.sums_replicas or all(meshed) or not any(meshed):
            return
        counted = self.contributions()
        most = max(counted, key=lambda name: counted[name], default="")
        least = min(counted, key=lambda name: counted[name], default="")
        if most and counted[most] != counted[least]:
            raise ValueError(_SOME_STAGES.format(most, counted[most], least, counted[least]))

    def others_values(self, rank: int) -> list[tuple[str, int]]:
        """Return the parameters of ``rank`` whose values are others on the first rank that has them, and that rank."""
        found = []
        for name, i in self.part_of[rank].items():
            mine, first = self.ranks[rank].held[name], self.parts[i]
            if mine.sample and first.held.sample and mine.sample != first.held.sample:
                found.append((name, first.holders[0]))
        return found


def join(ranks: Sequence[Rank]) -> Joined:
    """Return what ``ranks`` declare together.

    ValueError: ranks that hold the same box disagree about it, or boxes of a whole meet without being
    equal; the words name both ranks.
    """
    keys = [[(h.whole, h.box) for h in rank.held.values()] for rank in ranks]
    order = _in_one_order(keys)
    numbers = {key: i for i, key in enumerate(order)}
    part_of = [
        {name: numbers[key] for name, key in zip(rank.held, of_rank, strict=True)}
        for rank, of_rank in zip(ranks, keys, strict=True)
    ]
    parts = _parts(ranks, part_of, len(order))
    _check_wholes(parts)
    runs = [
        [
            (run.name, tuple(dict.fromkeys(mine[name] for name in run.parameters)))
            for run in rank.runs.values()
        ]
        for rank, mine in zip(ranks, part_of, strict=True)
    ]
    order_of_runs = _in_one_order(runs)
    operator_numbers = {key: i for i, key in enumerate(order_of_runs)}
    operator_of = [
        {unit: operator_numbers[key] for unit, key in zip(rank.runs, of_rank, strict=True)}
        for rank, of_rank in zip(ranks, runs, strict=True)
    ]
    names = [{run.name for run in rank.runs.values()} for rank in ranks]
    return Joined(
        ranks,
        parts,
        _operators(ranks, order_of_runs, operator_of),
        part_of,
        operator_of,
        any(of_rank != names[0] for of_rank in names),
    )


def alone(rank: Rank, world: int) -> Joined:
    """Return what ``world`` ranks declare together that all declare what ``rank`` does."""
    one = join([rank])
    # Ranks that torch does not connect have no meshes, and each hands in a gradient of its own.
    return one._replace(
        ranks=[rank] * world,
        parts=[part._replace(holders=tuple(range(world))) for part in one.parts],
        part_of=one.part_of * world,
        operator_of=one.operator_of * world,
    )


def joined(rank: Rank, number: int, world: int) -> Joined | None:
    """Return what all ranks declare, of which this is ``number``; None: torch does not connect them.

    All ranks call this. ValueError: as ``join``, or parameters are divided, and torch does not connect the
    ranks of the job.
    """
    has_group = dist.is_available() and dist.is_initialized()
    if world > 1 and _connects(number, world):
        return join(_of_all(rank, world))
    if rank.meshes:
        there = f"has {dist.get_world_size()} ranks" if has_group else "is not initialised"
        raise ValueError(_NOT_CONNECTED.format(number, world, there))
    return None


def from_rank_0(is_first: bool, compute: Callable[[], Any]) -> Any:
    """Return what ``compute`` returns on rank 0, to all ranks. RuntimeError: it has raised there."""
    told: list[Any] = [None, None]
    error: Exception | None = None
    if is_first:
        try:
            told[0] = compute()
        except Exception as raised:  # noqa: BLE001 (raised again when the others know)
            error, told[1] = raised, str(raised)
    dist.broadcast_object_list(told, src=0)
    if error is not None:
        raise error
    if told[1] is not None:
        raise RuntimeError(f"cistern: rank 0: {told[1]}")
    return told[0]


def _gives(rank: Rank, name: str) -> bool:
    """Return whether ``rank`` hands in a gradient of its parameter ``name``.

    Ranks of a mesh, over which other parameters are divided, compute the same gradient of those that are
    not, and the first one hands it in. Ranks of no mesh, or of different meshes, compute parts of a sum.
    """
    place = rank.held[name].place
    if place is not None:
        return gives_gradients(place)
    return all(at == 0 for place in rank.meshes for at in place.at)


def tell(error: Exception, number: int, world: int) -> None:
    """Tell the other ranks, which call ``joined``, that this one, ``number``, declares nothing."""
    if world > 1 and _connects(number, world):
        told: list[Any] = [None] * world
        dist.all_gather_object(told, _Failed(str(error)))


def _connects(number: int, world: int) -> bool:
    """Return whether the ranks of torch are those of the job."""
    has_group = dist.is_available() and dist.is_initialized()
    return has_group and (dist.get_rank(), dist.get_world_size()) == (number, world)


def _of_all(rank: Rank, world: int) -> list[Rank]:
    """Return what all ranks declare. ValueError: one has failed."""
    found: list[Any] = [None] * world
    dist.all_gather_object(found, rank)
    for r, told in enumerate(found):
        if not isinstance(told, Rank):
            raise ValueError(  # noqa: TRY004 (it is what the other rank has raised)
                f"cistern: rank {r} has no part of the model: {told.why}"
            )
    return found


def _parts(ranks: Sequence[Rank], part_of: Sequence[dict[str, int]], n_parts: int) -> list[Part]:
    """Return the parts with their holders. ValueError: holders disagree."""
    found: list[Part | None] = [None] * n_parts
    for r, (rank, mine) in enumerate(zip(ranks, part_of, strict=True)):
        for name, i in mine.items():
            held, part = rank.held[name], found[i]
            if part is None:
                called = held.whole if held.box.is_whole else f"{held.whole}{held.box}"
                found[i] = Part(called, held, (r,))
                continue
            if part.holders[-1] == r:
                raise ValueError(_TWICE.format(held.whole, r))
            first = part.held
            if first.update is TensorUpdate.AUTO:  # A rank may see that it is an embedding.
                first = first._replace(update=held.update)
            _check_alike(first, held, part.holders[0], r)
            found[i] = Part(part.name, first, (*part.holders, r))
    return [part for part in found if part is not None]


def _check_alike(one: Held, other: Held, rank: int, other_rank: int) -> None:
    """Raise ValueError if two ranks disagree about a part."""
    for what, a, b in (
        ("whole", one.box.whole, other.box.whole),
        ("type", one.dtype.name.lower(), other.dtype.name.lower()),
        ("training", _TRAINS[one.trains], _TRAINS[other.trains]),
        ("group of the optimizer", one.group, other.group),
        ("update", one.update.name.lower(), other.update.name.lower()),
    ):
        if a != b and b != "auto":
            raise ValueError(
                f"cistern: parameter '{one.whole}': the {what} is {a} in rank {rank} and {b} in rank"
                f" {other_rank}"
            )


def _check_wholes(parts: Sequence[Part]) -> None:
    """Raise ValueError if boxes of a whole meet, or the wholes of a name differ."""
    by_whole: dict[str, list[Part]] = {}
    for part in parts:
        by_whole.setdefault(part.held.whole, []).append(part)
    for whole, boxes in by_whole.items():
        for i, part in enumerate(boxes):
            for other in boxes[:i]:
                _check_apart(whole, other, part)


def _check_apart(whole: str, one: Part, other: Part) -> None:
    a, b = one.held.box, other.held.box
    ranks = f"rank {one.holders[0]}", f"rank {other.holders[0]}"
    if a.whole != b.whole:
        raise ValueError(
            f"cistern: parameter '{whole}' has the shape {a.whole} in {ranks[0]} and {b.whole} in {ranks[1]}"
        )
    if a.meets(b):
        raise ValueError(
            f"cistern: parameter '{whole}': {ranks[0]} has the elements {a} and {ranks[1]} has {b}, of which"
            " some are the same: ranks have equal parts, or parts that do not meet"
        )


def _operators(
    ranks: Sequence[Rank],
    keys: Sequence[tuple[str, tuple[int, ...]]],
    operator_of: Sequence[dict[str, int]],
) -> list[Operator]:
    """Return the operators. Ranks that run a unit with other parts have operators of their own."""
    first: dict[int, tuple[int, Run]] = {}
    for r, (rank, mine) in enumerate(zip(ranks, operator_of, strict=True)):
        for unit, i in mine.items():
            first.setdefault(i, (r, rank.runs[unit]))
    n_of_name: dict[str, int] = {}
    for name, _ in keys:
        n_of_name[name] = n_of_name.get(name, 0) + 1
    return [
        Operator(name if n_of_name[name] == 1 else f"{name}@{first[i][0]}", parts, first[i][1])
        for i, (name, parts) in enumerate(keys)
    ]


def _in_one_order(sequences: Sequence[Sequence[_Key]]) -> list[_Key]:
    """Return all keys of ``sequences`` once, in an order that is also that of each sequence if there is one.

    Among those that can come next, the one of the first sequence comes first.
    """
    before: dict[_Key, set[_Key]] = {}
    for sequence in sequences:
        last: _Key | None = None
        for key in dict.fromkeys(sequence):
            before.setdefault(key, set())
            if last is not None:
                before[key].add(last)
            last = key
    order: dict[_Key, None] = {}
    at = [0] * len(sequences)
    while len(order) < len(before):
        heads = []
        for i, sequence in enumerate(sequences):
            while at[i] < len(sequence) and sequence[at[i]] in order:
                at[i] += 1
            if at[i] < len(sequence):
                heads.append(sequence[at[i]])
        ready = [key for key in heads if all(other in order for other in before[key])]
        order[ready[0] if ready else heads[0]] = None  # Else sequences contradict each other.
    return list(order)


_NOT_CONNECTED = (
    "cistern: parameters are divided among ranks (DTensor). The ranks of the job are then those of"
    " torch.distributed, by which attach finds out who has which part. This is rank {0} of {1}, and"
    " torch.distributed {2}"
)
_SOME_STAGES = (
    "cistern: ranks that divide nothing hand in {1} gradients of '{0}', and those that divide parameters among"
    " themselves hand in {3} of '{2}': the sum of a step would count some data several times. Divide layers of"
    " all stages among as many ranks (cistern.torch.parallel.divide), or let a stage that is not divided have"
    " one rank for each part of the data"
)
_TRAINS = {True: "trained", False: "frozen"}
_TWICE = (
    "cistern: two parameters of rank {1} are the same part of '{0}': let them be one parameter, which is"
    " tied, or give them different names"
)
