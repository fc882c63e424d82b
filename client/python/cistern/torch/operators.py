# SPDX-License-Identifier: Apache-2.0
"""The operators of a job with the parameters that they lend.

A unit is open while its weights are in the pool: its operator is begun with FORWARD. At most one
unit is open. Gradients are delivered in one go: the operator is begun with BACKWARD, the gradients
are written, and the operator ends. No code of the model runs between these two calls.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

import torch
from torch import nn

from cistern._abi import LAYOUTS, Direction, Dtype, State, Status, cst_err, cst_io
from cistern._library import check, prepared
from cistern.errors import CstError, StepVoid, error_of
from cistern.job import Job
from cistern.torch import shards
from cistern.torch.device import Device
from cistern.torch.gradients import HandedIn
from cistern.torch.parameter import grad_of, mark, version_of
from cistern.torch.parts import Use
from cistern.torch.replicas import Replicas
from cistern.torch.storage import LentStorage, at_address, has_memory, swap, tensor_of
from cistern.torch.weights import read_state, torch_type

_WORDS = ctypes.sizeof(cst_io) // 8
_WEIGHT = LAYOUTS[cst_io][1]["weight"] // 8
_GRAD = LAYOUTS[cst_io][1]["grad"] // 8
_ACCUMULATE = LAYOUTS[cst_io][1]["accumulate"]
_FORWARD, _BACKWARD, _EPOOL = Direction.FORWARD, Direction.BACKWARD, Status.EPOOL


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
        self.calls: _Calls  # Of the job, which ``Operators.add`` gives it.
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


class _Calls:
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


class Operators:
    """Opens and closes the units of one job, and delivers their gradients."""

    def __init__(self, job: Job, device: Device) -> None:
        self.job = job
        self.device = device
        self.is_new_pass = False  # A backward pass has begun, and has delivered nothing yet.
        self._delivered: set[Unit] = set()  # In this micro-batch.
        self.n_micro_batches = 1  #: In a step, at most.
        self._n_ended = 0  # Micro-batches of this attempt at the step.
        self.is_dispatched = (
            False  #: Ranks run units of stages, each with gradients of one micro-batch.
        )
        self._late: list[Unit] = []  # To be delivered when the pool has blocks.
        self.has_gradients = False  # In this attempt at the step.
        self.is_past_grads = False  # Gradients were delivered after the last step.
        self.handed_in = HandedIn()
        self.is_torn = False  # An interruption such as Ctrl-C has left a change half done.
        #: Whether a step that is void is computed to its end, with zeros instead of weights: other ranks wait
        #: for the messages of this one, and hear of the step's end later.
        self.goes_on = False
        self.void: StepVoid | None = (
            None  #: That the step has raised; None: it is not void, or raises at once.
        )
        self._zeros: torch.Tensor | None = None
        self._begins: tuple[Unit, Direction] | None = None  # What was begun last, or is pending.
        #: The last of these units is open, the others are opened again later.
        self.open_units: list[Unit] = []
        self._runs: list[
            Callable[[], object]
        ] = []  # Whether the run for which each was opened goes on.
        self._thread = 0  # That has opened the first of them.
        self._err = cst_err()
        self._inside = job.client.one_thread.call

    def add(self, unit: Unit) -> None:
        """Have ``unit`` as one that can be opened."""
        unit.calls = _Calls(self.job.handle, unit, self._err)

    def _change(self, change: Callable[..., None], *arguments: Any) -> None:
        """Call ``change``, and note if anything else than its own errors ends it.

        No other thread calls the job meanwhile. What the handler of a signal raises can come between a
        call of the job and the line that notes its result. Nothing is known then, and the step has to
        be given up.
        """
        self.is_torn = True
        try:
            self._inside(change, *arguments)
        except (CstError, RuntimeError):
            self.is_torn = False
            raise
        self.is_torn = False

    def push(self, unit: Unit, runs: Callable[[], object]) -> None:
        """Open ``unit`` for a run that goes on while ``runs()`` is true.

        A unit that is open is closed until ``unit`` is closed.
        """
        self.check_thread()
        self._change(self._push, unit, runs)

    def pop(self, deliver: bool = False) -> None:
        """Close the open unit, deliver its gradients if wanted, and open the one before again."""
        self._change(self._pop, deliver)

    def deliver(self, unit: Unit) -> None:
        """Write the gradients of ``unit`` to the pool, as soon as there are blocks for them.

        The unit that is open is closed meanwhile.
        """
        self._change(self._between, self._deliver, unit)

    def deliver_late(self, units: Sequence[Unit]) -> None:
        """Write what waits for blocks, at the end of a backward pass. ``units`` are all.

        The reverse order of declaration always has blocks. Units without gradients write zeros.
        """
        if self._late:
            self._late.clear()
            self._change(self._between, self._hand_in_all, units)

    def begin_step(self) -> None:
        """Have no micro-batches of this attempt at the step."""
        self.next_micro_batch()
        self._n_ended = 0

    def next_micro_batch(self) -> None:
        """Forget which units have delivered gradients."""
        self._delivered.clear()
        self._late.clear()
        self.is_new_pass = False

    def end_micro_batch(self) -> None:
        """End a micro-batch when its backward pass ends, unless it is the last one of the step."""
        if self._delivered and self._n_ended + 1 < self.n_micro_batches:
            self._inside(self._accumulate)

    def forget_last_step(self) -> None:
        """Let no parameter have the gradient of the last step any more, if this one has none yet."""
        if not self.has_gradients:
            self.handed_in.forget_last()

    def _push(self, unit: Unit, runs: Callable[[], object]) -> None:
        if self.open_units:
            self._take_back(self.open_units[-1])
        else:
            self._thread = threading.get_ident()
        self._lend(unit)
        self._runs.append(runs)
        self.open_units.append(unit)

    def _pop(self, deliver: bool) -> None:
        unit = self.open_units.pop()
        self._runs.pop()
        self._take_back(unit)
        if deliver:
            self._deliver(unit)
        if self.open_units:
            self._lend(self.open_units[-1])

    def _between(self, deliver: Callable[[Any], None], what: Any) -> None:
        if self.open_units:
            self._take_back(self.open_units[-1])
        deliver(what)
        if self.open_units:
            self._lend(self.open_units[-1])

    def _deliver(self, unit: Unit) -> None:
        """Deliver, or note that it is late, if units run in another order than they are declared."""
        if self.is_new_pass and self._delivered:
            self._accumulate()
        self.is_new_pass = False
        if unit not in self._late:
            self._late.append(unit)
        for late in list(self._late):
            if self._fits(late):
                self._late.remove(late)
                self._hand_in(late)

    def _hand_in(self, unit: Unit) -> None:
        self.handed_in.check(unit)
        self.has_gradients = self.is_past_grads = True
        self._delivered.add(unit)
        if not self.of_job(self._begin, unit, _BACKWARD):
            unit.drop_grads()
            return
        without = unit.write_grads()
        self.of_job(self._end, unit)
        self.handed_in.add(unit, without)

    def _hand_in_all(self, units: Sequence[Unit]) -> None:
        """Hand in what is left of ``units``, which are all, in the reverse order of declaration."""
        for unit in reversed(units):
            if unit.trained and unit not in self._delivered:
                self._hand_in(unit)

    def _fits(self, unit: Unit) -> bool:
        """Return whether the pool has blocks for gradients now, and for all others later."""
        if self.void is not None:
            return True
        if self.is_dispatched:  # Blocks are for the operators of one stage, in the reverse order.
            return True
        self.job.check_open()
        status = unit.calls.fits()
        if status not in (0, _EPOOL):
            check(status, self._err)
        return status == 0

    def of_job(self, call: Callable[..., None], *arguments: Any) -> bool:
        """Call the job, unless the step is void and goes on. Return whether it is not void."""
        if self.void is None:
            try:
                call(*arguments)
            except StepVoid as error:
                if not self.goes_on:
                    raise
                self.void = error
        return self.void is None

    def _accumulate(self) -> None:
        """End a micro-batch, because a backward pass after its own one has gradients."""
        try:
            self.of_job(self.job.accumulate)
        except CstError as error:
            if "last one of the step" not in error.text:
                raise
            raise error_of(error.status, _NO_STEP) from None
        self._n_ended += 1
        self.next_micro_batch()

    def close_all(self) -> None:
        """Close what is still open although no module runs, such as after Ctrl-C."""
        while self.open_units:
            self.pop()

    def is_of_other_thread(self) -> bool:
        """Whether the unit that is open was opened by another thread."""
        return bool(self.open_units) and self._thread != threading.get_ident()

    def check_thread(self) -> None:
        """Raise RuntimeError if the unit that is open was opened by another thread."""
        if self.is_of_other_thread():
            raise RuntimeError(
                f"cistern: another thread runs module '{self.open_units[-1].name}': one thread at a time"
                " uses a store"
            )

    def let_go(self, units: Collection[Unit]) -> None:
        """Let no storage of ``units``, which are all, have memory, because it can be unmapped now.

        RuntimeError: a unit runs, forward or backward, and its weights are read meanwhile. Units that
        Ctrl-C has left open do not run; their step has to be given up.
        """
        for unit, runs in zip(self.open_units, self._runs):
            if runs():
                raise RuntimeError(_RUNS.format(unit.name))
        is_torn = self.is_torn or bool(self.open_units)
        self.forget(units)
        self.is_torn = is_torn

    def finish(self) -> None:
        """End the call that an interruption has left pending. Raises what it raises."""
        if self.job.client.is_pending and self._begins is not None:
            self._inside(self._begin, *self._begins)

    def forget(self, units: Collection[Unit]) -> None:
        """Let no storage of ``units``, which are all, have memory. Calls nothing of the job."""
        self.open_units.clear()
        self._runs.clear()
        for unit in units:
            unit.take_back_rest()
        self.is_torn = False
        self.void = self._zeros = None

    def _begin(self, unit: Unit, direction: Direction) -> None:
        self._begins = unit, direction
        self.job.check_open()
        status = unit.calls.begin[direction]()
        if status != 0:
            self._go_on(unit, direction, status)
        self.device.begin_work()

    def _go_on(self, unit: Unit, direction: Direction, status: int) -> None:
        """Wait for the end of a call that returned ``status``, or raise what it is."""
        begin, job, n = self.job.lib.cst_try_op_begin, self.job.handle, len(unit.io)
        try:
            if status != Status.EAGAIN:
                check(status, self._err)
            self.job.client.wait(
                lambda err: begin(job, unit.number, direction, unit.io, n, err), lambda: None
            )
        except CstError as error:
            if "handed in already" not in error.text:
                raise
            raise error_of(error.status, f"{error.text}. {_TWICE}") from None

    def _end(self, unit: Unit) -> None:
        self.device.end_work()
        self.job.check_open()
        status = unit.calls.end()
        if status != 0:
            check(status, self._err)

    def _lend(self, unit: Unit) -> None:
        if not self.of_job(self._begin, unit, _FORWARD):
            unit.lend_zeros(self._zeros_for(unit))
            return
        try:
            unit.lend()
        except OtherMemory:
            self._end(unit)
            raise

    def _zeros_for(self, unit: Unit) -> torch.Tensor:
        """Return memory of zeros that is as long as the longest tensor of ``unit``."""
        n_bytes = max(tensor.lent.n_bytes for tensor in unit.tensors)
        if self._zeros is None or self._zeros.numel() < n_bytes:
            device = self.device.torch_device
            self._zeros = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
        return self._zeros

    def _take_back(self, unit: Unit) -> None:
        changed = unit.changed() if self.void is None else []
        try:
            if changed:
                self._restore(changed)
        finally:
            unit.take_back()
            self.of_job(self._end, unit)
        if changed:
            raise RuntimeError(_CHANGED.format(changed[0].name, unit.name))

    def _restore(self, changed: list[Tensor]) -> None:
        """Let weights in the pool, which the model has changed, be those of the job again.

        Others than those of the job are the program's own.
        """
        for tensor in changed:
            if tensor.other is not None:
                continue
            weights = read_state(self.job, tensor.number, State.WEIGHT, tensor.dtype, tensor.shape)
            tensor.lent.tensor.copy_(weights)


_RUNS = (
    "cistern: module '{0}' runs, and uses weights whose memory would be taken away: close the store, leave the"
    " job, or call Store.sync after the forward or the backward pass. The handler of a signal can end the"
    " pass, with an exception such as SystemExit"
)
_NO_STEP = (
    "cistern: this step has had all its backward passes, as many as attach has micro_batches, and one"
    " more gives it up: discard its gradients with zero_grad, and do it again. Call the step of the"
    " optimizer that Store.optimizer returns after so many backward passes, or give attach more"
    " micro_batches"
)
_CHANGED = (
    "cistern: parameter '{0}' was changed in place while module '{1}' ran. The change is undone: the"
    " optimizer changes weights and, between steps, a block of Store.changing, Store.write and"
    " load_state_dict. A module can compute with a changed copy, such as self.weight.clamp(-1, 1)."
    " PEFT sets parameters anew that it adapts without a linear module (target_parameters, and routers of experts"
    " in 'all-linear'): name linear modules as target_modules"
)
_TWICE = (
    "A module had a second backward pass in this step: call the step of the optimizer after each"
    " backward pass, or give attach the number of micro_batches"
)
