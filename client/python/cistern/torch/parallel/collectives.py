# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed along one axis of a mesh, counted, and their autograd functions.

Each waits for its result. Where two threads of a rank take turns (``halves``), the other one
computes in the meantime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cistern.torch.parallel.volumes import count

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class _Turn(threading.local):
    """What a thread calls while its collective runs, and which returns when it is its turn again."""

    wait: Callable[[], None] | None = None


TURN = _Turn()


def _finish(*works: Any) -> None:
    if TURN.wait is not None:
        TURN.wait()
    for work in works:
        work.wait()


def chunks(length: int, n: int) -> list[int]:
    """Return the lengths of ``n`` parts of a dimension, as DTensor cuts it: the last ones may be empty."""
    full = -(-length // n)
    return [max(0, min(full, length - i * full)) for i in range(n)]


class Grid:
    """The place of this rank on a mesh, by the names of its dimensions."""

    def __init__(self, mesh: DeviceMesh, axes: Sequence[str]) -> None:
        """ValueError: ``mesh`` has other dimensions than ``axes``."""
        if tuple(mesh.mesh_dim_names or ()) != tuple(axes):
            raise ValueError(
                f"cistern: the mesh has the dimensions {mesh.mesh_dim_names}, and must have"
                f" {tuple(axes)}: see cistern.torch.parallel.make_mesh"
            )
        self.mesh = mesh
        self.axes = tuple(axes)
        self._sizes = dict(zip(axes, mesh.shape, strict=True))

    def size(self, *axes: str) -> int:
        """Return the number of ranks along all of ``axes``."""
        n = 1
        for axis in axes:
            n *= self._sizes[axis]
        return n

    def index(self, *axes: str) -> int:
        """Return the place of this rank along ``axes``, of which the first one counts most."""
        place = 0
        for axis in axes:
            place = place * self._sizes[axis] + self.mesh.get_local_rank(axis)
        return place

    def group(self, axis: str) -> dist.ProcessGroup:
        return self.mesh.get_group(axis)

    def range_of(self, length: int, axes: Sequence[str]) -> tuple[int, int]:
        """Return the first index of the part of a dimension that this rank has, and its length."""
        first = 0
        for axis in axes:
            sizes = chunks(length, self.size(axis))
            at = self.index(axis)
            first, length = first + sum(sizes[:at]), sizes[at]
        return first, length

    def rows_of(self, whole: torch.Tensor, dim: int, axes: Sequence[str]) -> torch.Tensor:
        """Return the rows of this rank. ValueError: not all ranks would have as many."""
        n, length = self.size(*axes), whole.shape[dim]
        if length % n:
            raise ValueError(
                f"cistern: dimension {dim} of the batch has {length} rows, and the ranks along"
                f" {' x '.join(axes)} of the mesh share them: it must be a multiple of {n}"
            )
        return whole.narrow(dim, self.index(*axes) * (length // n), length // n)


def gather(
    x: torch.Tensor, dim: int, group: dist.ProcessGroup, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Return the blocks of all ranks of ``group``, one after the other along ``dim``.

    ``sizes`` are the lengths of the blocks; None: they are equal. What is shorter travels padded.
    """
    n, length = group.size(), x.shape[dim]
    if n == 1:
        return x
    longest = length if sizes is None else max(sizes)
    sent = _padded(x.movedim(dim, 0), longest)
    out = sent.new_empty((n * longest, *sent.shape[1:]))
    count("gather", (n - 1) * sent.nbytes)
    _finish(dist.all_gather_into_tensor(out, sent, group=group, async_op=True))
    if sizes is not None and min(sizes) < longest:
        out = torch.cat([out[i * longest : i * longest + k] for i, k in enumerate(sizes)])
    return out.movedim(0, dim)


def reduce_scatter(
    x: torch.Tensor, dim: int, group: dist.ProcessGroup, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Return the sum over ``group`` of the block of this rank along ``dim``; ``sizes`` as in ``gather``.

    ValueError: blocks should be equal, and the dimension does not divide.
    """
    n = group.size()
    if n == 1:
        return x
    if sizes is None and x.shape[dim] % n:
        raise ValueError(
            f"cistern: {x.shape[dim]} rows cannot be shared by {n} ranks: give a multiple of {n}"
        )
    sizes = [x.shape[dim] // n] * n if sizes is None else sizes
    longest = max(sizes)
    sent = x.movedim(dim, 0).contiguous()
    if min(sizes) < longest:
        sent = torch.cat([_padded(block, longest) for block in torch.split(sent, list(sizes))])
    out = sent.new_empty((longest, *sent.shape[1:]))
    count("reduce_scatter", (n - 1) * out.nbytes)
    _finish(dist.reduce_scatter_tensor(out, sent, group=group, async_op=True))
    return out[: sizes[group.rank()]].movedim(0, dim)


def all_reduce(
    x: torch.Tensor, group: dist.ProcessGroup, op: Any = dist.ReduceOp.SUM
) -> torch.Tensor:
    """Return the sum of ``x`` over ``group``, or another reduction."""
    n = group.size()
    if n == 1:
        return x
    out = x.clone(memory_format=torch.contiguous_format)
    count("all_reduce", Fraction(2 * (n - 1) * out.nbytes, n))
    _finish(dist.all_reduce(out, op=op, group=group, async_op=True))
    return out


def all_to_all(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Send block i of dimension 0 to rank i. Return the blocks that come, by rank."""
    n = group.size()
    if n == 1:
        return x
    sent = x.contiguous()
    out = torch.empty_like(sent)
    count("all_to_all", Fraction((n - 1) * sent.nbytes, n))
    _finish(dist.all_to_all_single(out, sent, group=group, async_op=True))
    return out


def rotate(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Give ``tensors`` to the next rank of ``group``. Return those of the rank before."""
    n, at = group.size(), group.rank()
    sent = [t.contiguous() for t in tensors]
    out = [torch.empty_like(t) for t in sent]
    after, before = ((at + step) % n for step in (1, -1))
    calls = [dist.P2POp(dist.isend, t, group=group, group_peer=after) for t in sent]
    calls += [dist.P2POp(dist.irecv, t, group=group, group_peer=before) for t in out]
    count("rotate", sum(t.nbytes for t in out))
    _finish(*dist.batch_isend_irecv(calls))
    return out


def _padded(x: torch.Tensor, length: int) -> torch.Tensor:
    if x.shape[0] == length:
        return x.contiguous()
    out = x.new_zeros((length, *x.shape[1:]))
    out[: x.shape[0]] = x
    return out


class _Sum(torch.autograd.Function):
    """Sums along axes in the forward pass, in the backward pass, or in both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: list[Any], backward: list[Any]) -> torch.Tensor:
        ctx.groups = backward
        for group in forward:
            x = all_reduce(x, group)
        return x if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        for group in ctx.groups:
            grad = all_reduce(grad, group)
        return grad, None, None


def sum_over(
    x: torch.Tensor, forward: list[dist.ProcessGroup], backward: list[dist.ProcessGroup]
) -> torch.Tensor:
    """Return the sum of ``x`` over the groups ``forward``, whose gradient is summed over ``backward``."""
    out: torch.Tensor = _Sum.apply(x, forward, backward)
    return out


def summed(x: torch.Tensor, grid: Grid, axes: Sequence[str]) -> torch.Tensor:
    """Return the sum along ``axes``, which all ranks use alike: its gradient is the same in all."""
    groups = [grid.group(axis) for axis in axes if grid.size(axis) > 1]
    return sum_over(x, groups, []) if groups else x


def copied(x: torch.Tensor, grid: Grid, axes: Sequence[str]) -> torch.Tensor:
    """Return ``x``, which ranks along ``axes`` use each in its own way: gradients are summed."""
    groups = [grid.group(axis) for axis in axes if grid.size(axis) > 1]
    return sum_over(x, [], groups) if groups else x


class _Scatter(torch.autograd.Function):
    """Reduce-scatters in the forward pass and gathers in the backward pass, or the other way round."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dim: int, group: Any, sizes: Any, scatters: bool
    ) -> torch.Tensor:
        ctx.rest = dim, group, sizes, scatters
        return (reduce_scatter if scatters else gather)(x, dim, group, sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        dim, group, sizes, scatters = ctx.rest
        return (
            (gather if scatters else reduce_scatter)(grad, dim, group, sizes),
            None,
            None,
            None,
            None,
        )


def scattered(x: torch.Tensor, dim: int, grid: Grid, axis: str) -> torch.Tensor:
    """Return the part of the sum along ``axis`` that this rank has; all parts are of one length."""
    out: torch.Tensor = _Scatter.apply(x, dim, grid.group(axis), None, True)
    return out


def gathered(x: torch.Tensor, dim: int, grid: Grid, axis: str, length: int) -> torch.Tensor:
    """Return the ``length`` rows of which the ranks along ``axis`` have parts, as ``chunks`` cuts them."""
    sizes = chunks(length, grid.size(axis))
    out: torch.Tensor = _Scatter.apply(x, dim, grid.group(axis), sizes, False)
    return out
