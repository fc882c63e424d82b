# SPDX-License-Identifier: Apache-2.0
"""Edges: memory of a job through which ranks pass arrays, to each other and to themselves."""

from __future__ import annotations

from ctypes import Array, byref, c_char, c_void_p
from typing import Any
from weakref import ref

from cistern import _library, checks
from cistern._abi import ALL_RANKS, cst_edge_spec
from cistern.calls import Calls
from cistern.memory import Buffer, address_of

#: Memory of an array: what has contiguous memory, or (address, bytes), such as
#: ``(tensor.data_ptr(), tensor.nbytes)``, on the host or on the GPU of the job.
Memory = Buffer | tuple[int, int]

_MOST_UINT32, _MOST_UINT64 = (1 << 32) - 1, (1 << 64) - 1


class Slot:
    """A slot of an edge between the two parts of a put or take, until ``put_end`` or ``take_end``.

    It has ``n_bytes`` bytes at ``address``, in host memory or, if ``is_on_device``, on the GPU of the
    receiver. After ``Job.sync`` it cannot be used any more, and is to be forgotten.
    """

    def __init__(self, address: int, n_bytes: int, is_on_device: bool, is_written: bool) -> None:
        self.address = address
        self.n_bytes = n_bytes
        self.is_on_device = is_on_device
        self._is_written = is_written
        self._views: list[tuple[memoryview, ref[Array[c_char]]]] = []

    @property
    def view(self) -> memoryview:
        """The bytes of the slot, to be written in a put. TypeError: they are on a GPU."""
        if self.is_on_device:
            raise TypeError("this slot is on a GPU: use its address")
        memory = (c_char * self.n_bytes).from_address(self.address)
        view = memoryview(memory).cast("B")
        self._views.append((view if self._is_written else view.toreadonly(), ref(memory)))
        return self._views[-1][0]

    def release(self) -> None:
        """Make all views unusable. BufferError: something else uses one, such as a slice of it."""
        while self._views:
            view, memory = self._views[-1]
            view.release()
            if memory() is not None:
                raise BufferError("a part of a view of the slot is still in use")
            self._views.pop()


class Edges(Calls):
    """The calls of a job for its edges. ``Job`` has them; ``<cistern/edge.h>`` describes them in full.

    A thread that uses the job makes them, and no other one meanwhile. An array is copied once, without
    Python: from the memory that is given to the slot of the edge, or back. Memory of the arguments
    belongs to the caller. A call that waits for another rank ends before the handler of a signal, such
    as of Ctrl-C, is called; in edges of ALL_RANKS and from a rank to itself nothing waits.

    All calls after the commit raise StepVoid (call ``sync``), DeviceLost, and CstError: EINVAL if there
    is no such edge or array, if this rank is not at this end, or before ``sync``; EBUSY; ETIMEDOUT.
    """

    def __init__(self) -> None:
        self._slot_bytes: list[int] = []  # By edge.
        self._slots: dict[
            tuple[int, int, bool], Slot
        ] = {}  # By edge, number, and whether it is put.
        self._copied: dict[tuple[int, int], Any] = {}  # What copies use that were started.

    def edge(
        self,
        name: str,
        slot_bytes: int,
        n_slots: int,
        *,
        from_rank: int = ALL_RANKS,
        to_rank: int = ALL_RANKS,
        on_device: bool = False,
    ) -> int:
        """Declare an edge with ``n_slots`` slots of ``slot_bytes`` bytes, and return its number (>= 0).

        ``from_rank`` puts arrays and ``to_rank`` takes them. With ALL_RANKS, in both, all ranks do
        both: the array with the number i has the slot i, and stays until the step ends. ``on_device``:
        the slots are on the GPU of the receiver, if possible. All ranks declare all edges alike, before
        ``commit``. Raises TypeError, ValueError, CstError: EINVAL, EEXIST (the name is taken).
        """
        slot_bytes = checks.integer("slot_bytes", slot_bytes, 0, _MOST_UINT64)
        spec = _library.struct_of(
            cst_edge_spec,
            name=name,
            slot_bytes=slot_bytes,
            n_slots=n_slots,
            on_device=on_device,
            **{
                "from": checks.integer("from_rank", from_rank, 0, ALL_RANKS),
                "to": checks.integer("to_rank", to_rank, 0, ALL_RANKS),
            },
        )
        number = self._declare(self.lib.cst_edge, byref(spec))
        self._slot_bytes.append(slot_bytes)
        return number

    def edge_on_device(self, edge: int) -> bool:
        """Return whether the slots of ``edge`` are on a GPU. ``sync`` can change that. Never waits."""
        return self._call("cst_edge_on_device", edge) == 1

    def put(self, edge: int, number: int, data: Memory) -> None:
        """Copy ``data`` to a slot of ``edge``, as the array ``number``, and wait for a free one before."""
        address, n_bytes, _alive = _place(data, False)
        self._call("cst_put", edge, _checked(number), address, n_bytes)

    def take(self, edge: int, number: int, out: Memory) -> None:
        """Wait for the array ``number`` of ``edge``, and copy as many bytes as ``out`` has to it.

        The slot is free then, except in an edge of ALL_RANKS. CstError: ENOTFOUND, the array was not
        put, and no other rank could put it.
        """
        address, n_bytes, _alive = _place(out, True)
        self._call("cst_take", edge, _checked(number), address, n_bytes)

    def put_begin(self, edge: int, number: int) -> Slot:
        """Wait for a free slot of ``edge``, and return it, to be written until ``put_end``."""
        return self._begin("cst_put_begin", edge, number, True)

    def put_end(self, edge: int, number: int) -> None:
        """Let the array ``number`` be taken. BufferError: something uses a part of a view of the slot."""
        self._end("cst_put_end", edge, number, True)

    def take_begin(self, edge: int, number: int) -> Slot:
        """Wait for the array ``number`` of ``edge``, and return its slot, to be read until ``take_end``."""
        return self._begin("cst_take_begin", edge, number, False)

    def take_end(self, edge: int, number: int) -> None:
        """Free the slot of the array ``number``. BufferError: something uses a part of a view of it."""
        self._end("cst_take_end", edge, number, False)

    def put_start(self, edge: int, number: int, data: Memory) -> None:
        """Do ``put``, whose copy goes on beside the program until ``edge_wait``.

        ``data`` is not written meanwhile. The job keeps an object alive that is given here.
        """
        self._start("cst_put_start", edge, number, _place(data, False))

    def take_start(self, edge: int, number: int, out: Memory) -> None:
        """Do ``take``, whose copy goes on beside the program until ``edge_wait``.

        ``out`` is not used meanwhile. The job keeps an object alive that is given here.
        """
        self._start("cst_take_start", edge, number, _place(out, True))

    def edge_wait(self, edge: int, number: int) -> None:
        """Wait until the copy is done that was started for the array ``number``, and end its put or take."""
        try:
            self._call("cst_edge_wait", edge, _checked(number))
        finally:
            self._copied.pop((edge, number), None)

    def _begin(self, call: str, edge: int, number: int, is_put: bool) -> Slot:
        address = c_void_p()
        self._call(call, edge, _checked(number), byref(address))
        slot = Slot(address.value or 0, self._slot_bytes[edge], self.edge_on_device(edge), is_put)
        self._slots[edge, number, is_put] = slot
        return slot

    def _end(self, call: str, edge: int, number: int, is_put: bool) -> None:
        key = edge, _checked(number), is_put
        if key in self._slots:
            self._slots[key].release()
            del self._slots[key]
        self._call(call, edge, number)

    def _start(self, call: str, edge: int, number: int, data: Any) -> None:
        self._call(call, edge, _checked(number), *data[:2])
        self._copied[edge, number] = data


def _checked(number: int) -> int:
    return checks.integer("number", number, 0, _MOST_UINT32)


def _place(memory: Memory, is_written: bool) -> tuple[int, int, Any]:
    """Return the address and the bytes of ``memory``, and what keeps it alive. ValueError: it is read only."""
    if isinstance(memory, tuple):
        address, n_bytes = checks.integers("memory", memory, 0, _MOST_UINT64)
        return address, n_bytes, None
    view = memoryview(memory).cast("B")
    if view.readonly and is_written:
        raise ValueError("an array is taken to memory that can be written")
    if view.readonly:
        view = memoryview(bytearray(view))
    return (address_of(view) if view.nbytes else 0), view.nbytes, view
