# SPDX-License-Identifier: Apache-2.0
"""The operators of a job with the parameters that they lend.

A unit is open while its weights are in the pool: its operator is begun with FORWARD. At most one
unit is open. Gradients are delivered in one go: the operator is begun with BACKWARD, the gradients
are written, and the operator ends. No code of the model runs between these two calls.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import nn

from cistern._abi import LAYOUTS, Direction, cst_err, cst_io
from cistern._library import check, wait
from cistern.errors import CstError, error_of
from cistern.job import Job
from cistern.torch.storage import BF16_BYTES, LentStorage, at_address, tensor_of

_WORDS = ctypes.sizeof(cst_io) // 8
_WEIGHT = LAYOUTS[cst_io][1]["weight"] // 8
_GRAD = LAYOUTS[cst_io][1]["grad"] // 8


class Tensor:
    """A tensor of the job, and the parameter of the model that it is.

    The parameter loses its own memory here.
    """

    def __init__(
        self, name: str, number: int, parameter: nn.Parameter, shape: tuple[int, ...]
    ) -> None:
        self.name = name
        self.number = number
        self.parameter = parameter
        self.shape = tuple(shape)
        self.n_elems = math.prod(shape)
        self.trains = parameter.requires_grad
        self.grad: torch.Tensor | None = None  # Computed, and not delivered yet.
        self._grad_places: dict[int, torch.Tensor] = {}
        message = (
            f"cistern: parameter '{name}' used outside of its module. Its weights are in memory"
            " only while a module runs that owns it. Store.read returns a copy."
        )
        self.lent = LentStorage(self.shape, message)
        parameter.data = self.lent.tensor
        self.version = parameter._version

    def keep_grad(self, grad: torch.Tensor) -> None:
        """Keep ``grad``, which nobody else uses, in addition to what is kept already."""
        dense = grad.to_dense() if grad.is_sparse else grad
        if self.grad is None:
            self.grad = dense
        else:
            self.grad.add_(dense)

    def write_grad(self, address: int, accumulate: bool) -> None:
        """Write the kept gradient to a block; one that was not computed is 0."""
        grad, self.grad = self.grad, None
        place = self._grad_places.get(address)
        if place is None:
            place = tensor_of(at_address(address, self.n_elems * BF16_BYTES), self.shape)
            self._grad_places[address] = place
        if grad is None:
            if not accumulate:
                place.zero_()
        elif accumulate:
            place.add_(grad)
        else:
            place.copy_(grad)


class Unit:
    """An operator of the job: a module with its tensors."""

    def __init__(self, name: str, number: int, tensors: list[Tensor]) -> None:
        self.name = name
        self.number = number
        self.tensors = tensors
        self.io = (cst_io * len(tensors))()
        self.words = memoryview(self.io).cast("B").cast("Q")

    @property
    def has_grads(self) -> bool:
        """Whether gradients of this unit are kept."""
        return any(tensor.grad is not None for tensor in self.tensors)


class Operators:
    """Opens and closes the units of one job, and delivers their gradients."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.has_delivered = False  # In this micro-batch.
        self._stack: list[Unit] = []  # The last one is open, the others are opened again later.

    @property
    def open_unit(self) -> Unit | None:
        """The unit that is open."""
        return self._stack[-1] if self._stack else None

    def push(self, unit: Unit) -> None:
        """Open ``unit``. A unit that is open is closed until ``unit`` is closed."""
        if self._stack:
            self._take_back(self._stack[-1])
        self._lend(unit)
        self._stack.append(unit)

    def pop(self, deliver: bool = False) -> None:
        """Close the open unit, deliver its gradients if wanted, and open the one before again."""
        unit = self._stack.pop()
        self._take_back(unit)
        if deliver:
            self.deliver(unit)
        if self._stack:
            self._lend(self._stack[-1])

    def deliver(self, unit: Unit) -> None:
        """Write the kept gradients of ``unit`` to the pool. No unit is open meanwhile."""
        self.has_delivered = True
        self._begin(unit, Direction.BACKWARD)
        with torch.no_grad():
            for i, address in enumerate(unit.words[_GRAD::_WORDS].tolist()):
                if address != 0:
                    unit.tensors[i].write_grad(address, unit.io[i].accumulate)
        self._end(unit)

    def close_all(self) -> None:
        """Close what is still open although no module runs, such as after Ctrl-C."""
        while self._stack:
            self.pop()

    def forget(self) -> None:
        """Let no storage have memory. Calls nothing of the job."""
        while self._stack:
            for tensor in self._stack.pop().tensors:
                tensor.lent.take_back()

    def _begin(self, unit: Unit, direction: Direction) -> None:
        lib, job, n = self.job.lib, self.job.handle, len(unit.tensors)
        try:
            wait(
                self.job.client.handle,
                lambda err: lib.cst_try_op_begin(job, unit.number, direction, unit.io, n, err),
            )
        except CstError as error:
            if "handed in already" not in error.text:
                raise
            raise error_of(error.status, f"{error.text}. {_TWICE}") from None

    def _end(self, unit: Unit) -> None:
        err = cst_err()
        check(self.job.lib.cst_op_end(self.job.handle, unit.number, err), err)

    def _lend(self, unit: Unit) -> None:
        self._begin(unit, Direction.FORWARD)
        addresses = unit.words[_WEIGHT::_WORDS].tolist()
        for tensor, address in zip(unit.tensors, addresses, strict=True):
            tensor.lent.lend(address)

    def _take_back(self, unit: Unit) -> None:
        for tensor in unit.tensors:
            tensor.lent.take_back()
        self._end(unit)
        for tensor in unit.tensors:
            if tensor.parameter._version != tensor.version:
                tensor.version = tensor.parameter._version
                raise RuntimeError(
                    f"cistern: parameter '{tensor.name}' was changed in place by module"
                    f" '{unit.name}'; only the optimizer may change weights"
                )


_TWICE = (
    "A module had a second backward pass in this step: call the step of the optimizer after each"
    " backward pass, or give attach the number of micro_batches"
)
