"""The command line: thin Fabric tasks that parse, call the suite, and print.

Imports of the suite stand inside the tasks: ``fab --list`` answers at once, and no task loads what it does
not use.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fabric import task as fabric_task
from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser import parser as invoke_parser

if TYPE_CHECKING:
    from suite.errors import SuiteError

_CLUSTER = "which hosts/NAME.toml to use (else SUITE_CLUSTER, else the only one that is no example)"
_RUN = "run id or folder (default: the newest run)"
_CAMPAIGN = {
    "backend": "all, or a list of nccl,gloo,mpi; one that is named and cannot run costs exit code 1",
    "arm": 'compare variants: "NAME=BACKEND,KEY=VALUE,..." (DDP options, or VARIABLES); may be repeated',
    "workload": "list of linear, resnet50, transformer, transformer-tiny, collectives, module:function",
    "plan": "quick (3 blocks, exploratory), standard (8-30 blocks, verdicts), thorough, article",
    "device": "auto, cpu or cuda",
    "world": "list of world sizes (default: every slot of the cluster)",
    "blocks": "exactly this many blocks, instead of the plan's",
    "budget": "end after the block in flight once this long has passed, e.g. 10m",
    "seed": "seed of block orders, data and weights (default: drawn, and stored)",
    "threads": "compute threads per rank, the same for every backend (default 1)",
    "batch": "samples per rank and step (default: the workload's own)",
    "steps": "measured steps a launch (default: the plan's, or from the pilots)",
    "ddp": "DDP options for every arm, e.g. bucket_mb=100,static_graph=true",
    "max-bytes": "largest message of the collectives sweep, 1KiB to 256MiB (default 16MiB)",
    "deadline": "longest time for one launch (default 180s)",
    "delta": "what counts as equivalent (default 3%)",
    "inject": "a deliberate fault, KIND[@RANK][:ARM] of corrupt-gradient, raise, kill, stop, hang",
    "resume": "run id: do only what is missing of that run, with its own plan; only --budget may be changed",
}

_TASKS = frozenset(
    {"build", "check", "deploy", "run", "local", "collect", "report", "compare", "publish", "verify", "reproduce"}
    | {"predict", "stop", "clean", "bench", "lab.up", "lab.down", "lab.link", "lab.fault", "lab.heal"}
)
_DEFAULTS = {"backend": "all", "workload": "linear", "plan": "quick", "device": "auto"}

# Short flags would be made from the names' letters (-h for --batch): long ones only.
task = functools.partial(fabric_task, auto_shortflags=False)


class _WrongUsage(ParseError, Exit):
    """A command line that ``fab`` cannot read. It would end with 1, which here says that a row failed."""

    def __init__(self, said: str, context: Any = None) -> None:
        ParseError.__init__(self, said, context)
        Exit.__init__(self, code=2)
        self.args = (said,)

    def __str__(self) -> str:
        return f"Error: {self.args[0]} Fix: `fab --list` shows the tasks, `fab --help TASK` the options of one."


# fab has no setting for it: the parser's own error is looked up there when it is raised.
invoke_parser.ParseError = _WrongUsage  # type: ignore[attr-defined, assignment]


def _guarded(body: Callable[..., int | None]) -> Callable[..., None]:
    """Turn the suite's errors and signals into messages and exit codes, the same for every task."""

    @functools.wraps(body)
    def wrapper(*args: Any, **options: Any) -> None:
        from suite import console
        from suite.errors import EXIT_FAILED, EXIT_INTERRUPTED, SuiteError

        signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            code = body(*args, **options)
        except SuiteError as problem:
            console.error(problem)
            raise Exit(code=problem.exit_code) from None
        except KeyboardInterrupt:
            console.say("Interrupted.")
            raise Exit(code=EXIT_INTERRUPTED) from None
        except BrokenPipeError:  # the reader of stdout went away: not a fault of the run
            sys.stderr.close()
            raise Exit(code=0) from None
        except OSError as problem:
            console.error(_system_error(problem))
            raise Exit(code=EXIT_FAILED) from None
        if code:
            raise Exit(code=code)

    return wrapper


def _system_error(problem: OSError) -> SuiteError:
    """What the system refused, as an error of the suite: a full disk or a folder of somebody else is no bug."""
    from suite.errors import SuiteError

    place = problem.filename2 or problem.filename or "the system"
    return SuiteError(
        f"{place}: the system refuses: {problem.strerror or problem}.",
        fix="see to that file, folder or disk, then repeat.",
    )


def _with_campaign_options(
    **defaults: str,
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Give a task one option for each key of ``_CAMPAIGN``: ``run`` and ``local`` cannot drift apart."""

    def decorate(body: Callable[..., int | None]) -> Callable[..., int | None]:
        own = inspect.signature(body)
        named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {p.name for p in named}
        for key in _CAMPAIGN:
            name = key.replace("-", "_")
            if name not in taken:
                default: Any = [] if name == "arm" else defaults.get(name, _DEFAULTS.get(name, ""))
                named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        body.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]  # what inspect reads
        return body

    return decorate


def _with_optional_run(body: Callable[..., int | None]) -> Callable[..., int | None]:
    """Let a task be called as ``fab report`` and as ``fab report RUN``.

    Invoke knows no optional positional argument: one with a default is an option, one without is required. So the
    default of ``run`` is taken away when the command line has a word behind the task that is no task itself.
    """
    words = sys.argv[1:]
    places = [i for i, word in enumerate(words[:-1]) if word == body.__name__]
    if any(not words[i + 1].startswith("-") and words[i + 1] not in _TASKS for i in places):
        own = inspect.signature(body)
        run = own.parameters["run"].replace(default=inspect.Parameter.empty)
        named = [run if p.name == "run" else p for p in own.parameters.values()]
        # A parameter without a default comes first, behind the context.
        named.sort(key=lambda p: (p.name != "_c", p.default is not inspect.Parameter.empty))
        body.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]  # what inspect reads
    return body


def _as_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@task(help={"variant": "cpu, cuda, or the name of a file of your own in docker/variants/"})
@_guarded
def build(_c: Context, variant: str = "cpu") -> int | None:
    """Build the image of a variant on this machine."""
    from suite import cluster_actions

    return cluster_actions.build(variant)


@task(name="up", help={"hosts": "how many simulated hosts (1 to 16)"})
@_guarded
def lab_up(_c: Context, hosts: str = "4") -> int | None:
    """Start simulated hosts on this machine and write hosts/lab.toml."""
    from suite import cluster_actions

    return cluster_actions.lab_up(hosts)


@task(name="down")
@_guarded
def lab_down(_c: Context) -> int | None:
    """Remove the simulated hosts and everything that belongs to them."""
    from suite import cluster_actions

    return cluster_actions.lab_down()


@task(name="link", help={"rate": "e.g. 1gbit, 200mbit, or none for no limit", "host": "one host (default: all)"})
@_guarded
def lab_link(_c: Context, rate: str, host: str = "") -> int | None:
    """Limit the links of the simulated hosts to a rate."""
    from suite import cluster_actions

    return cluster_actions.lab_link(rate, host)


@task(
    name="fault",
    positional=["kind"],
    help={
        "kind": "what to break (a wrong word lists all)",
        "host": "where",
        "port": "with port-taken: which port (default 2222)",
    },
)
@_guarded
def lab_fault(_c: Context, kind: str, host: str, port: str = "") -> int | None:
    """Break something on a simulated host."""
    from suite import cluster_actions

    return cluster_actions.lab_fault(kind, host, port)


@task(name="heal", help={"host": "one host (default: all)"})
@_guarded
def lab_heal(_c: Context, host: str = "") -> int | None:
    """Undo every fault of the simulated hosts."""
    from suite import cluster_actions

    return cluster_actions.lab_heal(host)


@task(
    help={
        "cluster": _CLUSTER,
        "variant": "cpu, cuda or your own: the image the hosts are checked for",
        "accept-new-host-keys": "store unknown host keys, after printing their fingerprints",
    }
)
@_guarded
def check(_c: Context, cluster: str = "", variant: str = "", accept_new_host_keys: bool = False) -> int | None:
    """Check every host before a run: a table, then one cause and one fix per failure."""
    from suite import cluster_actions

    return cluster_actions.check(cluster, variant, accept_new_host_keys)


@task(
    help={
        "cluster": _CLUSTER,
        "variant": "cpu, cuda or your own (default: cuda when the cluster file names devices)",
        "force": "replace containers even when they are up to date",
    }
)
@_guarded
def deploy(_c: Context, cluster: str = "", variant: str = "", force: bool = False) -> int | None:
    """Bring the image to every host, in parallel, and start one container on each."""
    from suite import cluster_actions

    return cluster_actions.deploy(cluster, variant, force)


@task(iterable=["arm"], help={"cluster": _CLUSTER, **_CAMPAIGN})
@_guarded
@_with_campaign_options()
def run(_c: Context, cluster: str = "", resume: str = "", **options: Any) -> int | None:
    """The main job: run the comparison on the deployed hosts, collect, and print the table."""
    from suite import actions

    return actions.run(cluster, actions.campaign_options(options), resume)


@task(iterable=["arm"], help=_CAMPAIGN)
@_guarded
@_with_campaign_options(world="2")
def local(_c: Context, resume: str = "", **options: Any) -> int | None:
    """The same comparison on this machine alone, without SSH and Docker."""
    from suite import actions

    return actions.local(actions.campaign_options(options), resume)


@task(positional=["run"], help={"run": "run id", "cluster": _CLUSTER})
@_guarded
def collect(_c: Context, run: str, cluster: str = "") -> int | None:
    """Fetch again what the hosts still hold of a run, and report what was missing."""
    from suite import cluster_actions

    return cluster_actions.collect(run, cluster)


@task(
    help={"run": _RUN, "format": "terminal, markdown, csv, json, latex or html"},
)
@_guarded
@_with_optional_run
def report(_c: Context, run: str = "", format: str = "terminal") -> int | None:
    """Print a finished run as a table, and write its report files."""
    from suite import result_actions

    return result_actions.report(run, format)


@task(
    positional=["a", "b"],
    help={
        "a": "the run to compare against (the old one)",
        "b": "the run in question (the new one)",
        "fail-above": "exit 1 when b is surely slower than a by more than this, e.g. 5%",
        "vary": "fields that may differ because they are the question, e.g. torch",
    },
)
@_guarded
def compare(_c: Context, a: str, b: str, fail_above: str = "", vary: str = "") -> int | None:
    """Compare two runs row by row, with intervals."""
    from suite import result_actions

    return result_actions.compare(a, b, fail_above, vary)


@task(
    help={"run": _RUN, "name": "name of the bundle", "anonymous": "replace the names of the hosts too"},
)
@_guarded
@_with_optional_run
def publish(_c: Context, run: str = "", name: str = "", anonymous: bool = False) -> int | None:
    """Make a bundle in results/published/ that others can verify and run again."""
    from suite import result_actions

    return result_actions.publish(run, name, anonymous)


@task(positional=["path"], help={"path": "a bundle's folder"})
@_guarded
def verify(_c: Context, path: str) -> int | None:
    """Recompute a bundle's summary from its raw records and check every checksum, offline."""
    from suite import result_actions

    return result_actions.verify(path)


@task(positional=["path"], help={"path": "a bundle's folder", "cluster": _CLUSTER})
@_guarded
def reproduce(_c: Context, path: str, cluster: str = "") -> int | None:
    """Run a bundle's plan on the present cluster and compare the results."""
    from suite import actions

    return actions.reproduce(path, cluster)


@task(
    help={
        "run": _RUN,
        "parameters": "number of model parameters, e.g. 1.3e9",
        "workload": "a workload of the run, instead of a number of parameters",
        "hosts": "number of hosts, one rank each",
    },
)
@_guarded
@_with_optional_run
def predict(_c: Context, run: str = "", parameters: str = "", workload: str = "", hosts: str = "") -> int | None:
    """Predict step time and exposed communication from a run with a collectives sweep."""
    from suite import result_actions

    return result_actions.predict(run, parameters, workload, hosts)


@task(help={"cluster": _CLUSTER})
@_guarded
def stop(_c: Context, cluster: str = "") -> int | None:
    """Remove the suite's containers, volumes and keys from every host."""
    from suite import cluster_actions

    return cluster_actions.stop(cluster, images=False)


@task(help={"cluster": _CLUSTER})
@_guarded
def clean(_c: Context, cluster: str = "") -> int | None:
    """Like stop, and remove the suite's images from every host too."""
    from suite import cluster_actions

    return cluster_actions.stop(cluster, images=True)


@task(help={"only": "list of benchmarks to run (default: all)", "quick": "smaller numbers, for a first look"})
@_guarded
def bench(_c: Context, only: str = "", quick: bool = False) -> int | None:
    """Measure what the suite itself costs: the scripts in benchmarks/."""
    from benchmarks import catalogue

    return catalogue.run(only, quick)


_lab = Collection("lab")
for _task in (lab_up, lab_down, lab_link, lab_fault, lab_heal):
    _lab.add_task(_task)
namespace = Collection(
    build,
    check,
    deploy,
    run,
    local,
    collect,
    report,
    compare,
    publish,
    verify,
    reproduce,
    predict,
    stop,
    clean,
    bench,
    _lab,
)
__all__ = ["namespace"]
