# SPDX-License-Identifier: Apache-2.0
"""Models that are cut into stages, of which each rank runs whatever unit is next."""

from __future__ import annotations

from ctypes import byref
from typing import NamedTuple

from cistern._abi import UnitKind, cst_unit
from cistern.calls import Calls
from cistern.waiting import STEP_SECONDS


class Unit(NamedTuple):
    """The forward or the backward pass of one stage over one micro-batch, or the end of the units."""

    kind: UnitKind  #: STEP: all units of the step are done, and the rank calls ``step``.
    stage: int  #: Number of the stage, from 0. STEP: 0.
    micro_batch: int  #: Number of the micro-batch, from 0. STEP: 0.


class Units(Calls):
    """The calls of a job for its units. ``Job`` has them; ``<cistern/unit.h>`` describes them in full.

    A thread that uses the job makes them, and no other one meanwhile.
    """

    def stage(self) -> int:
        """Begin a stage: operators that are declared from now on are in it. Return its number (>= 0).

        All operators are in stages, or none is. Raises CstError: EINVAL (operators were declared before
        the first stage, the last stage has none, or there are more than 64).
        """
        return self._declare(self.lib.cst_stage)

    def next(self, loss: float = 0.0) -> Unit:
        """End the unit that this rank got last, if it got one, and wait for the next unit.

        What the rank has handed in is then the contribution of the unit that ends. ``loss`` is that of
        its micro-batch, if it was a backward pass of the last stage. After an exception in the middle of
        a unit, ``sync`` gives the unit up, and it is given out again. Raises StepVoid (``sync``; the death
        of another rank is no reason), DeviceLost, CstError: EINVAL (the model has no stages, an operator
        is begun, or before ``sync``), ETIMEDOUT (the text names the rank whose unit others wait for), EBUSY.
        """
        unit, number = cst_unit(), float(loss)
        return self.client.wait(
            lambda err: self.lib.cst_try_next(self.handle, number, byref(unit), err),
            lambda: Unit(UnitKind(unit.kind), unit.stage, unit.micro_batch),
            self._waiting("next", STEP_SECONDS),
        )
