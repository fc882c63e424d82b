# SPDX-License-Identifier: Apache-2.0
"""The operators of a job with the parameters that they lend.

A unit is open while its weights are in the pool: its operator is begun with FORWARD. At most one
unit is open. Gradients are delivered in one go: the operator is begun with BACKWARD, the gradients
are written, and the operator ends. No code of the model runs between these two calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from cistern._abi import Direction, Reason, State, Status, cst_err
from cistern._library import check
from cistern.errors import CstError, StepVoid
from cistern.job import Job
from cistern.torch.device import Device
from cistern.torch.gradients import HandedIn
from cistern.torch.lending import OtherMemory, Tensor, Unit, UnitCalls
from cistern.torch.weights import read_state

_FORWARD, _BACKWARD, _EPOOL = Direction.FORWARD, Direction.BACKWARD, Status.EPOOL


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
        unit.calls = UnitCalls(self.job.handle, unit, self._err)

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
            if error.reason != Reason.LAST_MICRO_BATCH:
                raise
            raise error.with_text(_NO_STEP) from None
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
            if error.reason != Reason.HANDED_IN:
                raise
            raise error.with_text(f"{error.text}. {_TWICE}") from None

    def _end(self, unit: Unit) -> None:
        self.device.end_work()
        self.job.check_open()
        status = unit.calls.end()
        if status != 0:
            check(status, self._err)

    def _lend(self, unit: Unit) -> None:
        # Autocast keeps what it makes of weights, and its graph, for the modules that run later in its block.
        torch.clear_autocast_cache()
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
