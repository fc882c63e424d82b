# SPDX-License-Identifier: Apache-2.0
"""Parameters that are parts of larger tensors, as torch.distributed.tensor has them (DTensor).

This is the only file that names what torch keeps private of them. A parameter of any other kind is a
part of itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from cistern.torch.stages import Divided
from cistern.torch.storage import private


class Box(NamedTuple):
    """The elements of a named whole that a rank has: of each dimension a range, or several.

    A dimension can be several matrices one after the other, such as a gate and an up projection, of each
    of which the rank has a range.
    """

    whole: tuple[int, ...]  #: The shape of the whole.
    first: tuple[int, ...]  #: The index of the first element.
    shape: tuple[int, ...]
    packed: tuple[int, ...] = ()  #: Of each dimension the number of ranges; (): one of each.

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole

    def ranges(self, dim: int) -> list[tuple[int, int]]:
        """Return where the ranges of a dimension begin and end in the whole."""
        n = self.packed[dim] if self.packed else 1
        begins = [self.first[dim] + k * (self.whole[dim] // n) for k in range(n)]
        return [(begin, begin + self.shape[dim] // n) for begin in begins]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return a view of the elements of ``whole``, in which a dimension with several ranges is two."""
        for dim in reversed(range(len(self.shape))):
            n = self.packed[dim] if self.packed else 1
            if n > 1:
                shape = whole.shape
                whole = whole.view(*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :])
            whole = whole.narrow(dim + (n > 1), self.first[dim], self.shape[dim] // n)
        return whole

    def meets(self, other: Box) -> bool:
        """Return whether both boxes, of one whole, have an element."""
        return all(
            any(
                begin < other_end and other_begin < end
                for begin, end in self.ranges(dim)
                for other_begin, other_end in other.ranges(dim)
            )
            for dim in range(len(self.shape))
        )

    def __str__(self) -> str:
        """Return the ranges as Python writes them, such as "[0:128, 0:64]", or "[0:64 and 128:192, 0:64]"."""
        of_dims = [
            " and ".join(f"{begin}:{end}" for begin, end in self.ranges(dim))
            for dim in range(len(self.shape))
        ]
        return f"[{', '.join(of_dims)}]"


def is_shard(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is a DTensor."""
    if type(tensor) is torch.Tensor or type(tensor) is nn.Parameter:
        return False
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of ``tensor``, without a copy and without history."""
    if not is_shard(tensor):
        return tensor
    part: torch.Tensor = private(tensor, "_local_tensor")
    return part


def set_local(parameter: torch.Tensor, memory: torch.Tensor) -> None:
    """Let ``memory``, which has the shape of the part of this rank, be that of ``parameter``."""
    if is_shard(parameter):
        kept: Any = parameter
        kept._local_tensor = memory  # ``data = ...`` would change the wrapper alone.
        with torch.no_grad():
            if not kept.to_local().is_set_to(memory):
                raise ImportError(
                    f"cistern.torch does not work with the DTensor of torch {torch.__version__}, which has its"
                    " part of a parameter elsewhere than that of torch 2.15: use that"
                )
    else:
        parameter.data = memory


def box_of(name: str, tensor: torch.Tensor) -> Box:
    """Return the part of the whole ``name`` that this rank has. A tensor without dimensions has one.

    TypeError: it has ranges of other kinds than a box has, or the sum of all ranks is the tensor.
    """
    whole = tuple(tensor.shape) or (1,)
    if not is_shard(tensor):
        return Box(whole, (0,) * len(whole), whole)
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    axis = _packed_axis(sharded)
    placements = list(sharded.placements)
    if axis is not None:
        placements[axis] = Replicate()
    odd = [p for p in placements if type(p) is not Shard and not isinstance(p, Replicate)]
    if odd:
        raise TypeError(
            f"cistern: parameter '{name}' is placed as {odd[0]}: a store takes what a rank has of a parameter"
            " if it is one range of each dimension (Shard), or all of it (Replicate)"
        )
    shape, first = compute_local_shape_and_global_offset(
        tensor.shape, sharded.device_mesh, placements
    )
    if not tensor.shape:
        return Box(whole, (0,), whole)
    box = Box(whole, tuple(first), tuple(shape))
    return box if axis is None else _packed(name, sharded, axis, box)


def _packed_axis(tensor: Any) -> int | None:
    """Return the dimension of the mesh whose ranks have ranges of several matrices in one dimension of ``tensor``.

    None: there is none, or other ranks divide this dimension, too.
    """
    kinds = [type(placement).__name__ for placement in tensor.placements]
    if kinds.count("_StridedShard") != 1:
        return None
    axis = kinds.index("_StridedShard")
    dims = [p.dim % tensor.ndim for p in tensor.placements if not p.is_replicate()]
    return axis if dims.count(tensor.placements[axis].dim % tensor.ndim) == 1 else None


def _packed(name: str, tensor: Any, axis: int, box: Box) -> Box:
    """Return ``box``, of which this rank has, in the dimension that ``axis`` of the mesh divides, several ranges."""
    placement = tensor.placements[axis]
    dim, n = placement.dim % tensor.ndim, placement.split_factor
    ranks, at = tensor.device_mesh.size(axis), tensor.device_mesh.get_coordinate()[axis]
    size = tensor.shape[dim]
    if size % (n * ranks) != 0:
        raise TypeError(
            f"cistern: parameter '{name}' has {n} matrices with {size} rows together, which {ranks} ranks divide"
            " unevenly: a number of ranks that divides the rows of each can have it"
        )
    mine = size // n // ranks

    def with_dim(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:dim], value, *values[dim + 1 :])

    return Box(
        box.whole,
        with_dim(box.first, at * mine),
        with_dim(box.shape, n * mine),
        with_dim((1,) * tensor.ndim, n),
    )


class Place(NamedTuple):
    """How a parameter lies on a mesh of ranks. It can be pickled."""

    ranks: tuple[int, ...]  #: Of the mesh, in torch.distributed.
    #: For each dimension of the mesh whether the ranks along it have the same elements.
    replicated: tuple[bool, ...]
    at: tuple[int, ...]  #: The place of this rank on the mesh.


def place_of(tensor: torch.Tensor) -> Place | None:
    """Return how a parameter lies on its mesh; None: it is no DTensor."""
    if not is_shard(tensor):
        return None
    sharded: Any = tensor
    mesh = sharded.device_mesh
    return Place(
        tuple(mesh.mesh.flatten().tolist()),
        tuple(p.is_replicate() for p in sharded.placements),
        tuple(mesh.get_coordinate() or ()),
    )


def sample_of(parameter: torch.Tensor) -> tuple[float, ...]:
    """Return some elements of ``parameter`` on this rank, by which ranks see that they have others."""
    if parameter.is_meta:
        return ()
    return tuple(local(parameter).detach().reshape(-1)[:8].float().tolist())


def gives_gradients(place: Place) -> bool:
    """Return whether this rank is the first one along the dimensions in which ranks have the same elements."""
    return all(at == 0 for at, same in zip(place.at, place.replicated, strict=True) if same)


def contribution(parameter: torch.Tensor, grad: torch.Tensor, gives: bool) -> torch.Tensor | None:
    """Return what this rank adds to the gradient of its part of ``parameter``; None: nothing.

    ``grad`` is what autograd has computed. Ranks that have the same elements add parts of the sum if
    autograd says so (Partial). Else each of them has all of it, and the one adds it that ``gives``.
    """
    if not is_shard(parameter):
        return grad if gives else None
    from torch.distributed.tensor import Partial, Replicate

    given: Any = grad
    if not is_shard(grad):
        return grad if gives else None
    target: list[Any] = []
    parts = False
    for wanted, there in zip(parameter.placements, given.placements, strict=True):  # type: ignore[attr-defined]
        if wanted.is_replicate() and there.is_partial() and there.reduce_op == "sum":
            target.append(Partial())
            parts = True
        else:
            target.append(Replicate() if wanted.is_replicate() else wanted)
    if tuple(target) != tuple(given.placements):
        given = given.redistribute(placements=target)
    mine = local(given)
    if not parts:
        return mine if gives else None
    # Along some dimensions of the mesh all add their parts, along the others the first one does.
    at = given.device_mesh.get_coordinate()
    along = zip(at, target, strict=True)
    return mine if all(k == 0 for k, p in along if p.is_replicate()) else None


def is_part_of_sum(grad: torch.Tensor) -> bool:
    """Return whether the gradient ``grad`` is a DTensor that ranks have parts of a sum of."""
    given: Any = grad
    return is_shard(grad) and any(placement.is_partial() for placement in given.placements)


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the memory of ``part`` that is placed as ``parameter`` is."""
    if not is_shard(parameter):
        return part
    from torch.distributed.tensor import DTensor

    sharded: Any = parameter
    made: torch.Tensor = DTensor.from_local(
        part,
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=sharded.shape,
        stride=sharded.stride(),
    )
    return made


def part_of(
    values: torch.Tensor, box: Box, shape: tuple[int, ...], whole: tuple[int, ...]
) -> torch.Tensor | None:
    """Return the elements of ``values`` that are in ``box``; None: they have other shapes.

    ``values`` are the whole, or the part itself, or a DTensor of the whole that is placed as ``box`` is.
    ``shape`` is that of the part as torch has it, and ``whole`` that of the whole.
    """
    part = local(values)
    if tuple(part.shape) == shape:
        return part
    return box.of(part.reshape(box.whole)).reshape(shape) if tuple(part.shape) == whole else None


def check_wrappers(modules: Iterable[nn.Module]) -> None:
    """Raise TypeError if a wrapper of torch sums the gradients or cuts the parameters of one of ``modules``.

    Adapters that were put around what ranks had divided before are refused, too: those of a layer have the
    shapes of the whole layer.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    others: Sequence[Any] = (nn.parallel.DistributedDataParallel,)
    if fsdp is not None:
        others = (*others, fsdp.FullyShardedDataParallel, fsdp.FSDPModule)
    for module in modules:
        if isinstance(module, Divided):
            raise TypeError(
                "cistern: the model has what parallelize returns inside of another module, such as one of PEFT:"
                " adapters go onto the whole model (get_peft_model), then parallelize divides it, and attach is given"
                " what parallelize returns"
            )
        base = getattr(module, "base_layer", None)
        if isinstance(base, nn.Module) and any(map(is_shard, base.parameters())):
            mine = {id(p) for p in base.parameters()}
            if not any(is_shard(p) for p in module.parameters() if id(p) not in mine):
                raise TypeError(
                    f"cistern: the model has a {type(module).__module__}.{type(module).__name__} around a layer"
                    " that ranks divide, and the adapter is not divided: first make the adapters"
                    " (get_peft_model), then divide the model (cistern.torch.parallel.divide)"
                )
        if isinstance(module, tuple(others)):
            raise TypeError(
                f"cistern: the model has a {type(module).__name__}: a store sums the gradients of all ranks,"
                " and has one copy of the weights, so that nothing else may do that: give attach the model"
                " without it"
            )
