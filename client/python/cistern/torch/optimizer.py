# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a job, as torch.optim has optimizers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cistern import checks
from cistern._abi import BETA2
from cistern._abi import Optimizer as Rule
from cistern.errors import StepVoid
from cistern.results import HyperParams, StepResult
from cistern.torch import optimizer_states
from cistern.torch.replays import begins_again
from cistern.torch.storage import LaterNumber

if TYPE_CHECKING:
    from cistern.torch.store import Store


_NORM_IS_LATER = (
    "cistern: the norm of the gradients is not known before the step of the optimizer. A step whose"
    " gradients are not finite changes nothing"
)
_PARTLY = "what has such gradients was not updated"


class _Clipping(NamedTuple):
    """What calls of clip_grad_norm_ have asked for."""

    max_norm: float
    error_if_nonfinite: bool
    norm: LaterNumber


def _reported(loss: Any) -> float:
    """Return a loss as a number; 0, which stands for an unknown one, if it is none."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return float(loss.detach())
    return float(loss) if isinstance(loss, (int, float)) else 0.0


def in_pair(betas: Any) -> tuple[Any, Any]:
    """Return the two ``betas``. TypeError: they are not two."""
    if not isinstance(betas, Sequence) or len(betas) != 2:
        checks.refuse_type("betas", betas, "a pair such as (0.9, 0.999)")
    return betas[0], betas[1]


def _checked_groups(groups: Any, n: int) -> Sequence[Mapping[str, Any]]:
    """Return what differs in the ``n`` groups. TypeError, ValueError: ``groups`` are none."""
    required = "a list such as [{}, {'weight_decay': 0.0}]"
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        checks.refuse_type("groups", groups, required)
    if groups and len(groups) != n:
        raise ValueError(
            f"cistern: the store has {n} groups, not {len(groups)}: param_group= of attach puts"
            " parameters into groups"
        )
    for i, group in enumerate(groups):
        if not isinstance(group, Mapping):
            checks.refuse_type(f"groups[{i}]", group, "a dictionary with lr or weight_decay")
        if not set(group) <= {"lr", "weight_decay"}:
            raise ValueError(
                f"cistern: groups differ in lr and weight_decay alone, not in {sorted(group)}"
            )
    return groups or [{} for _ in range(n)]


class Optimizer(torch.optim.Optimizer):
    """Updates the states of a store. ``step`` commits the step of the job.

    The arguments are those of ``Store.optimizer``. The groups are those that ``attach`` was given.
    Their ``lr`` and ``weight_decay`` can be changed between steps, such as by a scheduler, and so can
    ``betas`` and ``eps``, which are equal in all groups. ``last`` is the result of the last step.

    A parameter without a gradient in a step is skipped, as by torch.optim, and so its bias corrections
    count the steps that it has made. With ``unused="zero"`` of ``attach`` it has a gradient of zeros:
    its moments and its weight decay go on.

    A step whose gradients are not finite counts, but changes nothing (``last.skipped``). The first
    one is told by a warning.

    ValueError: an argument is out of range. TypeError: it is no number.
    """

    def __init__(
        self,
        store: Store,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        clip_norm: float,
        grad_scale: float,
        groups: Sequence[Mapping[str, float]],
    ) -> None:
        self.store = store
        self.clip_norm = clip_norm
        self.grad_scale = grad_scale
        self._clipping: _Clipping | None = None  # By clip_grad_norm_, for the next step.
        self._has_warned = False
        self.last: StepResult | None = None
        #: Loss of this step, which ``cistern jobs`` shows; None: unknown. ``step`` sets it from its
        #: closure, and forgets it at its end.
        self.loss: Any = None
        #: Computes all gradients of this step again, after a void step without a closure.
        self.replay: Callable[[], Any] | None = None
        #: Whether the step of the last gradients is committed without them, so that ``step`` has nothing to do.
        self.is_committed = False
        #: L2 norm of all gradients of the last step, before clipping, as a tensor without
        #: dimensions; NaN before the first step.
        self.norm = torch.full((), math.nan, device="cpu")
        parameters = store.grouped_parameters()
        own = _checked_groups(groups, len(parameters))
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            [{"params": p, **g} for p, g in zip(parameters, own, strict=True)], defaults
        )
        self._complete = True
        self.hyper_params()  # Checks them.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take a group of the store. ValueError: it has all its groups."""
        if getattr(self, "_complete", False):
            raise ValueError("cistern: attach is given the groups of parameters, by param_group")
        super().add_param_group(param_group)

    def hyper_params(self) -> HyperParams:
        """Return the parameters of the next update, with the largest of all groups."""
        first = self.param_groups[0]
        if any((g["betas"], g["eps"]) != (first["betas"], first["eps"]) for g in self.param_groups):
            raise ValueError("cistern: betas and eps are equal in all groups")
        beta1, beta2 = in_pair(first["betas"])
        checks.number("betas[0]", beta1, 0.0, 1.0)
        checks.number("betas[1]", beta2, 0.0, 1.0)
        for name in ("lr", "weight_decay"):
            for i, group in enumerate(self.param_groups):
                checks.number(f"{name} of group {i}" if i else name, group[name])
        for name, value in (
            ("eps", first["eps"]),
            ("clip_norm", self.clip_norm),
            ("grad_scale", self.grad_scale),
        ):
            checks.number(name, value)
        # libcistern takes these as their defaults.
        if beta2 == 0 and self.store.job.optimizer is Rule.SGD:
            beta2 = BETA2[Rule.SGD]  # SGD does not use it.
        if beta2 == 0:
            raise ValueError(f"cistern: betas of ({beta1:g}, 0) are not supported")
        if first["eps"] == 0 or self.grad_scale == 0:
            name = "an eps" if first["eps"] == 0 else "a grad_scale"
            raise ValueError(f"cistern: {name} of 0 is not supported")
        return HyperParams(
            lr=max(float(group["lr"]) for group in self.param_groups),
            beta1=beta1,
            beta2=beta2,
            eps=first["eps"],
            weight_decay=max(group["weight_decay"] for group in self.param_groups),
            clip_norm=self._smallest_clip_norm(),
            grad_scale=self.grad_scale,
            loss=_reported(self.loss),
        )

    def _smallest_clip_norm(self) -> float:
        """Return the largest norm of the next step's gradients; 0: there is no limit."""
        asked = math.inf if self._clipping is None else self._clipping.max_norm
        smallest = min(asked, self.clip_norm or math.inf)
        return 0.0 if math.isinf(smallest) else smallest

    def clip_next_step(self, max_norm: float, error_if_nonfinite: bool = False) -> torch.Tensor:
        """Clip the gradients of the next step, and only of it, to ``max_norm``; inf: not at all.

        The smallest limit holds: ``clip_norm``, or that of any of several calls. With
        ``error_if_nonfinite``, ``step`` raises RuntimeError if the norm of the gradients is not
        finite; it has changed no weights then. Returns the norm before clipping. An access to it
        raises RuntimeError before ``step`` has filled it. ``clip_grad_norm_`` calls this.
        """
        if not max_norm > 0:
            raise ValueError(
                f"cistern: gradients are clipped to a norm above 0, not {max_norm}; to have no"
                " gradients, call zero_grad"
            )
        earlier, before = self._clipping, self._smallest_clip_norm()
        number = LaterNumber(_NORM_IS_LATER) if earlier is None else earlier.norm
        if earlier is not None:
            max_norm = min(max_norm, earlier.max_norm)
            error_if_nonfinite = error_if_nonfinite or earlier.error_if_nonfinite
        self._clipping = _Clipping(max_norm, error_if_nonfinite, number)
        if self.store.is_prepared() and self._smallest_clip_norm() != before:
            self._clipping = earlier
            raise RuntimeError(
                f"cistern: gradients cannot be clipped to {max_norm} now, because the job has early"
                " updates (Overlap.EARLY): give Store.optimizer the clip_norm"
            )
        return number.tensor

    def clips_next_step(self) -> bool:
        """Whether ``clip_next_step`` was called for the next step."""
        return self._clipping is not None

    def forget_clipping(self) -> None:
        """Forget ``clip_next_step``. The store calls this when a step is committed or given up."""
        self._clipping = None

    def prepared(self) -> HyperParams:
        """Give the job the factors of the groups, and return the parameters of the next update."""
        params = self.hyper_params()
        self.store.job.param_groups(self._factors(params))
        return params

    def _factors(self, params: HyperParams) -> list[tuple[float, float]]:
        """Return what the groups multiply ``lr`` and ``weight_decay`` of ``params`` with."""
        return [
            (
                float(group["lr"]) / params.lr if params.lr != 0 else 1.0,
                group["weight_decay"] / params.weight_decay if params.weight_decay != 0 else 1.0,
            )
            for group in self.param_groups
        ]

    #: Lets torch.amp.GradScaler pass itself to ``step``, which refuses it.
    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], Any] | None = None, *, grad_scaler: Any = None) -> Any:
        """Commit the step of the job, together with all ranks.

        RuntimeError: the only rank of the job has no gradients, or a parameter needs a gradient that
        was neither trained nor ``trainable`` in ``attach``.

        ``closure`` computes the loss and its gradients, and its value is returned. If the step is
        void, because another rank died for example, it is done again with the same random numbers.
        Without ``closure``, a void step raises StepVoid: call ``Store.sync``, which returns the
        number of the step to do. If it is the same one, compute the same batch again; if it is the
        next one, the daemon ended after it had committed the step and before it could say so.
        ``replay`` is called for a void step without ``closure``, if it is set.

        If the daemon ended so, ``last`` is None, and the norm is NaN. RuntimeError: the other workers of a
        dispatched model have done further steps, too.
        """
        if grad_scaler is not None:
            raise ValueError("cistern: gradients are bf16 or fp32, which needs no scaler of them")
        compute, again = closure, closure or self.replay
        loss = None
        while True:
            try:
                loss = None if compute is None else self._computed(compute)
                self.loss = self.loss if closure is None else loss
                if self.is_committed:
                    self._take_unheard(self._clipping)
                else:
                    self._commit()
                return None if closure is None else loss
            except StepVoid:
                if again is None:
                    raise
                compute, clipping = again, self._clipping
                if not begins_again(self.store):
                    self._take_unheard(clipping)
                    return None if closure is None else loss
                self._clipping = clipping  # The step is the same one.

    def _take_unheard(self, clipping: _Clipping | None) -> None:
        """Note that the step is committed, and that this rank was not told the result."""
        self.last = self.loss = self._clipping = None
        self.is_committed = False
        self.norm = torch.full((), math.nan, device="cpu")
        if clipping is not None:
            clipping.norm.give(math.nan)

    def _computed(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            return closure()

    def _commit(self) -> None:
        clipping = self._clipping
        self.last = self.store.commit_step(self.prepared)
        self.loss = None
        self.norm = torch.full((), self.last.grad_norm, device="cpu")
        if clipping is not None:
            clipping.norm.give(self.last.grad_norm)
        if not self.last.overflow:
            return
        told = (
            f"cistern: the norm of the gradients of step {self.last.step - 1} is"
            f" {self.last.grad_norm}: "
        ) + ("the step counts, but changes nothing" if self.last.skipped else _PARTLY)
        if clipping is not None and clipping.error_if_nonfinite:
            raise RuntimeError(told)
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{told}. Later steps are not told: see last.skipped", stacklevel=4)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients of this step, if there are any. After ``step`` there are none.

        If gradients were handed in, all ranks give up this attempt at the step: the call waits until
        all have called it, or ``Store.sync``, and a rank that computes meanwhile gets StepVoid.
        RuntimeError: updates of the step may have begun (``Overlap.EARLY``).
        """
        self.store.discard_gradients()

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(
            "cistern: the optimizer of a store cannot be copied or pickled: its state_dict() can, and"
            " Store.save writes its moments to a checkpoint"
        )

    def state_dict(self, full: bool = False) -> dict[str, Any]:
        """Return the groups, the job and the step. The moments stay in the daemon.

        With ``full``, the moments are there, too, in the form of ``torch.optim.AdamW``, which can load
        them, and so are master weights of parameters in bf16. They are copies in this process: 8 to 12
        bytes for each element.
        """
        if full:
            return optimizer_states.full(self.store, self.param_groups)
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"job": self.store.job.name, "step": self.store.step_no, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the groups of ``state_dict``, which ``state_dict`` has returned.

        If it has moments, because it is ``full`` or one of ``torch.optim.AdamW``, they are written to the
        job between steps, and the job is then at their step. Master weights that it has set the weights.
        All ranks call this, and rank 0 writes.

        ValueError: the job has done other steps, and the state has no moments; or the state is that of
        another optimizer or of other parameters, or ranks have parts of the model.
        """
        moments = "state" in state_dict
        if "param_groups" not in state_dict or not (moments or {"job", "step"} <= set(state_dict)):
            raise ValueError(
                "cistern: this is not the state of an optimizer of a store or of torch.optim.AdamW"
            )
        if moments:
            self.store.writes.check_whole()
        if len(state_dict["param_groups"]) != len(self.param_groups):
            raise ValueError(
                f"cistern: the optimizer has {len(self.param_groups)} groups, not"
                f" {len(state_dict['param_groups'])}"
            )
        if moments:
            found = optimizer_states.loaded(self.store, self.param_groups, state_dict)
            self.store.writes.optimizer_states(found)
        elif state_dict["step"] != self.store.step_no:
            raise ValueError(
                f"cistern: this is the state after step {state_dict['step']}, job"
                f" '{self.store.job.name}' has done {self.store.step_no}. The moments are not in this"
                " state: go on from a checkpoint of Store.save, with attach(..., resume=DIRECTORY), or"
                " from a state_dict(full=True)"
            )
        groups = found.groups if moments else state_dict["param_groups"]
        for group, loaded in zip(self.param_groups, groups, strict=True):
            group.update(loaded)
