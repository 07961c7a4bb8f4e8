"""What plans, bundles and answers from elsewhere can do: nothing that a command line cannot."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from suite import codec
from suite.cluster import gpu
from suite.errors import RecordError, UsageError
from suite.plan import Plan, block_slots, comparisons, launch_spec
from suite.policy import is_settable
from suite.records import Settings
from suite.report import bundle
from suite.report.verify import verify
from suite.summary import BundleInfo
from suite.worker.identity import THREAD_VARIABLES, Identity, launch_environment
from tests.fuzz.generate import any_bytes, damaged, numbers, texts
from tests.fuzz.samples import Property, clean, sample

OF_THE_SUITE = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", *THREAD_VARIABLES}


def stored_plan(data: bytes) -> None:
    """Whoever wrote it: it sets nothing in a rank that no record shows, and no launch of it is without an end."""
    try:
        plan = codec.decode(data, Plan, "plan.json")
    except RecordError as error:
        clean(error)
        return
    for workload, world in comparisons(plan)[:2]:
        for slot in block_slots(plan, workload, world, 0, [arm.name for arm in plan.arms]):
            try:
                spec = launch_spec(plan, slot, 1, Settings(workload, world, 10, 20), master_port=1, output_folder="/x")
            except UsageError as error:  # a world size that these hosts do not have
                clean(error)
                continue
            for host in spec.hosts:
                environment = launch_environment(replace(spec, host=host.name), Identity(0, world, 0, "mpirun"))
                for name in set(environment) - OF_THE_SUITE:
                    assert is_settable(name)
                    assert environment[name].isprintable()
            assert 1 <= spec.deadline_seconds <= 7 * 24 * 3600
            assert max(spec.steps, spec.nosync_steps, spec.free_steps, spec.equivalence_steps) <= 1_000_000


_environments = st.dictionaries(
    st.sampled_from(["LD_PRELOAD", "PATH", "NCCL_ALGO", "PYTHONSTARTUP", "NCCL_X\n", "OMPI_MCA_pml"]), texts, max_size=2
)


@st.composite
def chosen_plans(draw: Callable[[Any], Any]) -> bytes:
    """A sound plan with other variables, and other values of a few of its fields."""
    document = sample("plan")
    for owner in (document, document["arms"][0], document["hosts"][0]):
        owner["environment"] = draw(_environments)
    for owner in (document, document["protocol"], document["sweep"]):
        for key in draw(st.lists(st.sampled_from(sorted(owner)), max_size=1)):
            owner[key] = draw(st.one_of(numbers, texts, st.none()))
    return json.dumps(document).encode()


def bundle_sums(data: bytes) -> None:
    """SHA256SUMS of somebody else's bundle: names and digests, or an error that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / bundle.SUMS).write_bytes(data)
        try:
            found = bundle.read_sums(Path(folder))
        except RecordError as error:
            clean(error)
            assert bundle.SUMS in error.message
        else:
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in found.values())


def whole_bundle(data: bytes) -> None:
    """A bundle with another bundle.json is told from a sound one, whatever it says."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "b"
        place.mkdir()
        (place / bundle.INFO).write_bytes(data)
        (place / bundle.SUMS).write_text(bundle.sums_text(bundle.checksums(place)))
        found = verify(place)
        assert found.differences, "there is nothing but bundle.json"
        assert [p.name for p in Path(folder).iterdir()] == ["b"]


INFO = BundleInfo(name="b", run="r", anonymous=False, suite_version="1", report_code="0" * 64)


_SMI = (
    "0, GPU-4f1c0000-0000-0000-0000-000000000001, RTX 3090, 535.104.05, Enabled, 350.00, 350.00, 24576, 11, 0\n"
    "GPU-4f1c0000-0000-0000-0000-000000000001, 4242, python3, 1024\n"
    "GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-4f1c0000-0000-0000-0000-000000000001)\n"
    "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n"
)


@st.composite
def smi_answers(draw: Callable[[Any], Any]) -> str:
    """What nvidia-smi answers, with cells exchanged."""
    cells = re.split(r"([,\s])", _SMI)
    for _ in range(draw(st.integers(0, 4))):
        cells[draw(st.integers(0, len(cells) - 1))] = draw(texts)
    return "".join(cells)


def cards(text: str) -> None:
    """Each parser gets every text: a host may answer anything."""
    assert all(card.index >= 0 for card in gpu.parse_cards(text))
    assert all(process.pid >= 0 for process in gpu.parse_processes(text))
    assert all(uuid.startswith(("GPU-", "MIG-")) for uuid in gpu.parse_list(text))
    assert all(one.startswith("GPU") and other.startswith("GPU") for one, other, _ in gpu.parse_topology(text))


FROM_STRANGERS: dict[str, Property] = {
    "stored plans": Property(chosen_plans(), stored_plan),
    "bundles' checksums": Property(
        st.one_of(
            st.binary(max_size=100),
            texts.map(
                lambda name: bundle.sums_text({"plan.json": "0" * 64, name: "1" * 64}).encode("utf-8", "replace")
            ),
        ),
        bundle_sums,
    ),
    "bundles' descriptions": Property(
        st.one_of(any_bytes, st.deferred(lambda: damaged(json.loads(codec.encode(INFO))))), whole_bundle
    ),
    "graphics cards' answers": Property(st.one_of(smi_answers(), st.text(max_size=100)), cards),
}
