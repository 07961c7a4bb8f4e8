"""Command line inside the container: ``python3 -m suite.worker run|probe|supervise``.

Each command imports what it needs when it is called: ``supervise`` wraps every launcher and must start in a
few tens of milliseconds, so nothing here may import torch.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Run one command; returns the process's exit code."""
    if arguments[:1] == ["supervise"]:
        from suite.worker.supervise import main as supervise

        return supervise(arguments[1:])
    import argparse
    from pathlib import Path

    parser = argparse.ArgumentParser(prog="python3 -m suite.worker", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one rank of one launch")
    run.add_argument("--spec", required=True, type=Path, help="the LaunchSpec, JSON")
    probe = commands.add_parser("probe", help="what this host can run: one HostProbe on stdout")
    probe.add_argument("--host", required=True, help="the host's name in the cluster file")
    probe.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what will be trained on")
    commands.add_parser("supervise", help="run a command and leave no descendant behind")
    options = parser.parse_args(arguments)
    if options.command == "run":
        from suite.worker.bootstrap import main as run_rank

        return run_rank(options.spec)
    from suite.worker.probe import main as run_probe

    return run_probe(options.host, options.device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
