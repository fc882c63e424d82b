# SPDX-License-Identifier: Apache-2.0
"""Tensors of a job that are parameters of the model, and the units that lend them memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Set as AbstractSet
from typing import NoReturn

import torch
from torch import nn

from cistern._abi import LAYOUTS, Direction, Dtype, cst_err, cst_io
from cistern._library import prepared
from cistern.torch import shards
from cistern.torch.parameter import grad_of, mark, version_of
from cistern.torch.parts import Use
from cistern.torch.replicas import Replicas
from cistern.torch.storage import LentStorage, at_address, has_memory, swap, tensor_of
from cistern.torch.weights import torch_type

_WORDS = ctypes.sizeof(cst_io) // 8
_WEIGHT = LAYOUTS[cst_io][1]["weight"] // 8
_GRAD = LAYOUTS[cst_io][1]["grad"] // 8
_ACCUMULATE = LAYOUTS[cst_io][1]["accumulate"]


class Tensor:
    """A tensor of the job, and the parameter of the model that it is.

    The parameter loses its own memory here, and moves to ``device``. An access to it raises RuntimeError
    with the text ``refusal`` while no unit lends it memory. A gradient that was computed and not
    delivered yet is in its ``grad``, where autograd puts it.
    """

    def __init__(
        self,
        name: str,
        number: int,
        parameter: nn.Parameter,
        shape: tuple[int, ...],
        dtype: Dtype,
        trains: bool,
        device: torch.device,
        refusal: str,
        use: Use,
    ) -> None:
        self.name = name
        self.number = number
        self.parameter = parameter
        self.shape = tuple(shape)
        self.use = use
        self.n_elems = math.prod(shape)
        self.trains = trains  # It has gradients, whenever the parameter needs them.
        self.units: list[Unit] = []
        self.dtype = dtype
        #: Weights that units are lent instead of those of the job, on any device; None: those of the job.
        self.other: torch.Tensor | None = None
        before = shards.local(parameter).data
        self.lent = LentStorage(self.shape, torch_type(dtype), device, refusal, before)
        self._grad_places: dict[int, torch.Tensor] = {}  # By their addresses.
        shards.set_local(parameter, self.lent.tensor)
        #: What has the memory: the parameter, or the part of it that a DTensor has on this rank.
        self.local = shards.local(parameter)
        #: Whether its gradients are handed in as they are.
        self.is_plain = use.is_alone and self.local is parameter
        self.replicas: Replicas | None = None  #: Wants to see its gradients.
        mark(parameter)

    def has_own_memory(self) -> bool:
        """Whether the parameter has the memory that is lent to it, and no other."""
        return shards.local(self.parameter).is_set_to(self.lent.tensor)

    def part_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return what ``values`` have for the part of this rank; None: they have other shapes."""
        if self.use.box.is_whole:
            part = shards.local(values)
            return part if tuple(part.shape) == self.shape else None
        whole = tuple(self.parameter.shape)
        return shards.part_of(values, self.use.box, self.shape, whole)

    def grad_place(self, address: int) -> torch.Tensor:
        """Return the tensor for a gradient at ``address``."""
        place = self._grad_places.get(address)
        if place is None:
            storage = at_address(address, self.lent.n_bytes, self.lent.device)
            place = self._grad_places[address] = tensor_of(storage, self.shape, self.lent.dtype)
        return place


class OtherMemory(RuntimeError):
    """A parameter has memory that the store did not give it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"cistern: parameter '{name}' was given other memory (.data = ...): copy_ in a block of"
            " Store.changing, Store.write and load_state_dict change weights"
        )


class Unit:
    """An operator of the job: a module with its tensors."""

    def __init__(self, name: str, number: int, tensors: list[Tensor]) -> None:
        self.name = name
        self.number = number
        self.tensors = tensors
        self.trained_tensors = [tensor for tensor in tensors if tensor.trains]
        self._locals = [tensor.local for tensor in tensors]
        self.trained = [tensor.parameter for tensor in self.trained_tensors]
        self.io = (cst_io * len(tensors))()
        bytes_of_io = memoryview(self.io).cast("B")
        words = bytes_of_io.cast("Q")
        self._weights_at = words[_WEIGHT::_WORDS]
        self._grads_at = words[_GRAD::_WORDS]
        self._accumulate = bytes_of_io[_ACCUMULATE :: ctypes.sizeof(cst_io)]
        self._storages = [tensor.lent.storage for tensor in tensors]
        self._addresses: list[int] = []  # Of the weights in the pool, when they were there last.
        self._places: list[torch.UntypedStorage] = []  # At these addresses.
        self._lent: list[torch.UntypedStorage] = []  # The places while they are lent, or empty.
        self._held: list[
            torch.Tensor
        ] = []  # What owns the memory of places that are not in the pool.
        #: Identifies the weights that the unit is lent instead of those of the job; None: those of the job.
        self.others: object = None
        self._grad_addresses: list[int] = []  # Of the gradients, when they were written last.
        self._grad_places: list[torch.Tensor] = []  # At these addresses.
        self._is_plain = all(tensor.is_plain for tensor in self.trained_tensors)
        self._versions = list(map(version_of, self._locals))
        self.n_changes = 0  # Steps and writes that have changed the weights.
        self.is_known = False  # What its module returns was looked at, except a tensor alone.
        self.calls: UnitCalls  # Of the job, which ``Operators.add`` gives it.
        for tensor in tensors:
            tensor.units.append(self)

    # These run several times in each step: no line of them is without need.

    def lend(self) -> None:
        """Let the parameters use the weights of ``io``."""
        addresses = self._weights_at.tolist()
        if addresses != self._addresses:
            self._places = [t.lent.place(a) for t, a in zip(self.tensors, addresses, strict=True)]
            self._addresses = addresses
        self._lent = self._places
        if self.others is not None:
            addresses = self._find_others(addresses)
        swap(self._storages, self._lent)
        if list(map(torch.Tensor.data_ptr, self._locals)) != addresses:
            self._refuse_other_memory()

    def lend_zeros(self, zeros: torch.Tensor) -> None:
        """Let the parameters use the memory of ``zeros``, of which each can need all."""
        self._lent = [tensor.lent.own_place(zeros.data_ptr()) for tensor in self.tensors]
        swap(self._storages, self._lent)

    def _find_others(self, addresses: list[int]) -> list[int]:
        """Have weights lent that are not those of the job. Return where all weights are then."""
        self._versions = list(map(version_of, self._locals))  # They may have changed since.
        lent = list(self._places)
        found = list(addresses)
        for i, tensor in enumerate(self.tensors):
            if tensor.other is not None:
                held = tensor.other.to(tensor.lent.device)
                self._held.append(held)
                found[i] = held.data_ptr()
                lent[i] = tensor.lent.own_place(found[i])
        self._lent = lent
        return found

    def take_back(self) -> None:
        """Let every access to the parameters raise again."""
        swap(self._storages, self._lent)
        self._lent = []
        self._held = []

    def take_back_rest(self) -> None:
        """Let every access raise again, if an interruption has left some parameters with memory."""
        for storage, place in zip(self._storages, self._lent):
            if has_memory(storage):
                storage._swap_data_ptr_(place)
        self._lent = []
        self._held = []

    def _refuse_other_memory(self) -> NoReturn:
        self.take_back()
        other = [t.name for t in self.tensors if not t.has_own_memory()]
        raise OtherMemory(other[0])

    def changed(self) -> list[Tensor]:
        """Return the tensors whose parameters were changed in place since the last call."""
        versions = list(map(version_of, self._locals))
        if versions == self._versions:
            return []
        before, self._versions = self._versions, versions
        return [t for t, old, new in zip(self.tensors, before, versions, strict=True) if old != new]

    def has_grads(self) -> bool:
        """Whether autograd has computed gradients of this unit that are not delivered."""
        for grad in map(grad_of, self.trained):
            if grad is not None:
                return True
        return False

    def has_all_grads(self) -> bool:
        """Whether autograd has computed all gradients of this unit, and none is delivered."""
        found = False
        for parameter in self.trained:
            if grad_of(parameter) is not None:
                found = True
            elif parameter.requires_grad:
                return False
        return found

    def drop_grads(self) -> None:
        """Forget gradients that are not delivered."""
        for parameter in self.trained:
            parameter._grad = None

    def write_grads(self) -> AbstractSet[Tensor]:
        """Write the gradients to the blocks of ``io``.

        Those that were not computed are 0. Returns their tensors.
        """
        addresses = self._grads_at.tolist()
        if addresses != self._grad_addresses:
            pairs = zip(self.tensors, addresses, strict=True)
            self._grad_places = [tensor.grad_place(a) for tensor, a in pairs if a != 0]
            self._grad_addresses = addresses
        places = self._grad_places
        grads = list(map(grad_of, self.trained))
        self.drop_grads()
        without = grads
        if not self._is_plain:
            grads = list(map(_contribution, self.trained_tensors, grads))
        adds = self._accumulate.tolist()
        plain = [g for g in grads if g is not None and not g.requires_grad and not g.is_sparse]
        if len(plain) == len(grads) and not any(adds):
            torch._foreach_copy_(places, plain)
            return _NONE
        added = [add for add, address in zip(adds, addresses, strict=True) if address != 0]
        for place, grad, add in zip(places, map(_dense, grads), added, strict=True):
            if grad is not None and add:
                place.add_(grad)
            elif grad is not None:
                place.copy_(grad)
            elif not add:
                place.zero_()
        return {t for t, grad in zip(self.trained_tensors, without, strict=True) if grad is None}


_NONE: AbstractSet[Tensor] = frozenset()
GRADS_OF_GRADS = (
    "cistern: gradients of gradients are not supported: the backward pass has create_graph=True, such as"
    " for a gradient penalty or a Hessian"
)


def _contribution(tensor: Tensor, grad: torch.Tensor | None) -> torch.Tensor | None:
    """Return what this rank adds to the gradient of ``tensor``."""
    if grad is None:
        return None
    if tensor.replicas is not None:
        tensor.replicas.note(tensor, grad)
    return shards.contribution(tensor.parameter, grad, tensor.use.gives)


def _dense(grad: torch.Tensor | None) -> torch.Tensor | None:
    """Return ``grad`` with all its elements. RuntimeError: it is a function of other tensors."""
    if grad is None:
        return None
    if grad.requires_grad:
        raise RuntimeError(GRADS_OF_GRADS)
    return grad.to_dense() if grad.is_sparse else grad


class UnitCalls:
    """The calls of a job for one of its operators."""

    __slots__ = ("begin", "end", "fits")

    def __init__(self, job: int, unit: Unit, err: cst_err) -> None:
        io, n, op = ctypes.byref(unit.io), len(unit.io), unit.number
        self.begin = {
            direction: prepared("cst_try_op_begin", job, op, direction, io, n, err)
            for direction in Direction
        }
        self.end = prepared("cst_op_end", job, op, err)
        self.fits = prepared("cst_op_fits", job, op, err)
