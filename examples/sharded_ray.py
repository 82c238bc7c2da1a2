"""The click model of sharded_torch.py under Ray Train: Ray starts the processes, and restarts them if one dies.

    pip install 'ray[train]'
    python examples/sharded_ray.py --out run --workers 2

The model does not depend on Ray, which only creates the process group that rowgrad.torch.sharded uses. The digest
printed at the end is the same as under torchrun.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import ray
import sharded_torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def worker(config: dict[str, Any]) -> None:
    """Train in one of Ray's processes, after the group was created."""
    found = sharded_torch.train(argparse.Namespace(**config))
    if ray.train.get_context().get_world_rank() == 0:
        (config["out"] / "digest").write_text(found)


def main() -> None:
    """Start the processes and wait for them."""
    parser = sharded_torch.parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-failures", type=int, default=3, help="how often processes are started again")
    options = vars(parser.parse_args())
    workers, failures = options.pop("workers"), options.pop("max_failures")
    options["out"] = options["out"].resolve()
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")]))
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}})
    run = RunConfig(storage_path=str(options["out"] / "ray"), failure_config=FailureConfig(max_failures=failures))
    TorchTrainer(
        worker,
        train_loop_config=options,
        torch_config=TorchConfig(backend="gloo", timeout_s=options["timeout"]),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=run,
    ).fit()
    print(f"digest {(options['out'] / 'digest').read_text()}")


if __name__ == "__main__":
    main()
