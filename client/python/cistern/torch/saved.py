# SPDX-License-Identifier: Apache-2.0
"""Activations that are in host memory until the backward pass."""

from __future__ import annotations

from typing import Any

import torch

from cistern.torch.storage import is_lent


class save_on_cpu(torch.autograd.graph.saved_tensors_hooks):
    """As ``torch.autograd.graph.save_on_cpu``, but weights of a store are not copied.

    They are in memory when the backward pass uses them anyway.
    """

    def __init__(self, pin_memory: bool = False) -> None:
        plain: Any = torch.autograd.graph.save_on_cpu(pin_memory)

        def pack(tensor: torch.Tensor) -> Any:
            return tensor if is_lent(tensor) else plain.pack_hook(tensor)

        def unpack(packed: Any) -> Any:
            return packed if isinstance(packed, torch.Tensor) else plain.unpack_hook(packed)

        super().__init__(pack, unpack)
