# SPDX-License-Identifier: Apache-2.0
"""The runtime of torch.distributed.pipelining, which runs any list of actions.

This is the only file that names what torch keeps private of it. Torch sends, receives and calls the
stages. What is ours in a stage: weight gradients of their own (W), forward passes that are repeated
before their backward pass (R), and a gradient of zeros where an input was not used.

Actions are written as ``cistern schedule`` does: "2F0" is stage, kind, micro-batch.
"""

from __future__ import annotations

import functools
import inspect
import re
import tempfile
from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from cistern.torch.divided_passes import runner_of
from cistern.torch.parallel.recomputation import Pass, Recomputed
from cistern.torch.parallel.split_backward import input_gradients, weight_gradients

Lists = Sequence[Sequence[str]]  # By rank.
_ACTION = re.compile(r"(\d+)([FBIWR])(\d+)")


class _Stage:
    """Does the actions of ``stage`` of torch. ``recomputed`` are those of its modules that repeat forward passes."""

    def __init__(self, stage: Any, recomputed: Sequence[Recomputed], log: list[str]) -> None:
        self.stage = stage
        self._number = stage.stage_index
        self._recomputed = recomputed
        self._log = log
        self._passes: dict[int, list[ref[Pass]]] = {}  # By micro-batch.
        self._plain = {name: getattr(stage, name) for name in _OF_STAGE}
        for name in _OF_STAGE:
            setattr(stage, name, getattr(self, "_" + name))

    def begin(self) -> None:
        """Forget an earlier step, and what torch has run to learn of shapes."""
        self._passes.clear()

    def restore(self, micro: int) -> None:
        """Repeat the forward pass of a micro-batch."""
        for made in self._passes.pop(micro):
            found = made()
            if found is not None:
                found.restore()
        self._log.append(f"{self._number}R{micro}")

    def _forward_one_chunk(self, micro: int, *args: Any, **kwargs: Any) -> Any:
        for module in self._recomputed:
            module.take()
        output = self._plain["forward_one_chunk"](micro, *args, **kwargs)
        self._passes[micro] = [made for module in self._recomputed for made in module.take()]
        self._log.append(f"{self._number}F{micro}")
        return output

    def _backward_one_chunk(self, micro: int, *args: Any, **kwargs: Any) -> Any:
        result = self._plain["backward_one_chunk"](micro, *args, **kwargs)
        kind = "B" if kwargs.get("full_backward", True) else "I"
        self._log.append(f"{self._number}{kind}{micro}")
        return result

    def _backward_weight_one_chunk(self, micro: int, *args: Any, **kwargs: Any) -> Any:
        result = self._plain["backward_weight_one_chunk"](micro, *args, **kwargs)
        self._log.append(f"{self._number}W{micro}")
        return result

    def _backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if backward_type == "weight":
            weight_gradients(bwd_kwargs["param_groups"])
            return (), None
        inputs, rest = bwd_kwargs["input_values"], None
        if backward_type == "input":
            module = self.stage.submod
            grads, rest = input_gradients(
                bwd_kwargs["stage_output"],
                bwd_kwargs["output_grads"],
                inputs,
                module.parameters(),
                runner_of(module),
            )
        else:
            plain = self._plain["backward_maybe_with_nosync"]
            grads, rest = plain(backward_type, bwd_kwargs, last_backward=last_backward)
        return tuple(map(_or_zeros, grads, inputs)), rest


_OF_STAGE = (
    "forward_one_chunk",
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "backward_maybe_with_nosync",
)


def _or_zeros(grad: torch.Tensor | None, given: Any) -> torch.Tensor | None:
    """Return ``grad`` of ``given``; zeros if it was not used, which the stage before has to hear."""
    needs = grad is None and isinstance(given, torch.Tensor) and given.requires_grad
    return torch.zeros_like(given) if needs else grad


class Runtime:
    """Runs ``lists`` with the ``stages`` of this rank. ``recomputed`` has modules by the number of a stage."""

    def __init__(
        self,
        stages: Sequence[Any],
        lists: Lists,
        n_micro_batches: int,
        loss_fn: Any,
        recomputed: dict[int, list[Recomputed]],
    ) -> None:
        self_test()
        rank = stages[0].group_rank
        self._ran: list[str] = []
        self._wanted = list(lists[rank])
        runtime: Any = schedules._PipelineScheduleRuntime
        self._torch = runtime(list(stages), n_micro_batches, loss_fn=loss_fn, scale_grads=False)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            for actions in lists:
                file.write(",".join(a for a in actions if kind_of(a) != "R") + "\n")
            file.flush()
            self._torch._load_csv(file.name)
        self._stages = {
            stage.stage_index: _Stage(stage, recomputed.get(stage.stage_index, ()), self._ran)
            for stage in stages
        }
        if any(kind_of(action) == "R" for action in self._wanted):
            orders = self._torch.pipeline_order_with_comms
            orders[rank] = _with_repeats(orders[rank], self._wanted)
            self._torch.register_custom_function(schedules.UNSHARD, self._restore)

    def _restore(self, action: Any, _: Any) -> None:
        self._stages[action.stage_index].restore(action.microbatch_index)

    def step(self, *args: Any, **options: Any) -> Any:
        """Run one step, as ``step`` of a schedule of torch. Gradients are sums of those of the micro-batches."""
        self._ran.clear()
        modules = []
        for stage in self._stages.values():
            stage.begin()
            modules.append(stage.stage.submod)
        for runner in {runner_of(module) for module in modules}:
            if runner is not None and runner.pass_no == 0:
                runner.tell_passes_apart(modules)
        result = self._torch.step(*args, **options)
        if self._ran != self._wanted:
            raise RuntimeError(
                f"{_BROKEN.format(torch.__version__)}: it has run {','.join(self._ran)} in place of"
                f" {','.join(self._wanted)}"
            )
        return result


def _parts(action: str) -> tuple[int, str, int]:
    """Return the stage, the kind and the micro-batch of ``action``."""
    found = _ACTION.fullmatch(action)
    assert found is not None, action
    return int(found[1]), found[2], int(found[3])


def stage_of(action: str) -> int:
    """Return the number of the stage of ``action``."""
    return _parts(action)[0]


def kind_of(action: str) -> str:
    """Return what ``action`` does: F, B, I, W or R."""
    return _parts(action)[1]


def _with_repeats(order: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
    """Return ``order``, the actions and messages of a rank, with its repeated forward passes.

    They stand in the place of UNSHARD, which is for FSDP: torch has no action for them. Each is right
    before the action that follows it in ``wanted``, so that messages are asked for before.
    """
    before: dict[str, list[str]] = {}
    waiting: list[str] = []
    for action in wanted:
        if kind_of(action) == "R":
            waiting.append(action)
        else:
            before[action], waiting = waiting, []
    result: list[Any] = []
    for action in order:
        if action.computation_type in (schedules.UNSHARD, schedules.RESHARD):
            continue
        for repeated in before.get(str(action), ()):
            stage, _, micro = _parts(repeated)
            result.append(schedules._Action(stage, schedules.UNSHARD, micro))
        result.append(action)
    return result


@functools.cache
def self_test() -> None:
    """Check that torch has what this file uses, as it uses it. ImportError: it has not."""
    try:
        runtime: Any = schedules._PipelineScheduleRuntime
        action = schedules._Action.from_str("0UNSHARD5")
        is_good = (
            (action.stage_index, action.computation_type, action.microbatch_index)
            == (0, schedules.UNSHARD, 5)
            and str(schedules._Action.from_str("1F2")) == "1F2"
            and _has_arguments(runtime._load_csv, "filename", "format")
            and _has_arguments(runtime.register_custom_function, "computation_type")
            and _has_arguments(pipelining.PipelineStage.forward_one_chunk, "fwd_chunk_id")
            and _has_arguments(
                pipelining.PipelineStage.backward_one_chunk, "bwd_chunk_id", "full_backward"
            )
            and _has_arguments(pipelining.PipelineStage.backward_weight_one_chunk, "bwd_chunk_id")
            and _has_arguments(
                pipelining.PipelineStage.backward_maybe_with_nosync,
                "backward_type",
                "bwd_kwargs",
                "last_backward",
            )
        )
    except AttributeError as error:
        raise ImportError(f"{_BROKEN.format(torch.__version__)}: {error}") from None
    if not is_good:
        raise ImportError(f"{_BROKEN.format(torch.__version__)}: functions have other arguments")


def _has_arguments(function: Any, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


_BROKEN = (
    "cistern.torch.parallel does not work with the pipelining runtime of torch {0}, whose private parts are others"
    " than those of torch 2.15: use that, or Schedule1F1B and ScheduleGPipe of torch itself"
)
