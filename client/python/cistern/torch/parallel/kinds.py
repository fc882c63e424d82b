# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are the ones that this package has a divided form of."""

from __future__ import annotations

import copy

import torch
from torch import nn

_N_ROWS = 3


def is_plain_table(module: nn.Embedding) -> bool:
    """Return whether ``module`` does nothing but look up rows."""
    return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse


def eps_of_rms_norm(name: str, module: nn.Module) -> float:
    """Return eps of a module that computes what ``norms.RMSNorm`` does.

    Many classes of this name do not: some add one to the weight, or take another input. So the module is
    tried, with a weight and rows of random numbers. TypeError: it computes something else.
    """
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if isinstance(eps, float) and _computes_rms_norm(module, eps):
        return eps
    raise TypeError(
        f"cistern: '{name}' is a {type(module).__name__}, which does not compute"
        " x / sqrt(mean(x^2) + eps) * weight: no mode can divide it"
    )


def _computes_rms_norm(module: nn.Module, eps: float) -> bool:
    """Return whether the module, which can be on the meta device, and has one weight, computes it."""
    weights = list(module.parameters())
    if [w is module.weight and w.dim() == 1 for w in weights] != [True]:
        return False
    generator = torch.Generator().manual_seed(3)
    tried = copy.deepcopy(module).to("meta").to_empty(device="cpu").float()
    weight = torch.randn(weights[0].shape, generator=generator, device="cpu")
    x = torch.randn((_N_ROWS, *weight.shape), generator=generator, device="cpu")
    with torch.no_grad():
        next(tried.parameters()).copy_(weight)
        try:
            y = tried(x)
        except (TypeError, ValueError, RuntimeError):
            return False
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return isinstance(y, torch.Tensor) and torch.allclose(y, expected, rtol=1e-4, atol=1e-5)
