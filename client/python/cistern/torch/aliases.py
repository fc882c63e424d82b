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
from collections.abc import Iterable
from typing import Any

import torch

from cistern.torch.nodes import Change, Leave, Use, Void, is_of_subclass
from cistern.torch.storage import private

_autograd: Any = torch._C._autograd
_get_rule = private(_autograd, "_get_creation_meta")
_set_rule = private(_autograd, "_set_creation_meta")
_Rule = private(_autograd, "CreationMeta")
_ANY_CHANGE = _Rule.DEFAULT
_NO_CHANGE = _Rule.MULTI_OUTPUT_NODE  # Autograd's error says what to do instead.
_set_versions = private(_autograd, "_unsafe_set_version_counter")
_preserve_version = private(torch.autograd, "_unsafe_preserve_version_counter")
_NO_MEMORY = torch.empty(0)
_STRIDED = torch.strided
_weak = weakref.ref

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


class Input:
    """A tensor that a module was given, as it is when the module has ended.

    Its memory was changed in place since if ``counter._version`` is not ``version`` any more.
    """

    __slots__ = ("_history", "_hooks", "_tensor", "counter", "version")

    def __init__(self, tensor: torch.Tensor, history: int) -> None:
        self._tensor = _weak(tensor)
        self._hooks = tensor._backward_hooks
        self._history = history  # The id of a node that lives as long as the use of the unit.
        plain = type(tensor) is torch.Tensor
        self.counter = counter = tensor.detach() if plain else _detached_as_plain(tensor)
        self.version: int = counter._version
        if counter.layout == _STRIDED and type(counter) is torch.Tensor:
            counter.data = _NO_MEMORY  # Only the version counter is wanted.

    def has_other_history(self) -> bool:
        """Whether it was changed in place itself, so that the tensor of the caller lacks the change."""
        tensor = self._tensor()
        return tensor is not None and id(tensor.grad_fn) != self._history

    def check_not_watched(self, use: Use) -> None:
        """Raise RuntimeError if a hook was given to it, which would not see the gradient in the module."""
        tensor = self._tensor()
        if tensor is not None and (
            tensor._backward_hooks is not self._hooks or tensor.retains_grad
        ):
            raise RuntimeError(_INPUT_WATCHED.format(use.name))


def leave(
    use: Use,
    token: torch.Tensor | None,
    entered: tuple[list[torch.Tensor], list[torch.Tensor]],
    changed: Pairs,
    outputs: list[torch.Tensor],
) -> dict[int, torch.Tensor]:
    """Let tensors go through a Leave. Return what the caller gets instead of those with these ids.

    ``entered`` are the inputs before and after the Enter: the latter are the first ones of the Leave.
    ``changed`` are tensors of the caller, each with what the module has changed in its stead.
    ``outputs`` need a gradient.
    """
    kept = entered[1]
    for tensor in kept:
        if tensor.retains_grad:
            raise RuntimeError(_INPUT_WATCHED.format(use.name))
    if not changed and _are_plain(outputs, kept):
        _leave_in_place(use, token, (*kept, *outputs), ())
        return {}
    with torch._C.DisableTorchFunctionSubclass():  # Else these return views of what they ask for.
        new = _Leaving(use, entered, changed, outputs).leave(token)
    for tensor in outputs:
        made = new.get(id(tensor))
        if made is not None and type(made) is torch.Tensor and is_of_subclass(tensor):
            new[id(tensor)] = _of_class_of(tensor, made)
    return new


def inputs_of(kept: list[torch.Tensor]) -> list[Input]:
    """Return the inputs ``kept``, which have gone through the Leave."""
    history = id(kept[0].grad_fn)
    return [Input(tensor, history) for tensor in kept]


def _are_plain(outputs: list[torch.Tensor], kept: list[torch.Tensor]) -> bool:
    """Return whether ``outputs`` can change in place: they are neither views, leaves nor inputs."""
    for tensor in outputs:
        if tensor.is_leaf or tensor._is_view() or tensor.retains_grad:
            return False
        for other in kept:
            if tensor is other:
                return False
    return True


def _leave_in_place(
    use: Use,
    token: torch.Tensor | None,
    own: tuple[torch.Tensor, ...],
    others: tuple[torch.Tensor, ...],
    views: Iterable[torch.Tensor] = (),
) -> tuple[torch.Tensor, ...]:
    """Apply Leave to ``own``, of which ``views`` are, and return tensors that stand in for ``others``."""
    versions = [tensor._version for tensor in own]
    left: tuple[torch.Tensor, ...] = Leave.apply(use, token, len(own), *own, *others)
    use.left = [*map(_weak, own), *map(_weak, views)] if views else list(map(_weak, own))
    for view in views:
        _ = view.grad_fn  # Autograd makes it when it is asked for, because the version is another.
    _set_versions(own, versions)  # Saved tensors have not changed.
    for view in views:
        _ = view.grad_fn
    return left[len(own) :]


def release(use: Use, anchor: torch.Tensor, words: str) -> None:
    """Free the graph of ``use``, which is void: its backward pass would raise RuntimeError with ``words``.

    A tensor that went through the Leave can be saved in the graph of the unit: a circle of references
    that only another history of the tensor ends. ``anchor`` is a leaf that needs a gradient.
    """
    alive = [tensor for ref in use.left if (tensor := ref()) is not None]
    use.left = ()
    own = [tensor for tensor in alive if not tensor._is_view()]
    views = [tensor for tensor in alive if tensor._is_view()]
    versions = [tensor._version for tensor in own]
    with torch.inference_mode(False), torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
        for tensor in own:
            tensor.detach_()
        Void.apply(words, anchor, *own)
        for view in views:
            _ = view.grad_fn  # Autograd makes it anew.
        _set_versions(own, versions)
        for view in views:
            _ = view.grad_fn


class _Leaving:
    """The tensors that go through a Leave when a module ends, as for ``leave``."""

    def __init__(
        self,
        use: Use,
        entered: tuple[list[torch.Tensor], list[torch.Tensor]],
        changed: Pairs,
        outputs: list[torch.Tensor],
    ) -> None:
        self._use = use
        self._own = {id(tensor): tensor for tensor in entered[1]}
        self._views: list[torch.Tensor] = []  # Of those, to be told of their new history.
        self._bound: list[torch.Tensor] = []  # Views of those that cannot be changed in place.
        self._others: Pairs = []  # Each with what goes through, of which the caller gets a view.
        self._changed = [pair for pair in changed if pair[0] is not pair[1]]
        self._add_returned_inputs(entered, outputs)
        self._add(outputs + [tensor for own, tensor in changed if own is tensor])

    def _add_returned_inputs(
        self, entered: tuple[list[torch.Tensor], list[torch.Tensor]], outputs: list[torch.Tensor]
    ) -> None:
        """Let the caller have its own tensor again where the module returns it."""
        known = {id(tensor) for _, tensor in self._changed}
        returned = set(map(id, outputs))
        for own, tensor in zip(*entered, strict=True):
            if id(tensor) in returned and id(tensor) not in known and _can_change(own):
                self._changed.append((own, tensor))

    def _add(self, outputs: list[torch.Tensor]) -> None:
        """Add ``outputs``, except views that have no history, as those made under ``no_grad``.

        A change of their base in place gives them none either.
        """
        outputs = [tensor for tensor in outputs if not (tensor._is_view() and tensor.is_leaf)]
        refused = []
        watched = {id(_base_of(tensor)) for tensor in outputs if _is_watched(tensor)}
        if not watched.isdisjoint(self._own):
            raise RuntimeError(_VIEW_OF_INPUT.format(self._use.name))
        for tensor in outputs:
            if watched and id(_base_of(tensor)) in watched:
                self._others.append((tensor, tensor.view_as(tensor)))
            elif not _can_change(tensor):
                refused.append(tensor)
            elif tensor._is_view():
                base: Any = tensor._base
                self._own.setdefault(id(base), base)
                self._views.append(tensor)
            else:
                self._own[id(tensor)] = tensor
        for tensor in refused:
            if tensor._is_view() and id(tensor._base) in self._own:
                self._bound.append(tensor)
            else:
                self._others.append((tensor, tensor))

    def leave(self, token: torch.Tensor | None) -> dict[int, torch.Tensor]:
        """Apply Leave. Return what the caller gets instead of the tensors with these ids."""
        n_changed = len(self._changed)
        others = (tensor for _, tensor in self._changed + self._others)
        left = _leave_in_place(
            self._use, token, tuple(self._own.values()), tuple(others), self._views
        )
        for (before, _), tensor in zip(self._changed, left[:n_changed], strict=True):
            with _preserve_version(before):
                Change.apply(before, tensor)
        new = {id(tensor): before for before, tensor in self._changed}
        for (tensor, _), other in zip(self._others, left[n_changed:], strict=True):
            rule = _get_rule(tensor) if tensor._is_view() else _ANY_CHANGE
            _set_rule(other, _NO_CHANGE if rule == _ANY_CHANGE else rule)
            new[id(tensor)] = other
        new.update((id(tensor), _other_view(tensor)) for tensor in self._bound)
        return new


def _of_class_of(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return ``made`` as one of the class of ``tensor``, with its attributes."""
    other: Any = made.as_subclass(type(tensor))
    other.__dict__.update(tensor.__dict__)
    result: torch.Tensor = other
    return result


def _detached_as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor.detach()``, which is of the class Tensor itself, if that of ``tensor`` allows it."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def _can_change(tensor: torch.Tensor) -> bool:
    """Return whether autograd allows a change in place, which gives the tensor another history."""
    if not tensor._is_view():
        return not tensor.is_leaf
    base: Any = tensor._base
    return _get_rule(tensor) == _ANY_CHANGE and base.requires_grad and not base.is_leaf


def _base_of(tensor: torch.Tensor) -> torch.Tensor:
    base: torch.Tensor | None = tensor._base
    return tensor if base is None else base


def _is_watched(tensor: torch.Tensor) -> bool:
    """Return whether the module has asked for a gradient that a change in place would take away.

    These are hooks of views, and retain_grad of ``tensor`` or of what it is a view of.
    """
    if not tensor._is_view():
        return tensor.retains_grad
    return (
        tensor.retains_grad or tensor._backward_hooks is not None or _base_of(tensor).retains_grad
    )


def _other_view(view: torch.Tensor) -> torch.Tensor:
    """Return a view with the same memory, and the history that the base has now.

    Autograd refuses to change it in place, as it does that of ``view``.
    """
    base: Any = view._base
    other: torch.Tensor = base.as_strided(view.shape, view.stride(), view.storage_offset())
    _set_rule(other, _get_rule(view))
    return other


def self_test() -> None:
    """Check that versions and the rules of views can be set. ImportError: this torch cannot."""
    with torch.inference_mode(False), torch.enable_grad():
        base = torch.ones(2, device="cpu", requires_grad=True).clone()
        bound, view = base.unbind()[0], base.view(2)
        _set_rule(view, _get_rule(bound))
        base.add_(1)
        _set_versions((base,), [0])
        if _get_rule(bound) == _ANY_CHANGE or _get_rule(view) != _get_rule(bound) or base._version:
            raise ImportError(
                f"cistern.torch does not work with torch {torch.__version__}: the version of a tensor"
                " cannot be set, or which changes in place autograd allows for a view"
            )


_INPUT_WATCHED = (
    "cistern: retain_grad or register_hook was called for a tensor that module '{0}' was given, by the module, by"
    " a hook of it, or after it has returned. The tensor is another one than that of the caller, and does not"
    " have the whole gradient. Call them before the module is called, or use"
    " module.register_full_backward_hook, which is given the gradients of all inputs"
)
_VIEW_OF_INPUT = (
    "cistern: module '{0}' returns a view of a tensor that it was given, such as x[:2], and retain_grad or"
    " register_hook was called for this view. The hook would not see the whole gradient: let the module return"
    " a copy, such as x[:2].clone(), and call them for the copy"
)
