# SPDX-License-Identifier: Apache-2.0
"""Where a job gets its first states, and what becomes of these if it has states already."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any, NamedTuple

from torch import nn

from cistern._abi import Status
from cistern.calls import Path
from cistern.checkpoint import checkpoints
from cistern.errors import error_of
from cistern.job import Job
from cistern.torch import buffers
from cistern.torch.advice import advice

_LEVEL = 3  # Of the caller of ``attach``, for warnings.


class Found(NamedTuple):
    """A checkpoint that can be resumed from."""

    folder: str
    step: int  #: -1: unknown.


def find_checkpoint(path: Path) -> Found:
    """Return the checkpoint that ``Job.load`` takes at ``path``. CstError: ENOTFOUND, EIO."""
    path = os.fspath(path)
    if os.path.exists(os.path.join(path, "cistern.json")):
        number = re.fullmatch(r"step-(\d+)", os.path.basename(os.path.abspath(path)))
        return Found(path, int(number[1]) if number else -1)
    found = checkpoints(path)
    whole = [c for c in found if c.whole]
    if not whole:
        why = f": {found[-1].name}: {found[-1].why}" if found else ""
        raise error_of(
            Status.ENOTFOUND,
            f"there is no whole checkpoint in '{path}'{why}. Name a directory to which a job was saved"
            " (cistern save, store.save), or leave resume= out to begin with the weights of the model",
        )
    return Found(os.path.join(path, whole[-1].name), whole[-1].step)


def _check_has_model(path: str) -> None:
    """Raise CstError (ENOTFOUND) if ``path`` is a directory without safetensors files."""
    if not os.path.isdir(path) or any(".safetensors" in name for name in os.listdir(path)):
        return
    text = f"there are no safetensors files in '{path}' to load from"
    steps = sorted(name for name in os.listdir(path) if re.fullmatch(r"step-\d+", name))
    if steps:
        text += (
            f". It has checkpoints: resume='{path}' goes on from the newest, and"
            f" load='{os.path.join(path, steps[-1])}' takes its weights alone"
        )
    raise error_of(Status.ENOTFOUND, text)


def open_job(name: str, **options: Any) -> Job:
    """Return ``Job(name, **options)``. Errors say what to do."""
    with advice(name):
        return Job(name, **options)


class Origin:
    """The model, the model files at ``load``, or the checkpoint at ``resume``.

    Buffers of ``model`` are loaded here, in each process. Raises TypeError if a buffer is then on
    the meta device, ValueError (``buffers.load``), OSError and what ``find_checkpoint`` raises.
    """

    def __init__(self, model: nn.Module, load: Path | None, resume: Path | None) -> None:
        self.model = model
        self.load = load
        self.resume = resume
        self._checkpoint = None if resume is None else find_checkpoint(resume)
        if load is not None and not os.path.exists(load):
            raise error_of(Status.ENOTFOUND, f"there is no '{os.fspath(load)}' to load from")
        if load is not None:
            _check_has_model(os.fspath(load))
        path = self._checkpoint.folder if self._checkpoint is not None else load
        self._missing = [] if path is None else buffers.load(model, os.fspath(path))
        self._has_values = any(not parameter.is_meta for parameter in model.parameters())
        buffers.check_no_meta(model)

    @property
    def _words(self) -> str:
        if self.resume is not None:
            return f"those of the checkpoint at '{os.fspath(self.resume)}'"
        return "those of the model" if self.load is None else f"those of '{os.fspath(self.load)}'"

    def warn_of_missing_buffers(self) -> None:
        """Warn of buffers that files do not have."""
        if self._missing:
            warnings.warn(
                f"cistern: {len(self._missing)} buffers are those of the model, because"
                f" '{os.fspath(self.resume or self.load or '')}' does not have them:"
                f" {buffers.in_short(self._missing)}",
                stacklevel=_LEVEL,
            )

    def check_kept(self, job: Job, warns: bool) -> None:
        """Say what of this origin is not used, because ``job``, which is committed, has weights.

        A script that gives the same origin each time goes on with its job when its process starts
        again. It is therefore no error that the job is at the step of ``resume`` or beyond it.
        ValueError: the job has not reached this step, so that it does not come from there.
        """
        step, name = job.steps, job.name
        if self._checkpoint is not None and self._checkpoint.step > step:
            raise ValueError(
                f"cistern: job '{name}' is at step {step}, and the checkpoint"
                f" '{self._checkpoint.folder}' at step {self._checkpoint.step}. To go on from the"
                f" checkpoint, remove the job: cistern rm {name}. To go on with the job, leave out"
                " resume"
            )
        if not warns:
            return
        has_others = self.load is not None or self.resume is not None or self._has_values
        if has_others and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0):
            warnings.warn(
                f"cistern: job '{name}' is at step {step}: its weights are used, not {self._words}."
                f" To begin anew, remove the job before: cistern rm {name}",
                stacklevel=_LEVEL,
            )
        names = list(buffers.copies(self.model))
        if step > 0 and names:
            warnings.warn(
                f"cistern: job '{name}' is at step {step}, but the process that had its buffers has"
                f" ended: {len(names)} buffers are {self._words}: {buffers.in_short(names)}",
                stacklevel=_LEVEL,
            )
