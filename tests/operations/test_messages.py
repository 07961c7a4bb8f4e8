"""No message without an entry in docs/operations.md, and none there without what to do."""

from __future__ import annotations

from pathlib import Path

from suite.paths import project_root
from tests.lab.fault_table import BEGIN as FAULTS_BEGIN
from tests.lab.fault_table import END as FAULTS_END
from tests.lab.fault_table import FAULTS, LOAD_BEGIN, LOAD_END, between, load_text, measured
from tests.lab.fault_table import table as fault_table
from tests.operations.messages import BEGIN, END, OPERATIONS, Forwarded, Message, find, remedies, table

# They pass on what another function wrote: what that is stands beside each; its text is listed under that one's module.
PASS_ON = {
    Forwarded("suite/cluster/check.py", "_unreachable"): "a HostError",
    Forwarded("suite/cluster/deploy.py", "_local_engine"): "a HostError",
    Forwarded("suite/cluster/deploy.py", "find_deployment"): "_deployment_problem",
    Forwarded("suite/cluster/causes.py", "_lost_host"): "_why_lost",
    Forwarded("suite/cluster/causes.py", "_rank_failures"): "a RecordError",
    Forwarded("suite/cluster/findings.py", "refuse"): "failed checks",
    Forwarded("suite/cluster/images.py", "local_image"): "a HostError",
    Forwarded("suite/cluster/inventory_parse.py", "_table"): "Invalid, of inventory_values.py",
    Forwarded("suite/cluster/inventory_parse.py", "wrong"): "its callers",
    Forwarded("suite/cluster/inventory_values.py", "parse_table"): "_Wrong",
    Forwarded("suite/cluster/pairs.py", "_pairs"): "a HostError",
    Forwarded("suite/cluster/pairs.py", "judge"): "a HostError",
    Forwarded("suite/cluster/remote.py", "_connect_error"): "_connect_message",
    Forwarded("suite/cluster/routes.py", "_no_way"): "the reason of a choice",
    Forwarded("suite/cluster/routes.py", "look"): "a failed check",
    Forwarded("suite/report/scrub.py", "failure"): "a failure without names",
    Forwarded("suite/worker/bootstrap.py", "leave"): "any exception of a rank",
    Forwarded("suite/worker/groups.py", "__init__"): "why a backend cannot run",
    Forwarded("suite/worker/recorder.py", "fail"): "its callers",
}
REFRESH = "run `python -m tests.operations.messages --write`"


def test_every_message_is_listed_with_what_to_do() -> None:
    messages, _ = find(project_root())
    written = remedies()
    helpless = [f"{m.module}: {m.text}" for m in messages if not written.of(m)]
    assert not helpless, "give these a fix in the source, or an entry in docs/remedies.toml"
    assert between(OPERATIONS.read_text(encoding="utf-8"), BEGIN, END) == table(messages, written), REFRESH


def test_no_message_is_hidden_from_the_list() -> None:
    _, forwarded = find(project_root())
    assert forwarded <= set(PASS_ON), "write the text where the error is made, or say here where it comes from"
    assert set(PASS_ON) <= forwarded, "these no longer pass anything on"


def test_no_remedy_is_for_a_message_that_is_no_more() -> None:
    messages, _ = find(project_root())
    written = remedies()
    assert set(written.messages) <= {m.text for m in messages if not m.fix}
    assert set(written.modules) <= {m.module for m in messages if not m.fix}


def test_a_new_message_is_found_in_whatever_way_it_is_written(tmp_path: Path) -> None:
    source = tmp_path / "suite" / "new.py"
    source.parent.mkdir()
    (tmp_path / "tasks.py").touch()
    source.write_text(
        """
WHAT = "do this."

def f(host, x):
    if x:
        raise HostError(host, f"{x} is wrong", fix="turn it.")
    raise UsageError("a" if x else "b" f"{host}", fix=WHAT)

def g():
    cause = "it is " + "late"
    return fail("h", "check", "seen", cause, WHAT)

def h(problem):
    raise SuiteError(problem)
""",
        encoding="utf-8",
    )
    messages, forwarded = find(tmp_path)
    assert messages == [
        Message("suite/new.py", "a", "do this."),
        Message("suite/new.py", "b{host}", "do this."),
        Message("suite/new.py", "it is late", "do this."),
        Message("suite/new.py", "{x} is wrong", "turn it."),
    ]
    assert forwarded == {Forwarded("suite/new.py", "h")}


def test_the_table_of_faults_is_the_one_that_was_measured() -> None:
    assert between(OPERATIONS.read_text(encoding="utf-8"), FAULTS_BEGIN, FAULTS_END) == fault_table(), (
        "run `python -m tests.lab.fault_table --write`"
    )
    text = OPERATIONS.read_text(encoding="utf-8")
    assert between(text, LOAD_BEGIN, LOAD_END) == load_text(), "run `python -m tests.lab.fault_table --write`"
    assert set(measured()) == set(FAULTS), (
        "measure what is new (tests/lab/fault_table.py says how), forget what is gone"
    )
