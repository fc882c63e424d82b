# SPDX-License-Identifier: Apache-2.0
"""Computes a step again that was void, because a rank or the daemon had ended in the middle of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cistern.errors import StepVoid
from cistern.torch.store import Store

Call = Callable[[], torch.Tensor]


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
        RuntimeError: the step has had all its calls. Its gradients stay.
        """
        optimizer = self._store.the_optimizer()
        if self._step != self._store.step_no or optimizer.loss is None:
            self._step = self._store.step_no
            self._calls.clear()
        if self._n_calls is not None and len(self._calls) == self._n_calls:
            raise RuntimeError(_ENOUGH.format(self._n_calls, self._n_calls + 1))
        self._calls.append(call)
        optimizer.replay = self._again
        try:
            loss = _made(call)
        except StepVoid:
            return self._until_done()
        except BaseException:
            self._calls.pop()
            if self._store.is_given_up:  # The step begins again with the first call.
                optimizer.loss = None
            raise
        optimizer.loss = loss if optimizer.loss is None else optimizer.loss + loss
        return loss

    def _until_done(self) -> torch.Tensor:
        while True:
            self._store.sync()
            self._store.restore_random_state()
            try:
                return self._again()
            except StepVoid:
                continue

    def _again(self) -> torch.Tensor:
        """Make the calls, and return the loss of the last one."""
        losses = [_made(call) for call in self._calls]
        self._store.the_optimizer().loss = sum(losses)
        return losses[-1]


def _made(call: Call) -> torch.Tensor:
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
