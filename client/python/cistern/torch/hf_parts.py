# SPDX-License-Identifier: Apache-2.0
"""A Trainer of transformers whose ranks have parts of the model: all of them are given the same batches."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from cistern.torch import hf_states
from cistern.torch.parallel.part import Part
from cistern.torch.store import Store


def connect(trainer: Any, store: Store, part: Part) -> None:
    """Let ``trainer``, whose model is ``part``, train with whole batches of ``per_device_train_batch_size`` rows.

    ValueError: the trainer has something that parts cannot do, or another model.
    """
    if trainer.model is not part:
        raise ValueError(
            "cistern: give Trainer what parallelize has returned, Trainer(model=part), and not the model itself"
        )
    _check(trainer, part)
    part.forward_context = trainer.accelerator.autocast
    trainer.model_accepts_loss_kwargs = True  # The part counts labels, for any model.
    if trainer.args.label_names is None:
        utilities: Any = importlib.import_module("transformers.utils")
        trainer.label_names = utilities.find_labels(part.model_class)
    trainer.args.average_tokens_across_devices = False
    trainer.get_total_train_batch_size = _rows_of_step  # Of which follow samples per second.
    trainer.accelerator.prepare_data_loader = _alike_for_all(trainer.accelerator)
    trainer.training_step = _training_step(trainer, part)
    trainer.prediction_step = _prediction_step(trainer, part, trainer.prediction_step)
    trainer.accelerator.gather_for_metrics = trainer.gather_function = _as_it_is
    trainer.save_model = _save_model(trainer, store)


def _check(trainer: Any, part: Part) -> None:
    """Raise ValueError if ``trainer`` has something that parts cannot do."""
    args = trainer.args
    for name, wanted in (
        ("label_smoothing_factor", 0),
        ("load_best_model_at_end", False),
        ("auto_find_batch_size", False),
    ):
        if getattr(args, name, wanted) != wanted:
            raise ValueError(
                f"cistern: ranks with parts of a model cannot have {name}={getattr(args, name)}: leave it out"
            )
    if trainer.compute_loss_func is not None:
        raise ValueError(
            "cistern: the loss of parts is that of the model: leave compute_loss_func out"
        )
    multiple = part.degrees.dp * part.degrees.micro_batches
    rows = args.per_device_train_batch_size
    n = getattr(trainer.train_dataset, "__len__", lambda: 0)()
    rest = 0 if args.dataloader_drop_last else n % rows
    for what, n_rows in (("batch", rows), ("last batch of an epoch", rest)):
        if n_rows % multiple:
            raise ValueError(
                f"cistern: the {what} has {n_rows} rows, of all ranks together, which do not divide into"
                f" {part.degrees.micro_batches} micro-batches of each of {part.degrees.dp} data ranks: give"
                f" per_device_train_batch_size a multiple of {multiple}, and dataloader_drop_last=True"
            )


def _rows_of_step(args: Any) -> int:
    return int(args.train_batch_size * args.gradient_accumulation_steps)


def _alike_for_all(accelerator: Any) -> Callable[..., Any]:
    loaders: Any = importlib.import_module("accelerate.data_loader")

    def prepare(loader: Any, *_: Any, **__: Any) -> Any:
        """Let each process have all batches, in an order that follows from the seed."""
        prepared: Any = loaders.prepare_data_loader(
            loader,
            accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            use_seedable_sampler=True,
            data_seed=accelerator.dataloader_config.data_seed,
        )
        accelerator._dataloaders.append(prepared)
        return prepared

    return prepare


def _training_step(trainer: Any, part: Part) -> Callable[..., torch.Tensor]:
    def training_step(_: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        part.train()
        batch = dict(trainer._prepare_inputs(inputs))
        return part.step(**batch, num_items_in_batch=num_items_in_batch)

    return training_step


def _prediction_step(trainer: Any, part: Part, plain: Callable[..., Any]) -> Callable[..., Any]:
    degrees = part.degrees

    def prediction_step(
        model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
    ) -> Any:
        if degrees.pp > 1 or (degrees.dp * degrees.cp > 1 and not prediction_loss_only):
            raise RuntimeError(
                "cistern: stages of a pipeline do not evaluate, and data ranks have no logits of the others: leave"
                " evaluation out (eval_strategy='no'), and evaluate the checkpoint in one process; with pp=1,"
                " prediction_loss_only=True evaluates here"
            )
        return plain(model, inputs, prediction_loss_only, *args, **kwargs)

    return prediction_step


def _as_it_is(value: Any, *_: Any, **__: Any) -> Any:
    """Gather nothing: all processes have the same."""
    return value


def _save_model(trainer: Any, store: Store) -> Callable[..., None]:
    def save_model(output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, whole, in the folder ``cistern`` of ``output_dir``, and beside it what is no weight.

        Checkpoints have the folder already.
        """
        folder = trainer.args.output_dir if output_dir is None else output_dir
        if not trainer.args.should_save:
            return
        os.makedirs(folder, exist_ok=True)
        trainer.model.config.save_pretrained(folder)
        if trainer.processing_class is not None:
            trainer.processing_class.save_pretrained(folder)
        if not _internal_call:
            hf_states.save(store, folder)

    return save_model
