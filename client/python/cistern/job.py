# SPDX-License-Identifier: Apache-2.0
"""This process as one rank of a job."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_int64, c_uint, c_uint64, c_void_p
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from cistern import _library, checks
from cistern._abi import (
    GROUP_ALL,
    JOB_OPTIONS,
    Direction,
    Dtype,
    Hint,
    JobOptions,
    Optimizer,
    Pattern,
    TensorUpdate,
    cst_err,
    cst_hyper_params,
    cst_io,
    cst_job_spec,
    cst_operator_cost,
    cst_param_group,
    cst_plan,
    cst_rank_stat,
    cst_step_result,
    cst_tensor_spec,
)
from cistern.calls import Path
from cistern.client import Client
from cistern.declared import Declared
from cistern.edges import Edges
from cistern.errors import PoolTooSmall
from cistern.memory import Io
from cistern.results import (
    HyperParams,
    Plan,
    PlanClass,
    RankStat,
    StepResult,
)
from cistern.standbys import has_opened
from cistern.states import States
from cistern.units import Units
from cistern.waiting import MEETING_SECONDS, STEP_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MOST_INT = (1 << 31) - 1
_LEAST_INT64, _MOST_INT64 = -(1 << 63), (1 << 63) - 1


@final
class Job(Edges, States, Units):
    """This process as the rank ``rank`` of the job ``name``, which is made if it does not exist.

    The other arguments are those of ``struct cst_job_spec``. 0 and None stand for the defaults.
    Without ``client``, the job makes one for ``socket``, and closes it when it is closed itself.

        with cistern.Job("run7", rank=rank, world=2) as job:
            ...

    leaves the job at the end of the block, or closes the client if the block raises.

    Raises TypeError and ValueError if an argument cannot be such an option at all, Mismatch if an
    option differs from the job's, and CstError with the status EBUSY if a living worker has the rank,
    EINVAL if an option is out of range, ENOTFOUND, EUNSUPPORTED, EBUDGET, EDRAINING.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Client | None = None,
        socket: Path | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        if client is not None:
            checks.instance("client", client, Client, "a cistern.Client")
            if socket is not None:
                checks.refuse_value("socket", socket, "None, beside a client which has one,")
        spec = _library.struct_of(cst_job_spec, name=name, **_options(options))
        self.name = name
        self.optimizer = Optimizer(spec.optimizer)
        self.rank: int = spec.rank
        self.world: int = spec.world  #: Number of ranks on this node.
        self.all_ranks: int = spec.all_ranks or spec.world  #: Number of ranks on all nodes.
        self.global_rank: int = (
            spec.first_rank + spec.rank
        )  #: Number of this rank among all of these.
        Edges.__init__(self)
        self._declarations = Declared()
        self._left = self.committed = False  # ``leave`` and ``commit`` have ended in this process.
        self._begun: list[Io] = []  # What the operator that is begun was given.
        self.lib = _library.library()
        self._own_client = client is None
        self.client = Client(socket) if client is None else client
        try:
            self._open(spec)
        except BaseException:
            if self._own_client:
                self.client.close()
            raise

    def _open(self, spec: cst_job_spec) -> None:
        self._handle: int | None = None
        self._cuda: int | None = None
        handle, err = c_void_p(), cst_err()
        status = self.client.one_thread.call(
            self.lib.cst_job_open, byref(handle), self.client.handle, byref(spec), err
        )
        _library.check(status, err)
        self._handle = handle.value
        self.client.on_close(self._forget)
        has_opened()

    def _forget(self) -> None:
        """Let go of what the client has freed, and of the GPU."""
        self._handle = None
        if self._cuda is not None:
            cuda, self._cuda = self._cuda, None
            _library.cuda_library().cst_cuda_close(cuda)

    def close(self) -> None:
        """Call ``Client.close``. Without ``leave`` before, the rank counts as dead."""
        self.client.close()

    def leave(self) -> None:
        """Leave the job in good order. It can then only be closed. Its states remain.

        All ranks should leave after the same step.
        """
        self.client.unmapping(self._call, "cst_job_leave")
        self._left = True

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._left and self._handle is not None:
                self.leave()
        finally:
            if self._own_client or kind is not None:
                self.close()

    # -- declarations

    def group(self, ranks: Sequence[int]) -> int:
        """Declare a group of different ranks, and return its number (> 0)."""
        array = (c_uint * len(ranks))(*checks.integers("ranks", ranks, 0, _MOST_INT))
        return self._declare(self.lib.cst_group, array, len(ranks))

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        *,
        group: int = GROUP_ALL,
        pattern: Pattern = Pattern.SHARD,
        lr_scale: float = 1.0,
        decay_scale: float = 1.0,
        whole_shape: Sequence[int] | None = None,
        first: Sequence[int] | None = None,
        packed: Sequence[int] | None = None,
        external_names: Sequence[str] = (),
        external_rows: Sequence[int] | None = None,
        transposed: bool = False,
        whole_name: str | None = None,
        param_group: int = 0,
        update: TensorUpdate = TensorUpdate.AUTO,
        dtype: Dtype = Dtype.BF16,
    ) -> int:
        """Declare a tensor, and return its number (>= 0).

        ``shape`` has 1 to 8 numbers of elements, outermost dimension first. Every rank declares all
        tensors in the same order. The other arguments are those of ``struct cst_tensor_spec``.
        Raises TypeError, ValueError, CstError: EINVAL, EEXIST (the name is taken).
        """
        dims, dtype = _int64s("shape", shape), checks.member(Dtype, "dtype", dtype)
        names = [_library.text("external_names", external) for external in external_names]
        spec = _library.struct_of(
            cst_tensor_spec,
            name=name,
            dtype=dtype,
            n_dims=len(dims),
            shape=dims,
            group=group,
            pattern=checks.member(Pattern, "pattern", pattern),
            lr_scale=lr_scale,
            decay_scale=decay_scale,
            whole_shape=_int64s("whole_shape", whole_shape),
            first=_int64s("first", first),
            packed=_int64s("packed", packed),
            external_names=(c_char_p * len(names))(*names) if names else None,
            external_rows=_int64s("external_rows", external_rows),
            n_external=len(names),
            transposed=transposed,
            whole_name=whole_name,
            param_group=param_group,
            update=checks.member(TensorUpdate, "update", update),
        )
        number = self._declare(self.lib.cst_tensor_as, byref(spec))
        self._declarations.add_tensor(math.prod(dims), dtype)
        return number

    def operator(
        self,
        name: str,
        tensors: Sequence[int],
        *,
        flops: float = 0.0,
        activation_bytes: int = 0,
        expected_uses: float = 0.0,
    ) -> int:
        """Declare an operator that uses the tensors with the numbers ``tensors``.

        Operators are declared in the order of the forward pass. The other arguments are hints of
        ``struct cst_operator_cost`` for the daemon's plan; 0: unknown. Returns the number (>= 0).
        Raises CstError: EINVAL, EEXIST (the name is taken).
        """
        cost = _library.struct_of(
            cst_operator_cost,
            flops=flops,
            activation_bytes=activation_bytes,
            expected_uses=expected_uses,
        )
        array = (c_int * len(tensors))(*checks.integers("tensors", tensors, 0, _MOST_INT))
        number = self._declare(
            self.lib.cst_operator_as, _library.text("name", name), array, len(tensors), byref(cost)
        )
        self._declarations.add_operator(tensors)
        return number

    def commit(self) -> Plan:
        """Commit the declarations: wait for the other ranks and for the job's memory.

        After some seconds, a warning of the logger "cistern" names the ranks that are missing.
        Raises PoolTooSmall, Mismatch, StepVoid (another rank died or left before all had
        committed) and CstError: EBUDGET, ENOTFOUND, EINVAL, ETIMEDOUT, EUNSUPPORTED.
        """
        plan = cst_plan()

        def committed() -> Plan:
            self.committed = True
            return _plan(plan)

        return self.client.wait(
            lambda err: self.lib.cst_try_commit(self.handle, byref(plan), err),
            committed,
            self._waiting("commit", MEETING_SECONDS),
        )

    def use_stream(self, stream: int) -> int:
        """Have the work of this rank, whose pool is on a GPU, on a stream, before ``commit``.

        ``stream`` is the address of a CUstream; 0: the default stream. It must exist until the job
        is closed. Work that is enqueued on it between ``op_begin`` and ``op_end`` finds the weights
        of the operator in place. Returns the number of the GPU in this process. Raises ImportError
        if there is no libcistern-cuda, and CstError: EUNSUPPORTED, ENOTFOUND (this process does not
        see the GPU), EINVAL, EGPU.
        """
        lib = _library.cuda_library()
        cuda, err = c_void_p(), cst_err()
        _library.check(lib.cst_cuda_open(byref(cuda), self.handle, stream, err), err)
        self._cuda = cuda.value
        return int(lib.cst_cuda_device(cuda))

    @property
    def initialised(self) -> bool:
        """Whether a ``sync`` has ever completed in the job, so that it has weights already."""
        return bool(self.lib.cst_job_initialised(self.handle))

    @property
    def steps(self) -> int:
        """Number of committed steps that this process has last learned of."""
        return int(self.lib.cst_job_steps(self.handle))

    @property
    def device(self) -> str:
        """Device of the pool: "host", "paced:N" (a simulated accelerator), or the UUID of a GPU."""
        return str(self.lib.cst_job_device(self.handle).decode())

    # -- a step

    def sync(self) -> int:
        """Wait until every rank has called this, and return the number of the step to do now.

        A worker calls it before its first step, and again after StepVoid. Raises DaemonGone,
        DeviceLost and CstError: ETIMEDOUT (the text names the ranks that are missing).
        """
        step = c_uint64()
        number: int = self.client.unmapping(
            self.client.wait,
            lambda err: self.lib.cst_try_sync(self.handle, byref(step), err),
            lambda: step.value,
            self._waiting("sync", MEETING_SECONDS),
        )
        return number

    def op_begin(self, op: int, direction: Direction) -> list[Io]:
        """Begin the operator ``op``: wait until the weights of its tensors are in the pool.

        The items are those of the tensors, in the order of the declaration. Their memory can be
        used until ``op_end``. Raises StepVoid, PoolTooSmall, DeviceLost, CstError: EINVAL.
        """
        types = self._declarations.dtypes_of(op)
        n = len(types)
        array = (cst_io * n)()

        def begun() -> list[Io]:
            readable = self.device == "host" or self.device.startswith("paced")
            self._begun = [Io(io, readable, dtype) for io, dtype in zip(array, types, strict=True)]
            return self._begun

        return self.client.wait(
            lambda err: self.lib.cst_try_op_begin(self.handle, op, direction, byref(array), n, err),
            begun,
        )

    def op_end(self, op: int) -> None:
        """End the operator ``op``. The views of its memory cannot be used any more.

        Raises BufferError if something else still uses such a view, such as an array of numpy; the
        operator then stays begun. Raises StepVoid, DeviceLost, CstError: EINVAL.
        """
        for io in self._begun:
            io.release()
        self._call("cst_op_end", op)
        self._begun = []

    @contextmanager
    def operation(self, op: int, direction: Direction) -> Iterator[list[Io]]:
        """Begin the operator ``op`` for the block of a ``with`` statement, and end it then.

        If the block raises, the operator stays begun: the step is given up with ``sync``.
        """
        yield self.op_begin(op, direction)
        self.op_end(op)

    def op_fits(self, op: int) -> bool:
        """Return whether the pool has blocks for gradients of the operator ``op`` out of their order.

        After its backward pass there are blocks for any forward pass, and then for all backward passes
        that are left, in the reverse order of declaration. Never waits. Raises StepVoid, DeviceLost,
        CstError: EINVAL.
        """
        try:
            self._call("cst_op_fits", op)
        except PoolTooSmall:
            return False
        return True

    def hint(self, op: int, hint: Hint) -> None:
        """Say that the weights of the operator ``op`` are wanted soon, or not. Never waits."""
        self._call("cst_hint", op, hint)

    def hint_tensor(self, tensor: int, hint: Hint) -> None:
        """Say that the weights of ``tensor`` are wanted soon, or not. Never waits."""
        self._call("cst_hint_tensor", tensor, hint)

    def accumulate(self) -> None:
        """End a micro-batch that is not the last one of its step. Never waits.

        Raises StepVoid, DeviceLost, CstError: EINVAL (the step has no further micro-batch).
        """
        self._call("cst_accumulate")

    def no_gradient(self, tensor: int, *, discard: bool = False) -> None:
        """Say that this rank has no gradient of ``tensor`` in this step, although it was written.

        The step skips the tensor if no rank has one. What was written are zeros or, with ``discard``,
        is discarded, as on all ranks that have one (else ``step`` raises Mismatch). Only in a job with
        ``Unused.SKIP``. Never waits. Raises StepVoid, CstError: EINVAL.
        """
        self._call("cst_no_gradient", tensor, discard)

    def param_groups(self, groups: Sequence[tuple[float, float]]) -> None:
        """Set the factors on the learning rate and weight decay of parameter groups 0, 1, ...

        They hold for this rank's later calls of ``prepare_step`` and ``step``; in a step all ranks
        give the same ones. Groups without factors have (1, 1). Never waits. Raises CstError: EINVAL
        (a factor is out of range, or there are more than MAX_PARAM_GROUPS).
        """
        for i, factors in enumerate(groups):
            if not isinstance(factors, tuple | list) or len(factors) != 2:
                checks.refuse_value(
                    f"groups[{i}]", factors, "a pair (factor on lr, factor on weight_decay)"
                )
        structs = [cst_param_group(*factors) for factors in groups]
        array = (cst_param_group * len(groups))(*structs)
        self._call("cst_param_groups", array, len(groups))

    def prepare_step(self, params: HyperParams) -> None:
        """Give the parameters of the next ``step`` in advance, for early updates. Never waits."""
        self._call("cst_prepare_step", byref(cst_hyper_params(*params)))

    def step(self, params: HyperParams) -> StepResult:
        """Commit the step: wait until every rank has called this with equal parameters.

        Gradients that were not written in this step are zeros. Raises StepVoid, Mismatch,
        DeviceLost, CstError: ETIMEDOUT, EINVAL (a parameter is out of range).
        """
        struct, result = cst_hyper_params(*params), cst_step_result()
        return self.client.wait(
            lambda err: self.lib.cst_try_step(self.handle, byref(struct), byref(result), err),
            lambda: StepResult(**_library.fields(result)),
            self._waiting("step", STEP_SECONDS),
        )

    def stat(self) -> RankStat:
        """Return the daemon's counters of this rank."""
        stat = cst_rank_stat()
        self._call("cst_stat", byref(stat))
        return RankStat(**_library.fields(stat))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a job, of which some are ``given``. TypeError, ValueError."""
    for name in given:
        if name not in JOB_OPTIONS:
            raise TypeError(f"cistern: a job has no option '{name}'")
    options = {**JOB_OPTIONS, **given}
    for name, default in JOB_OPTIONS.items():
        if isinstance(default, IntEnum):
            options[name] = checks.member(type(default), name, options[name])
    return options


def _signature() -> inspect.Signature:
    """Return the signature of ``Job``, with all options by their names."""
    known = inspect.signature(Job.__init__)
    parameters = [p for p in known.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in JOB_OPTIONS.items()
    ]
    return known.replace(parameters=[*parameters, *options])


# What help() and editors show.
setattr(Job.__init__, "__signature__", _signature())  # noqa: B010 (a function has any attributes)


def _plan(plan: cst_plan) -> Plan:
    values = _library.fields(plan)
    values["classes"] = tuple(
        PlanClass(**_library.fields(plan.classes[i])) for i in range(plan.n_classes)
    )
    del values["n_classes"]
    return Plan(**values)


def _int64s(name: str, numbers: Sequence[int] | None) -> Any:
    if numbers is None:
        return None
    checked = checks.integers(name, numbers, _LEAST_INT64, _MOST_INT64)
    return (c_int64 * len(checked))(*checked)
