# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a job, as torch.optim has optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from cistern.errors import StepVoid
from cistern.results import HyperParams, StepResult

if TYPE_CHECKING:
    from cistern.torch.store import Store


class Optimizer(torch.optim.Optimizer):
    """Updates the states of a store. ``step`` commits the step of the job.

    The arguments are those of ``Store.optimizer``. The groups are those that ``attach`` was given.
    Their ``lr`` and ``weight_decay`` can be changed between steps, such as by a scheduler, and so can
    ``betas`` and ``eps``, which are equal in all groups. ``last`` is the result of the last step.
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
        self.last: StepResult | None = None
        #: Computes all gradients of this step again, after a void step without a closure.
        self.replay: Callable[[], Any] | None = None
        #: L2 norm of all gradients of the last step, before clipping, as a tensor without
        #: dimensions. ``clip_grad_norm_`` returns it before the step, which fills it.
        self.norm = torch.full((), math.nan, device="cpu")
        parameters = store.grouped_parameters()
        if groups and len(groups) != len(parameters):
            raise ValueError(f"cistern: the store has {len(parameters)} groups, not {len(groups)}")
        own = groups or [{} for _ in parameters]
        for group in own:
            if not set(group) <= {"lr", "weight_decay"}:
                raise ValueError("cistern: groups differ in lr and weight_decay alone")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            [{"params": p, **g} for p, g in zip(parameters, own, strict=True)], defaults
        )
        self._complete = True

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
        beta1, beta2 = first["betas"]
        if (beta1 == 0 and beta2 == 0) or first["eps"] == 0:
            raise ValueError("cistern: betas of (0, 0) and an eps of 0 are not supported")
        return HyperParams(
            lr=max(float(group["lr"]) for group in self.param_groups),
            beta1=beta1,
            beta2=beta2,
            eps=first["eps"],
            weight_decay=max(group["weight_decay"] for group in self.param_groups),
            clip_norm=self.clip_norm,
            grad_scale=self.grad_scale,
        )

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

        ``closure`` computes the loss and its gradients, and its value is returned. If the step is
        void, because another rank died for example, it is done again with the same random numbers.
        Without ``closure``, a void step raises StepVoid: call ``Store.sync``, which returns the
        number of the step to do, and compute the same batch again. ``replay`` is called then, if it
        is set.
        """
        if grad_scaler is not None:
            raise ValueError("cistern: weights are bf16, which needs no scaler of gradients")
        compute, again = closure, closure or self.replay
        while True:
            try:
                loss = None if compute is None else self._computed(compute)
                self._commit()
                return None if closure is None else loss
            except StepVoid:
                if again is None:
                    raise
                compute = again
                self.store.sync()
                self.store.restore_random_state()

    def _computed(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            return closure()

    def _commit(self) -> None:
        self.last = self.store.commit_step(self.prepared)
        self.norm.fill_(self.last.grad_norm)
        self.norm = self.norm.detach().clone()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: a step takes the gradients away."""

    def state_dict(self) -> dict[str, Any]:
        """Return the groups, the job and the step. The moments stay in the daemon."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"job": self.store.job.name, "step": self.store.step_no, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the groups of ``state_dict``. ValueError: the job has done other steps."""
        if state_dict["step"] != self.store.step_no:
            raise ValueError(
                f"cistern: this is the state after step {state_dict['step']}, job"
                f" '{self.store.job.name}' has done {self.store.step_no}"
            )
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(loaded)
