# SPDX-License-Identifier: Apache-2.0
"""Blocks of a ``with`` statement in which weights are readable, are others, or can be changed.

    gather     copies of weights have the memory of parameters
    swapped    units are lent the memory of other weights instead of the pool's
    changing   both, with the same copies, which are written to the job in the end

Other weights are in this process alone. The job keeps its states whatever ends a block of ``swapped``,
the death of the process included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from cistern.torch.lending import OtherMemory, Tensor
from cistern.torch.parameter import version_of
from cistern.torch.running import in_backward

if TYPE_CHECKING:
    from cistern.torch.store import Store


@contextmanager
def gather(store: Store, names: Sequence[str]) -> Iterator[None]:
    """The block of ``Store.gather``."""
    tensors = [store.tensor_named(name) for name in dict.fromkeys(names)]
    versions = {tensor: version_of(tensor.local) for tensor in tensors}
    with _readable(store, tensors, _copies(store, tensors)):
        try:
            yield
        finally:
            changed = [t.name for t, n in versions.items() if version_of(t.local) != n]
            if changed:
                store.runner.forget_changes()
    if changed:
        raise RuntimeError(
            f"cistern: parameter '{changed[0]}' was changed in a block of gather. The change is lost:"
            " a block of Store.changing and Store.write change weights"
        )


@contextmanager
def swapped(store: Store, values: Mapping[str, Any]) -> Iterator[None]:
    """The block of ``Store.swapped``."""
    _refuse_inside(store, "swapped")
    tensors, buffers = _sorted(store, values)
    others = {tensor: _alike(tensor, value) for tensor, value in tensors.items()}
    before = [(buffer, buffer.clone()) for buffer, _ in buffers]
    try:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        with store.runner.other_weights(others):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextmanager
def changing(store: Store, names: Sequence[str]) -> Iterator[None]:
    """The block of ``Store.changing``."""
    _refuse_inside(store, "changing")
    store.writes.check_outside("weights are changed")
    tensors = [store.tensor_named(name) for name in dict.fromkeys(names)]
    for tensor in tensors:
        if not store.parts.is_on_all_ranks(tensor.name):
            raise RuntimeError(_ONE_STAGE.format(tensor.name))
    versions = {tensor: version_of(tensor.local) for tensor in tensors}
    copies = _copies(store, tensors)
    others = dict(zip(tensors, copies, strict=True))
    with store.runner.other_weights(others), _readable(store, tensors, copies):
        try:
            yield
            for tensor in tensors:
                if not tensor.has_own_memory():
                    raise OtherMemory(tensor.name)
        finally:
            touched = [t for t, n in versions.items() if version_of(t.local) != n]
            store.runner.forget_changes()
    store.writes.changed({tensor: others[tensor] for tensor in touched})


def _refuse_inside(store: Store, block: str) -> None:
    """Raise RuntimeError if a module or a backward pass runs."""
    if in_backward() or store.runner.operators.open_units:
        raise RuntimeError(
            f"cistern: Store.{block} is called while a module or a backward pass runs"
        )


def _copies(store: Store, tensors: Sequence[Tensor]) -> list[torch.Tensor]:
    device = store.device.torch_device
    return [store.weights_of(tensor).to(device) for tensor in tensors]


@contextmanager
def _readable(
    store: Store, tensors: Sequence[Tensor], copies: Sequence[torch.Tensor]
) -> Iterator[None]:
    """Let parameters have the memory of ``copies`` outside of modules, too."""
    places = [
        tensor.lent.own_place(copy.data_ptr()) for tensor, copy in zip(tensors, copies, strict=True)
    ]
    for tensor, place in zip(tensors, places, strict=True):
        tensor.lent.storage._swap_data_ptr_(place)
    try:
        yield
    finally:
        try:
            store.runner.close_all()  # That Ctrl-C has left open.
        finally:
            for tensor, place in zip(tensors, places, strict=True):
                tensor.lent.storage._swap_data_ptr_(place)


def _sorted(
    store: Store, values: Mapping[str, Any]
) -> tuple[dict[Tensor, torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return which tensors and which buffers get which values.

    KeyError: the model has no such name. TypeError, ValueError: a value is no tensor of its shape.
    """
    parameters = dict(store.model.named_parameters(remove_duplicate=False))
    of_model = dict(store.model.named_buffers(remove_duplicate=False))
    tensors: dict[Tensor, torch.Tensor] = {}
    buffers = []
    for name, value in values.items():
        tensor = store.tensor_of(parameters[name]) if name in parameters else None
        buffer = of_model.get(name)
        if tensor is None and buffer is None:
            raise KeyError(
                f"cistern: the store has no parameter '{name}', and the model no such buffer"
            )
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"cistern: '{name}' is swapped for a tensor, not a {type(value)}")
        part = value if tensor is None else tensor.part_of(value)
        place: Any = buffer if tensor is None else tensor.parameter
        if part is None or (tensor is None and value.shape != place.shape):
            raise ValueError(
                f"cistern: '{name}' has the shape {tuple(place.shape)}, not {tuple(value.shape)}"
            )
        if tensor is not None:
            tensors[tensor] = part
        elif buffer is not None:
            buffers.append((buffer, value))
    return tensors, buffers


def _alike(tensor: Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``value`` in the type of ``tensor``, in one piece; a copy only if it needs to be one."""
    return value.detach().to(tensor.lent.dtype).contiguous()


_ONE_STAGE = (
    "cistern: parameter '{0}' cannot be changed in a block of Store.changing, because some ranks do not have it,"
    " and all take part: Store.write, between steps, changes it on the rank that has it"
)
