# SPDX-License-Identifier: Apache-2.0
"""Nodes of the autograd graph that say when the backward pass of a unit begins and ends.

All inputs of a unit that need a gradient go through one Enter, all such outputs through one Leave.
A node runs once, when the gradients of all its outputs are there. In the backward pass, Leave is
therefore the first node of the unit, and Enter the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch


class Use(Protocol):
    """One run of a unit in a forward pass."""

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...


class Leave(torch.autograd.Function):
    """The identity. Its backward pass calls ``use.backward_begins``."""

    @staticmethod
    def forward(ctx: Any, use: Use, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.use = use
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.use.backward_begins()
        return (None, *grads)


class Enter(torch.autograd.Function):
    """The identity. Its backward pass calls ``use.backward_ends``."""

    @staticmethod
    def forward(ctx: Any, use: Use, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.use = use
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.use.backward_ends()
        return (None, *grads)


def needing_grad(value: Any) -> list[torch.Tensor]:
    """Return the tensors in ``value`` that need a gradient, each once.

    Tuples, lists and dictionaries are looked into; other objects, such as a cache of keys and
    values, are not.
    """
    found: dict[int, torch.Tensor] = {}
    for tensor in _tensors(value):
        if tensor.requires_grad:
            found[id(tensor)] = tensor
    return list(found.values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def replaced(value: Any, new: dict[int, torch.Tensor]) -> Any:
    """Return ``value`` with the tensors of ``new`` in place of those whose ids are its keys."""
    if isinstance(value, torch.Tensor):
        return new.get(id(value), value)
    if isinstance(value, tuple):
        items = [replaced(item, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [replaced(item, new) for item in value]
    if isinstance(value, dict):
        return _replaced_in_dict(value, new)
    return value


def _replaced_in_dict(value: dict[Any, Any], new: dict[int, torch.Tensor]) -> dict[Any, Any]:
    """A subclass, such as the output of a model, is changed in place: it can have attributes."""
    result = dict(value) if type(value) is dict else value
    for key, item in list(result.items()):
        changed = replaced(item, new)
        if changed is not item:
            result[key] = changed
    return result
