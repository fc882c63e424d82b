# SPDX-License-Identifier: Apache-2.0
"""Waits for a version of the job argv[1] that never comes, and is interrupted by Ctrl-C."""

import sys

import cistern

with cistern.reader(sys.argv[1]) as reader:
    step = reader.next().step
    try:
        print("waits", flush=True)
        reader.next(after=step)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    with reader.next() as version:  # The connection can be used on.
        version.check()
        print("step", version.step, flush=True)
