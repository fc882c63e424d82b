# SPDX-License-Identifier: Apache-2.0
"""Parts of a micro-batch that take turns, so that one computes while the collective of another runs.

Each part has a thread, and one thread at a time has the turn. It starts a collective, and gives the
turn away until it has it again. All ranks run one program, so that their turns, and the order of
their collectives, are the same. The sums of gradients have the bits that they have without turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cistern.torch.parallel.collectives import TURN


class _Turns:
    """Which of ``n`` threads may run."""

    def __init__(self, n: int) -> None:
        self._changed = threading.Condition()
        self._running = list(range(n))
        self._now = 0

    def wait_for(self, mine: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now == mine)

    def give(self, mine: int) -> None:
        """Let the others run until it is the turn of ``mine`` again."""
        self._next(mine)
        self.wait_for(mine)

    def end(self, mine: int) -> None:
        """Let the others run to their ends."""
        self._next(mine)
        with self._changed:
            self._running.remove(mine)

    def _next(self, mine: int) -> None:
        with self._changed:
            after = self._running.index(mine) + 1
            self._now = self._running[after % len(self._running)]
            self._changed.notify_all()


def in_turns(loss_of: Callable[[Any], torch.Tensor], parts: Sequence[Any]) -> list[torch.Tensor]:
    """Run ``loss_of(part).backward()`` for each of ``parts``, in turns. Return the losses.

    ``loss_of`` runs in threads of its own, in which torch's modes have their defaults: what it wants
    of them, such as autocast, it enters itself. The backward pass gives turns away where it runs in the
    thread that asks for it, as on CPUs; in others it is run through. What a part raises first is raised
    when all have ended. A model with a store is not for this.
    """
    turns = _Turns(len(parts))
    losses: list[torch.Tensor | None] = [None] * len(parts)
    raised: list[BaseException] = []

    def run(mine: int, part: Any) -> None:
        turns.wait_for(mine)
        TURN.wait = lambda: turns.give(mine)
        try:
            loss = loss_of(part)
            torch.autograd.backward(loss)
            losses[mine] = loss.detach()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            raised.append(error)
        finally:
            TURN.wait = None
            turns.end(mine)

    threads = [threading.Thread(target=run, args=of) for of in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [loss for loss in losses if loss is not None]
