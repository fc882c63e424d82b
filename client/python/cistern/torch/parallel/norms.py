# SPDX-License-Identifier: Apache-2.0
"""Norms of activations whose width is cut by axes of a mesh.

Only the statistics travel: of each token one scalar (RMSNorm) or two (LayerNorm) are all-reduced in
the forward pass, and their gradients in the backward pass. The gradients of the weights are summed
over the axes that cut the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cistern.torch.parallel.collectives import Grid, copied, summed
from cistern.torch.parallel.parameters import block, local


class _Norm(nn.Module):
    """What both norms have: the weight, the bias if there is one, and sums over all of the width."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        grid: Grid,
        width: Sequence[str],
        rows: Sequence[str],
        eps: float,
    ) -> None:
        super().__init__()
        self.grid, self.eps = grid, eps
        self._width, self._rows = tuple(width), tuple(rows)
        self._length = weight.shape[-1]
        self.weight = block(weight, grid, [self._width])
        self.bias = None if bias is None else block(bias, grid, [self._width])

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean over all of the width of each token. Each rank uses it in its own way."""
        total = x.sum(-1, keepdim=True)
        return copied(summed(total, self.grid, self._width), self.grid, self._width) / self._length

    def _scaled(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        y = copied(local(self.weight), self.grid, self._rows) * x.to(dtype)
        if self.bias is not None:
            y = y + copied(local(self.bias), self.grid, self._rows)
        return y

    def extra_repr(self) -> str:
        return f"{self._length}, eps={self.eps}"


class RMSNorm(_Norm):
    """y = x / sqrt(mean(x^2) + eps) * weight, computed in fp32 as transformers does.

    ``width`` are the axes that cut the last dimension, and ``rows`` those along which ranks have
    other tokens, or other heads with one weight.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        grid: Grid,
        width: Sequence[str],
        rows: Sequence[str],
        eps: float,
    ) -> None:
        super().__init__(weight, None, grid, width, rows, eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = x.float()
        high = high * torch.rsqrt(self._mean(high.square()) + self.eps)
        return self._scaled(high, x.dtype)


class LayerNorm(_Norm):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias. ``width`` and ``rows``: see RMSNorm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = x.float()
        high = high - self._mean(high)
        high = high * torch.rsqrt(self._mean(high.square()) + self.eps)
        return self._scaled(high, x.dtype)
