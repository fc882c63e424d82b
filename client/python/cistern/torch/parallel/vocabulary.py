# SPDX-License-Identifier: Apache-2.0
"""The embedding and the loss of a model whose vocabulary is cut by axes of a mesh.

All ranks of the mesh have the token ids and the labels of the whole batch, so that these do not
travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cistern.torch.parallel.collectives import Grid, all_reduce, gathered, scattered, summed
from cistern.torch.parallel.modes import Line, cuts
from cistern.torch.parallel.parameters import block, local

IGNORED = -100  #: A label that has no loss, as in torch.


def _found(
    ids: torch.Tensor, first: int, length: int, known: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which of ``ids`` this rank has, and where; 0 for others, and ``length`` for what is not ``known``.

    A look-up with that fails, on any device, as it does in a model that is not divided.
    """
    there = (ids >= first) & (ids < first + length)
    return there, (ids - first).where(there, 0).where(known, length)


class Embedding(nn.Module):
    """Rows of a table [vocabulary, width], as a product of which the vocabulary is K.

    Each rank looks up the rows that it has. What is cut by K is then reduce-scattered, so that its
    output is this rank's block of what is between blocks of the model.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        grid: Grid,
        lines: Sequence[Line],
        *,
        tokens: int = 0,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        self.grid, self.tokens, self.padding_idx = grid, tokens, padding_idx
        self.num_embeddings, self.embedding_dim = weight.shape
        self._lines = lines
        by_dim = cuts(lines, "W")
        # The vocabulary may be cut in any order, and DTensor has that of the mesh.
        vocabulary = sorted(by_dim["K"], key=grid.axes.index)
        self._splits = [axis for axis in vocabulary if self._splits_of(axis) == "K"]
        self.weight = block(weight, grid, [vocabulary, by_dim["N"]])

    def _splits_of(self, axis: str) -> str:
        return next(line.splits for line in self._lines if line.axis == axis)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return this rank's block for ``ids`` of the whole batch. The row ``padding_idx`` has no gradient.

        ValueError: its rows do not divide. IndexError: the table does not have one of ``ids``.
        """
        weight = local(self.weight)
        first, length = self.grid.range_of(self.num_embeddings, self._splits)
        own_rows = [line.axis for line in self._lines if line.splits == "M"]
        if own_rows:
            ids = self.grid.rows_of(ids, self.tokens, own_rows)
            for line in self._lines:
                if line.splits == "M" and line.shares == "K":
                    weight = gathered(weight, 0, self.grid, line.axis, length)
        there, at = _found(ids, first, length, (ids >= 0) & (ids < self.num_embeddings))
        padding = None if self.padding_idx is None else self.padding_idx - first
        if padding is not None and not 0 <= padding < length:
            padding = None
        rows = nn.functional.embedding(at, weight, padding) * there.unsqueeze(-1)
        for line in self._lines:
            if line.splits == "K" and line.shares == "M":
                rows = scattered(rows, self.tokens, self.grid, line.axis)
            elif line.splits == "K":
                rows = summed(rows, self.grid, [line.axis])
        return rows

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class _Losses(torch.autograd.Function):
    """-log softmax(logits)[label] of each row, whose logits [rows, part of the vocabulary] are cut."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        first: int,
        vocabulary: int,
        groups: list[Any],
    ) -> torch.Tensor:
        high = logits.float()
        largest = high.amax(-1, keepdim=True)
        for group in groups:
            largest = all_reduce(largest, group, dist.ReduceOp.MAX)
        powers = (high - largest).exp_()
        counts = labels != IGNORED
        known = ((labels >= 0) & (labels < vocabulary)) | ~counts
        there, at = _found(labels, first, logits.shape[-1], known)
        there, at, counts = there.unsqueeze(-1), at.unsqueeze(-1), counts.unsqueeze(-1)
        of_label = (high.gather(-1, at) - largest) * there
        sums = torch.cat([powers.sum(-1, keepdim=True), of_label], -1)
        for group in groups:
            sums = all_reduce(sums, group)
        total, of_label = sums[..., :1], sums[..., 1:]
        ctx.save_for_backward(powers.div_(total), at, there, counts)
        ctx.dtype = logits.dtype
        losses: torch.Tensor = ((total.log() - of_label) * counts).squeeze(-1)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        softmax, at, there, counts = ctx.saved_tensors
        out = softmax * counts
        out.scatter_add_(-1, at, -there.to(out.dtype))
        return (out * grad.unsqueeze(-1)).to(ctx.dtype), None, None, None, None


class CrossEntropy(nn.Module):
    """The mean loss of a batch, the same in all ranks. Three scalars of each token travel.

    ``width`` are the axes that cut the vocabulary of the logits, and ``rows`` those of their tokens.
    """

    def __init__(
        self,
        vocabulary: int,
        grid: Grid,
        width: Sequence[str],
        rows: Sequence[str],
        *,
        tokens: int = 0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.grid, self.tokens = vocabulary, grid, tokens
        self._width, self._rows = tuple(width), tuple(rows)

    def forward(
        self, logits: torch.Tensor, labels: torch.Tensor, n_labels: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Return the sum of the losses by ``n_labels``; None: by those of ``labels`` that count.

        ``labels`` are those of the whole batch, and ``logits`` this rank's block. RuntimeError: the
        vocabulary does not have one of ``labels``.
        """
        n_counted = (labels != IGNORED).sum() if n_labels is None else n_labels
        mine = self.grid.rows_of(labels, self.tokens, self._rows)
        first, length = self.grid.range_of(self.vocabulary, self._width)
        groups = [self.grid.group(axis) for axis in self._width if self.grid.size(axis) > 1]
        losses = _Losses.apply(
            logits.reshape(-1, length), mine.reshape(-1), first, self.vocabulary, groups
        )
        return summed(losses.sum(), self.grid, self._rows) / n_counted
