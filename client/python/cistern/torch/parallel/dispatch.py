# SPDX-License-Identifier: Apache-2.0
"""A model whose stages are run by whichever worker asks next.

Each worker has all modules, and weights only while a stage runs. A unit is one pass of a stage over a
micro-batch. What stages pass to each other is in edges of the job, by the number of the micro-batch:

  forward of stage s    hidden states of edge s - 1 -> stage -> hidden states to edge s
  backward of stage s   hidden states of edge s - 1 -> stage again, with the gradient of edge S - 1 + s
                        -> gradient to edge S - 2 + s
  loss                  of each micro-batch, in edge 2 S - 2, for all workers
  batch                 what told.described says of it, in edge 2 S - 1, from the first unit of a step

The first unit is done before any other one is given out. Whoever has done it has therefore told its batch to
all others, which compare theirs before their first unit.

A unit has the same results in each worker, and the job sums them in the order of micro-batches. The bits
therefore depend neither on the number of workers nor on when they come and go.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cistern import checks
from cistern._abi import MAX_MICRO_BATCHES, Status, UnitKind
from cistern.errors import CstError, StepVoid
from cistern.torch import stages
from cistern.torch.declaration import Declaration, DeclaredOperator, Edge
from cistern.torch.parallel import told
from cistern.torch.parallel.batches import Share, Shares
from cistern.torch.parallel.cuts import layers_of
from cistern.torch.parallel.switching import Switched
from cistern.torch.replays import Replays
from cistern.units import Unit

if TYPE_CHECKING:
    from cistern.torch.store import Store

_KEYS = ("stages", "borders", "micro_batches", "seed")
_MAX_STAGES, _MAX_SEED = 64, (1 << 63) - 1
_MICRO_BATCHES = 8  # Of a step, at most, if their number is not given.


def part(model: nn.Module, how: Any = "auto", *, batch: Mapping[str, Any]) -> Part:
    """Return ``model``, a causal language model of transformers, for workers that share its steps.

    All workers have the same model, which can be on the meta device, and give the same arguments. ``attach`` takes what this returns, with
    ``world`` as the largest number of workers. It needs no torch.distributed. ``how`` is "auto" or a
    dictionary with these keys:

    - ``stages``: their number, 1 to 64; by default one for each layer. More stages leave workers less idle.
    - ``borders``: the numbers of layers before which stages 1, 2, ... begin; by default stages have equally many.
    - ``micro_batches``: of a step, 2 or more, which divide the rows; by default at most 8.
    - ``seed``: of random numbers, such as of dropout. They follow from it, the step, the micro-batch and the layer.

    ``batch`` is an example of what one process gives the model, with as many rows and tokens as any batch.

    ValueError: the model or the batch cannot be divided so. TypeError: an argument has another type.
    """
    checks.instance("model", model, nn.Module, "a torch.nn.Module")
    checks.instance("batch", batch, Mapping, "what one process gives the model, by name,")
    said = _said(how)
    borders, seed = said.get("borders"), checks.integer("seed", said.get("seed", 0), 0, _MAX_SEED)
    if borders is not None:
        borders = checks.integers("borders", borders, 1)
    n = len(layers_of(model)) if borders is None else len(borders) + 1
    n = checks.integer("stages", said.get("stages", min(n, _MAX_STAGES)), 1, _MAX_STAGES)
    n_micro = said.get("micro_batches", _number_of(batch) if "micro_batches" not in said else 0)
    n_micro = checks.integer("micro_batches", n_micro, 2, MAX_MICRO_BATCHES)
    return Part(Switched(model, n, borders), model, batch, n_micro, seed)


def _said(how: Any) -> Mapping[str, Any]:
    """Return the keys of ``how`` that have values. TypeError, ValueError: there are others."""
    if how == "auto":
        return {}
    checks.instance("how", how, Mapping, f"'auto' or a dictionary with {', '.join(_KEYS)}")
    for key in how:
        if key not in _KEYS:
            raise ValueError(
                f"cistern: a model that is dispatched has no key '{key}': keys are {', '.join(_KEYS)}"
            )
    return {key: value for key, value in how.items() if value is not None}


class Part(stages.Divided):
    """What ``part`` returns: a model whose ``step`` all workers call alike, with the whole batch.

    Outside of ``step`` it is the model: it can be evaluated, with the weights of the store.
    """

    def __init__(
        self,
        switched: Switched,
        model: nn.Module,
        batch: Mapping[str, Any],
        micro_batches: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.n_stages = switched.n_stages
        self._switched, self._seed = switched, seed
        self._shares = Shares(1, 0, shifts=True, is_pipeline=True)
        self.micro_batches = self.n_passes = micro_batches
        self.device = None
        share = self._shares.of(batch, micro_batches)
        self._tokens = share.rows * share.inputs["input_ids"].shape[1]  # Of a micro-batch, at most.
        self._store: Store | None = None
        self._runs = False  # A unit was taken, and the end of the units was not seen.
        self._done = -1  # The step whose units were done last.
        self._held = (model,)  # A tuple is no module, so that names have nothing before them.
        self._modules, self._parameters, self._buffers = (
            model._modules, model._parameters, model._buffers
        )  # fmt: skip
        self.training = model.training

    @property
    def model(self) -> nn.Module:
        """The model of transformers."""
        return self._held[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        return self.model(*args, **kwargs)

    def train(self, mode: bool = True) -> Part:
        """Set the mode of the model."""
        self.model.train(mode)
        self.training = mode
        return self

    # -- what attach calls

    def declared(self, declaration: Declaration) -> Declaration:
        """Return ``declaration`` of the model with stages and edges.

        ValueError: a unit runs in several stages.
        """
        number, of_units = 0, {}
        for name, module in declaration.modules.items():
            ran = self._switched.stages_of.get(module, set())
            if len(ran) > 1:
                raise ValueError(_IN_SEVERAL.format(name))
            number = min(ran, default=number)
            of_units[name] = number
        empty = set(range(self.n_stages)) - set(of_units.values())
        if empty:
            raise ValueError(f"cistern: stage {min(empty)} has no parameters: give fewer stages")
        operators: dict[str, DeclaredOperator] = {}
        number = -1
        for name in sorted(of_units, key=of_units.__getitem__):
            begins = of_units[name] != number
            operators[name] = declaration.operators[name]._replace(begins_stage=begins)
            number = of_units[name]
        return declaration._replace(operators=operators, edges=self._edges())

    def _edges(self) -> tuple[Edge, ...]:
        trailing, dtype = self._switched.hidden
        n_bytes = self._tokens * trailing.numel() * dtype.itemsize
        n = self.n_stages - 1
        names = [f"output of stage {i}" for i in range(n)]
        names += [f"gradient for stage {i}" for i in range(n)]
        return (
            *(Edge(name, n_bytes, self.micro_batches) for name in names),
            Edge("loss", 8, self.micro_batches),
            Edge("batch", told.N_BYTES, 1),
        )

    def attached(self, store: Store) -> None:
        """Note that the weights are in ``store`` now. ValueError: steps have other micro-batches there."""
        if store.runner.operators.n_micro_batches != self.micro_batches:
            raise ValueError(
                f"cistern: steps have {self.micro_batches} micro-batches, as parallelize was told, and one"
                " part.step each: attach is given no micro_batches="
            )
        self._store = store

    # -- steps

    def step(self, **batch: Any) -> torch.Tensor:
        """Compute gradients of a step together with the other workers, until there is nothing left to do.

        All workers give the same whole batch, as one process gives it to the model. Then all call the step of
        the optimizer. Returns the loss of the whole batch, without history, to all of them. A step that is void
        is computed again, here or in the step of the optimizer.

        A worker whose batch is not the one that the step began with is refused before it does anything in
        the step, and the others go on. It can call this again with the right batch, or leave.

        If the others have done the step while this worker did not answer, the loss is NaN, and the step of the
        optimizer does nothing.

        RuntimeError: the part is in no store, this step was computed already, torch records no gradients, or
        the others have done further steps: ``step_no`` of the store says which one is next.
        ValueError: the rows do not divide, the batch is larger than the example was, stages cannot have an
        input, or the step began with another batch.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError(_NO_GRAD)
        store = self._store
        if store is None:
            raise RuntimeError(
                "cistern: the part is in no store: call attach(part, ...) before step"
            )
        if self._done == store.step_no and store.the_optimizer().loss is not None:
            raise RuntimeError(_TWICE)  # Else states of an earlier step were loaded.
        share = self._shares.of(batch, self.micro_batches)
        tokens = share.rows * share.inputs["input_ids"].shape[1]
        if tokens > self._tokens:
            raise ValueError(_LARGER.format(tokens, self._tokens))
        given = self._given(store, share, batch.get("num_items_in_batch"))
        return Replays(store).run(partial(self._step, store, share, given))

    def _given(self, store: Store, share: Share, n_items: Any) -> dict[str, Any]:
        """Return everything on which the results of units depend, other than the states of the job."""
        kind = store.device.torch_device.type
        return {
            **share.inputs,
            "num_items_in_batch": None if n_items is None else float(n_items),
            "seed": self._seed,
            "training": self.model.training,
            "autocast": torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        }

    def _step(self, store: Store, share: Share, given: Mapping[str, Any]) -> torch.Tensor:
        if self._runs or store.is_given_up:  # An exception has ended a unit, or another pass.
            self._runs = False
            raise StepVoid(Status.ESTALE, "cistern: an exception has ended this worker's step")
        store.remember_random_state()
        state = store.device.random_state()
        self._runs = True
        try:
            with torch.enable_grad():
                self._run_units(store, share, given)
        except StepVoid:
            self._runs = False
            raise
        finally:
            store.device.set_random_state(state)
        self._runs = False
        self._done = store.step_no
        return self._loss(store)

    def _run_units(self, store: Store, share: Share, given: Mapping[str, Any]) -> None:
        loss = 0.0
        unit = store.job.next()
        self._compare(store, unit, told.described(store.step_no, given))
        while unit.kind is not UnitKind.STEP:
            key = self._seed, store.step_no, unit.micro_batch
            with self._switched.random.of(*key):
                loss = self._run(store, unit, share)
            unit = store.job.next(loss)

    def _compare(self, store: Store, unit: Unit, mine: bytes) -> None:
        """Let the step begin with a batch like ``mine``, if ``unit`` is its first one.

        ValueError: it has begun with another batch. The unit is given to others.
        """
        kind = UnitKind.FORWARD if self.n_stages > 1 else UnitKind.BACKWARD
        is_first, began = unit == (kind, 0, 0), self._began(store)
        # Gradients of a first unit that was given up may count already. Its hidden states do not.
        if is_first and (kind is UnitKind.FORWARD or not began):
            store.job.put(store.edges[-1], 0, mine)
        elif began != mine:
            if unit.kind is not UnitKind.STEP:  # Else the others only wait for this worker.
                store.sync()
            self._runs = False
            raise ValueError(_DIFFERS.format(store.step_no, told.what_differs(mine, began)))

    def _began(self, store: Store) -> bytes:
        """Return what was told of the batch that this step began with; b"": nothing."""
        found = bytearray(told.N_BYTES)
        try:
            store.job.take(store.edges[-1], 0, found)
        except CstError as error:
            if error.status != Status.ENOTFOUND:
                raise
            return b""
        return bytes(found) if told.is_of_step(found, store.step_no) else b""

    def _run(self, store: Store, unit: Unit, share: Share) -> float:
        """Run ``unit``, and return its loss for the mean of the job; 0: it has none."""
        stage, micro, device = unit.stage, unit.micro_batch, store.device.torch_device
        inputs = {
            k: v.to(device) if isinstance(v, torch.Tensor) else v
            for k, v in share.micro_batch(micro).items()
        }
        hidden = None if stage == 0 else self._taken(store, stage - 1, micro, inputs)
        if unit.kind is UnitKind.FORWARD:
            with torch.no_grad():
                self._put(store, stage, micro, self._switched.run(stage, hidden, inputs))
            return 0.0
        hidden = None if hidden is None else hidden.requires_grad_()
        result = self._switched.run(stage, hidden, inputs)
        grad, loss = None, 0.0
        if stage == self.n_stages - 1:
            result = result * share.weights[micro].to(device)
            loss = float(result.detach().double())
            store.job.put(store.edges[-2], micro, array("d", [loss]))
        else:
            grad = self._taken(store, self.n_stages - 1 + stage, micro, inputs)
        if result.requires_grad:  # Not if all parameters of the first stages are frozen.
            store.runs_unit = True
            try:
                with torch.autocast(device.type, enabled=False):
                    torch.autograd.backward(result, grad)
            finally:
                store.runs_unit = False
        store.runner.end_unit()
        if hidden is not None:
            hidden_grad = torch.zeros_like(hidden) if hidden.grad is None else hidden.grad
            self._put(store, self.n_stages - 2 + stage, micro, hidden_grad)
        return loss * self.micro_batches

    def _put(self, store: Store, edge: int, micro: int, result: torch.Tensor) -> None:
        """Put hidden states, or their gradient. RuntimeError: they are others than they were tried with."""
        trailing, dtype = self._switched.hidden
        if result.dtype != dtype or result.shape[2:] != trailing:
            raise RuntimeError(_OTHERS.format(dtype, result.dtype))
        result = result.detach().contiguous()
        store.job.put(store.edges[edge], micro, (result.data_ptr(), result.nbytes))

    def _taken(
        self, store: Store, edge: int, micro: int, inputs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Return hidden states, or their gradient, of a micro-batch."""
        trailing, dtype = self._switched.hidden
        shape = *inputs["input_ids"].shape, *trailing
        taken = torch.empty(shape, dtype=dtype, device=store.device.torch_device)
        store.job.take(store.edges[edge], micro, (taken.data_ptr(), taken.nbytes))
        return taken

    def _loss(self, store: Store) -> torch.Tensor:
        """Return the sum of the losses of all micro-batches, in their order."""
        total, loss = 0.0, array("d", [0.0])
        for micro in range(self.micro_batches):
            store.job.take(store.edges[-2], micro, loss)
            total += loss[0]
        return torch.tensor(total, dtype=torch.float32, device=store.device.torch_device)


def _number_of(batch: Mapping[str, Any]) -> int:
    """Return how many micro-batches a batch like ``batch`` has. ValueError: it has one row."""
    tokens = batch.get("input_ids")
    rows = tokens.shape[0] if isinstance(tokens, torch.Tensor) else 0
    fits = [n for n in range(2, _MICRO_BATCHES + 1) if rows % n == 0]
    if not fits:
        raise ValueError(
            f"cistern: a batch of {rows} rows does not divide into 2 to {_MICRO_BATCHES} micro-batches: give"
            " input_ids with more rows, or micro_batches="
        )
    return fits[-1]


_IN_SEVERAL = (
    "cistern: module '{0}' runs in several stages, and so do its weights: let units= of attach name modules"
    " inside of layers alone, and give parameters that all stages use to modules that one of them calls"
)
_TWICE = (
    "cistern: this step is computed already: call the step of the optimizer after each part.step. For larger"
    " batches, give more rows and more micro_batches"
)
_LARGER = (
    "cistern: a micro-batch has {0} tokens, and that of the example had {1}: give an example with as many rows"
    " and tokens as the largest batch"
)
_OTHERS = (
    "cistern: stages pass hidden states of {0} to each other, as they were tried with, and not of {1}: call"
    " parallelize in the same torch.autocast as step"
)
_DIFFERS = (
    "cistern: step {0} began with another batch, here or on another worker. What differs: {1}. Nothing was done with this"
    " one, and the step goes on with the other. All workers give part.step the same whole batch, such as by a loader with"
    " the same seed and without a sampler of data ranks, and the same one again after an exception"
)
_NO_GRAD = (
    "cistern: part.step computes gradients, and is called under torch.no_grad() or torch.inference_mode(): call it"
    " outside. For a loss alone, call part(**batch)"
)
