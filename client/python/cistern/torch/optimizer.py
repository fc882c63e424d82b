# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a job, as torch.optim has optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from cistern.errors import StepVoid
from cistern.results import HyperParams, StepResult

if TYPE_CHECKING:
    from cistern.torch.store import Store


class Optimizer(torch.optim.Optimizer):
    """Updates the states of a store. ``step`` commits the step of the job.

    The arguments are those of ``Store.optimizer``. There is one group of parameters, whose ``lr``,
    ``betas``, ``eps`` and ``weight_decay`` can be changed between steps, such as by a scheduler.
    Factors for single tensors are given to ``attach``. ``last`` is the result of the last step.
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
    ) -> None:
        self.store = store
        self.clip_norm = clip_norm
        self.grad_scale = grad_scale
        self.last: StepResult | None = None
        #: L2 norm of all gradients of the last step, before clipping, as a tensor without
        #: dimensions. ``clip_grad_norm_`` returns it before the step, which fills it.
        self.norm = torch.full((), math.nan)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(store.trained_parameters(), defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the only group. ValueError: there is one already."""
        if self.param_groups:
            raise ValueError(
                "cistern: an optimizer has one group of parameters; give attach the factors"
                " lr_scale and decay_scale for single tensors"
            )
        super().add_param_group(param_group)

    def hyper_params(self) -> HyperParams:
        """Return the parameters of the next update."""
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        if beta1 == 0 and beta2 == 0 or group["eps"] == 0:
            raise ValueError("cistern: betas of (0, 0) and an eps of 0 are not supported")
        return HyperParams(
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            clip_norm=self.clip_norm,
            grad_scale=self.grad_scale,
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Commit the step of the job, together with all ranks.

        ``closure`` computes the loss and its gradients, and its value is returned. If the step is
        void, because another rank died for example, it is done again with the same random numbers.
        Without ``closure``, a void step raises StepVoid: call ``Store.sync``, which returns the
        number of the step to do, and compute the same batch again.
        """
        if closure is None:
            self._commit()
            return None
        while True:
            try:
                with torch.enable_grad():
                    loss = closure()
                self._commit()
                return loss
            except StepVoid:
                self.store.sync()
                self.store.restore_random_state()

    def _commit(self) -> None:
        self.last = self.store.commit_step(self.hyper_params())
        self.norm.fill_(self.last.grad_norm)
        self.norm = self.norm.detach().clone()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: a step takes the gradients away."""

    def state_dict(self) -> dict[str, Any]:
        """Return the group, the job and the step. The moments stay in the daemon."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"job": self.store.job.name, "step": self.store.step_no, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the group of ``state_dict``. ValueError: the job has done other steps."""
        if state_dict["step"] != self.store.step_no:
            raise ValueError(
                f"cistern: this is the state after step {state_dict['step']}, job"
                f" '{self.store.job.name}' has done {self.store.step_no}"
            )
        self.param_groups[0].update(state_dict["param_groups"][0])
