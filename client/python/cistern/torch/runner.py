# SPDX-License-Identifier: Apache-2.0
"""Opens units while their modules run, forward and backward.

    forward     pre-hook: open, Enter     ... module ...     hook: close, Leave
    backward    Leave: open     ... gradients in grad ...    Enter: close, deliver

Units nest: one that begins while another one runs closes the outer one until it ends. What it is
given of the memory of the outer one, it is given as a copy.

The gradients of a unit that ran several times are delivered after its last backward pass, because
autograd then has their sums. Backward passes without a new forward pass between them belong to one
micro-batch: gradients of units that can have another one, because the graph is retained or another
run of them waits, stay in ``grad`` until the next forward pass or the step.

Modules that run in the backward pass (checkpointing) interrupt a unit, which is closed meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from cistern._abi import Reason
from cistern.errors import CstError
from cistern.torch.aliases import Input, inputs_of, leave, release
from cistern.torch.containers import (
    Given,
    copies_in,
    copies_of_lent,
    distinct_needing_grad,
    needing_grad,
    replaced,
    unseen,
)
from cistern.torch.lending import GRADS_OF_GRADS, Tensor, Unit
from cistern.torch.nodes import Enter, Ref
from cistern.torch.operators import Operators
from cistern.torch.running import call_of_module, in_backward
from cistern.torch.storage import private

_retains_graph: Callable[[], bool] = private(
    torch._C._autograd, "_get_current_graph_task_keep_graph"
)


def not_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``hook`` such that torch.compile calls it, and compiles what is before and after it."""
    disable: Any = torch.compiler.disable
    return disable(hook, reason="cistern: hooks of a store")  # type: ignore[no-any-return]


class _Use:
    """One run of a unit in a forward pass."""

    __slots__ = (
        "__weakref__", "has_inputs", "inputs", "is_awaited", "is_outside", "left", "n_changes", "others", "pass_no", "runner",
        "unit", "zero"
    )  # fmt: skip

    def __init__(self, runner: Runner, unit: Unit) -> None:
        self.runner = runner
        self.unit = unit
        self.n_changes = unit.n_changes  # Of the weights that the forward pass has used.
        self.others = unit.others  # The weights that it has used instead; None: none.
        self.zero = runner.zero
        self.pass_no = runner.pass_no
        self.has_inputs = False  # That need gradients.
        self.inputs: list[Input] = []  # These, when the module has ended.
        self.is_awaited = False  # What the module returns or has changed needs a gradient.
        self.is_outside = False  # The module ran outside of backward passes.
        self.left: Sequence[Ref] = ()  # What went through the Leave.

    @property
    def name(self) -> str:
        return self.unit.name


class _Running:
    """A unit that runs. The token would be a circle of references if the use had it."""

    __slots__ = ("entered", "given", "token", "use")

    def __init__(self, use: _Use, given: Given) -> None:
        self.use = use
        self.given = given
        self.token: torch.Tensor | None = None  # None: no gradients are recorded.
        # The inputs that need a gradient, before and after the Enter.
        self.entered: tuple[list[torch.Tensor], list[torch.Tensor]] = _NOTHING


_NOTHING: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])


class _Uses:
    """The runs of one unit, counted by their forward passes, if these are told apart."""

    def __init__(self) -> None:
        # By their threads, because torch calls the hook after a module whose thread was refused.
        self.running: defaultdict[int, list[_Running | None]] = defaultdict(list)
        self.waiting: Counter[int] = Counter()  # Runs whose backward pass has not ended.
        # Runs outside of backward passes whose graph can have another backward pass.
        self.retained: Counter[int] = Counter()

    def can_have_more(self) -> bool:
        """Whether a graph of one of the runs can have another backward pass."""
        return any(n > 0 for n in self.retained.values())

    def forget(self) -> None:
        """Expect no backward pass of the runs until now."""
        self.waiting.clear()
        self.retained.clear()


def _let_go(runner: ref[Runner]) -> None:
    """Let no weights of the units of ``runner`` have memory. RuntimeError: a unit runs."""
    found = runner()
    if found is not None:
        found.operators.let_go(found.units)


class Runner:
    """Runs the units of one job.

    ``before_forward`` is called before a unit runs forward, ``before_backward`` before each
    outermost backward pass.
    """

    def __init__(
        self,
        operators: Operators,
        before_forward: Callable[[], None],
        before_backward: Callable[[], None],
    ) -> None:
        self.operators = operators
        self.units: list[Unit] = []
        self.unit_of: WeakKeyDictionary[nn.Module, Unit] = WeakKeyDictionary()  #: That it opens.
        # The client refers to the job that is left when nothing refers to the store any more, and
        # hooks of parameters can refer to the store.
        operators.job.client.before_unmapping(partial(_let_go, ref(self)))
        self._uses: dict[Unit, _Uses] = {}
        self._before_forward = before_forward
        self._before_backward = before_backward
        device = operators.device.torch_device
        self.zero = torch.zeros((), dtype=torch.float32, device=device)
        self._anchor = torch.zeros_like(self.zero, requires_grad=True)
        self._tasks: list[int] = []  # Backward passes that run, from the outermost one on.
        self._n_open = 0  # Units that were open when the outermost one began.
        self._retains = False  # The outermost one retains its graph.
        self._ran_forward = (
            False  # Gradients were recorded since the outermost one of before began.
        )
        self._pass_runs: Callable[[], object] = bool  # True: the outermost one has not ended.
        # Uses whose graph can have a backward pass, with inputs that need a gradient or several outputs.
        self._left: WeakSet[_Use] = WeakSet()
        self.n_blocks = 0  #: In which weights are others than those of the job.
        #: Number of the forward pass that runs, or was the last one; 0: they are not told apart.
        self.pass_no = 0
        #: Modules run forward again, for a backward pass of an earlier run.
        self.is_repeating = False
        self.is_in_parts = False  #: The backward pass of a micro-batch has parts, and goes on.

    @property
    def broken(self) -> bool:
        """Whether the last backward pass has raised, or an interruption came at a bad moment."""
        return self.operators.is_torn or (bool(self._tasks) and not in_backward())

    def next_step(self) -> None:
        """Forget what belongs to the step that is committed."""
        self.operators.begin_step()
        self._forget_uses()
        self.operators.has_gradients = self.operators.is_past_grads = False
        self.operators.handed_in.discarded.clear()
        for unit in self.units:
            if unit.trained:
                unit.n_changes += 1
        self._release_void()

    def weights_written(self) -> None:
        """Note that weights may have changed without a step, those that are frozen too."""
        for unit in self.units:
            unit.n_changes += 1
        self._release_void()

    def _release_void(self) -> None:
        """Free the graphs that no backward pass has freed, and whose backward pass would raise now."""
        for use in list(self._left):
            if use.n_changes != use.unit.n_changes:
                self._left.discard(use)
                release(use, self._anchor, _OTHER_WEIGHTS.format(use.name))

    @contextmanager
    def other_weights(self, others: Mapping[Tensor, torch.Tensor]) -> Iterator[None]:
        """Lend units the memory of ``others``, instead of the weights of the job, until the end of a block.

        Backward passes of the block are those of its own forward passes. In the end, graphs of these are
        freed.
        """
        before = [(tensor, tensor.other) for tensor in others]
        units = {unit: unit.others for tensor in others for unit in tensor.units}
        which = object()
        self.n_blocks += 1
        try:
            for tensor, values in others.items():
                tensor.other = values
            for unit in units:
                unit.others = which
            yield
        finally:
            self.n_blocks -= 1
            for tensor, other in before:
                tensor.other = other
            for unit, there in units.items():
                unit.others = there
            for use in [use for use in self._left if use.others is which]:
                self._left.discard(use)
                release(use, self._anchor, _SWAPPED.format(use.name))

    @property
    def has_gradients(self) -> bool:
        """Whether this attempt at the step has gradients, handed in or not."""
        return self.operators.has_gradients or any(unit.has_grads() for unit in self.units)

    def _held(self) -> bool:
        """Whether gradients wait for another backward pass of the micro-batch."""
        return any(uses.can_have_more() and u.has_grads() for u, uses in self._uses.items())

    def forward_begins(self) -> None:
        """Begin another micro-batch, if the last one has had a backward pass and gradients are recorded."""
        if self.pass_no == 0 and not self._ran_forward and torch.is_grad_enabled():
            if self._held():
                self.deliver_rest()
            self._ran_forward = True
            self._forget_uses()

    def tell_passes_apart(self, modules: Sequence[nn.Module]) -> None:
        """Let each call of one of ``modules``, which call the others, be a forward pass of its own.

        Backward passes of a pipeline are in another order than the forward passes, and run between them.
        Each hands its gradients in, and is a micro-batch, whatever other passes wait for theirs.
        """
        self.pass_no = 1

        def begins(*_: Any) -> None:
            if not in_backward():
                self.pass_no += 1

        for module in modules:
            module.register_forward_pre_hook(not_compiled(begins), prepend=True)

    def forget_changes(self) -> None:
        """Do not take what has happened to parameters outside of modules for their doing."""
        for unit in self.units:
            unit.changed()

    def forget_gradients(self) -> None:
        """Forget the gradients of this attempt at the step. Forward passes go on to count."""
        self.operators.begin_step()
        self.operators.has_gradients = False
        self.operators.handed_in.forget_all()
        for unit in self.units:
            unit.drop_grads()

    def forget(self) -> None:
        """Forget the whole attempt at a step, without a call of the job."""
        self.operators.forget(self.units)
        self._tasks.clear()
        self._forget_runs()
        self.forget_gradients()
        self._forget_uses()

    def close_all(self) -> None:
        """Close the units that an exception such as KeyboardInterrupt, of which torch did not tell, left open."""
        self.operators.check_thread()
        if self.operators.open_units:
            self._forget_runs()
        self.operators.close_all()

    def _forget_runs(self) -> None:
        """Give callers their own tensors back in what was given to modules that have not ended."""
        runs = [
            ran
            for uses in self._uses.values()
            for of_thread in uses.running.values()
            for ran in of_thread
            if ran is not None
        ]
        for _ in runs:  # Each round restores the innermost of those that are left.
            for ran in runs:
                ran.given.restore()
        for uses in self._uses.values():
            uses.running.clear()

    def _forget_uses(self) -> None:
        """Expect no backward pass of a forward pass until now."""
        for uses in self._uses.values():
            uses.forget()

    # -- forward

    def add(self, unit: Unit, module: nn.Module, methods: Sequence[str] = ()) -> None:
        """Have ``module`` open ``unit`` while it runs, or one of its ``methods``."""
        self.operators.add(unit)
        self.units.append(unit)
        self.unit_of[module] = unit
        self._uses[unit] = _Uses()

        before = not_compiled(partial(self._module_begins, unit))
        after = not_compiled(partial(self._module_ends, unit))
        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        module.register_forward_hook(after, always_call=True)
        for name in methods:
            setattr(module, name, partial(_run, before, after, module, getattr(module, name)))

    def _module_begins(self, unit: Unit, _: nn.Module, args: Any, kwargs: Any) -> Any:
        is_recording, runs = torch.is_grad_enabled(), call_of_module()
        try:
            self._check_begin(is_recording)
        except Exception:  # torch calls _module_ends all the same.
            self._uses[unit].running[get_ident()].append(None)
            raise
        running = self._uses[unit].running[get_ident()]
        running.append(None)
        outer = self.operators.open_units
        if outer and outer[-1] is unit:
            return None
        given = Given(args, kwargs)
        new = copies_of_lent(given.tensors) if outer else {}
        self.operators.push(unit, runs)
        running[-1] = ran = _Running(_Use(self, unit), given)
        if is_recording and not self.is_repeating:
            new = self._enter(ran, new)
        return given.replaced(new) if new else (args, kwargs)

    def _check_begin(self, is_recording: bool) -> None:
        """Raise an exception if no module can run now."""
        self.operators.check_thread()
        if is_recording and torch._C._are_functorch_transforms_active():
            raise RuntimeError(_TRANSFORMED)
        if in_backward():
            self._follow_pass()
        else:
            self._before_forward()

    def _enter(self, ran: _Running, new: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Let what needs a gradient go through an Enter.

        ``new`` has copies that stand in for tensors that were given. Returns what stands in for tensors
        then, the outputs of the Enter included.
        """
        given, use = ran.given.tensors, ran.use
        inputs = distinct_needing_grad([new.get(id(t), t) for t in given] if new else given)
        ran.token, *outputs = Enter.apply(use, self.zero if inputs else self._anchor, *inputs)
        ran.entered = inputs, outputs
        use.has_inputs = bool(inputs)
        entered = dict(zip(map(id, inputs), outputs))
        return (
            {own: entered.get(id(copy), copy) for own, copy in new.items()} | entered
            if new
            else entered
        )

    def _module_ends(self, unit: Unit, _: nn.Module, __: Any, output: Any) -> Any:
        """End a run of the module. It has raised if ``output`` is None; its error goes first."""
        running = self._uses[unit].running[get_ident()]
        ran = running.pop() if running else None
        if ran is None:
            return None
        ran.given.restore()
        copies = copies_in(output)
        try:
            self.operators.pop()
        except CstError:
            if output is not None:
                raise
        if copies:
            output = replaced(output, copies, copies=True)
        if self.is_repeating or not torch.is_grad_enabled():
            return output
        return self._leave(ran, output)

    def _leave(self, ran: _Running, output: Any) -> Any:
        """Let what the module returns and has changed go through a Leave. Return the output."""
        if type(output) is not torch.Tensor and not ran.use.unit.is_known:
            _look_at_classes(ran.use.unit, output)
        added = ran.given.added()
        changed = ran.given.changed(ran.token.grad_fn) if ran.token is not None else []
        outputs = needing_grad((output, added) if added else output)
        kept = ran.entered[1]
        if not outputs and not changed and not kept:
            return output
        ran.use.is_awaited = bool(outputs or changed)
        uses = self._uses[ran.use.unit]
        uses.waiting[ran.use.pass_no] += ran.use.is_awaited
        ran.use.is_outside = not in_backward()
        uses.retained[ran.use.pass_no] += ran.use.is_awaited and ran.use.is_outside
        new = leave(ran.use, ran.token, ran.entered, changed, outputs)
        if kept:
            ran.use.inputs = inputs_of(kept)
        if kept or len(ran.use.left) > 1:
            self._left.add(ran.use)
        if not new:
            return output
        if added:
            ran.given.replace_added({id(t): new[id(t)] for t in added if id(t) in new})
        return replaced(output, new)

    # -- backward

    def backward_begins(self, use: _Use, grads: tuple[torch.Tensor | None, ...]) -> None:
        """Leave says that the backward pass of a use begins. ``grads`` are those of its inputs, first.

        An input has one if the module has kept it, or returns it, and it was used after the module.
        """
        if use.n_changes != use.unit.n_changes:
            raise RuntimeError(_OTHER_WEIGHTS.format(use.unit.name))
        if use.others is not use.unit.others:
            raise RuntimeError(_SWAPPED.format(use.unit.name))
        if torch.is_grad_enabled():  # In a backward pass, this is create_graph.
            raise RuntimeError(GRADS_OF_GRADS)
        for kept, grad in zip(use.inputs, grads):
            kept.check_not_watched(use)
            if grad is not None and kept.counter._version != kept.version:
                raise RuntimeError(_KEPT_INPUT.format(use.unit.name))
        if torch._C._current_graph_task_id() not in self._tasks:
            self._follow_pass()
        self.operators.push(use.unit, self._pass_runs)

    def backward_ends(self, use: _Use) -> None:
        """Enter says that the backward pass of a use ends."""
        unit = use.unit
        open_units = self.operators.open_units
        if unit not in open_units:
            raise RuntimeError(
                f"cistern: the backward pass of module '{unit.name}' ends, but it has not begun"
            )
        while open_units[-1] is not unit:  # backward(inputs=...) leaves out Enter.
            self.operators.pop()
        uses, n = self._uses[unit], use.pass_no
        uses.waiting[n] -= use.is_awaited
        if use.is_awaited and use.is_outside and not self._retains:
            uses.retained[n] = max(uses.retained[n] - 1, 0)
        # A view of a weight that was made before the model ran gives its gradient after the first unit.
        is_ready = unit.has_grads() if use.has_inputs else unit.has_all_grads()
        is_last = uses.waiting[n] <= 0 and uses.retained[n] == 0
        self.operators.pop(deliver=is_last and is_ready and not self.is_in_parts)

    def deliver_rest(self) -> None:
        """Deliver what is left of a micro-batch, such as units whose end no node saw."""
        for unit in reversed(self.units):
            if unit.has_grads():
                self.operators.deliver(unit)
        self.operators.deliver_late(self.units)

    def _deliver_rest_of_pass(self) -> None:
        """Deliver what is left at the end of a backward pass, but for what another one can add to.

        If there is such, the order of declaration, in which there are blocks for all, has to wait.
        """
        if self.pass_no > 0 or not self._held():
            self.deliver_rest()
            return
        for unit in reversed(self.units):
            if unit.has_grads() and not self._uses[unit].can_have_more():
                self.operators.deliver(unit)

    def deliver_last(self) -> None:
        """Deliver what is left before the step."""
        if not self._held():
            self.operators.is_new_pass = False
        self.operators.forget_last_step()
        try:
            self.deliver_rest()
        except CstError as error:
            if error.reason != Reason.HANDED_IN:
                raise
            late = [unit.name for unit in self.units if unit.has_grads()]
            raise error.with_text(_BY_HAND.format(late[-1])) from None

    def end_unit(self) -> None:
        """End the backward pass of a stage over a micro-batch, in a model whose units any rank runs."""
        self.operators.next_micro_batch()
        self._forget_uses()

    def _follow_pass(self) -> None:
        """Note that a backward pass runs, perhaps inside of another one, and wait for its end."""
        task = torch._C._current_graph_task_id()
        if task in self._tasks:
            return
        is_outermost = not self._tasks
        self._tasks.append(task)
        if is_outermost:
            self._outermost_begins()
        ends = partial(Runner._pass_ends, self)
        if is_outermost or not self._pass_runs():  # An outer pass that has raised is in _tasks yet.
            self._pass_runs = ref(ends)  # torch keeps it until the pass has ended, or has raised.
        torch.autograd.Variable._execution_engine.queue_callback(ends)

    def _outermost_begins(self) -> None:
        self._n_open = len(self.operators.open_units)
        self._retains = _retains_graph()
        waits = self.pass_no == 0 and any(uses.can_have_more() for uses in self._uses.values())
        if (self._ran_forward or not waits) and not self.is_in_parts:
            self.operators.is_new_pass = True  # Else it is of the micro-batch of the pass before.
        self._ran_forward = False
        self.operators.forget_last_step()
        try:
            for use in self._left:
                for kept in use.inputs:
                    if kept.counter._version != kept.version and kept.has_other_history():
                        raise RuntimeError(_KEPT_INPUT.format(use.unit.name))
            self._before_backward()
        except Exception:  # After an interruption, the pass counts as one that has raised.
            self._tasks.clear()
            raise

    def _pass_ends(self) -> None:
        if len(self._tasks) == 1:
            # backward(inputs=...) leaves out Enter.
            while len(self.operators.open_units) > self._n_open:
                self.operators.pop()
            if self._n_open == 0 and not self.is_in_parts:
                self._deliver_rest_of_pass()
                for uses in self._uses.values():  # Runs in the backward pass count no more.
                    uses.waiting = uses.retained.copy()
                if self.pass_no > 0:
                    self.operators.end_micro_batch()
            elif not self.is_in_parts:  # The pass was one inside of a forward pass, which goes on.
                self.deliver_rest()
                self._ran_forward = True
        self._tasks.pop()


def _run(
    before: Callable[..., Any],
    after: Callable[..., Any],
    module: nn.Module,
    method: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call ``method`` of ``module`` with the hooks that torch calls before and after ``forward``."""
    try:
        new_args, new_kwargs = before(module, args, kwargs) or (args, kwargs)
        output = method(*new_args, **new_kwargs)
    except Exception:
        after(module, args, None)
        raise
    new = after(module, args, output)
    return output if new is None else new


def _look_at_classes(unit: Unit, output: Any) -> None:
    """Let uses of weights outside of the module name the class of what it returns, if it hides tensors."""
    unit.is_known = True
    kinds = unseen(output)
    if kinds:
        for tensor in unit.tensors:
            tensor.lent.say(_UNSEEN.format(unit.name, kinds[0].__qualname__))


_UNSEEN = (
    "Module '{0}' returns an object of class '{1}', in which the store looks for no tensors. If the backward"
    " pass has used the parameter, because of a tensor in this object, let the module return it in a tuple, a"
    " list, a dictionary or a dataclass."
)
_TRANSFORMED = (
    "cistern: a model whose weights are in a store cannot run under transforms of torch.func (vmap, grad,"
    " jvp and others) while gradients are recorded: use torch.no_grad() where none are needed, or loss.backward()"
    " instead of torch.func.grad"
)
_KEPT_INPUT = (
    "cistern: module '{0}' has kept a tensor that it was given, or returns a view of it, and the memory of"
    " this tensor was changed in place after the module had returned. Gradients would lack the change:"
    " let the module keep or return a copy, such as x.clone(), or compute a new tensor instead of the"
    " change, such as x = x * 2, not x *= 2"
)
_SWAPPED = (
    "cistern: the weights of module '{0}' were others in its forward pass than they are in its backward"
    " pass, because one of the two was in a block of Store.swapped or Store.changing: let both be in the"
    " same block, or outside of it"
)
_BY_HAND = (
    "cistern: grad of a parameter of module '{0}' was set after the backward pass, when the gradients of"
    " this step were handed in already: call zero_grad of the optimizer, and compute the step again. A hook"
    " (parameter.register_hook) or a factor on the loss changes gradients"
)
_OTHER_WEIGHTS = (
    "cistern: the weights of module '{0}' have changed since its forward pass, by a step of the optimizer"
    " or a write, so that its backward pass would give wrong gradients: compute the forward pass again"
    " after each change, and detach what goes from one step to the next (such as the state of a"
    " recurrent model)"
)
