# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that ranks share: a ring, along which keys and values travel.

Each rank has the queries, keys and values of two chunks of the sequence: of 2 P chunks the i-th and
the i-th from the end (zigzag), so that all ranks have as much to compute with a causal mask. Parts of
a row's softmax are joined by their logarithms of sums (online softmax), so that no rank has more of
the scores than a tile.

In the backward pass keys and values travel once more, and their gradients with them, to the rank
that has these. A block comes to its own rank last, so that its gradients are there then. Each rank
receives 2 (P - 1) blocks in the forward pass and 4 (P - 1) in the backward pass: with as many heads of
keys as of queries, 6 (P - 1) / P M h elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from cistern.torch.parallel.collectives import rotate

TILE = 256  #: Queries, and keys, whose scores are in memory at a time.


def positions(rank: int, n_ranks: int, length: int) -> torch.Tensor:
    """Return where in a sequence of ``length`` the tokens of ``rank`` are.

    ValueError: the sequence does not divide into two chunks for each rank.
    """
    if length % (2 * n_ranks):
        raise ValueError(
            f"cistern: a sequence of {length} tokens cannot be shared by {n_ranks} ranks: give a"
            f" multiple of {2 * n_ranks}"
        )
    chunk = length // (2 * n_ranks)
    at = torch.arange(chunk)
    return torch.cat([rank * chunk + at, (2 * n_ranks - 1 - rank) * chunk + at])


class _Place:
    """What a rank has in the ring, and which parts of the scores a causal mask leaves."""

    def __init__(self, group: dist.ProcessGroup, length: int, causal: bool) -> None:
        self.group, self.n, self.rank, self.causal = group, group.size(), group.rank(), causal
        self._length = length * self.n
        self._mine = positions(self.rank, self.n, self._length)

    def tiles(self, owner: int) -> Iterator[tuple[slice, slice, torch.Tensor | None]]:
        """Return the queries, keys, and mask of tiles with the keys of ``owner`` that count.

        A tile is within a chunk, whose positions follow each other. The mask is True where a query
        sees no key; None: each sees all.
        """
        theirs = positions(owner, self.n, self._length)
        for q in self._slices():
            for k in self._slices():
                q_at, k_at = self._mine[q], theirs[k]
                if self.causal and q_at[-1] < k_at[0]:
                    continue
                hides = self.causal and bool(q_at[0] < k_at[-1])
                yield q, k, q_at[:, None] < k_at[None, :] if hides else None

    def _slices(self) -> Iterator[slice]:
        chunk = len(self._mine) // 2
        for first in (0, chunk):
            for at in range(first, first + chunk, TILE):
                yield slice(at, min(at + TILE, first + chunk))


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> torch.Tensor:
    """Return the scores [batch, heads of keys, queries of each, rows, keys] in fp32."""
    scores = (q @ k.unsqueeze(2).transpose(-1, -2)).float() * scale
    if hidden is not None:
        scores.masked_fill_(hidden.to(scores.device), -torch.inf)
    return scores


class _Ring(torch.autograd.Function):
    """Attention of q [batch, heads of keys, queries of each, rows, d] to k and v [batch, heads, rows, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        place: _Place,
        scale: float,
    ) -> torch.Tensor:
        out = torch.zeros_like(q, dtype=torch.float32)
        log_sums = q.new_full((*q.shape[:-1], 1), -torch.inf, dtype=torch.float32)
        block = [k, v]
        for hop in range(place.n):
            for rows, columns, hidden in place.tiles((place.rank - hop) % place.n):
                scores = _scores(q[..., rows, :], block[0][..., columns, :], scale, hidden)
                log_sum = scores.logsumexp(-1, keepdim=True)
                before = log_sums[..., rows, :]
                after = torch.logaddexp(before, log_sum)
                weights = scores.sub_(after).exp_().to(q.dtype)
                part = (weights @ block[1][..., columns, :].unsqueeze(2)).float()
                out[..., rows, :] = out[..., rows, :] * (before - after).exp() + part
                log_sums[..., rows, :] = after
            if hop < place.n - 1:
                block = rotate(block, place.group)
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, log_sums)
        ctx.place, ctx.scale = place, scale
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, out, log_sums = ctx.saved_tensors
        place, n = ctx.place, ctx.place.n
        dq = torch.zeros_like(q, dtype=torch.float32)
        # What softmax takes from the gradient of each score of a row.
        taken = (grad.float() * out.float()).sum(-1, keepdim=True)
        block, grads = [k, v], [torch.zeros_like(x) for x in (k, v)]
        for hop in range(1, n + 1):  # The block of this rank itself comes last.
            if hop < n:
                block = rotate(block, place.group)
            else:
                block = [k, v]
            if hop > 1:
                grads = rotate(grads, place.group)
            parts = [torch.zeros_like(x, dtype=torch.float32) for x in block]
            for rows, columns, hidden in place.tiles((place.rank - hop) % n):
                tile_q, tile_k = q[..., rows, :], block[0][..., columns, :]
                tile_grad = grad[..., rows, :]
                weights = _scores(tile_q, tile_k, ctx.scale, hidden)
                weights = weights.sub_(log_sums[..., rows, :]).exp_()
                of_weights = (tile_grad @ block[1][..., columns, :].unsqueeze(2).mT).float()
                of_scores = weights * (of_weights - taken[..., rows, :]) * ctx.scale
                of_scores = of_scores.to(q.dtype)
                dq[..., rows, :] += (of_scores @ tile_k.unsqueeze(2)).float()
                parts[0][..., columns, :] += (of_scores.mT @ tile_q).float().sum(2)
                parts[1][..., columns, :] += (weights.to(q.dtype).mT @ tile_grad).float().sum(2)
            grads = [(g + part).to(g.dtype) for g, part in zip(grads, parts, strict=True)]
        return dq.to(q.dtype), grads[0], grads[1], None, None


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    scale: float | None = None,
    causal: bool = True,
) -> torch.Tensor:
    """Return the attention of this rank's queries, [batch, heads, rows, d], to all keys.

    The rows are those of ``positions``. There can be fewer heads of ``k`` and ``v``, of which each
    serves as many of ``q``. ValueError: they do not divide.
    """
    n, n_keys = q.shape[1], k.shape[1]
    if n % n_keys:
        raise ValueError(f"cistern: {n} heads of queries do not divide by {n_keys} heads of keys")
    place = _Place(group, q.shape[2], causal)
    of_heads = q.reshape(q.shape[0], n_keys, n // n_keys, *q.shape[2:])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out: torch.Tensor = _Ring.apply(of_heads, k, v, place, scale)
    return out.flatten(1, 2)
