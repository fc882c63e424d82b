# SPDX-License-Identifier: Apache-2.0
"""Files with the options of a job."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from cistern import Moments
from cistern.job_file import SCHEMA, JobFile


class JobFileCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "job.json"

    def read(self, text: str) -> JobFile:
        self.path.write_text(text, encoding="utf-8")
        return JobFile(self.path)

    def test_values(self) -> None:
        file = self.read(
            '{"optimizer": {"lr": 1, "moments": "bf16"}, "memory": {"pool": 4096},'
            ' "job": {"job": "run7"}, "parallel": {"micro_batches": 3}}'
        )
        self.assertEqual(file.number("lr"), 1.0)
        self.assertIs(file.member("moments", Moments), Moments.BF16)
        self.assertEqual(file.text("pool"), "4096")
        self.assertEqual(file.text("job"), "run7")
        self.assertEqual(file.integer("micro_batches"), 3)
        self.assertIsNone(file.number("clip"))
        self.assertIsNone(JobFile(None).text("job"))

    def test_mistakes(self) -> None:
        for text, words in (
            ("[]", r"job\.json is \[\], and must be an object"),
            ("{", "line 1 column 2"),
            ('{"memroy": {}}', "there is no section 'memroy': did you mean 'memory'?"),
            ('{"memory": 1}', "section memory is 1, and must be an object"),
            ('{"memory": {"pol": 1}}', r"memory\.pol: there is no such key: did you mean 'pool'?"),
            ('{"memory": {"lr": 1}}', r"memory\.lr: .*: it belongs to section optimizer"),
            ('{"memory": {"xyzzy": 1}}', r"memory\.xyzzy: there is no such key$"),
            ('{"memory": {"pool": true}}', r"memory\.pool is true, and must be an integer from 0"),
            (
                '{"memory": {"pool": "1X"}}',
                r'memory\.pool is "1X", and must be .* a text such as "6G" or',
            ),
            ('{"memory": {"grad_over_weight": 1}}', r"weight is 1, and must be true or false"),
            ('{"memory": {"recompute": true}}', "it belongs to section parallel"),
            ('{"parallel": {"borders": 2}}', r"borders is 2, and must be a list$"),
            ('{"parallel": {"borders": []}}', "a list of 1 to 64 items"),
            ('{"parallel": {"borders": [2, 0]}}', "a list, each item of it an integer from 1 to"),
            ('{"parallel": {"recompute": "all"}}', "a list or an integer from 0 .* or true or fal"),
            ('{"parallel": {"tensor": "4d"}}', 'must be one of "1d", "sequence"'),
            ('{"optimizer": {"lr": "1"}}', r'optimizer\.lr is "1", and must be a number from 0'),
            ('{"optimizer": {"lr": NaN}}', r"optimizer\.lr is NaN, and must be a number from 0"),
            ('{"optimizer": {"lr": true}}', r"optimizer\.lr is true, and must be a number from 0"),
            ('{"optimizer": {"moments": "fp8"}}', r'"fp8", and must be one of "fp32", "bf16"'),
            (
                '{"parallel": {"world": 513}}',
                r"parallel\.world is 513, .* an integer from 1 to 512",
            ),
            ('{"parallel": {"world": 1.5}}', r"parallel\.world is 1\.5, and must be an integer"),
            ('{"job": {"job": 1}}', r"job\.job is 1, and must be a text"),
            ('{"job": {"job": "a", "job": "b"}}', "the key 'job' is there twice"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, words) as caught:
                self.read(text)
            self.assertIn(str(self.path), str(caught.exception))
        with self.assertRaises(FileNotFoundError):
            JobFile("/none.json")

    def test_section(self) -> None:
        text = (
            '{"parallel": {"pp": 2, "borders": [3], "recompute": [1, 0]}, "memory": {"pool": "9%"}}'
        )
        file = self.read(text)
        self.assertEqual(file.section("parallel"), {"pp": 2, "borders": [3], "recompute": [1, 0]})
        self.assertEqual(file.section("job"), {})

    def test_keys_are_unique(self) -> None:
        keys = [key for s in SCHEMA["properties"].values() for key in s["properties"]]
        self.assertEqual(len(keys), len(set(keys)))

    def test_refused(self) -> None:
        file = self.read('{"parallel": {"recompute": true}}')
        file.refuse({"recompute": True, "store": "daemon"}, "This")
        with self.assertRaisesRegex(ValueError, "This has no option like 'recompute'.* to false"):
            file.refuse({"recompute": False}, "This")

    @unittest.skipUnless(os.path.exists("cistern-gpt"), "built without cistern-gpt")
    def test_options_in_force(self) -> None:
        """What cistern-gpt writes is read."""
        text = subprocess.check_output(
            ["./cistern-gpt", "--data", "text", "--pool", "25%", "--seed", str(2**64 - 1)]
            + ["--device-update", "auto", "--print-config"],
            text=True,
        )
        file = self.read(text)
        self.assertEqual(file.text("pool"), "25%")
        self.assertEqual(file.text("seed"), str(2**64 - 1))
        self.assertEqual(file.text("device_update"), "auto")


if __name__ == "__main__":
    unittest.main()
