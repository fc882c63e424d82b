# SPDX-License-Identifier: Apache-2.0
"""A store in a few lines of text, such as a notebook shows."""

from __future__ import annotations

from cistern.errors import CstError
from cistern.job import Job
from cistern.results import Plan, RankStat
from cistern.torch.sizes import in_words


def summary(job: Job, plan: Plan) -> str:
    """Return progress, memory and fetches of a rank. A closed job has its name alone."""
    try:
        stat = job.stat()
    except (CstError, ValueError):  # A call is pending, or the job is closed.
        return f"store of job '{job.name}'"
    return (
        f"store of job '{job.name}', rank {job.global_rank} of {job.all_ranks}: step {stat.step},"
        f" the last one {stat.step_seconds:.3g} s\n"
        f"  {plan.n_params:,} parameters in {plan.n_chunks} chunks, with {in_words(plan.arena_bytes)}"
        " of states on this machine\n"
        f"  pool of {in_words(stat.pool_bytes)} on {job.device}: {_fetches(stat)}\n"
        f"  {in_words(stat.bytes_up)} copied up, {in_words(stat.bytes_down)} down;"
        f" {stat.evictions} evictions, {stat.prefetches} prefetches\n"
        f"  waited {stat.weight_wait_seconds:.3g} s for weights and {stat.exposed_seconds:.3g} s"
        " for updates"
    )


def _fetches(stat: RankStat) -> str:
    n = stat.hits + stat.late + stat.misses
    if n == 0:
        return "nothing was fetched yet"
    parts = ((stat.hits, "hits"), (stat.late, "late"), (stat.misses, "misses"))
    return ", ".join(f"{100 * part / n:.1f} % {name}" for part, name in parts)
