# SPDX-License-Identifier: Apache-2.0
"""model.state_dict and model.load_state_dict for a model whose weights are in a store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cistern.torch import shards
from cistern.torch.lending import Tensor

if TYPE_CHECKING:
    from cistern.torch.store import Store


def add_hooks(store: Store, model: nn.Module) -> None:
    """Let the two functions of ``model``, and of modules that contain it, use the store."""
    hooked: Any = model
    hooked.register_state_dict_post_hook(partial(_fill, store))
    loaded: set[str] = set()
    hooked.register_load_state_dict_pre_hook(partial(_take, store, loaded))
    hooked.register_load_state_dict_post_hook(partial(_loaded, loaded))


def _names(store: Store, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all names of the parameters of ``model`` that are in the store."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tensor = store.tensor_of(parameter)
        if tensor is not None:
            yield name, tensor


def _fill(store: Store, model: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    """Put copies of weights in the place of parameters that have no memory. Ties stay ties."""
    copies: dict[Tensor, torch.Tensor] = {}
    for name, tensor in _names(store, model):
        if prefix + name not in state_dict:
            continue
        if tensor not in copies:
            copies[tensor] = shards.like(tensor.parameter, store.weights_of(tensor).clone())
        state_dict[prefix + name] = copies[tensor]


def _take(
    store: Store,
    loaded: set[str],
    model: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Write the weights of ``state_dict`` to the store, so that torch finds none to copy.

    What does not fit is not written, and raises on each rank that is given it.
    """
    loaded.clear()  # An earlier load may have raised.
    taken: dict[Tensor, torch.Tensor] = {}
    for name, tensor in _names(store, model):
        if prefix + name not in state_dict:
            continue
        values = state_dict.pop(prefix + name)
        loaded.add(prefix + name)
        part = tensor.part_of(values) if isinstance(values, torch.Tensor) else None
        if part is None:
            errors.append(_why_not(prefix + name, values, tensor))
        else:  # Of tied weights with different values, the last ones hold.
            taken[tensor] = part
    store.writes.load(taken)


def _why_not(name: str, values: Any, tensor: Tensor) -> str:
    """Return why what a state dict has for ``tensor`` cannot be its weights."""
    if not isinstance(values, torch.Tensor):
        return f"{name} is a {type(values)} in the state dict, and not a tensor"
    return (
        f"size mismatch for {name}: {tuple(values.shape)} in the state dict,"
        f" {tuple(tensor.parameter.shape)} in the model"
    )


def _loaded(loaded: set[str], _: nn.Module, keys: Any) -> None:
    """Remove what ``_take`` has written from the keys that torch did not find."""
    keys.missing_keys[:] = [key for key in keys.missing_keys if key not in loaded]
    loaded.clear()
