# SPDX-License-Identifier: Apache-2.0
"""Lets Trainer go on with a job that the daemon kept while the process died."""

from __future__ import annotations

import copy
import os
import shutil
import warnings
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint

from cistern.torch.store import Store

STATE_FILE = "trainer_state.json"


class Restart(TrainerCallback):
    """Writes the random numbers of each step, and begins with the step that is to be done.

    The daemon has the states of the model after each step, and Trainer can compute everything else
    from the number of the step, except random numbers. These are written to the output directory
    before the step is committed. Those of the step before are kept, for a process that dies between.
    """

    def __init__(self, trainer: Any, store: Store) -> None:
        self._trainer = trainer
        self._store = store
        self._found = store.step_no  # Steps that the job had done when this process attached.
        self._goes_on = False
        self._plain_train = trainer.train
        trainer.train = self.train

    def folder(self, step: int) -> str:
        """Return where the random numbers after ``step`` steps are."""
        job = self._store.job
        folder = f"cistern-{job.name}-rank{job.global_rank}"
        return os.path.join(self._trainer.args.output_dir, folder, f"step-{step}")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the random numbers before the step is committed."""
        step = self._store.step_no + 1
        self._trainer._save_rng_state(self.folder(step))
        shutil.rmtree(self.folder(step - 2), ignore_errors=True)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As ``Trainer.train``. If the job lives, its step counts, and not that of a checkpoint."""
        step, self._found = self._found, 0
        if 0 < step == self._store.step_no and os.path.isdir(self.folder(step)):
            state = self._state(resume_from_checkpoint)
            if state.global_step < step:
                state.global_step = step
                resume_from_checkpoint = self.folder(step)
                state.save_to_json(os.path.join(resume_from_checkpoint, STATE_FILE))
                self._goes_on = True
        return self._plain_train(resume_from_checkpoint, *args, **kwargs)

    def _state(self, checkpoint: str | bool | None) -> Any:
        """Return the state of Trainer in ``checkpoint``; True: in the last one; None: the first."""
        output_dir = self._trainer.args.output_dir
        last: Any = get_last_checkpoint
        found = last(output_dir) if isinstance(checkpoint, bool) and checkpoint else checkpoint
        if found:
            return TrainerState.load_from_json(os.path.join(str(found), STATE_FILE))
        state = copy.copy(self._trainer.state)
        state.train_batch_size = self._trainer.args.train_batch_size
        state.compute_steps(self._trainer.args, self._trainer.args.max_steps)
        return state

    def on_train_begin(
        self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **others: Any
    ) -> None:
        """Let the learning rate be that of the step."""
        if not self._goes_on:
            return
        self._goes_on = False
        plateau: Any = torch.optim.lr_scheduler.ReduceLROnPlateau
        if isinstance(lr_scheduler, plateau) or not hasattr(lr_scheduler, "last_epoch"):
            warnings.warn("cistern: the learning rate begins anew", stacklevel=2)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The scheduler does not know of the earlier steps.
            for _ in range(lr_scheduler.last_epoch, state.global_step):
                lr_scheduler.step()
