# SPDX-License-Identifier: Apache-2.0
"""Storages whose memory is lent to them for a while.

A parameter of a store has one storage for life. Between uses, the storage points to nothing, and an
access raises. While an operator is begun, the data pointer of the storage is that of the pool. All
that shares the storage follows: views that autograd saved, and what custom functions keep.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

_NOWHERE = 64  # An address that is never read.
_LENT: set[int] = set()  # Addresses of the storage objects of all LentStorages.


def private(owner: Any, name: str) -> Any:
    """Return ``name`` of ``owner``, a part of torch. ImportError: this torch does not have it."""
    if not hasattr(owner, name):
        raise ImportError(
            f"cistern.torch needs torch 2.12 or later, this is {torch.__version__}, which has no {name}"
        )
    return getattr(owner, name)


_swap: Any = private(torch.UntypedStorage, "_swap_data_ptr_")


def swap(storages: Sequence[Any], places: Sequence[torch.UntypedStorage]) -> None:
    """Lend the memory of ``places`` to ``storages``, or take it back. No signal comes between two of them."""
    deque(map(_swap, storages, places), maxlen=0)


def at_address(address: int, n_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Return a storage for ``n_bytes`` of ``device`` at ``address``, which it does not own."""
    construct: Any = torch._C._construct_storage_from_data_pointer
    storage: torch.UntypedStorage = construct(address, device, n_bytes)
    return storage


def tensor_of(
    storage: torch.UntypedStorage, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return a contiguous tensor of ``dtype`` with the memory of ``storage``."""
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(storage, 0, torch.Size(shape))  # type: ignore[call-overload,no-any-return]


def without_memory(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, message: str
) -> torch.Tensor:
    """Return a contiguous tensor to which each access raises RuntimeError with ``message``."""
    storage = at_address(_NOWHERE, dtype.itemsize * math.prod(shape), device)
    tensor = tensor_of(storage, shape, dtype)
    torch._C._set_storage_data_ptr_access_error_msg(storage._cdata, message)
    return tensor


def _own_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of ``tensor``; None: it has memory of others too, such as numpy's."""
    storage = tensor.untyped_storage()
    return storage if 0 < storage.nbytes() == tensor.nbytes and storage.resizable() else None


def _take_memory(storage: torch.UntypedStorage, message: str) -> None:
    """Free the memory of ``storage``. Each access raises RuntimeError with ``message``."""
    owner = at_address(_NOWHERE, storage.nbytes(), storage.device)
    swapped: Any = storage
    swapped._swap_data_ptr_(owner)
    torch._C._set_storage_data_ptr_access_error_msg(storage._cdata, message)


class LentStorage:
    """The ``storage`` of one ``tensor`` of ``dtype``, which has memory while it is lent some.

    ``storage._swap_data_ptr_(place)`` lends the memory of a ``place``, and takes it back when it is
    called again. An access between the two calls is as usual, any other one raises RuntimeError with
    ``message``.

    The tensor ``before`` had the values until now. Its memory is freed, and views of it raise too.
    If it is alike, its storage is the one that is lent memory, so that views of it follow.
    """

    __slots__ = (
        "_address", "_message", "_places", "device", "dtype", "n_bytes", "storage", "tensor"
    )  # fmt: skip

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        message: str,
        before: torch.Tensor,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.n_bytes = dtype.itemsize * math.prod(shape)
        own: Any = _own_storage(before)
        if own is not None:
            _take_memory(own, message)
        alike = before.device == device and before.dtype == dtype and before.is_contiguous()
        if own is not None and alike:
            self.storage = own
            self.tensor = before
        else:
            self.tensor = without_memory(shape, dtype, device, message)
            self.storage = self.tensor.untyped_storage()
        self._message = message
        self._places: dict[int, torch.UntypedStorage] = {}  # By their addresses.
        self._address: int = self.storage._cdata
        _LENT.add(self._address)

    def __del__(self) -> None:
        _LENT.discard(getattr(self, "_address", 0))

    def place(self, address: int) -> torch.UntypedStorage:
        """Return what to lend for the memory at ``address``, which is as long as the tensor."""
        place = self._places.get(address)
        if place is None:
            place = self._places[address] = at_address(address, self.n_bytes, self.device)
        return place

    def own_place(self, address: int) -> torch.UntypedStorage:
        """Return what to lend for memory at ``address`` that is not of the pool, and is lent once."""
        return at_address(address, self.n_bytes, self.device)

    def say(self, sentences: str) -> None:
        """Let accesses raise with these ``sentences``, too, after two others. It has no memory now."""
        *first, rest = self._message.split(". ", 2)
        message = ". ".join([*first, f"{sentences} {rest}"])
        torch._C._set_storage_data_ptr_access_error_msg(self._address, message)


class LaterNumber:
    """A ``tensor`` without dimensions, in host memory, whose value is known later.

    Until ``give`` is called, an access raises RuntimeError with ``message``.
    """

    def __init__(self, message: str) -> None:
        self.tensor = without_memory((), torch.float32, torch.device("cpu"), message)
        self._storage: Any = self.tensor.untyped_storage()

    def give(self, value: float) -> None:
        """Let the tensor have ``value``. This is called once."""
        number = torch.full((), value, dtype=torch.float32, device="cpu")
        self._storage._swap_data_ptr_(number.untyped_storage())


def has_memory(storage: torch.UntypedStorage) -> bool:
    """Return whether an access to ``storage`` does not raise."""
    try:
        storage.data_ptr()
    except RuntimeError:
        return False
    return True


def is_lent(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is a parameter of a store or a view of one."""
    return torch._C._has_storage(tensor) and tensor.untyped_storage()._cdata in _LENT


def self_test() -> None:
    """Check that this torch has what lent storages need. ImportError: it has not."""
    private(torch._C, "_construct_storage_from_data_pointer")
    private(torch._C, "_set_storage_data_ptr_access_error_msg")
    memory = torch.ones(4, dtype=torch.bfloat16, device="cpu")
    before = torch.zeros(2, 2, dtype=torch.bfloat16, device="cpu")
    view = before.t()
    lent = LentStorage((2, 2), torch.bfloat16, torch.device("cpu"), "cistern: self-test", before)
    place = lent.place(memory.data_ptr())
    lent.storage._swap_data_ptr_(place)
    follows = bool((view == 1).all())
    lent.storage._swap_data_ptr_(place)
    try:
        view.sum()
    except RuntimeError:
        if follows:
            return
    raise ImportError(
        f"cistern.torch does not work with torch {torch.__version__}: a view does not follow the"
        " data pointer of its storage, or an access does not raise"
    )
