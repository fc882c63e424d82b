# SPDX-License-Identifier: Apache-2.0
"""What a rank has of a model, with the forward and the backward pass of its part of a batch."""

from __future__ import annotations

import contextlib
import functools
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from cistern._abi import Status
from cistern.errors import StepVoid
from cistern.torch import stages
from cistern.torch.parallel import schedules, told
from cistern.torch.parallel.batches import Share, Shares
from cistern.torch.parallel.degrees import Degrees
from cistern.torch.replays import Replays

if TYPE_CHECKING:
    from cistern.torch.store import Store


_OF_LOSS = ("labels", "shift_labels", "num_items_in_batch")  # What only the last stage is given.


class Place:
    """Where this rank is: its numbers along dp and pp, its groups, and its device."""

    def __init__(self, mesh: Any, tensor_axes: Sequence[str], device: torch.device) -> None:
        self.dp, self.pp = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
        self.pp_group: dist.ProcessGroup = mesh.get_group("pp")
        self.cp_group: dist.ProcessGroup = mesh.get_group("cp")
        self.tensor_mesh = mesh[tuple(tensor_axes)]
        self.is_first_of_tensor = all(mesh.get_local_rank(axis) == 0 for axis in tensor_axes)
        self.device = device


class Stage(nn.Module):
    """A stage as torch calls it: it returns hidden states of a type that is known, or a loss of one element."""

    def __init__(
        self, stage: nn.Module, kind: torch.dtype | None, context: Callable[[], Any]
    ) -> None:
        super().__init__()
        self.stage = stage
        self._context = context  # In which it runs.
        self._kind = kind  # None: it returns the loss.

    def forward(self, given: torch.Tensor, **further: Any) -> torch.Tensor:
        if self._kind is not None:
            further = {k: v for k, v in further.items() if k not in _OF_LOSS}
        with self._context():
            result: torch.Tensor = self.stage(given, **further)
        return result.reshape(1) if self._kind is None else result.to(self._kind)


class Part(stages.Divided):
    """What ``parallelize`` returns: this rank's part of a model.

    Its modules and parameters have the names that they have in the whole model. All ranks call ``step``
    alike, with the whole batch.

    Without a pipeline, ``part(**batch).loss.backward()`` works, too, with the whole batch on all ranks, in
    one micro-batch: ``loss`` is that of the whole batch, its backward pass computes this rank's part of the
    gradients, and other outputs are those of this rank's rows and tokens.
    """

    device: torch.device

    def __init__(
        self,
        parts: Mapping[int, nn.Module],
        degrees: Degrees,
        place: Place,
        shares: Shares,
        hidden: tuple[int, torch.dtype],
    ) -> None:
        """``parts`` are this rank's stages by their numbers, and ``hidden`` the width and type of hidden states."""
        super().__init__()
        self.degrees = degrees
        self.device = place.device
        self.n_passes = degrees.micro_batches * len(parts)
        self._place, self._shares, self._hidden = place, shares, hidden
        #: In which forward passes run, such as autocast.
        self.forward_context: Callable[[], Any] = contextlib.nullcontext
        self._store: Store | None = None
        self._replays: Replays | None = None
        self._runtime: tuple[Any, Any] | None = None  # With the shape for which it is.
        self._held = stages.joined(list(parts.values())), dict(parts)  # A tuple is no module.
        model: nn.Module = self._held[0]
        self._modules, self._parameters, self._buffers = (
            model._modules, model._parameters, model._buffers
        )  # fmt: skip
        self.training = model.training
        # Programs look for what the model can be given, such as Trainer, which leaves the rest out.
        #: Of the whole model.
        self.model_class = type(next(iter(parts.values())))
        of_model = inspect.signature(self.model_class.forward)
        self.forward = functools.partial(self._forward)
        self.forward.__signature__ = of_model.replace(  # type: ignore[attr-defined]
            parameters=list(of_model.parameters.values())[1:]
        )

    @property
    def model(self) -> nn.Module:
        """The model of transformers, or a module that has all stages of this rank."""
        return self._held[0]

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_held")
        try:
            return super().__getattr__(name)
        except AttributeError:
            if held is None:
                raise
            return getattr(next(iter(held[1].values())), name)

    def attached(self, store: Store) -> None:
        """Let void steps of ``store`` be done again. ``attach`` calls this."""
        n_calls = store.runner.operators.n_micro_batches // self.n_passes
        self._store, self._replays = store, Replays(store, n_calls)
        self._is_accelerate_prepared = True

    def train(self, mode: bool = True) -> Part:
        """Set the mode of the part, as that of the model."""
        for stage in self._held[1].values():
            stage.train(mode)
        super().train(mode)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Part:
        """Move the model."""
        self.model.to(*args, **kwargs)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return that of the model."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load that of the model."""
        return self.model.load_state_dict(*args, **kwargs)

    def prepare(self, batch: Mapping[str, Any]) -> None:
        """Make the schedule for batches like ``batch``. Raises what ``schedules.runtime`` raises."""
        share = self._shares.of(batch, self.degrees.micro_batches)
        tokens = share.inputs["input_ids"]
        self._runtime = (share.rows, tokens.shape[1]), self._runtime_for(share.rows, tokens)

    def step(self, **batch: Any) -> torch.Tensor:
        """Compute a step's gradients: forward and backward passes of all micro-batches of ``batch``.

        All ranks give the same whole batch, as one process gives it to the model: its rows are those of
        all data ranks together. Returns the loss of the whole batch, as one process computes it, on every
        rank and without history. With a store, a step that is void is computed again with the same random
        numbers, here or in the step of the optimizer.

        Each rank draws random numbers of its own, as for dropout, so that losses with dropout are not those
        of one process.

        With ``num_items_in_batch``, the labels that count in a larger batch, the loss is its part of that.
        If no label counts, loss and gradients are 0.

        ValueError: the rows do not divide, the ranks cannot have an input of the batch, or they were given
        other batches. TypeError: the model returns no loss. RuntimeError: torch records no gradients, or
        the step of the optimizer has had as many calls as ``attach`` was told.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError(_NO_GRAD)
        if self._replays is None:
            return self._step(batch)
        return self._replays.run(functools.partial(self._step, batch))

    def _forward(self, **batch: Any) -> Any:
        """Call the model. RuntimeError: it is a pipeline, which ``step`` runs."""
        if self.degrees.pp > 1:
            raise RuntimeError(
                "cistern: the ranks have stages of a pipeline, of which none is the model: part.step(**batch)"
                " computes the loss and the gradients of a whole batch"
            )
        if batch.get("labels") is not None:  # Without a loss, a rank may be alone.
            told.check_alike(batch, self.device)
        share = self._shares.of(batch, 1)
        before = self._random_number()
        with self.forward_context():
            output = self.model(**share.micro_batch(0))
        if getattr(output, "loss", None) is not None:
            own = output.loss * share.weights[0].to(output.loss.device)
            output.loss = own - own.detach() + self._summed(own.detach(), before).to(own.dtype)
        return output

    def _step(self, batch: Mapping[str, Any]) -> torch.Tensor:
        told.check_alike(batch, self.device)
        share = self._shares.of(batch, self.degrees.micro_batches)
        before = self._random_number()
        own = self._run_stages(share) if self.degrees.pp > 1 else self._run_model(share)
        return self._summed(own, before)

    def _random_number(self) -> int:
        """Return a number below 2^20 that other states of torch's random numbers hardly have.

        0: no ranks have to draw alike.
        """
        if self.degrees.tp == 1 or self.degrees.tensor != "1d":
            return 0
        found = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        if self.device.type == "cuda":
            found = zlib.crc32(torch.cuda.get_rng_state(self.device).numpy().tobytes(), found)
        return found % (1 << 20)

    def _summed(self, own: torch.Tensor, before: int) -> torch.Tensor:
        """Return the sum of what ranks have of a loss. Ranks that divide tensors have the same.

        ``before`` is the random number before the forward pass. StepVoid: the step is void, as a rank has
        heard. Those that have not heard it yet would go on. RuntimeError: ranks that divide tensors have
        drawn other random numbers.
        """
        store = self._store
        is_void = store is not None and store.is_void
        counts = self._place.is_first_of_tensor
        after = self._random_number()
        drawn = after if after != before else 0
        # Those of ranks that divide tensors are equal if, for all of them, this sum is 0.
        drawn *= self._place.tensor_mesh.size() - 1 if counts else -1
        numbers = [float(own) if counts else 0.0, float(is_void), drawn]
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        if store is not None and total[1] > 0:
            raise StepVoid(Status.ESTALE, "cistern: a rank has heard that the step is void")
        if total[2] != 0:
            raise RuntimeError(_DRAWN)
        return total[0].float()

    def _run_model(self, share: Share) -> torch.Tensor:
        total = torch.zeros((), device=self.device)
        for i, weight in enumerate(share.weights.tolist()):
            with self.forward_context():
                loss = loss_of(self.model(**share.micro_batch(i)), self.model_class) * weight
            loss.backward()
            total += loss.detach()
        return total

    def _run_stages(self, share: Share) -> torch.Tensor:
        """Run the schedule, and return the loss if this rank has the last stage."""
        inputs = dict(share.inputs)
        tokens = inputs.pop("input_ids")
        losses: list[torch.Tensor] = []
        runtime = self._runtime_for(share.rows, tokens)
        self._runtime = None  # One that raises has messages of the step left.
        runtime.step(
            *((tokens,) if 0 in self._held[1] else ()),
            target=share.weights.to(self.device),
            losses=losses,
            **inputs,
        )
        self._runtime = (share.rows, tokens.shape[1]), runtime
        return sum((loss.detach() for loss in losses), torch.zeros((), device=self.device))

    def _runtime_for(self, rows: int, tokens: torch.Tensor) -> Any:
        """Return a schedule for micro-batches of ``rows`` rows of as many tokens as ``tokens`` has."""
        shape = rows, tokens.shape[1]
        if self._runtime is not None and self._runtime[0] == shape:
            return self._runtime[1]
        width, kind = self._hidden
        last = self.degrees.n_stages - 1
        of_torch = []
        for number, stage in self._held[1].items():
            first = torch.empty(shape, dtype=tokens.dtype, device=self.device)
            hidden = torch.empty(*shape, width, dtype=kind, device=self.device, requires_grad=True)
            loss = torch.empty(1, device=self.device, requires_grad=True)
            of_torch.append(
                pipelining.PipelineStage(
                    Stage(stage, None if number == last else kind, self.forward_context),
                    number,
                    last + 1,
                    self.device,
                    input_args=first if number == 0 else hidden,
                    output_args=loss if number == last else hidden,
                    group=self._place.pp_group,
                )
            )
        return schedules.runtime(
            self.degrees.schedule,
            of_torch,
            self.degrees.micro_batches,
            loss_fn=_weighted,
            recompute=self.degrees.recompute,
        )


def loss_of(output: Any, model_class: type) -> torch.Tensor:
    """Return the loss in what a model of ``model_class`` returns. TypeError: it has none."""
    loss = getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"cistern: {model_class.__name__} returns no loss for the batch: it has to have labels, and the model to"
            " return what has the attribute loss, as models of transformers do"
        )
    return loss


def _weighted(loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (loss * weight).sum()


_DRAWN = (
    "cistern: ranks that divide tensors (tp) have drawn other random numbers, such as of a dropout, and so have other"
    " hidden states: give all of them one seed, as parallelize has done. If they divide the elements of a dropout"
    " unevenly, set its p to 0, or give a tp that divides their number"
)
_NO_GRAD = (
    "cistern: part.step computes gradients, and is called under torch.no_grad() or torch.inference_mode(): call it"
    " outside. For a loss alone, call part(**batch), which ranks without a pipeline have, or give the model of a"
    " checkpoint of Store.save to one process"
)
