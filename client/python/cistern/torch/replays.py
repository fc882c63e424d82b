# SPDX-License-Identifier: Apache-2.0
"""Computes a step again that was void, because a rank or the daemon had ended in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from cistern.errors import StepVoid

if TYPE_CHECKING:
    from cistern.torch.store import Store

Call = Callable[[], torch.Tensor]


def begins_again(store: Store) -> bool:
    """Give up a void step, and wait for the other ranks. Return whether it begins again, with its random numbers.

    Else it is committed: the daemon ended before it could say so, or workers of a dispatched model have
    done it without this one. RuntimeError: they have done further ones, too.
    """
    before = store.step_no
    step = store.sync()
    if step == before:
        store.restore_random_state()
    elif step != before + 1:
        raise RuntimeError(_WITHOUT.format(before, step))
    return step == before


class Replays:
    """Keeps the calls that compute gradients of a step of ``store``, and makes them again after a void step."""

    def __init__(self, store: Store, n_calls: int | None = None) -> None:
        """``n_calls``: as many as a step has, at most; None: any number."""
        self._store = store
        self._n_calls = n_calls
        self._calls: list[Call] = []
        self._step = -1  # That of the calls.

    def run(self, call: Call) -> torch.Tensor:
        """Return what ``call`` returns: the loss of a part of the step, whose gradients it has computed.

        It is the first one of a step if the optimizer has no loss, since a commit and ``zero_grad`` forget that.
        The loss is NaN if the step turns out to be committed; the step of the optimizer does nothing then.
        RuntimeError: the step has had all its calls, and its gradients stay; or further steps are committed.
        """
        optimizer = self._store.the_optimizer()
        self._forget_other_steps()
        if self._n_calls is not None and len(self._calls) == self._n_calls:
            raise RuntimeError(_ENOUGH.format(self._n_calls, self._n_calls + 1))
        self._calls.append(call)
        optimizer.replay, optimizer.is_committed = self._replay, False
        try:
            return self._made(call)
        except BaseException:
            self._calls.pop()
            if self._store.is_given_up:  # The step begins again with the first call.
                optimizer.loss = None
            raise

    def _forget_other_steps(self) -> None:
        """Have no calls but those of this step whose gradients were not discarded."""
        optimizer = self._store.the_optimizer()
        if self._step != self._store.step_no or optimizer.loss is None:
            self._step, optimizer.loss = self._store.step_no, None
            self._calls.clear()

    def _made(self, call: Call) -> torch.Tensor:
        """Make ``call``, the last one, or all of them until the step is not void."""
        optimizer = self._store.the_optimizer()
        try:
            loss = _result(call)
        except StepVoid:
            return self._until_done()
        optimizer.loss = loss if optimizer.loss is None else optimizer.loss + loss
        return loss

    def _until_done(self) -> torch.Tensor:
        while begins_again(self._store):
            try:
                return self._again()[-1]
            except StepVoid:
                continue
            except BaseException:
                if len(self._calls) > 1:  # Others may have gradients now, or none.
                    self._store.abandon()
                raise
        optimizer = self._store.the_optimizer()
        optimizer.loss, optimizer.is_committed = None, True
        return torch.tensor(math.nan, device=self._store.device.torch_device)

    def _replay(self) -> None:
        """Make the calls of this step, if it has any, for the step of the optimizer."""
        self._forget_other_steps()
        self._again()

    def _again(self) -> list[torch.Tensor]:
        """Make the calls, and return their losses."""
        losses = [_result(call) for call in self._calls]
        self._store.the_optimizer().loss = sum(losses) if losses else None
        return losses


def _result(call: Call) -> torch.Tensor:
    """Return what ``call`` returns. StepVoid: it has raised that, or what a schedule of torch has made of one."""
    try:
        return call()
    except RuntimeError as error:
        found: BaseException | None = error
        while found is not None and not isinstance(found, StepVoid):
            found = found.__cause__
        if found is None:
            raise
        raise found from None


_ENOUGH = (
    "cistern: this step has the gradients of {0} part.step, as many as attach was told, and keeps them: call the step of"
    " the optimizer now, or zero_grad() of the optimizer to discard them, or give attach micro_batches={1} to sum those"
    " of so many batches"
)
_WITHOUT = (
    "cistern: while this worker did not answer, the others have gone on from step {0} to step {1} without it. Nothing of"
    " what it computed counts: go on with the batch of step {1}, which store.step_no is now, or start the worker again"
)
