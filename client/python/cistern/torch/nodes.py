# SPDX-License-Identifier: Apache-2.0
"""Nodes of the autograd graph that say when the backward pass of a unit begins and ends.

All inputs of a unit that need a gradient go through one Enter, all such outputs through one Leave.
So do the inputs once more, because the module can have kept them for later.
A node runs once, when the gradients of all its outputs are there. In the backward pass, Leave is
therefore the first node of the unit. Enter is the last one, because autograd runs the node that was
made last among those that can run. A token goes from Enter to Leave, so that Enter runs although no
input needs a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

import torch

Ref = ref[torch.Tensor]
_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_NO_FUNCTION = torch._C._disabled_torch_function_impl


class Runner(Protocol):
    """What runs units."""

    def backward_begins(self, use: Any, grads: tuple[torch.Tensor | None, ...]) -> None: ...

    def backward_ends(self, use: Any) -> None: ...


class Use(Protocol):
    """One run of a unit in a forward pass."""

    #: The tensors that have the Leave as their own history, and their views that went through it, if alive.
    left: Sequence[Ref]

    @property
    def name(self) -> str:
        """That of the module."""

    @property
    def zero(self) -> torch.Tensor:
        """The gradient of a token. It is on the device of the parameters, where nodes have their turn."""

    @property
    def runner(self) -> Runner:
        """What is told of its backward pass."""


class _Node(torch.autograd.Function):
    """A function without forward-mode derivatives, which says so in words."""

    @staticmethod
    def jvp(_: Any, *__: Any) -> Any:
        raise RuntimeError(_FORWARD_MODE)


class Leave(_Node):
    """The identity of ``tensors``. Its backward pass calls ``backward_begins`` of the runner.

    ``token`` is that of Enter; None: the unit has no Enter. The first ``n_own`` tensors get the new
    history themselves, as by a change in place, and are returned. For each other one there is a tensor
    with the same memory, so that its hooks stay where they are in the graph. If it is a view, such as
    the parts that ``chunk`` returns, autograd refuses to change it in place, and refuses its use after
    a change of its base.
    """

    @staticmethod
    def forward(
        ctx: Any, use: Use, token: torch.Tensor | None, n_own: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.use = use
        ctx.has_token = token is not None
        ctx.set_materialize_grads(False)
        own = tensors[:n_own]
        ctx.mark_dirty(*own)
        return tensors if n_own == len(tensors) else (*own, *map(_alias, tensors[n_own:]))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        use = ctx.use
        use.runner.backward_begins(use, grads)
        return (None, use.zero if ctx.has_token else None, None, *grads)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    is_bound = tensor._is_view() or tensor.is_leaf
    return tensor.view_as(tensor) if is_bound else tensor.detach()


class Enter(_Node):
    """The identity of ``anchor``, a scalar that gets no gradient, and ``tensors``.

    One of them must need a gradient, so that the token does. Its backward pass calls
    ``backward_ends`` of the runner. The output for ``anchor`` is the token.
    """

    @staticmethod
    def forward(
        ctx: Any, use: Use, anchor: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.use = use
        ctx.set_materialize_grads(False)
        return (
            anchor.detach(),
            *(t.detach() if type(t) is torch.Tensor else _detached(t) for t in tensors),
        )

    @staticmethod
    def backward(ctx: Any, _: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        use = ctx.use
        use.runner.backward_ends(use)
        return (None, None, *grads)


def is_of_subclass(tensor: torch.Tensor) -> bool:
    """Return whether what is computed of ``tensor`` is of its class, as not of that of parameters."""
    kind = type(tensor)
    return kind is not torch.Tensor and kind.__torch_function__ is not _NO_FUNCTION


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor.detach()``, which is no view. That of a subclass of Tensor can be one."""
    kind: Any = type(tensor)
    if not is_of_subclass(tensor) or kind.__torch_dispatch__ is not _NO_DISPATCH:
        return tensor.detach()
    other: torch.Tensor = kind._make_subclass(kind, tensor)
    other.__dict__.update(tensor.__dict__)
    return other


class Change(_Node):
    """Gives ``tensor`` the history of ``new``, as a change in place does.

    Both have the same memory, which has changed already.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        ctx.is_view = tensor._is_view()
        return tensor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        # Of a view, autograd needs a gradient in numbers: with None, the rest of its base has none.
        return torch.zeros_like(grad) if ctx.is_view else None, grad


class Void(_Node):
    """The end of the history of ``tensors``. Its backward pass raises RuntimeError with the text ``words``.

    ``anchor`` needs a gradient, so that they do.
    """

    @staticmethod
    def forward(
        ctx: Any, words: str, anchor: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.words = words
        ctx.mark_dirty(*tensors)
        return tensors

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(ctx.words)


class Copy(_Node):
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


_FORWARD_MODE = (
    "cistern: a model whose weights are in a store has no forward-mode derivatives (torch.autograd.forward_ad)"
    " while gradients are recorded: use torch.no_grad() where only the derivative is needed, or name the"
    " module that calls dual_level and all modules that it uses in units= of attach"
)
