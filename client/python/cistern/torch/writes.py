# SPDX-License-Identifier: Apache-2.0
"""Writes of weights and moments to the job of a store, between steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from cistern._abi import Dtype, State
from cistern.calls import Path
from cistern.errors import CstError
from cistern.torch import adapters, shards, weights
from cistern.torch.lending import Tensor
from cistern.torch.optimizer_states import Loaded
from cistern.torch.origin import Origin
from cistern.torch.parts import from_rank_0

if TYPE_CHECKING:
    from cistern.torch.store import Store


class Writes:
    """Writes to the job of ``store``. All ranks make the same calls; rank 0 writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Gradients of this step were discarded by a load of weights, and not by ``zero_grad``.
        self.lost_gradients = False
        #: The step at which a load of weights has replaced finer master weights.
        self._rounded_at = -1
        self._has_warned = False

    def first_states(self, origin: Origin, has_base: bool) -> None:
        """Write the states of a new job: those of ``origin``, and else those of the model.

        Rank 0 reads files, and each rank that is the first to hold a part writes it if no file has it.
        """
        store, is_first = self._store, self._store.job.rank == 0
        if origin.resume is not None:
            if is_first:
                store.job.load(origin.resume)
            return
        loaded = set[str]()
        if origin.load is not None:
            load = partial(self._load_model, origin.load)
            loaded = load() if store.parts.is_plain else from_rank_0(is_first, load)
        for name, parameter in weights.named_parameters(store.model):
            if not store.parts.use_of(name).writes or (has_base and not store.trains(name)):
                continue
            if store.parts.name_of(name) in loaded:
                continue
            if parameter.is_meta:
                raise TypeError(
                    f"cistern: parameter '{name}' is on the meta device; give a path to load from"
                )
            weights.write_master(store.job, store.number_of(name), shards.local(parameter))

    def _load_model(self, path: Path) -> set[str]:
        """Load model files, without adapters. Return the names in the job of the parameters they have."""
        found = self._store.parts.names(trained=not adapters.is_peft(self._store.model))
        self._store.job.load_model(path, wants=found.__contains__)
        return found

    def load(self, values: Mapping[Tensor, torch.Tensor]) -> None:
        """Write what a state dict has. Gradients of the step are discarded, which ``step`` tells."""
        self.check_outside("weights are loaded")
        self._warn_of_swap(self._write(values))

    def changed(self, values: Mapping[Tensor, torch.Tensor]) -> None:
        """Write those of ``values`` that are not the weights of the job.

        RuntimeError: there are some, and the step has gradients, which would be discarded.
        """
        job = self._store.job
        others = {t: v for t, v in values.items() if not weights.has_weights(job, t.number, v)}
        if others and self._store.runner.has_gradients:
            name = next(iter(others)).name
            raise RuntimeError(_IN_STEP.format(name))
        if others:
            self._write(others)

    def one(self, tensor: Tensor, values: torch.Tensor, is_exact: bool) -> int:
        """Write ``values``. ``is_exact``: to the master weights, also where the weights have them.

        Returns the number of master weights that were finer than the weights that replace them.
        """
        self.check_outside("weights are written")
        job = self._store.job
        if tensor.dtype is Dtype.BF16 and tensor.trains and not is_exact:
            return weights.write_weights(job, tensor.number, values)
        weights.write_master(job, tensor.number, values)
        return 0

    def clear_moments(self) -> None:
        """Let all moments be zero. Gradients of the step are discarded, which ``step`` tells."""
        self.check_outside("moments are cleared")
        with self._between_steps():
            for tensor in self._store.trained_tensors():
                if tensor.use.writes:
                    weights.clear_moments(self._store.job, tensor.number, tensor.n_elems)

    def check_whole(self) -> None:
        """Raise ValueError if ranks have parts of the model."""
        if not self._store.parts.is_plain:
            raise ValueError(_DIVIDED)

    def optimizer_states(self, loaded: Loaded) -> None:
        """Write moments, master weights and the number of steps. Gradients of the step are discarded."""
        self.check_outside("states are loaded")
        store = self._store
        with self._between_steps():
            if store.job.rank == 0:
                for states in loaded.states.values():
                    weights.check_readable(states.values())
                rest, begun = f"the job is still at step {store.step_no}", list[str]()
                with _telling(lambda: _PARTLY.format(begun[0], begun[-1], rest)):
                    for tensor, states in loaded.states.items():
                        begun.append(tensor.name)
                        self._moments(tensor, states)
                missed = {tensor.number: n for tensor, n in loaded.missed.items() if n > 0}
                with _telling(lambda: _NO_STEPS.format(rest)):
                    store.job.set_steps(loaded.steps, loaded.n_skipped, missed)

    def _moments(self, tensor: Tensor, states: Mapping[State, torch.Tensor]) -> None:
        """Write what a tensor has in the state of an optimizer. It may have no moments: they are zero."""
        job = self._store.job
        if State.EXP_AVG not in states:
            weights.clear_moments(job, tensor.number, tensor.n_elems)
        for state in sorted(states):
            weights.write_state(job, tensor.number, state, states[state])

    def check_outside(self, what: str) -> None:
        """Raise RuntimeError if the model has other weights than the job."""
        if self._store.runner.n_blocks > 0:
            raise RuntimeError(_IN_BLOCK.format(what))

    def _write(self, values: Mapping[Tensor, torch.Tensor]) -> int:
        n_rounded = 0
        with self._between_steps():
            mine = {tensor: value for tensor, value in values.items() if tensor.use.writes}
            weights.check_readable(mine.values())
            rest, begun = "the others have what they had before", list[str]()
            with _telling(lambda: _PARTLY.format(begun[0], begun[-1], rest)):
                for tensor, value in mine.items():
                    begun.append(tensor.name)
                    n_rounded += self.one(tensor, value, is_exact=False)
        return n_rounded

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Let rank 0 write, while no step is under way. Remember if gradients are discarded."""
        lost = self.lost_gradients or self._store.runner.has_gradients
        try:
            self._store.sync()  # An evaluation may have begun the step.
            try:
                yield
            finally:  # The other ranks wait, also if this one has failed.
                self._store.runner.weights_written()
                self._store.sync()
        finally:
            self.lost_gradients = lost

    def _warn_of_swap(self, n_rounded: int) -> None:
        """Warn once if weights were loaded twice between two steps, as for an evaluation with others."""
        step = self._store.step_no
        if self._rounded_at == step > 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(_SWAP, stacklevel=8)
        if n_rounded > 0:
            self._rounded_at = step


@contextmanager
def _telling(written: Callable[[], str]) -> Iterator[None]:
    """Let an error of a write say what is ``written`` already, and what to do."""
    try:
        yield
    except CstError as error:
        raise error.with_text(f"{error.text}. {written()}: {_AGAIN}") from None
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"{error}. {written()}: {_AGAIN}") from error


_PARTLY = (
    "Of what was loaded, parameters from '{0}' to '{1}', which failed, may have their part already,"
    " and {2}"
)
_NO_STEPS = (
    "The number of steps cannot be set. The parameters have what was loaded already, and {0}"
)
_AGAIN = "load again, or go back to a checkpoint"
_DIVIDED = (
    "cistern: the model is divided among the ranks, and the state of an optimizer is loaded into whole ones:"
    " Store.save and attach(..., resume=) take the states of any ranks to any others"
)
_IN_BLOCK = (
    "cistern: {0} in a block of Store.swapped or Store.changing, in which the model has other weights than"
    " the job: leave the block before"
)
_IN_STEP = (
    "cistern: parameter '{0}' was changed in a block of Store.changing, and the change is lost: the step has"
    " gradients, and weights are written between steps. Leave the block with the weights of its beginning,"
    " or call the step or zero_grad of the optimizer before"
)
_SWAP = (
    "cistern: weights in bf16 were loaded twice between two steps, and master weights, which are finer, were"
    " rounded to them. For an evaluation with other weights, use `with store.swapped(weights):`, which"
    " loses nothing"
)
LOST = (
    "cistern: load_state_dict or clear_moments has discarded the gradients of earlier backward passes of this step: call"
    " zero_grad of the optimizer, and compute the step again. Weights are loaded between steps; for an"
    " evaluation with other weights, `with store.swapped(weights):` keeps gradients"
)
