"""`python -m benchmarks`: measure, print the tables, write the JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, report, robots, rollout, run

SUBJECTS = (*run.ALGORITHMS, "latency", "compile", "rollout", "gradient", "memory")
PEERS = ("jaxdyn", "pinocchio", "frax", "mujoco")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures jaxdyn side by side with Pinocchio (C++), frax and MuJoCo, in one run, and prints the ratios. "
        "See benchmarks/README.md for how to read them.",
    )
    made.add_argument("--quick", action="store_true", help="the quadruped only, one thread, few repeats: a first look")
    made.add_argument(
        "--robots",
        nargs="+",
        choices=sorted(robots.SOURCES),
        metavar="NAME",
        help=f"of: {', '.join(robots.SOURCES)} (default: {', '.join(robots.DEFAULT)})",
    )
    made.add_argument(
        "--only",
        nargs="+",
        choices=SUBJECTS,
        metavar="WHAT",
        help=f"of: {', '.join(SUBJECTS)} (default: all)",
    )
    made.add_argument(
        "--peers",
        nargs="+",
        choices=(*PEERS, "pinocchio_python"),
        metavar="LIBRARY",
        help=f"of: {', '.join(PEERS)}, pinocchio_python (default: all but the last, which stands in where no C++ compiler is found)",
    )
    made.add_argument("--batch", type=int, default=1024, help="states per batch (default: 1024)")
    made.add_argument("--repeats", type=int, help="repeats of each measurement (default: 9, quick: 3)")
    made.add_argument("--seconds", type=float, help="length of one repeat (default: 0.2, quick: 0.05)")
    made.add_argument("--one-thread", action="store_true", help="skip the measurements on all cores")
    made.add_argument(
        "--json",
        type=Path,
        default=Path("benchmarks/results/latest.json"),
        metavar="FILE",
        help="where the samples go (default: benchmarks/results/latest.json)",
    )
    return made  # fmt: skip


def plan(options: argparse.Namespace) -> run.Plan:
    quick = options.quick
    return run.Plan(
        robots=tuple(options.robots or (("quadruped",) if quick else robots.DEFAULT)),
        only=tuple(options.only or SUBJECTS),
        peers=tuple(options.peers or PEERS),
        batch=options.batch,
        repeats=options.repeats or (3 if quick else 9),
        target=options.seconds or (0.05 if quick else 0.2),
        budget=15.0 if quick else 60.0,
        compiles=1 if quick else 3,
        all_cores=not (quick or options.one_thread),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.batch < 1 or (options.repeats is not None and options.repeats < 1):
        parser().error("--batch and --repeats are at least 1")
    facts = machine.facts()
    results = run.Results()
    complete = False
    try:
        chosen = run.with_available_peers(plan(options), results)
        run.dynamics(chosen, results)
        rollout.measure(chosen, results)
        complete = True
    except KeyboardInterrupt:
        print("stopped; what was measured so far follows", file=sys.stderr)
    finally:
        # Also after an error: half an hour of samples is not to be lost.
        show(facts, results)
        save(options.json, facts, results, complete, sys.argv[1:] if arguments is None else arguments)
    return 0 if complete else 130


def show(facts: dict, results: run.Results) -> None:
    for name, value in facts.items():
        if name != "versions":
            print(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    print("versions: " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    for title, text in (
        ("Times", report.measured(results.records)),
        ("Compile times", report.compiled(results.records)),
        ("Against the bar", report.against_bar(results.records)),
    ):
        if text:
            print(f"\n## {title}\n\n{text}")
    if results.remarks:
        print("\n## Notes\n")
        for remark in results.remarks:
            print(f"- {remark}")


def save(path: Path, facts: dict, results: run.Results, complete: bool, arguments: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": facts,
        "arguments": list(arguments),
        "complete": complete,
        "remarks": results.remarks,
        "records": [record.as_json() for record in results.records],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\nall samples: {path}")


if __name__ == "__main__":
    sys.exit(main())
