# SPDX-License-Identifier: Apache-2.0
"""Nodes of the autograd graph that say when the backward pass of a unit begins and ends.

All inputs of a unit that need a gradient go through one Enter, all such outputs through one Leave.
A node runs once, when the gradients of all its outputs are there. In the backward pass, Leave is
therefore the first node of the unit. Enter is the last one, because autograd runs the node that was
made last among those that can run. A token goes from Enter to Leave, so that Enter runs although no
input needs a gradient.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from cistern.torch.storage import has_memory, is_lent


class Use(Protocol):
    """One run of a unit in a forward pass."""

    @property
    def zero(self) -> torch.Tensor:
        """The gradient of a token. It is on the device of the parameters, where nodes have their turn."""

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...


class Leave(torch.autograd.Function):
    """The identity of ``tensors``. Its backward pass calls ``use.backward_begins``.

    ``token`` is that of Enter; None: the unit has no Enter.
    """

    @staticmethod
    def forward(
        ctx: Any, use: Use, token: torch.Tensor | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.use = use
        ctx.has_token = token is not None
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.use.backward_begins()
        return (None, ctx.use.zero if ctx.has_token else None, *grads)


class Enter(torch.autograd.Function):
    """The identity of ``anchor``, a scalar that gets no gradient, and ``tensors``.

    One of them must need a gradient, so that the token does. Its backward pass calls ``use.backward_ends``. The output for ``anchor`` is the token.
    """

    @staticmethod
    def forward(
        ctx: Any, use: Use, anchor: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.use = use
        ctx.set_materialize_grads(False)
        return (anchor.detach(), *(tensor.detach() for tensor in tensors))

    @staticmethod
    def backward(ctx: Any, _: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.use.backward_ends()
        return (None, None, *grads)


class Copy(torch.autograd.Function):
    """The identity, in memory of its own.

    The strides remain: with others, as those of ``clone``, functions can have other code, whose sums
    have another order.
    """

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((n - 1) * step for n, step in steps) if tensor.numel() else 0
        memory = tensor.detach().as_strided((span,), (1,)).clone()
        return memory.as_strided(tensor.shape, tensor.stride())

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


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


def copies_of_lent(value: Any) -> dict[int, torch.Tensor]:
    """Return copies of the tensors in ``value`` that have memory lent to a parameter, by their ids.

    Such a tensor is a parameter or a view of one. It loses its memory when its unit is closed.
    """
    return {
        id(tensor): Copy.apply(tensor)
        for tensor in _tensors(value)
        if is_lent(tensor) and has_memory(tensor.untyped_storage())
    }


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _find_tensors(value, found)
    return found


def _find_tensors(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, (tuple, list)):
        for item in value:
            _find_tensors(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _find_tensors(item, found)
    elif isinstance(value, torch.Tensor):
        found.append(value)


def replaced(value: Any, new: dict[int, torch.Tensor]) -> Any:
    """Return ``value`` with the tensors of ``new`` in place of those whose ids are its keys."""
    if isinstance(value, tuple):
        items = [replaced(item, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [replaced(item, new) for item in value]
    if isinstance(value, dict):
        return _replaced_in_dict(value, new)
    return new.get(id(value), value)


def _replaced_in_dict(value: dict[Any, Any], new: dict[int, torch.Tensor]) -> dict[Any, Any]:
    """A subclass, such as the output of a model, is changed in place: it can have attributes."""
    result = dict(value) if type(value) is dict else value
    for key, item in list(result.items()):
        changed = replaced(item, new)
        if changed is not item:
            result[key] = changed
    return result
