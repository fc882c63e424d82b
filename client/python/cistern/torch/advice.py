# SPDX-License-Identifier: Apache-2.0
"""What errors of ``attach`` say in addition: what its caller can do, in words of its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cistern._abi import Reason, Status
from cistern.errors import CstError

_EARLIER_RUN = "If the job is that of an earlier run, use another name, or remove it: cistern rm {}"
_RESHAPE = "To keep its weights and states, give attach reshape=True, which gives the job what this call wants"
_SAME = "All ranks of a job give attach the same {}"
#: What ranks give differently, or a rank and its job, in words of ``attach``.
_DIFFERENCES = {
    Reason.OPTION: "options",
    Reason.FIXED_OPTION: "options",
    Reason.WORLD: "world=",
    Reason.PARAM_GROUP: "param_group=",
    Reason.TENSOR_UPDATE: "muon=",
    Reason.DTYPE: "model, with the same dtypes",
    Reason.PATTERN: "model, with the same requires_grad",
    Reason.MODEL: "model",
    Reason.OPERATORS: "model and the same units=",
}
#: What reshape changes.
_RESHAPED = (Reason.OPTION, Reason.POOL)
_LARGER_POOL = "Give attach a larger pool. Or let the operator have fewer weights: name modules in it in units="
_FEWER_POOLS = (
    "Give attach a smaller pool, such as pool='25%', remove jobs that nobody needs (cistern stat,"
    " cistern rm), or give the daemon more memory for pools (cisternd --pool-memory, --gpu-memory)"
)
_FEWER_STATES = (
    "States are smaller with masters='split' and moments='bf16' or 'mx8' of attach. Or remove jobs that"
    " nobody needs (cistern stat, cistern rm), or give the daemon more memory for states (cisternd"
    " --host-memory)"
)
_FEWER_JOBS = (
    "Remove jobs that nobody needs, such as those that cistern jobs shows as done (cistern rm). The daemon"
    " removes jobs of short scripts by itself if attach is given ttl_s=3600, an hour after their end. Who"
    " runs the daemon can also raise the limit in its configuration, cistern.conf(5)"
)


_SHORTAGES = {
    Reason.POOL_MEMORY: _FEWER_POOLS,
    Reason.HOST_MEMORY: _FEWER_STATES,
    Reason.JOBS: _FEWER_JOBS,
}


def _advice_on(error: CstError, job: str) -> str:
    """Return what to do after ``error`` in ``attach`` of ``job``; "": that is not known."""
    if error.status == Status.EMISMATCH:
        return ". ".join(_advice_on_mismatch(error.reason, job))
    if error.status == Status.EPOOL:
        return _LARGER_POOL
    return _SHORTAGES.get(error.reason, "")


def _advice_on_mismatch(reason: Reason, job: str) -> Iterator[str]:
    if reason in _DIFFERENCES:
        yield _SAME.format(_DIFFERENCES[reason])
    if reason in _RESHAPED:
        yield _RESHAPE
    yield _EARLIER_RUN.format(job)


@contextmanager
def advice(job: str) -> Iterator[None]:
    """Let errors of ``attach`` of ``job`` say what to do."""
    try:
        yield
    except CstError as error:
        words = _advice_on(error, job)
        if not words:
            raise
        raise error.with_text(f"{error.text}. {words}") from None
