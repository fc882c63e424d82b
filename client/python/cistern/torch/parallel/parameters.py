# SPDX-License-Identifier: Apache-2.0
"""Parameters that are blocks of a whole: DTensors, placed by the axes that cut their dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from cistern.torch.parallel.collectives import Grid


def placements(grid: Grid, cut: Sequence[Sequence[str]]) -> tuple[Placement, ...]:
    """Return the placement along each dimension of the mesh, of a tensor whose dimension i ``cut[i]`` cuts.

    AssertionError: axes that cut one dimension are in another order than in the mesh, which DTensor
    has no placement for.
    """
    assert all(list(axes) == sorted(axes, key=grid.axes.index) for axes in cut), (cut, grid.axes)
    by_axis: dict[str, Placement] = {
        axis: Shard(dim) for dim, axes in enumerate(cut) for axis in axes
    }
    return tuple(by_axis.get(axis, Replicate()) for axis in grid.axes)


def block(whole: torch.Tensor, grid: Grid, cut: Sequence[Sequence[str]]) -> nn.Parameter:
    """Return a parameter with a copy of the block of ``whole`` that this rank has."""
    mine = whole.detach()
    for dim, axes in enumerate(cut):
        mine = mine.narrow(dim, *grid.range_of(whole.shape[dim], axes))
    made = DTensor.from_local(
        mine.clone(memory_format=torch.contiguous_format),
        grid.mesh,
        placements(grid, cut),
        run_check=False,
        shape=whole.shape,
        stride=torch.empty(whole.shape, device="meta").stride(),
    )
    return nn.Parameter(made, requires_grad=whole.requires_grad)


def local(parameter: torch.Tensor) -> torch.Tensor:
    """Return the block of this rank, whose gradient becomes that of ``parameter``."""
    if not isinstance(parameter, DTensor):
        return parameter
    mine: torch.Tensor = parameter.to_local(grad_placements=parameter.placements)
    return mine


def fill_uniform(parameter: torch.Tensor, bound: float, grid: Grid, cut: Sequence[Any]) -> None:
    """Draw elements between -bound and bound: others in each block, and equal ones in copies of it.

    All ranks of the mesh call this. The first one's default generator decides.
    """
    seed = torch.randint(1 << 40, (1,))
    for axis in grid.axes:
        group = grid.group(axis)
        if group.size() > 1:
            on_device = seed.to(grid.mesh.device_type)
            dist.broadcast(on_device, group=group, group_src=0)
            seed = on_device.cpu()
    place = grid.index(*(axis for axes in cut for axis in axes))
    generator = torch.Generator().manual_seed(int(seed.item()) + place)
    mine = local(parameter.detach())
    mine.copy_(torch.empty(mine.shape).uniform_(-bound, bound, generator=generator))
