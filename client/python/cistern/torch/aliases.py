# SPDX-License-Identifier: Apache-2.0
"""Tensors that have the same memory when a module has ended: those it has kept and those it returns.

A tensor that a module returns is the same object that it may have kept, and gets the history of
Leave as by a change in place. Autograd then knows that kept and returned tensors, and views of them,
have the same memory, and gives each of them the changes of the others, as with plain torch.

What a module was given is another object than that of its caller, because Enter is between them.
Autograd cannot tell one of them of changes of the other, so that these are looked for here.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from cistern.torch.nodes import Change, Leave, Use

_autograd: Any = torch._C._autograd
_get_rule, _set_rule = _autograd._get_creation_meta, _autograd._set_creation_meta
_ANY_CHANGE = _autograd.CreationMeta.DEFAULT
_set_versions = _autograd._unsafe_set_version_counter
_preserve_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
_NO_MEMORY = torch.empty(0)

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


class Input:
    """A tensor that a module was given, as it is when the module has ended."""

    __slots__ = ("_counter", "_history", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor, history: Any) -> None:
        self._tensor = weakref.ref(tensor)
        self._history = id(history)  # A node that lives as long as the use of the unit.
        self._counter = _counter_of(tensor)
        self._version = self._counter._version

    def has_changed(self) -> bool:
        """Whether its memory was changed in place since, by whomever."""
        return self._counter._version != self._version

    def has_other_history(self) -> bool:
        """Whether it was changed in place itself, so that the tensor of the caller lacks the change."""
        if not self.has_changed():
            return False
        tensor = self._tensor()
        return tensor is not None and id(tensor.grad_fn) != self._history


class Leaving:
    """The tensors that go through a Leave when a module ends.

    ``entered`` are the inputs before and after the Enter; ``changed`` are tensors of the caller, each
    with what the module has changed in its stead. ``outputs`` need a gradient.
    """

    def __init__(self, entered: Pairs, changed: Pairs, outputs: list[torch.Tensor]) -> None:
        self._kept = [tensor for _, tensor in entered]
        self._own = {id(tensor): tensor for tensor in self._kept}
        self._views: list[torch.Tensor] = []  # Of those, to be told of their new history.
        self._others: list[torch.Tensor] = []  # Which a tensor of the same memory stands in for.
        self._changed = [pair for pair in changed if pair[0] is not pair[1]]
        alike = [tensor for own, tensor in changed if own is tensor]
        if self._kept:
            self._add_returned_inputs(entered, outputs)
        self._add(outputs + alike if alike else outputs)

    def _add_returned_inputs(self, entered: Pairs, outputs: list[torch.Tensor]) -> None:
        """Let the caller have its own tensor again where the module returns it."""
        known = {id(tensor) for _, tensor in self._changed}
        returned = set(map(id, outputs))
        for own, tensor in entered:
            if id(tensor) in returned and id(tensor) not in known and _can_change(own):
                self._changed.append((own, tensor))

    def _add(self, outputs: list[torch.Tensor]) -> None:
        bound = []
        for tensor in outputs:
            if not _can_change(tensor):
                bound.append(tensor)
            elif tensor._is_view():
                self._own.setdefault(id(tensor._base), tensor._base)  # type: ignore[arg-type]
                self._views.append(tensor)
            else:
                self._own[id(tensor)] = tensor
        for tensor in bound:
            is_of_own = tensor._is_view() and id(tensor._base) in self._own
            (self._views if is_of_own else self._others).append(tensor)

    def leave(self, use: Use, token: torch.Tensor | None) -> dict[int, torch.Tensor]:
        """Apply Leave. Return what the caller gets instead of the tensors with these ids."""
        own = tuple(self._own.values())
        versions = tuple([tensor._version for tensor in own])
        others = [tensor for _, tensor in self._changed] + self._others
        left = Leave.apply(use, token, len(own), *own, *others)
        for view in self._views:
            _follow(view)
        _set_versions(own, versions)  # Saved tensors have not changed.
        for view in self._views:
            _follow(view)
        if not others:
            return {}
        n_own, n_changed = len(own), len(self._changed)
        new = {id(t): alias for t, alias in zip(others, left[n_own:], strict=True)}
        for (tensor, _), alias in zip(self._changed, left[n_own : n_own + n_changed], strict=True):
            with _preserve_version(tensor):
                Change.apply(tensor, alias)
        new.update((id(tensor), before) for before, tensor in self._changed)
        return new

    def inputs(self) -> list[Input]:
        """Return the inputs, in the order in which they went through the Leave, as the first ones."""
        return [Input(tensor, tensor.grad_fn) for tensor in self._kept]


def _can_change(tensor: torch.Tensor) -> bool:
    """Return whether autograd allows a change in place, which gives the tensor another history."""
    if not tensor._is_view():
        return not tensor.is_leaf
    base: Any = tensor._base
    return _get_rule(tensor) == _ANY_CHANGE and base.requires_grad and not base.is_leaf


def _follow(view: torch.Tensor) -> None:
    """Let ``view`` have a history of that of its base. Autograd makes it when it is asked for."""
    rule = _get_rule(view)
    _set_rule(view, _ANY_CHANGE)
    try:
        _ = view.grad_fn
    finally:
        _set_rule(view, rule)


def _counter_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that counts the changes of ``tensor``, if possible without its memory."""
    counter = tensor.detach()
    if counter.layout == torch.strided:
        counter.data = _NO_MEMORY
    return counter
