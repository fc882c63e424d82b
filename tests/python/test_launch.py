# SPDX-License-Identifier: Apache-2.0
"""The numbers that launchers give to ranks. tests/unit/check_launch.c has all launchers and all faults."""

import os
import re
import unittest
from unittest import mock

from cistern.launch import Launch, find

TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "RANK": "5", "WORLD_SIZE": "8"}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
}


class Launches(unittest.TestCase):
    def found(self, environment: dict[str, str], given: Launch) -> Launch:
        path = {name: os.environ[name] for name in ("CISTERN_LIBRARY", "PATH")}
        with mock.patch.dict(os.environ, path | environment, clear=True):
            return find(given)

    def test_what_the_library_says(self) -> None:
        """Python sees the environment that it has changed, and tells 0 from what nobody has said."""
        for environment, given, want in (
            ({}, Launch(), Launch()),
            ({}, Launch(3, 4), Launch(3, 4)),
            (TORCHRUN, Launch(), Launch(1, 4, 4, 8)),
            (TORCHRUN, Launch(1, 4), Launch(1, 4, 4, 8)),
            (TORCHRUN, Launch(0, 1), Launch(0, 1)),
            (TORCHRUN | {"RANK": "1", "WORLD_SIZE": "4"}, Launch(), Launch(1, 4, 0, 0)),
            (SRUN, Launch(), Launch(0, 1, 6, 7)),
            (SRUN | TORCHRUN, Launch(), Launch(1, 4, 4, 8)),
            ({"LOCAL_RANK": "2"}, Launch(world=3), Launch(2, 3)),
        ):
            with self.subTest(environment=environment, given=given):
                self.assertEqual(self.found(environment, given), want)

    def test_refused(self) -> None:
        for environment, words in (
            ({"LOCAL_RANK": "x"}, "LOCAL_RANK: 'x' is not a number from 0 to 511"),
            ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but LOCAL_RANK is not set"),
            (TORCHRUN | {"RANK": "0"}, "the first rank on this node would be negative"),
        ):
            with (
                self.subTest(environment=environment),
                self.assertRaisesRegex(ValueError, re.escape(words)),
            ):
                self.found(environment, Launch())

    def test_given_numbers(self) -> None:
        with self.assertRaisesRegex(ValueError, "rank is -1: an integer from 0"):
            find(Launch(rank=-1))
        with self.assertRaisesRegex(TypeError, "world is '2', of <class 'str'>"):
            find(Launch(world="2"))  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
