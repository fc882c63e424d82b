# SPDX-License-Identifier: Apache-2.0
"""Client of cistern, a memory daemon for training models that are larger than their GPUs.

This package has the calls of libcistern, one to one, and needs only the standard library. The
library is found at ``$CISTERN_LIBRARY`` or else as ``libcistern.so.0``; it has the version of this
package. ``libcistern(3)`` and ``<cistern/cistern.h>`` describe the calls in full.

    with cistern.Job("example", world=1) as job:
        w = job.tensor("w", (10, 100))
        layer = job.operator("layer", [w])
        job.commit()
        ...
"""

from cistern._abi import (
    ALL_RANKS,
    DEFAULT_SOCKET,
    DEVICE_UPDATE_AUTO,
    DEVICE_UPDATE_LENT,
    GROUP_ALL,
    MAX_CONFIG_BYTES,
    MAX_MICRO_BATCHES,
    MAX_PARAM_GROUPS,
    Direction,
    Dtype,
    Hint,
    Masters,
    Moments,
    Optimizer,
    Overlap,
    Pattern,
    Reason,
    Rounding,
    State,
    Status,
    TensorUpdate,
    UnitKind,
    Unused,
)
from cistern._abi import VERSION as __version__
from cistern.checkpoint import AdoptResult, Checkpoint, SaveResult, adopt, checkpoints
from cistern.client import Client
from cistern.edges import Slot
from cistern.errors import (
    CstError,
    DaemonGone,
    DeviceLost,
    JobEnded,
    Mismatch,
    PoolTooSmall,
    StaleVersion,
    StepVoid,
)
from cistern.job import Job
from cistern.mapping import ReaderTensor
from cistern.memory import Io
from cistern.readers import Reader, reader
from cistern.results import (
    HyperParams,
    LoadModelResult,
    LoadResult,
    PauseResult,
    Plan,
    PlanClass,
    RankStat,
    ResumeResult,
    StepResult,
)
from cistern.standbys import standby
from cistern.units import Unit
from cistern.versions import Version

__all__ = [
    "ALL_RANKS",
    "DEFAULT_SOCKET",
    "DEVICE_UPDATE_AUTO",
    "DEVICE_UPDATE_LENT",
    "GROUP_ALL",
    "MAX_CONFIG_BYTES",
    "MAX_MICRO_BATCHES",
    "MAX_PARAM_GROUPS",
    "AdoptResult",
    "Checkpoint",
    "Client",
    "CstError",
    "DaemonGone",
    "DeviceLost",
    "Direction",
    "Dtype",
    "Hint",
    "HyperParams",
    "Io",
    "Job",
    "JobEnded",
    "LoadModelResult",
    "LoadResult",
    "Masters",
    "Mismatch",
    "Moments",
    "Optimizer",
    "Overlap",
    "Pattern",
    "PauseResult",
    "Plan",
    "PlanClass",
    "PoolTooSmall",
    "RankStat",
    "Reader",
    "ReaderTensor",
    "Reason",
    "ResumeResult",
    "Rounding",
    "SaveResult",
    "Slot",
    "StaleVersion",
    "State",
    "Status",
    "StepResult",
    "StepVoid",
    "TensorUpdate",
    "Unit",
    "UnitKind",
    "Unused",
    "Version",
    "__version__",
    "adopt",
    "checkpoints",
    "reader",
    "standby",
]
