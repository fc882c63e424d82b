# SPDX-License-Identifier: Apache-2.0
"""Whether ranks that have the same elements of a parameter compute the same gradient.

The ranks of a mesh, over which parameters are divided, have the others whole, and one of them hands in
their gradients. This is right if all compute the same gradient, as in a model that is right in plain torch:
there, each rank updates its own copy, and the copies stay equal. It is wrong if a sum over the mesh was
forgotten, of which plain torch says nothing. The first step therefore compares the norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from cistern.torch import shards

if TYPE_CHECKING:
    from cistern.torch.lending import Tensor

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}  # Relative; the order of sums can differ.


class Replicas:
    """Notes gradients of ``tensors`` until the first step."""

    def __init__(self, tensors: Iterable[Tensor], meshes: Sequence[tuple[int, ...]]) -> None:
        self._meshes = meshes  # Of this rank, over which parameters are divided.
        self._squares: dict[str, float] = {}
        self._tensors = [t for t in tensors if t.trains and t.use.box.is_whole]
        for tensor in self._tensors:
            tensor.replicas = self

    def note(self, tensor: Tensor, grad: torch.Tensor) -> None:
        """Note what autograd has computed for ``tensor``, unless ranks add parts of it."""
        if shards.is_part_of_sum(grad) or grad.is_sparse:
            return
        norm = float(shards.local(grad.detach()).float().norm())
        self._squares[tensor.name] = self._squares.get(tensor.name, 0.0) + norm * norm

    def forget(self) -> None:
        """Forget what was noted: the step is computed again."""
        self._squares.clear()

    def check(self) -> None:
        """Compare what was noted on all ranks, which call this. RuntimeError: ranks of a mesh differ."""
        for tensor in self._tensors:
            tensor.replicas = None
        found: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(found, self._squares)
        tolerance = {tensor.name: _TOLERANCE[tensor.lent.dtype] for tensor in self._tensors}
        for mesh in self._meshes:
            for name in self._squares:
                norms = {rank: math.sqrt(found[rank][name]) for rank in mesh if name in found[rank]}
                least, most = min(norms.values()), max(norms.values())
                if most - least > tolerance[name] * most:
                    raise RuntimeError(_DIFFER.format(name, _in_words(norms)))


def _in_words(norms: dict[int, float]) -> str:
    return ", ".join(f"{norm:.6g} on rank {rank}" for rank, norm in norms.items())


_DIFFER = (
    "cistern: the ranks over which other parameters are divided have '{0}' whole, and compute different"
    " gradients of it: their norm is {1}. If each has a part of the sum, sum them before the daemon has them, such"
    " as by a hook (parameter.register_post_accumulate_grad_hook) that calls all_reduce on parameter.grad, or"
    " let the parameter be a DTensor, whose gradient says that it is one (Partial). If the ranks compute"
    " with other data, as in expert parallelism over data ranks, give attach replicas='sum'"
)
