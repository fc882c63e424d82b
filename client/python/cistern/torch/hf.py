# SPDX-License-Identifier: Apache-2.0
"""Trainer of transformers with a store.

store = ct.attach(model, "run7", pool="6G", **ct.hf.options(model, args))
trainer = Trainer(model, args, train_dataset=data)
ct.hf.connect(trainer, store)
trainer.train()
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint

from cistern.results import RankStat
from cistern.torch import hf_parts, hf_states
from cistern.torch.hf_restart import STATE_FILE, Restart
from cistern.torch.optimizer import Optimizer
from cistern.torch.parallel.part import Part
from cistern.torch.replays import Replays
from cistern.torch.store import Store


def options(model: torch.nn.Module, args: Any) -> dict[str, Any]:
    """Return the arguments of ``attach`` that follow from ``args``, the TrainingArguments.

    These are ``micro_batches``, and a ``param_group`` that puts into group 1 what Trainer does not
    let decay, such as biases and norms. If ``args.resume_from_checkpoint`` is set, they include
    ``resume``.
    """
    names_of: Any = Trainer.get_decay_parameter_names  # It uses nothing of the trainer.
    decaying = set(names_of(None, model))
    found: dict[str, Any] = {
        "micro_batches": args.gradient_accumulation_steps,
        "param_group": lambda name, _: int(name not in decaying),
    }
    if args.resume_from_checkpoint:
        found["resume"] = states_of(args.resume_from_checkpoint, args)
    return found


def states_of(checkpoint: str | bool | None, args: Any) -> str:
    """Return where the job's states are in a checkpoint of Trainer, as the ``resume`` of ``attach``.

    ``checkpoint`` is what ``Trainer.train`` is given as ``resume_from_checkpoint``. ValueError:
    there is no checkpoint.
    """
    if str(checkpoint).lower() == "true":
        find: Any = get_last_checkpoint
        checkpoint = find(args.output_dir) if os.path.isdir(args.output_dir) else None
        if checkpoint is None:
            raise ValueError(f"cistern: there is no checkpoint in '{args.output_dir}'")
    return hf_states.newest(str(checkpoint))


def connect(trainer: Trainer, store: Store) -> None:
    """Let ``trainer`` train the model of ``store``, which was attached with ``options``.

    The optimizer gets its parameters from ``trainer.args``, unless the trainer was made with one of
    the store. Checkpoints have the job's states. A void step is done again with its batches. If the
    job is in the daemon because an earlier process died, ``trainer.train`` goes on with its step.
    The model of the trainer is what ``attach`` was given: with what ``parallelize`` returns, all ranks have
    the same batches, of ``per_device_train_batch_size`` rows together, and ``save_model`` writes whole weights
    to the folder "cistern".
    ValueError: the trainer has something that a store cannot do.
    """
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"cistern: Trainer would copy the model to {trainer.args.n_gpu} GPUs: use torchrun with"
            " a process for each of them, or set CUDA_VISIBLE_DEVICES to one"
        )
    plain = getattr(getattr(trainer.accelerator, "parallelism_config", None), "tp_size", 1) < 2
    if store.parts.has_meshes() and not isinstance(store.part, Part) and plain:
        raise ValueError(
            "cistern: Trainer gives each rank other rows, and ranks that divide tensors compute with the same"
            " ones: divide the model by parallelize(model, dict(tp=...), batch=...), and give Trainer the part"
        )
    if trainer.args.torch_compile:
        raise ValueError("cistern: a model is compiled by its layers: leave torch_compile out")
    if trainer.optimizer is None:
        trainer.optimizer = _optimizer_of(trainer.args, store)
    elif not isinstance(trainer.optimizer, Optimizer):
        raise ValueError("cistern: the optimizer of the trainer is not one of the store")
    if isinstance(store.part, Part):  # It computes again itself.
        hf_parts.connect(trainer, store, store.part)
    else:
        _prepare_autocast(trainer)
        _compute_again(trainer, store)
    _check_checkpoints(trainer, store)
    trainer.add_callback(Restart(trainer, store))
    # Before the callbacks that report, so that they find what this one adds.
    trainer.callback_handler.callbacks.insert(0, Callback(store))


def _optimizer_of(args: Any, store: Store) -> Optimizer:
    name = getattr(args.optim, "value", args.optim)
    if not name.startswith("adamw_torch"):
        raise ValueError(
            f"cistern: the optimizer '{name}' is not known here: give Trainer"
            " optimizers=(store.optimizer(...), None)"
        )
    n_groups = len(store.grouped_parameters())
    return store.optimizer(
        lr=args.learning_rate,
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
        weight_decay=args.weight_decay,
        clip_norm=args.max_grad_norm or 0.0,
        groups=[{}, {"weight_decay": 0.0}][:n_groups],
    )


def _prepare_autocast(trainer: Trainer) -> None:
    """Let accelerate do to the model what remains: nothing but autocast, if ``args`` want it."""
    model: Any = trainer.model
    del model._is_accelerate_prepared
    trainer.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)


def _compute_again(trainer: Any, store: Store) -> None:
    """Let the micro-batches of a void step be computed again."""
    replays, plain = Replays(store), trainer.training_step
    trainer.training_step = lambda *args, **kwargs: replays.run(
        functools.partial(plain, *args, **kwargs)
    )


class Callback(TrainerCallback):
    """Adds the daemon's counters to what Trainer logs, and the states of the job to checkpoints.

    ``connect`` adds it to a trainer. The values are those of this rank since the last log:
    ``cistern_hit_rate`` is the part of fetches whose weights were in the pool,
    ``cistern_wait_seconds`` the time for which the worker waited for weights, and
    ``cistern_exposed_seconds`` the time by which updates made the steps longer.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before: RankStat | None = None  # At the last log.
        self._steps_at_first = store.step_no

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Warn if the job goes on where it was, but the trainer begins with its first step."""
        self._before = self._store.stat()
        done = self._store.step_no
        if state.global_step == 0 and 0 < done == self._steps_at_first:
            warnings.warn(
                f"cistern: job '{self._store.job.name}' has done {done} steps, and Trainer begins"
                " with step 0, its first batch and its first learning rate",
                stacklevel=2,
            )

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add the counters to logs of training."""
        if logs is None or "loss" not in logs:
            return
        now, before = self._store.stat(), self._before
        self._before = now
        added = counters(now, before)
        logs.update(added)
        if state.log_history:
            state.log_history[-1].update(added)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the states of the job beside what Trainer has saved."""
        if args.save_only_model or self._store.job.global_rank != 0:
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        hf_states.save(self._store, folder)


def counters(now: RankStat, before: RankStat | None) -> dict[str, float]:
    """Return what ``Callback`` logs for the time from ``before`` to ``now``; None: the beginning."""
    names = ("hits", "late", "misses", "weight_wait_seconds", "exposed_seconds")
    hits, late, misses, waited, exposed = (
        getattr(now, name) - (0 if before is None else getattr(before, name)) for name in names
    )
    n = hits + late + misses
    return {
        "cistern_hit_rate": hits / n if n > 0 else 1.0,
        "cistern_wait_seconds": waited,
        "cistern_exposed_seconds": exposed,
    }


def _check_checkpoints(trainer: Any, store: Store) -> None:
    """Let the trainer leave the weights of a checkpoint alone: the job has them already."""

    def check(resume_from_checkpoint: str, model: Any = None) -> None:
        saved = TrainerState.load_from_json(os.path.join(resume_from_checkpoint, STATE_FILE))
        if saved.global_step != store.step_no:
            raise ValueError(
                f"cistern: '{resume_from_checkpoint}' is of step {saved.global_step}, job"
                f" '{store.job.name}' has done {store.step_no} steps: remove the job"
                f" (cistern rm {store.job.name}), and attach with"
                f" resume='{hf_states.newest(resume_from_checkpoint)}'"
            )

    trainer._load_from_checkpoint = check
