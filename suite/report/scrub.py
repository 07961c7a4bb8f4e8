"""What of a run may leave the controller: a positive list of fields, and texts without addresses, accounts and keys.

Every published record is built anew from the fields named here, so that a field added later stays at home until it is
named here too. Free texts (warnings, causes of failures) are kept, with the names of the cluster file in place of
addresses and machine names, and with what looks like an address, an account, a key or a home folder taken out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from suite.plan import Plan
from suite.policy import ENVIRONMENT_PREFIX, FACTS, mask
from suite.records import (
    Arm,
    CollectiveSamples,
    Equivalence,
    Failure,
    HostProbe,
    HostSlots,
    LaunchOutcome,
    Manifest,
    RankRecord,
    WorkloadFacts,
)

PRIVATE_FACTS = frozenset({"hostname", "interface_address", "connections"})
PUBLIC_FACTS = frozenset(FACTS) - PRIVATE_FACTS
# Numbers with dots in them that are versions, not addresses.
VERSION_FACTS = re.compile(r".*(_version|_git|_config|_driver|library|kernel|operating_system)")
PUBLIC_VARIABLES = frozenset(
    (
        *("NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_ALGO"),
        *("NCCL_PROTO", "NCCL_DEBUG", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_BUFFSIZE"),
        *("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS", "NCCL_NET_GDR_LEVEL", "NCCL_BLOCKING_WAIT"),
        *("NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT", "OMPI_MCA_pml", "OMPI_MCA_btl"),
        *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_prte_if_include", "OMPI_MCA_smsc"),
        *("OMPI_MCA_btl_vader_single_copy_mechanism", "OMPI_MCA_mpi_yield_when_idle", "UCX_TLS", "UCX_NET_DEVICES"),
        *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER"),
        "CUDA_DEVICE_MAX_CONNECTIONS",
    )
)
_ALIASED = ("boot_id", "gpu_uuid")  # equal or not is what counts; the value itself names a machine

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[^\s'\"=,]*\bid_(?:rsa|dsa|ecdsa|ed25519)\b[^\s'\",]*|[^\s'\"=,]+\.pem\b"), "[key]"),
    (re.compile(r"(?<![\w/])/(?:home|Users|root)\b[^\s'\",;:)]*"), "[path]"),
    (re.compile(r"\b[\w.-]+@[\w.-]+\b"), "[account]"),
    (re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"), "[address]"),
    (re.compile(r"(?<![\w:])(?=[0-9A-Fa-f:]*::|(?:[0-9A-Fa-f]{1,4}:){7})[0-9A-Fa-f:]{3,39}(?![\w:])"), "[address]"),
)
_IPV4 = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)")


class Scrubber:
    """Rewrites the plan, the ledger and the records of one run, consistently.

    Args:
        manifest: the run's ledger: its hosts' names and addresses.
        records: of the run, for the machines' own names.
        anonymous: replace the names of hosts and cluster too (host1, host2, ...).
        secrets: further words that must not leave: user names, key paths.
    """

    def __init__(
        self, manifest: Manifest, records: Iterable[RankRecord], *, anonymous: bool, secrets: Iterable[str] = ()
    ) -> None:
        names = [host.name for host in manifest.hosts]
        self._anonymous = anonymous
        self._hosts = {name: f"host{i + 1}" if anonymous else name for i, name in enumerate(dict.fromkeys(names))}
        words: dict[str, str] = {host.address: self._hosts[host.name] for host in manifest.hosts if host.address}
        self._aliases: dict[str, dict[str, str]] = {key: {} for key in _ALIASED}
        for record in records:
            for key in ("hostname", "interface_address"):
                value = record.environment.get(key)
                if isinstance(value, str) and value and value not in self._hosts:
                    words.setdefault(value, self.host(record.host))
            for key, known in self._aliases.items():
                value = record.environment.get(key)
                if isinstance(value, str):
                    known.setdefault(value, f"{key.replace('_', '-')}-{len(known) + 1}")
        words |= {secret: "[removed]" for secret in secrets if secret}
        if anonymous:
            words |= self._hosts
            words[manifest.cluster] = "anonymous"
        ordered = sorted((word for word in words if word), key=len, reverse=True)
        self._replacements = words
        self._words = re.compile("|".join(rf"(?<![\w.-]){re.escape(word)}(?![\w-])" for word in ordered) or r"(?!)")

    # Texts and names

    def host(self, name: str) -> str:
        """The published name of a host of the cluster file; unknown ones are only said to be others."""
        return self._hosts.get(name, "other-host")

    def text(self, text: str, *, addresses: bool = True) -> str:
        """A free text that may leave. ``addresses``: False for versions, which look like addresses."""
        found = self._words.sub(lambda match: self._replacements[match.group()], text)
        for pattern, replacement in _PATTERNS:
            found = pattern.sub(replacement, found)
        return _IPV4.sub("[address]", found) if addresses else found

    def texts(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Several of them."""
        return tuple(self.text(text) for text in texts)

    def _value(self, value: Any, *, addresses: bool = True) -> Any:
        if isinstance(value, str):
            return self.text(value, addresses=addresses)
        if isinstance(value, (list, tuple)):
            return [self._value(item, addresses=addresses) for item in value]
        if isinstance(value, Mapping):
            return {self.text(str(k)): self._value(v, addresses=addresses) for k, v in value.items()}
        return value

    def environment(self, facts: Mapping[str, Any], arm_variables: Iterable[str] = ()) -> dict[str, Any]:
        """The facts that may leave; variables only by name, or because an arm sets them."""
        variables = PUBLIC_VARIABLES | set(arm_variables)
        found: dict[str, Any] = {}
        for key, value in facts.items():
            if key.startswith(ENVIRONMENT_PREFIX):
                allowed = key.removeprefix(ENVIRONMENT_PREFIX) in variables
            else:
                allowed = key in PUBLIC_FACTS
            if not allowed:
                continue
            alias = self._aliases.get(key, {}).get(value) if isinstance(value, str) else None
            found[key] = alias or self._value(value, addresses=not VERSION_FACTS.fullmatch(key))
        return found

    def _variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that were set on purpose. None should look secret by now: an old run's may."""
        return {key: self.text(mask(key, value)) for key, value in environment.items()}

    # Records

    def slots(self, host: HostSlots) -> HostSlots:
        """A host with its name for an address."""
        name = self.host(host.name)
        devices = tuple(device if device.isdigit() else "[device]" for device in host.devices)
        return HostSlots(name=name, address=name, slots=host.slots, interface=host.interface, devices=devices)

    def arm(self, arm: Arm) -> Arm:
        """An arm with its variables, which are part of the question."""
        variables = self._variables(arm.environment)
        return Arm(name=arm.name, backend=arm.backend, environment=variables, ddp=arm.ddp)

    def failure(self, failure: Failure | None) -> Failure | None:
        """A failure without its log."""
        if failure is None:
            return None
        return Failure(
            stage=failure.stage,
            cause=self.text(failure.cause),
            host=None if failure.host is None else self.host(failure.host),
            rank=failure.rank,
            fix=self.text(failure.fix),
            secondary=failure.secondary,
            at=failure.at,
        )

    def record(self, record: RankRecord, arm_variables: Iterable[str] = ()) -> RankRecord:
        """One rank's record."""
        facts, gate = record.facts, record.equivalence
        return RankRecord(
            run=record.run,
            launch=record.launch,
            kind=record.kind,
            arm=record.arm,
            backend=record.backend,
            workload=record.workload,
            block=record.block,
            device=record.device,
            world_size=record.world_size,
            rank=record.rank,
            local_rank=record.local_rank,
            host=self.host(record.host),
            facts=WorkloadFacts(
                parameters=facts.parameters,
                parameter_bytes=facts.parameter_bytes,
                gradient_bytes=facts.gradient_bytes,
                buckets_bytes=facts.buckets_bytes,
                batch_size=facts.batch_size,
                dtype=facts.dtype,
                seed=facts.seed,
                description=self.text(facts.description),
            ),
            synchronised=record.synchronised,
            nosync=record.nosync,
            free_running=record.free_running,
            collectives=tuple(self._collective(sample) for sample in record.collectives),
            equivalence=Equivalence(
                gate.status, self.text(gate.detail), gate.worst_error, gate.losses, gate.parameter_hashes
            ),
            article_seconds=record.article_seconds,
            transport=self.text(record.transport),
            environment=self.environment(record.environment, arm_variables),
            marks=record.marks,
            warnings=self.texts(record.warnings),
            failure=self.failure(record.failure),
            started_at=record.started_at,
            format=record.format,
        )

    def _collective(self, sample: CollectiveSamples) -> CollectiveSamples:
        if sample.unavailable is None:
            return sample
        return dataclasses.replace(sample, unavailable=self.text(sample.unavailable))

    def outcome(self, outcome: LaunchOutcome, digests: Mapping[str, str]) -> LaunchOutcome:
        """One line of the ledger, with the digests of the published records; commands stay at home."""
        return LaunchOutcome(
            launch=outcome.launch,
            index=outcome.index,
            kind=outcome.kind,
            arm=outcome.arm,
            backend=outcome.backend,
            workload=outcome.workload,
            world_size=outcome.world_size,
            block=outcome.block,
            status=outcome.status,
            failure=self.failure(outcome.failure),
            wall_seconds=outcome.wall_seconds,
            started_at=outcome.started_at,
            digests=dict(digests),
        )

    def _probe(self, probe: HostProbe) -> HostProbe:
        return HostProbe(
            host=self.host(probe.host),
            backends={name: None if why is None else self.text(why) for name, why in probe.backends.items()},
            cuda_devices=tuple(f"device {i}" for i in range(len(probe.cuda_devices))),
            cores=probe.cores,
            memory_bytes=probe.memory_bytes,
            torch=probe.torch,
            python=probe.python,
            mpi=self.text(probe.mpi, addresses=False),
            workloads=probe.workloads,
            environment=self.environment(probe.environment),
            code=probe.code,
            packages=probe.packages,
            format=probe.format,
        )

    def manifest(
        self, manifest: Manifest, digests: Mapping[str, Mapping[str, str]], lost: Iterable[str] = ()
    ) -> Manifest:
        """The ledger.

        Args:
            digests: launch → file → SHA-256, of the published records.
            lost: what could not be published, one text each; they become warnings.
        """
        return Manifest(
            run=manifest.run,
            cluster="anonymous" if self._anonymous else manifest.cluster,
            created=manifest.created,
            suite_version=manifest.suite_version,
            suite_commit=manifest.suite_commit,
            suite_dirty=manifest.suite_dirty,
            image_id=manifest.image_id,
            hosts=tuple(self.slots(host) for host in manifest.hosts),
            probes=tuple(self._probe(probe) for probe in manifest.probes),
            unavailable={arm: self.text(why) for arm, why in manifest.unavailable.items()},
            settings=tuple(dataclasses.replace(s, reason=self.text(s.reason)) for s in manifest.settings),
            launches=tuple(self.outcome(o, digests.get(o.launch, {})) for o in manifest.launches),
            stop_reason=manifest.stop_reason,
            warnings=(*self.texts(manifest.warnings), *self.texts(lost)),
            format=manifest.format,
        )

    def plan(self, plan: Plan) -> Plan:
        """The plan, without addresses. Every other field is a choice of the user's that repeating it needs."""
        return dataclasses.replace(
            plan,
            cluster="anonymous" if self._anonymous else plan.cluster,
            arms=tuple(self.arm(arm) for arm in plan.arms),
            hosts=tuple(self.slots(host) for host in plan.hosts),
            environment=self._variables({k: v for k, v in plan.environment.items() if k in PUBLIC_VARIABLES}),
        )
