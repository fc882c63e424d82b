# SPDX-License-Identifier: Apache-2.0
"""Parts of a micro-batch that take turns, so that one computes while the collective of another runs.

Each part has a thread, and one thread at a time has the turn. It starts a collective, and gives the
turn away until it has it again. All ranks run one program, so that their turns, and the order of
their collectives, are the same. The sums of gradients have the bits that they have without turns.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from cistern.torch.parallel.collectives import TURN

Part = TypeVar("Part")
Result = TypeVar("Result")


class _Stopped(Exception):
    """Ends a thread because another one has failed."""


class _Baton:
    """Goes round among threads. It is with the first one."""

    def __init__(self, n: int) -> None:
        self._turns = [threading.Semaphore(int(i == 0)) for i in range(n)]
        self._runs = [True] * n
        self.error: BaseException | None = None

    def take(self, i: int) -> None:
        """Wait for the turn of thread ``i``. _Stopped: another one has failed."""
        self._turns[i].acquire()
        if self.error is not None:
            raise _Stopped

    def hand_over(self, i: int) -> None:
        """Let the next one that runs compute until it is the turn of thread ``i`` again."""
        self._release_after(i)
        self.take(i)

    def leave(self, i: int, error: BaseException | None) -> None:
        """Thread ``i``, which has the baton, ends; all others do if it has failed."""
        if not isinstance(error, _Stopped):
            self.error = self.error or error
        self._runs[i] = False
        if any(self._runs):
            self._release_after(i)

    def _release_after(self, i: int) -> None:
        n = len(self._runs)
        after = (k % n for k in range(i + 1, i + n + 1))
        self._turns[next(k for k in after if self._runs[k])].release()


def take_turns(compute: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return ``compute(part)`` of each of ``parts``, which compute in turns, each in its own thread.

    The first one is in the caller's. All ranks call this alike. Whatever one raises is raised here,
    when the others have ended at their next collective; the process groups are of no use then.
    """
    baton = _Baton(len(parts))
    results: dict[int, Result] = {}
    enter = _same_settings()

    def run(i: int) -> None:
        error: BaseException | None = None
        before = TURN.wait
        try:
            baton.take(i)
            TURN.wait = lambda: baton.hand_over(i)
            with enter():
                results[i] = compute(parts[i])
        except BaseException as raised:  # noqa: BLE001 (the caller raises it)
            error = raised
        TURN.wait = before
        baton.leave(i, error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(1, len(parts))]
    for thread in threads:
        thread.start()
    if parts:
        run(0)
    for thread in threads:
        thread.join()
    if baton.error is not None:
        raise baton.error
    return [results[i] for i in range(len(parts))]


def _same_settings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what gives another thread the settings of torch that this one has.

    Backward passes run in the thread that asks for them, so that they wait for their own turn.
    """
    n_threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    kinds = ["cpu"] if device is None else ["cpu", "cuda"]
    casts = [(k, torch.get_autocast_dtype(k)) for k in kinds if torch.is_autocast_enabled(k)]

    @contextlib.contextmanager
    def settings() -> Iterator[None]:
        torch.set_num_threads(n_threads)
        with contextlib.ExitStack() as stack:
            if device is not None:
                stack.enter_context(torch.cuda.device(device))
            for kind, dtype in casts:
                stack.enter_context(torch.autocast(kind, dtype))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            yield

    return settings


def in_turns(loss_of: Callable[[Part], torch.Tensor], parts: Sequence[Part]) -> list[torch.Tensor]:
    """Run ``loss_of(part).backward()`` for each of ``parts``, in turns. Return the losses.

    ``take_turns`` says in which threads. A model with a store is not for this: it raises RuntimeError.
    """

    def compute(part: Part) -> torch.Tensor:
        loss = loss_of(part)
        torch.autograd.backward(loss)
        return loss.detach()

    return take_turns(compute, parts)
