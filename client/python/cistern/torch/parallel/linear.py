# SPDX-License-Identifier: Apache-2.0
"""One linear layer on a mesh, in each mode: Y = RS(AG(X) . AG(W)^T), as ``modes`` says.

The gradients are the same kind of product of the other two operands:

    dX = RS(AG(dY) . AG(W)),  dW = RS(AG(dY)^T . AG(X))

so that one function has all three. What is gathered in the forward pass is gathered again there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cistern.torch.parallel.collectives import (
    Grid,
    all_reduce,
    chunks,
    copied,
    gather,
    reduce_scatter,
)
from cistern.torch.parallel.modes import DIMS, Line, axes_of, cuts, lines_of
from cistern.torch.parallel.parameters import block, fill_uniform, local

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Blocks = Mapping[str, torch.Tensor]

#: Where a dimension is in the memory of an operand. X is [M, other rows, K], and Y alike.
_AT = {"X": {"M": 0, "K": 2}, "W": {"N": 0, "K": 1}, "Y": {"M": 0, "N": 2}}


def _contract(wanted: str, given: Blocks, sums: torch.Tensor | None = None) -> torch.Tensor:
    """Return one operand's share of the product of the other two, added to ``sums`` if there are any."""
    left = given["X" if wanted == "Y" else "Y"]
    shape: tuple[int, ...] = left.shape[:2]
    left = left.flatten(0, 1)
    if wanted == "W":
        left, right, shape = left.t(), given["X"].flatten(0, 1), left.shape[1:]
    else:
        right = given["W"].t() if wanted == "Y" else given["W"]
    shape = (*shape, right.shape[1])
    if sums is None:
        return (left @ right).view(shape)
    return sums.view(-1, right.shape[1]).addmm_(left, right).view(shape)


class Product:
    """The products of one layer, with which this rank computes M x N x K of all of it.

    ``lengths`` are those of N and K. With ``panels`` above 1, what is gathered along one of the
    dimensions is gathered piece by piece, which bounds the buffers; the bytes are the same.
    """

    def __init__(
        self, lines: Sequence[Line], grid: Grid, lengths: Mapping[str, int], panels: int
    ) -> None:
        """ValueError: the operands that are gathered along one dimension have unequal pieces."""
        self.lines, self.grid, self.panels = lines, grid, panels
        self._lengths = {"N": lengths["N"], "K": lengths["K"]}
        self.along, self._n_blocks = self._dimension() if panels > 1 else (None, 1)

    def _dimension(self) -> tuple[str | None, int]:
        """Return the dimension of the panels, along which most operands are shared, and by how many ranks."""
        axes = {dim: [line.axis for line in self.lines if line.shares == dim] for dim in "KMN"}
        dim = max("KMN", key=lambda dim: len(axes[dim]))
        sizes = sorted({self.grid.size(axis) for axis in axes[dim]})
        if len(sizes) > 1:
            raise ValueError(
                f"cistern: panels of {dim} want as many ranks along each of the axes"
                f" {', '.join(axes[dim])} of the mesh, which has {' and '.join(map(str, sizes))}:"
                " panels=1 works"
            )
        return (dim, sizes[0]) if sizes else (None, 1)

    def rows(self, n_local: int) -> int:
        """Return M of this rank's products, if it has ``n_local`` rows of X.

        ValueError: the ranks that share the rows of Y would not have as many each.
        """
        rows = n_local * math.prod(self.grid.size(x.axis) for x in self._shared("X", "M"))
        n = math.prod(self.grid.size(x.axis) for x in self._shared("Y", "M"))
        if rows % n:
            raise ValueError(
                f"cistern: {rows} rows cannot be shared by {n} ranks: give a multiple of {n}"
            )
        return rows

    def run(self, wanted: Sequence[str], given: Blocks, rows: int) -> list[torch.Tensor]:
        """Return this rank's blocks of the operands ``wanted``. ``given`` are its blocks of others."""
        lengths = {**self._lengths, "M": rows}
        there = {name: self._gathered(name, x, lengths) for name, x in given.items()}
        if self.along is None:
            return [self._reduced(name, _contract(name, there), lengths) for name in wanted]
        sums: dict[str, torch.Tensor] = {}
        pieces: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
        for t in range(self.panels):
            now = {name: self._piece(name, x, lengths, t) for name, x in there.items()}
            for name in wanted:
                if self.along in DIMS[name]:
                    pieces[name].append(self._reduced(name, _contract(name, now), lengths, t))
                else:
                    sums[name] = _contract(name, now, sums.get(name))
        return [
            self._reduced(name, sums[name], lengths)
            if name in sums
            else self._joined(name, pieces[name], lengths)
            for name in wanted
        ]

    def _shared(self, operand: str, dim: str | None) -> list[Line]:
        """Return the lines along whose axes ranks have parts of ``operand`` along ``dim``."""
        return [line for line in self.lines if line.third == operand and line.shares == dim]

    def _shares(self, operand: str) -> Iterator[tuple[str, Line]]:
        for dim in DIMS[operand]:
            for line in self._shared(operand, dim):
                yield dim, line

    def _gathered(self, operand: str, x: torch.Tensor, lengths: Mapping[str, int]) -> torch.Tensor:
        """Gather all that is not gathered by pieces."""
        for dim, line in self._shares(operand):
            if dim != self.along:
                group = self.grid.group(line.axis)
                x = gather(x, _AT[operand][dim], group, chunks(lengths[dim], group.size()))
        return x

    def _reduced(
        self, operand: str, x: torch.Tensor, lengths: Mapping[str, int], t: int | None = None
    ) -> torch.Tensor:
        """Return this rank's part of the sum; of piece ``t`` alone if there is one."""
        for dim, line in self._shares(operand):
            group = self.grid.group(line.axis)
            sizes = chunks(lengths[dim], group.size())
            if dim == self.along and t is not None:
                sizes = [chunks(size, self.panels)[t] for size in sizes]
            x = reduce_scatter(x, _AT[operand][dim], group, sizes)
        for line in self._shared(operand, None):
            x = all_reduce(x, self.grid.group(line.axis))
        return x

    def _ranges(self, lengths: Mapping[str, int], t: int) -> list[tuple[int, int]]:
        """Return where piece ``t`` of each block is in the dimension of the panels."""
        assert self.along is not None
        ranges, first = [], 0
        for size in chunks(lengths[self.along], self._n_blocks):
            parts = chunks(size, self.panels)
            ranges.append((first + sum(parts[:t]), parts[t]))
            first += size
        return ranges

    def _piece(
        self, operand: str, x: torch.Tensor, lengths: Mapping[str, int], t: int
    ) -> torch.Tensor:
        """Return piece ``t`` of each block of ``operand``, one after the other."""
        if self.along not in DIMS[operand]:
            return x
        dim, ranges = _AT[operand][self.along], self._ranges(lengths, t)
        shared = self._shared(operand, self.along)
        if not shared:
            return torch.cat([x.narrow(dim, *piece) for piece in ranges], dim)
        group = self.grid.group(shared[0].axis)
        parts = chunks(x.shape[dim], self.panels)
        mine = x.narrow(dim, sum(parts[:t]), parts[t])
        return gather(mine, dim, group, [size for _, size in ranges])

    def _joined(
        self, operand: str, pieces: Sequence[torch.Tensor], lengths: Mapping[str, int]
    ) -> torch.Tensor:
        """Put pieces where they belong."""
        assert self.along is not None
        dim = _AT[operand][self.along]
        if self._shared(operand, self.along):
            return torch.cat(list(pieces), dim)
        shape = list(pieces[0].shape)
        shape[dim] = lengths[self.along]
        out = pieces[0].new_empty(shape)
        for t, piece in enumerate(pieces):
            ranges = self._ranges(lengths, t)
            parts = torch.split(piece, [size for _, size in ranges], dim)
            for (first, size), part in zip(ranges, parts, strict=True):
                out.narrow(dim, first, size).copy_(part)
        return out


class _Linear(torch.autograd.Function):
    """Y of the blocks X, [M, other rows, K], and W, [N, K]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, product: Product) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.product, ctx.rows = product, product.rows(x.shape[0])
        return product.run("Y", {"X": x, "W": weight}, ctx.rows)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needed = [name for name, needs in zip("XW", ctx.needs_input_grad, strict=False) if needs]
        given = {"Y": grad}
        if "X" in needed:
            given["W"] = weight
        if "W" in needed:
            given["X"] = x
        grads = dict(zip(needed, ctx.product.run(needed, given, ctx.rows), strict=True))
        return grads.get("X"), grads.get("W"), None


class Linear(nn.Module):
    """A linear layer whose weight [N, K], inputs and outputs are cut as ``product`` says.

    ``product`` is a name of ``modes.PRODUCTS``. The input is this rank's block [..., K part], of
    which dimension ``tokens`` is cut along M; its output is [..., N part]. N and K need not divide
    by the mesh, whose ranks have parts as DTensor cuts them; rows must. Parameters are DTensors.
    All ranks of ``mesh`` make the layer, and call it, in the same order.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        mesh: DeviceMesh,
        product: str,
        *,
        bias: bool = True,
        panels: int = 1,
        tokens: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        """ValueError: the mesh is not one for ``product``, or panels of it are unequal."""
        super().__init__()
        device = mesh.device_type
        empty = torch.empty(out_features, in_features, device="meta", dtype=dtype)
        whole_bias = empty.new_empty(out_features) if bias else None
        self._place(empty, whole_bias, mesh, product, panels, tokens)
        self.to_empty(device=device)
        bound = 1 / math.sqrt(in_features)
        fill_uniform(self.weight, bound, self.grid, self._cut)
        if self.bias is not None:
            fill_uniform(self.bias, bound, self.grid, [self._columns])

    @classmethod
    def of(
        cls, linear: nn.Linear, mesh: DeviceMesh, product: str, *, panels: int = 1, tokens: int = 0
    ) -> Linear:
        """Return a layer with this rank's blocks of ``linear``, which has all of the weight."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._place(linear.weight, linear.bias, mesh, product, panels, tokens)
        return made

    def _place(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        mesh: DeviceMesh,
        product: str,
        panels: int,
        tokens: int,
    ) -> None:
        lines = lines_of(product)
        self.grid, self.product, self.tokens = Grid(mesh, axes_of(product)), product, tokens
        self.out_features, self.in_features = weight.shape
        by_dim = cuts(lines, "W")
        self._cut = by_dim["N"], by_dim["K"]
        self._rows, self._columns = cuts(lines, "Y").values()
        self.weight = block(weight, self.grid, self._cut)
        self.bias = None if bias is None else block(bias, self.grid, [self._columns])
        lengths = {}
        for dim, whole in (("N", self.out_features), ("K", self.in_features)):
            splits = [line.axis for line in lines if line.splits == dim]
            lengths[dim] = self.grid.range_of(whole, splits)[1]
        self._product = Product(lines, self.grid, lengths, panels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = local(self.weight), self.bias
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            x, weight = x.to(dtype), weight.to(dtype)
        rows = x.movedim(self.tokens, 0)
        y: torch.Tensor = _Linear.apply(
            rows.reshape(rows.shape[0], -1, rows.shape[-1]), weight, self._product
        )
        y = y.reshape(y.shape[0], *rows.shape[1:-1], y.shape[-1]).movedim(0, self.tokens)
        if bias is not None:
            y = y + copied(local(bias), self.grid, self._rows).to(y.dtype)
        return y

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, {self.product}, bias={self.bias is not None}"
        )
