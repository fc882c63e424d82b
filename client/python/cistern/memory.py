# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors as views of the standard library."""

from __future__ import annotations

from ctypes import Array, addressof, c_char, c_float, c_uint16
from typing import Any, Protocol
from weakref import ref

from cistern._abi import Dtype, State, cst_io

_TYPED_STATES = (State.WEIGHT, State.GRAD)  # In the type of the tensor; the others are fp32.


class Buffer(Protocol):
    """What has contiguous memory: bytes, array.array, memoryview, an array of numpy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


def is_bf16(state: State, dtype: Dtype) -> bool:
    """Return whether ``state`` of a tensor of ``dtype`` is bf16. Otherwise it is fp32."""
    return dtype == Dtype.BF16 and state in _TYPED_STATES


def element_bytes(state: State, dtype: Dtype) -> int:
    """Return the size of an element in which ``state`` is read and written."""
    return 2 if is_bf16(state, dtype) else 4


def new_elements(state: State, dtype: Dtype, n_elems: int) -> memoryview:
    """Return a view of new memory for ``n_elems`` elements of ``state``."""
    kind: Any = c_uint16 if is_bf16(state, dtype) else c_float
    format = "H" if is_bf16(state, dtype) else "f"
    bits: Any = memoryview((kind * n_elems)()).cast("B")
    view: memoryview = bits.cast(format)
    return view


def address_of(view: memoryview) -> int:
    """Return the address of the memory of ``view``, which is writable."""
    return addressof((c_char * view.nbytes).from_buffer(view))


class Io:
    """One tensor of an operator that has begun. Its memory can be used until ``op_end``.

    ``weight_address`` and ``grad_address`` are addresses in the memory of the device, of
    ``n_elems`` elements of the tensor's type, row-major in the declared shape. ``grad_address`` is
    None in a forward pass and for frozen tensors. ``accumulate`` says how to write the gradient:
    False, all elements are overwritten; True, an earlier use of the tensor in this micro-batch has
    written it, and the new gradient is added.
    """

    __slots__ = (
        "_readable",
        "_views",
        "accumulate",
        "dtype",
        "grad_address",
        "n_elems",
        "weight_address",
    )

    def __init__(self, io: cst_io, readable: bool, dtype: Dtype) -> None:
        self.dtype = dtype
        self.weight_address: int = io.weight
        self.grad_address: int | None = io.grad
        self.accumulate: bool = io.accumulate
        self.n_elems: int = io.n_elems
        self._readable = readable
        self._views: list[tuple[memoryview, ref[Array[Any]]]] = []

    def _view(self, address: int, writable: bool) -> memoryview:
        if not self._readable:
            raise TypeError("this memory is on a GPU: use the addresses")
        kind: Any = c_uint16 if self.dtype == Dtype.BF16 else c_float
        memory = (kind * self.n_elems).from_address(address)
        bits: Any = memoryview(memory).cast("B")
        view: memoryview = bits.cast("H" if self.dtype == Dtype.BF16 else "f")
        self._views.append((view if writable else view.toreadonly(), ref(memory)))
        return self._views[-1][0]

    @property
    def weight(self) -> memoryview:
        """The weights, read only: floats, or the bits of bf16 as items of the format "H"."""
        return self._view(self.weight_address, writable=False)

    @property
    def grad(self) -> memoryview:
        """The gradient, to be written. ValueError: this tensor gets none in this pass."""
        if self.grad_address is None:
            raise ValueError("no gradient in a forward pass or of a frozen tensor")
        return self._view(self.grad_address, writable=True)

    def release(self) -> None:
        """Make all views unusable. BufferError: something else uses one, such as a slice of it."""
        while self._views:
            view, memory = self._views[-1]
            view.release()
            if memory() is not None:
                raise BufferError("a part of a view of the operator's memory is still in use")
            self._views.pop()
