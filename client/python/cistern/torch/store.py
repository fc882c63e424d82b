# SPDX-License-Identifier: Apache-2.0
"""A model of torch as one rank of a job."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from cistern._abi import BETA2, Unused
from cistern.client import Client
from cistern.errors import StepVoid
from cistern.job import Job
from cistern.job_file import JobFile
from cistern.results import HyperParams, Plan, RankStat, StepResult
from cistern.torch import (
    blocks,
    buffers,
    model_calls,
    owners,
    parts,
    shards,
    stages,
    state_dicts,
    weights,
)
from cistern.torch.arguments import first
from cistern.torch.declaration import Declaration
from cistern.torch.device import device_of
from cistern.torch.elsewhere import refusal
from cistern.torch.ending import leave_at_end
from cistern.torch.forward_pass import ForwardPass
from cistern.torch.job_parts import JobParts
from cistern.torch.lending import Tensor, Unit
from cistern.torch.operators import Operators
from cistern.torch.optimizer import Optimizer, in_pair
from cistern.torch.origin import Origin
from cistern.torch.replicas import Replicas
from cistern.torch.runner import Runner, not_compiled
from cistern.torch.running import in_backward
from cistern.torch.states import States
from cistern.torch.summary import summary
from cistern.torch.watch import Watch
from cistern.torch.writes import LOST, Writes


class Store(States):
    """The states of a model in the daemon. ``attach`` makes it.

    ``plan`` is the plan of the job, ``job`` the ``cistern.Job`` of this rank, and
    ``device.torch_device`` the device of the parameters.
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        declaration: Declaration,
        options: JobFile,
        unused: Unused = Unused.ZERO,
        joined: parts.Joined | None = None,
        micro_batches: int = 1,
    ) -> None:
        self.job = job
        self.model = model
        self._optimizer: Optimizer | None = None
        self.part: stages.Divided | None = None  #: Of which this rank computes gradients.
        self._tensors: dict[str, Tensor] = {}
        self._tensor_of: dict[int, Tensor] = {}  # By the id of its parameter.
        self._random_state: list[torch.Tensor] | None = None  # At the step's first forward pass.
        self._must_sync = False
        self.writes = Writes(self)
        self._forward_pass = ForwardPass(model)
        self._commits = False  # A step has begun, and its end was not seen yet.
        self._n_steps = 0  # Number of committed steps when it began.
        self._prepares = False  # The job has early updates.
        self._clips = False  # The step was prepared with clipping, which makes its updates late.
        self._declaration = declaration
        self._options = options
        #: Whether steps skip parameters without a gradient.
        self.skips_unused = unused is Unused.SKIP
        self._replicas: Replicas | None = None  # Compared in the first step.
        self.parts = JobParts(job, declaration.rank(), joined)
        #: Numbers of the edges of a model whose units any rank runs; else there are none.
        self.edges = [job.edge(*edge) for edge in declaration.edges]
        self.runs_unit = False  #: One of these units runs.
        self.device = device_of(job)
        self.plan: Plan = job.commit()
        self._step_no = job.steps
        self.parts.check_pool(self.plan)
        leave_at_end(self)
        operators = Operators(job, self.device)
        operators.n_micro_batches = micro_batches
        operators.is_dispatched = bool(self.edges)
        self._runner = Runner(operators, self._before_forward, self._before_backward)

    # -- the beginning

    def _begin(self, origin: Origin | None, has_base: bool) -> None:
        if origin is not None and (self.job.rank == 0 or not self.parts.is_plain):
            self.writes.first_states(origin, has_base)
        self._take_parameters()
        self._step_no = self.job.sync()

    def _take_parameters(self) -> None:
        """Let the parameters lose their memory, and the modules open their units."""
        parameters = dict(weights.named_parameters(self.model))
        kept = (torch.bfloat16, torch.float32)
        others = sorted(n for n, p in parameters.items() if p.dtype not in kept)
        if others:
            warnings.warn(
                f"cistern: {len(others)} parameters become bf16: {buffers.in_short(others)}. Give the"
                " model inputs of that type",
                stacklevel=4,
            )
        shapes = {name: tuple(shards.local(p).shape) for name, p in parameters.items()}
        weights.without_meta(self.model)
        weights.move_buffers(self.model, self.device.torch_device)
        units = self._declaration.first_units()
        for name, parameter in self.model.named_parameters():
            if name in shapes:
                self._take(name, parameter, shapes[name], units[name])
        for name, operator in self.parts.operators.items():
            declared = self._declaration.operators[name]
            tensors = [self._tensors[parameter] for parameter in declared.parameters]
            unit = Unit(declared.name, operator, tensors)
            self._runner.add(unit, self._declaration.modules[name], declared.methods)
        if self.parts.has_meshes():
            self._replicas = Replicas(self._tensors.values(), self.parts.meshes())
        if self.parts.is_pipeline:
            self._runner.tell_passes_apart(stages.called(self.model))
        # The program can remove modules from the model, whose memory is then free.
        self._declaration = self._declaration._replace(modules={})
        self._watch = Watch(self.model, self._tensors.values(), self.skips_unused)
        owners.add(self, (tensor.parameter for tensor in self._tensors.values()))
        self.model.register_forward_pre_hook(not_compiled(self._model_begins), prepend=True)
        self.model.register_forward_hook(not_compiled(self._model_ends), always_call=True)
        state_dicts.add_hooks(self, self.model)
        model_calls.replace(self, self.model)

    def _take(self, name: str, parameter: nn.Parameter, shape: tuple[int, ...], unit: str) -> None:
        parameter.grad = None
        declared = self._declaration.tensors[name]
        if declared.place is not None and parameter.device.type != self.device.torch_device.type:
            raise ValueError(
                f"cistern: parameter '{name}' is divided on a mesh of {parameter.device.type}, and the pool is"
                f" on {self.device.torch_device.type}: give attach the device of the mesh"
            )
        tensor = Tensor(
            name,
            self.parts.numbers[name],
            parameter,
            shape,
            declared.dtype,
            declared.trains,
            self.device.torch_device,
            refusal(self.model, name, unit, self._declaration.operators[unit]),
            self.parts.use_of(name),
        )
        self._tensors[name] = self._tensor_of[id(parameter)] = tensor

    def _model_begins(self, *_: Any) -> None:
        """Close what an exception other than Exception, such as Ctrl-C, has left open."""
        if in_backward() or self._forward_pass.begins_inside():
            return
        if torch._C._get_tracing_state() is not None or torch.compiler.is_exporting():
            raise RuntimeError(model_calls.EXPORTED)
        self._settle()
        self.remember_random_state()
        if not self._runner.broken:
            self._runner.close_all()
            self._runner.forward_begins()
        self._forward_pass.begins(self._runner.has_gradients)
        if self._forward_pass.was_interrupted and torch.is_grad_enabled():
            self._refuse_mixed_gradients()

    def _refuse_mixed_gradients(self) -> None:
        """Raise RuntimeError, unless this step is given up anyway.

        The program can compute the step again, from its first micro-batch, or go on with the next
        one. Only the program knows.
        """
        if not self._runner.broken:
            raise RuntimeError(_INTERRUPTED)

    def _model_ends(self, *_: Any) -> None:
        if in_backward() or self._runner.operators.is_of_other_thread():
            return
        if not self._forward_pass.ends_inside():
            self._forward_pass.ends()

    def _before_forward(self) -> None:
        self._settle()
        if self._runner.broken:
            self.abandon()
        if self._must_sync:
            self.sync()
        self.remember_random_state()
        self._runner.forward_begins()

    def remember_random_state(self) -> None:
        """Note the random numbers of a step when it begins, at the latest in a call of the model.

        Its first unit is not enough: reentrant checkpoints run units without gradients.
        """
        if self._random_state is None and torch.is_grad_enabled():
            self._random_state = self.device.random_state()

    def _before_backward(self) -> None:
        """Give the parameters of the step in advance, so that updates can be early.

        RuntimeError: gradients belong to units, and none runs.
        """
        if self.edges and not self.runs_unit:
            raise RuntimeError(_NO_UNIT)
        if self._prepares and self._optimizer is not None:
            params = self._optimizer.prepared()
            self._clips = params.clip_norm > 0
            self._runner.operators.of_job(self.job.prepare_step, params)

    # -- steps

    def optimizer(
        self,
        lr: float | None = None,
        *,
        betas: tuple[float, float] | None = None,
        eps: float = 1e-8,
        weight_decay: float | None = None,
        clip_norm: float | None = None,
        grad_scale: float | None = None,
        groups: Sequence[Mapping[str, float]] = (),
    ) -> Optimizer:
        """Return the optimizer of the job. With Lion and SGD, ``betas[0]`` is the momentum.

        What is not given is taken from the file ``config`` of ``attach``, and is otherwise as in
        ``torch.optim.AdamW``: betas of 0.9 and 0.999 (Lion: 0.99) and a decay of 0.01. Schedules
        are not taken from the file. ValueError: there is no ``lr``. TypeError: an argument is no
        number.

        ``groups`` has what differs in groups 0, 1, ... of the parameters (``attach``): ``lr`` and
        ``weight_decay``. An example is ``[{}, {"weight_decay": 0.0}]``.

        ``clip_norm`` is the largest L2 norm of all gradients together; 0: no clipping.
        ``grad_scale`` multiplies the sum of the gradients of all ranks; by default it makes the
        sum a mean.
        """
        given = self._options.number
        lr = first(lr, given("lr"), None)
        if lr is None:
            raise ValueError("cistern: the optimizer has no learning rate: give it one as lr=")
        beta1, beta2 = (given("beta1"), given("beta2")) if betas is None else in_pair(betas)
        self._optimizer = Optimizer(
            self,
            lr=lr,
            betas=(first(beta1, None, 0.9), first(beta2, None, BETA2[self.job.optimizer])),
            eps=eps,
            weight_decay=first(weight_decay, given("weight_decay"), 0.01),
            clip_norm=first(clip_norm, given("clip"), 0.0),
            grad_scale=self._default_grad_scale() if grad_scale is None else grad_scale,
            groups=groups,
        )
        return self._optimizer

    def _default_grad_scale(self) -> float:
        return self.parts.mean_of_ranks() if self.part is None else 1.0

    def takes_parts_of(self, part: stages.Divided) -> None:
        """Let gradients be those of parts of one loss, which ``part`` computes, so that their sum is no mean."""
        self.part = part
        self._runner.operators.goes_on = self.job.world > 1 and not self.edges
        part.attached(self)

    def the_optimizer(self) -> Optimizer:
        """Return what ``optimizer`` has returned last. RuntimeError: nothing yet."""
        if self._optimizer is None:
            raise RuntimeError(
                "cistern: the store has no optimizer yet: call Store.optimizer or, with Trainer of"
                " transformers, ct.hf.connect(trainer, store) before trainer.train()"
            )
        return self._optimizer

    def grouped_parameters(self) -> list[list[nn.Parameter]]:
        """Return the parameters that are trained, by their group."""
        declared = self._declaration.tensors
        grouped: list[list[nn.Parameter]] = [[] for _ in range(self.parts.n_groups)]
        for name, tensor in self._tensors.items():
            if tensor.trains:
                grouped[declared[name].group].append(tensor.parameter)
        return grouped

    @property
    def step_no(self) -> int:
        """Number of committed steps, which is the number of the step to do now.

        Steps that others have committed without this rank count from ``sync`` on.
        """
        return self._step_no

    def _settle(self) -> object:
        """Finish the call that Ctrl-C has interrupted, and return its result; None: none was.

        Nothing is done in the handler of a signal that has interrupted a call which then goes on.
        """
        result: object = None
        client = self.job.client
        if not client.one_thread.release():
            return None
        if client.is_interrupted:
            result = client.finish()
        if self._runner.operators.is_torn:
            self._runner.operators.finish()
        if self._commits:
            if self.job.steps != self._n_steps:
                self._step_ends()
            self._commits = False
        return result

    def _step_ends(self) -> None:
        self._step_no = self.job.steps
        self._runner.next_step()
        self._forward_pass.forget()
        self._forget_clipping()
        self._random_state = None

    def commit_step(self, params: Callable[[], HyperParams]) -> StepResult:
        """Commit the step with ``params()``. The step of the optimizer does this.

        If Ctrl-C has interrupted this function, it goes on with the step.
        """
        interrupted = self._settle()
        if isinstance(interrupted, StepResult):
            return interrupted
        if self._runner.broken:
            raise RuntimeError(
                "cistern: the last backward pass has raised, or was interrupted: call Store.sync, and do"
                " the step again"
            )
        if self._must_sync:
            raise RuntimeError("cistern: this step was given up: call Store.sync, and do it again")
        if self._runner.operators.void is not None:
            raise self._runner.operators.void
        self.writes.check_outside("the step of the optimizer is called")
        self._runner.close_all()
        self._runner.deliver_last()
        if self._wants_gradients() and not self._runner.operators.has_gradients:
            raise RuntimeError(
                "cistern: there are no gradients: no backward pass has reached a parameter of the store"
                " since the last step, or zero_grad, load_state_dict or sync has discarded them"
            )
        if self.writes.lost_gradients:
            raise RuntimeError(LOST)
        self._watch.check()
        if self.skips_unused:
            self._tell_unused()
        given = params()
        self._n_steps, self._commits = self.job.steps, True
        result = self.job.step(given)
        self._step_ends()
        self._commits = False
        if self._replicas is not None:  # Not before the ranks agree that there is a step.
            replicas, self._replicas = self._replicas, None
            replicas.check()
        return result

    def _wants_gradients(self) -> bool:
        """Return whether this rank has gradients in each step. Others may have none for it, but not parts of one loss."""
        if self.edges:
            return False
        return self.job.all_ranks == 1 or (self.part is not None and any(self.trained_tensors()))

    @property
    def is_given_up(self) -> bool:
        """Whether an exception or Ctrl-C has ended this attempt at the step, so that ``sync`` has to be called."""
        return self._must_sync or self._runner.broken

    @property
    def is_void(self) -> bool:
        """Whether the step is void, and is computed to its end for the other ranks alone."""
        return self._runner.operators.void is not None

    def _tell_unused(self) -> None:
        """Tell the job which parameters have no gradient in this step."""
        discarded = self.handed_in.discarded
        for tensor in self.trained_tensors():
            if not self.handed_in.has(tensor):
                self.job.no_gradient(tensor.number, discard=tensor in discarded)

    def check_not_clipped(self, tensor: Tensor) -> None:
        """Raise RuntimeError if the gradient of ``tensor`` is discarded after ``clip_grad_norm_``."""
        if self._optimizer is not None and self._optimizer.clips_next_step():
            raise RuntimeError(_CLIPPED.format(tensor.name))

    def sync(self) -> int:
        """Give up the step for all ranks, wait for them, and return the step to do now."""
        try:
            self._settle()
        except StepVoid:
            pass
        self.abandon()
        before, self._step_no = self._step_no, self.job.sync()
        if self._step_no != before:
            self._runner.weights_written()
            self._random_state = None  # The step to which it belongs was committed.
        self._must_sync = self.writes.lost_gradients = False
        return self._step_no

    def abandon(self) -> None:
        """Forget this attempt at the step, after an exception. The next forward pass syncs.

        CstError: EBUSY, this is called in the handler of a signal that has interrupted a call.
        RuntimeError: a module runs.
        """
        self.job.client.unmapping(self._abandon)

    def _abandon(self) -> None:
        self._must_sync = True
        self._runner.forget()
        self._forward_pass.forget()
        self._forget_gradients()

    def discard_gradients(self) -> None:
        """Have no gradients in this step. ``zero_grad`` of the optimizer and the model do this.

        If gradients were handed in, this gives up the attempt at the step, for all ranks, and waits
        for them, as ``sync`` does. Forward passes go on to count. RuntimeError: a module or a backward
        pass runs, or updates of the step have begun (``Overlap.EARLY``).
        """
        self._settle()
        self.writes.lost_gradients = False
        if self._optimizer is not None and self._optimizer.replay is not None and not self.edges:
            self._optimizer.loss = None  # A void step is computed again without what is discarded.
        if self._runner.broken or self.is_void:
            self.sync()
            return
        if self._runner.operators.has_gradients:
            if self.edges:
                raise RuntimeError(_DISPATCHED)
            if in_backward():
                raise RuntimeError("cistern: gradients are discarded in a backward pass")
            if self.is_prepared() and not self._clips:
                raise RuntimeError(
                    "cistern: gradients cannot be discarded: updates of this step have begun, because"
                    " the job has early updates (Overlap.EARLY) and no clip_norm"
                )
            forget = self._runner.operators.forget
            self.job.client.unmapping(forget, self._runner.units)
            self._must_sync = True  # If Ctrl-C interrupts this.
            self._runner.forget_gradients()
            self._forget_gradients()
            self._random_state = None
            self.job.sync()
            self._must_sync = False
        self._runner.forget_gradients()
        self._forward_pass.forget()

    def keep_gradients(self) -> None:
        """Go on with a step although an exception or Ctrl-C has interrupted a forward pass of it.

        The micro-batches whose backward passes have ended count, and the next forward pass is that
        of another one. ``zero_grad`` of the optimizer begins the step again instead.
        """
        self._forward_pass.forget()

    def is_prepared(self) -> bool:
        """Whether the daemon has the parameters of this step already, for early updates."""
        return self._prepares and self._runner.operators.has_gradients

    def has_handed_in(self) -> bool:
        """Whether the daemon has gradients of this step, and no backward pass runs."""
        return self._runner.operators.has_gradients and not in_backward()

    def _forget_gradients(self) -> None:
        """Forget what belongs to gradients that were handed in."""
        self._forget_clipping()
        if self._replicas is not None:
            self._replicas.forget()

    def _forget_clipping(self) -> None:
        if self._optimizer is not None:
            self._optimizer.forget_clipping()

    def restore_random_state(self) -> None:
        """Set torch's random numbers to those before the first forward pass of this step."""
        if self._random_state is not None:
            self.device.set_random_state(self._random_state)

    def describe(self) -> str:
        """Return the model as JSON: the file that ``cistern plan`` reads.

        ValueError: ranks have different parts, of which each knows its own.
        """
        if not self.parts.is_plain:
            raise ValueError(
                "cistern: the ranks have different parts of the model: describe the whole model, with"
                " cistern.torch.describe"
            )
        return self._declaration.to_json(type(self.model).__name__, self.job.world)

    def gather(self, *names: str) -> AbstractContextManager[None]:
        """Have the weights of parameters readable anywhere in the block of a ``with`` statement.

        KeyError: there is no parameter of a name. RuntimeError: one was changed, and the change is lost.
        """
        return blocks.gather(self, names)

    def swapped(self, weights: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        """Let the model have other weights in the block of a ``with`` statement, such as averages.

        ``weights`` are tensors by names of parameters and buffers, as in ``state_dict``; what is not
        there stays as it is. The tensors are used where they are, or as copies if they have another
        type than the parameter. They are not to be changed meanwhile. Each rank has those that it gives.

        The job keeps its states, whatever happens in the block: ``read`` and ``save`` return them,
        while ``state_dict`` returns what the model has. Gradients of the step stay, too. Backward passes
        in the block are those of forward passes in it, and their gradients count for the step.

        KeyError: there is no parameter or buffer of a name. TypeError, ValueError: a value is no tensor
        of this shape. RuntimeError: a module runs; and, in the block, of what changes weights.
        """
        return blocks.swapped(self, weights)

    def changing(self, *names: str) -> AbstractContextManager[None]:
        """Let parameters be changed in place in the block of a ``with`` statement, between steps.

        All ranks do this, and all change parameters or none does: a rank that has changed some waits for
        the others when the block ends. The values of rank 0 are written, as by ``write``.
        Modules that run in the block have the changed weights. If the block raises, nothing is written.

        KeyError: there is no parameter of a name. RuntimeError: a module runs; or the step has
        gradients, and weights are not what they were when the block ends. The changes are lost then.
        """
        return blocks.changing(self, names)

    def stat(self) -> RankStat:
        """Return the daemon's counters of this rank. ``print(store)`` shows them in words."""
        return self.job.stat()

    def __repr__(self) -> str:
        return summary(self.job, self.plan)

    def close(self, *, remove: bool = False) -> None:
        """Leave the job. Its states stay in the daemon, unless ``remove``.

        Afterwards the model cannot be used any more. A call that Ctrl-C has interrupted is given
        up; the rank then counts as dead until it is opened again. A store can be closed twice. At
        the end of the program this happens by itself, unless an exception or a signal ends it. The
        exit status does not count: ``store.job.close()`` before ``sys.exit(1)`` lets the job be
        interrupted.

        RuntimeError: a module runs, such as in another thread; nothing has changed then.
        """
        if not self.job.client.is_closed:
            self._leave()
        if remove:
            with Client(self.job.client.socket) as client:
                client.remove_job(self.job.name)

    def _leave(self) -> None:
        self.abandon()
        try:
            if not self.job.client.is_pending:
                self.job.leave()
        finally:
            self.job.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "cistern: a store cannot be copied or pickled: its state_dict() can, and Store.save writes a"
            " checkpoint"
        )


_DISPATCHED = (
    "cistern: gradients of this step cannot be discarded, because other workers go on with them: call part.step"
    " again after an exception, and the step of the optimizer after each part.step. A step whose gradients are"
    " not finite changes nothing"
)
_NO_UNIT = (
    "cistern: gradients of a model that is dispatched are computed by part.step(**batch), on all workers, and not"
    " by a backward pass of the program"
)
_CLIPPED = (
    "cistern: grad = None of parameter '{0}' comes after clip_grad_norm_, whose norm the step computes of"
    " all gradients that it has: discard the gradient before"
)
_INTERRUPTED = (
    "cistern: an exception or Ctrl-C has ended a forward pass of this step, which has gradients of"
    " earlier micro-batches. Call zero_grad() of the optimizer to compute the step again from its first"
    " micro-batch, or Store.keep_gradients() to go on with the next one"
)
