# SPDX-License-Identifier: Apache-2.0
"""The example that ./quickstart --torch runs."""

import contextlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from models import TorchCase
from processes import CONTEXT, PATIENCE_S

EXAMPLE = Path(__file__).parents[3] / "client" / "example_gpt2.py"
WORLD = 2


def rank_of_example(rank: int, arguments: list[str], output: Path) -> None:
    """Be a rank as torchrun starts it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD)}
    sys.argv = [str(EXAMPLE), *arguments]
    with output.open("w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


class Example(TorchCase):
    def arguments(self, text: Path, steps: int) -> list[str]:
        return [str(text), "--job", "example", "--steps", str(steps), "--pool", "1500K"]

    def run_example(self, arguments: list[str]) -> str:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(WORLD), str(EXAMPLE), *arguments]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C.UTF-8"}
        )  # fmt: skip
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def run_ranks(self, arguments: list[str], folder: Path) -> str:
        """Run the example without torchrun, in processes that need not import torch."""
        outputs = [folder / str(rank) for rank in range(WORLD)]
        ranks = [
            CONTEXT.Process(target=rank_of_example, args=(rank, arguments, output))
            for rank, output in enumerate(outputs)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(PATIENCE_S)
        self.assertEqual([rank.exitcode for rank in ranks], [0] * WORLD)
        return outputs[0].read_text()

    def test_two_ranks_learn_and_go_on(self) -> None:
        self.addCleanup(self.remove, "example")
        with tempfile.TemporaryDirectory() as made:
            text = Path(made, "text")
            text.write_text("And God said, Let there be light: and there was light. " * 100)
            first = self.run_example(self.arguments(text, 6))
            second = self.run_ranks(self.arguments(text, 8), Path(made))
        losses = [float(loss) for loss in re.findall(r"step \d+: loss (.*)", first)]
        self.assertEqual(len(losses), 6, first)
        self.assertLess(losses[-1], losses[0])
        self.assertLessEqual(int(re.findall(r"pool of (\d+) bytes", first)[0]), 1500 << 10)
        self.assertIn("And God said", first)
        self.assertEqual(re.findall(r"step (\d+):", second), ["7", "8"])
