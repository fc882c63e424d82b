# SPDX-License-Identifier: Apache-2.0
"""What errors of ``attach`` say in addition: what its caller can do, in words of its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from cistern._abi import Status
from cistern.errors import CstError

_EARLIER_RUN = "If the job is that of an earlier run, use another name, or remove it"
_RESHAPE = "To keep its weights and states, give attach reshape=True, which gives the job what this call wants"
#: What reshape changes: all options of a job except these.
_RESHAPED = r"pool of rank|asks for a pool|was opened with (?!optimizer|another model|base)"
#: What is meant by a difference between ranks, or between a rank and its job, in words of ``attach``.
#: The first pattern that is found counts.
_DIFFERENCES = {
    r"opened with another model": "model",
    r"opened with (\w+) ": r"\1=",
    r"has \d+ ranks, not": "world=",
    r"its parameter group is": "param_group=",
    r"its update is": "muon=",
    r"tensor '.*' is (?:bf16|fp32) in": "model, with the same dtypes",
    r"tensor '.*' is \w+ in": "model, with the same requires_grad",
    r"tensors, but|tensor [\d']": "model",
    r"operators, but|operator [\d']": "model and the same units=",
}
_PERCENT = r"; a pool of \d+% of the weights is enough"
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


def _advice_on(error: CstError, job: str) -> str:
    """Return what to do after ``error`` in ``attach`` of ``job``; "": that is not known."""
    if error.status == Status.EMISMATCH:
        changes = f"{_RESHAPE}. " if re.search(_RESHAPED, error.text) else ""
        return f"{_difference(error.text)}{changes}{_EARLIER_RUN}: cistern rm {job}"
    if error.status == Status.EPOOL:
        return _LARGER_POOL
    if error.status == Status.EBUDGET:
        if "pools of" in error.text:
            return _FEWER_POOLS
        if "host memory" in error.text:
            return _FEWER_STATES
        if "max_jobs" in error.text:
            return _FEWER_JOBS
    return ""


def _difference(text: str) -> str:
    """Return which argument ``text`` is about, if ranks give different ones; "": about none."""
    for pattern, argument in _DIFFERENCES.items():
        if found := re.search(pattern, text):
            return f"All ranks of a job give attach the same {found.expand(argument)}. "
    return ""


@contextmanager
def advice(job: str, *, is_divided: bool = False) -> Iterator[None]:
    """Let errors of ``attach`` of ``job`` say what to do.

    If the model ``is_divided``, a percentage of all its weights is none of those of a rank, and is left out.
    """
    try:
        yield
    except CstError as error:
        words = _advice_on(error, job)
        if not words:
            raise
        text = re.sub(_PERCENT, "", error.text) if is_divided else error.text
        raise type(error)(error.status, f"{text}. {words}") from None
