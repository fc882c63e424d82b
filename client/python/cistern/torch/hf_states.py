# SPDX-License-Identifier: Apache-2.0
"""The states of a job in a checkpoint of Trainer: a folder that is there whatever ends the process.

A save of the same step replaces the states of an earlier run. The new states are saved under another
name, and take the place of the old ones when they are whole:

    cistern.new      whole
    cistern          renamed to cistern.old
    cistern.new      renamed to cistern
    cistern.old      removed

If the process ends in between, ``newest`` finds the new states, and the next ``save`` goes on.
"""

from __future__ import annotations

import errno
import os
import shutil

from cistern.checkpoint import checkpoints
from cistern.torch.store import Store

_NAME = "cistern"


def newest(checkpoint: str) -> str:
    """Return the folder with the newest states in ``checkpoint``. It is not there if there are none."""
    folder = os.path.join(checkpoint, _NAME)
    return _new(folder) if _is_whole(_new(folder)) else folder


def save(store: Store, checkpoint: str) -> None:
    """Save the states of the job of ``store`` in ``checkpoint``. Raises what ``Store.save`` raises."""
    folder = os.path.join(checkpoint, _NAME)
    _replace(folder)
    if not os.path.exists(folder):
        store.save(folder)
        return
    store.save(_new(folder))
    _replace(folder)


def _new(folder: str) -> str:
    return folder + ".new"


def _is_whole(folder: str) -> bool:
    return os.path.isdir(folder) and any(found.whole for found in checkpoints(folder))


def _replace(folder: str) -> None:
    """Put new states in the place of those in ``folder`` if they are whole, or else remove them."""
    new, old = _new(folder), folder + ".old"
    if not _is_whole(new):
        shutil.rmtree(new, ignore_errors=True)
        return
    shutil.rmtree(old, ignore_errors=True)  # An interruption has left it.
    if os.path.exists(folder):
        os.rename(folder, old)
    os.rename(new, folder)
    _write_names(os.path.dirname(folder))
    shutil.rmtree(old, ignore_errors=True)


def _write_names(folder: str) -> None:
    """Wait until the disk has the names in ``folder``, so that old files are removed after that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # Some file systems of a network cannot do that for a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
