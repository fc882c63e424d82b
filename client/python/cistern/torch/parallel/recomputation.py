# SPDX-License-Identifier: Apache-2.0
"""Modules that keep only the inputs of their forward passes.

A forward pass is repeated when a backward pass needs what it has computed, or earlier, when
``Pass.restore`` is called: a rank of a pipeline does that while it waits for the gradient. The graph
is that of the first run. What autograd saves in it is a place for a tensor, which the second run
fills. Random numbers and types of autocast are those of the first run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

from cistern.torch.containers import Given, replaced
from cistern.torch.divided_passes import repeated


class _Place:
    """A place for a tensor that autograd has saved."""

    __slots__ = ("__weakref__", "of_pass", "tensor", "version")

    def __init__(self, of_pass: Pass) -> None:
        self.of_pass = of_pass
        self.tensor: torch.Tensor | None = None  # Until the forward pass is repeated.
        self.version = 0


class Pass:
    """A forward pass of ``of`` with these arguments, which are kept until it is repeated."""

    def __init__(self, of: Recomputed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._of = of
        given = Given(args, kwargs).tensors
        # With the history that an input gets later it would be kept by its own graph.
        own = {id(t): t.detach().requires_grad_() for t in given if t.requires_grad}
        self._given: Any = replaced((args, kwargs), own, copies=True)
        self._inputs = [(tensor, tensor._version) for tensor in own.values()]
        self._places: list[ref[_Place]] = []
        self._shapes: list[tuple[torch.Size, torch.dtype]] = []
        self._n_restored = 0
        self._random = torch.get_rng_state(), *get_device_states(*args, *kwargs.values())
        kinds = {"cpu", *(tensor.device.type for tensor in given)}
        self._casts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted(kinds)
        ]

    def pack(self, tensor: torch.Tensor) -> _Place:
        """Autograd gets a place for ``tensor``, which it wants to save."""
        place = _Place(self)
        self._places.append(ref(place))
        self._shapes.append((tensor.shape, tensor.dtype))
        return place

    def restore(self) -> None:
        """Repeat the forward pass, unless that was done. RuntimeError: it cannot be repeated."""
        if self._given is None:
            return
        if any(tensor._version != version for tensor, version in self._inputs):
            raise RuntimeError(_CHANGED_INPUT.format(self._of.name))
        (args, kwargs), self._given, self._inputs = self._given, None, []
        with self._settings(), saved_tensors_hooks(self._fill, _never):
            self._of.again(args, kwargs)
        if self._n_restored != len(self._places):
            raise RuntimeError(_DIFFERENT.format(self._of.name))

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Have the settings of the first run in a block."""
        on_host, devices, states = self._random
        with contextlib.ExitStack() as stack:
            kind = next((kind for kind, _, _ in self._casts if kind != "cpu"), "cuda")
            stack.enter_context(torch.random.fork_rng(devices, device_type=kind))
            torch.set_rng_state(on_host)
            if devices:
                set_device_states(devices, states, device_type=kind)
            for kind, enabled, dtype in self._casts:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            stack.enter_context(torch.enable_grad())
            yield

    def _fill(self, tensor: torch.Tensor) -> None:
        n = self._n_restored
        self._n_restored += 1
        if n >= len(self._places) or self._shapes[n] != (tensor.shape, tensor.dtype):
            raise RuntimeError(_DIFFERENT.format(self._of.name))
        place = self._places[n]()
        if place is not None:
            place.tensor, place.version = tensor.detach(), tensor._version


def _take(place: _Place) -> torch.Tensor:
    """Return the tensor of ``place``, for a backward pass."""
    place.of_pass.restore()
    if place.tensor is None or place.tensor._version != place.version:
        raise RuntimeError(_CHANGED.format(place.of_pass._of.name))
    return place.tensor


def _never(_: Any) -> Any:
    raise AssertionError("the graph of a repeated forward pass has no backward pass")


class Recomputed:
    """``module``, whose name is for errors, keeps only the inputs of its forward passes from now on."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.name = name
        self._module = module
        self._plain = module.forward
        self._made: list[ref[Pass]] = []
        forward: Any = functools.update_wrapper(functools.partial(self._forward), self._plain)
        module.forward = forward

    @staticmethod
    def undo(module: nn.Module) -> None:
        """Let ``module`` keep what it computes again."""
        while isinstance(
            of := getattr(getattr(module.forward, "func", None), "__self__", None), Recomputed
        ):
            module.forward = of._plain

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        made = Pass(self, args, kwargs)
        self._made = [earlier for earlier in self._made if earlier() is not None]
        self._made.append(ref(made))
        with saved_tensors_hooks(made.pack, _take):
            return self._plain(*args, **kwargs)

    def again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the plain module, for a backward pass of an earlier run."""
        with repeated(self._module):
            self._plain(*args, **kwargs)

    def take(self) -> list[ref[Pass]]:
        """Return the forward passes since the last call that have a graph, which keeps them."""
        made, self._made = self._made, []
        return made


_CHANGED_INPUT = (
    "cistern: the forward pass of {0} cannot be repeated: what it was given was changed in place since. Compute a"
    " new tensor instead (x = x + y, not x += y), or give recompute=0"
)
_CHANGED = (
    "cistern: {0} changes a tensor in place that its backward pass needs: compute a new tensor instead, such as"
    " x = x * 2, not x *= 2"
)
_DIFFERENT = (
    "cistern: the forward pass of {0} saves other tensors when it is repeated: it depends on something that has"
    " changed since, such as a counter of its own. Give recompute=0"
)
