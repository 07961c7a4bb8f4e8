"""One launch, stage by stage, from sanity to the complete record."""

from __future__ import annotations

import dataclasses
import gc
import statistics

import torch
from torch.nn.parallel import DistributedDataParallel

from suite.errors import LaunchError
from suite.records import LaunchSpec, StepSamples, WorkloadFacts
from suite.worker import mpi, nvml, sanity, transport
from suite.worker.article import published_mean
from suite.worker.device import Device, make_device
from suite.worker.environment import environment_facts, facts_after
from suite.worker.equivalence import parameter_hash, run_gate
from suite.worker.faults import faulty_loss, injected
from suite.worker.groups import Groups
from suite.worker.identity import Identity, device_index, own_slots
from suite.worker.link import measure_links
from suite.worker.recorder import Recorder, read_log
from suite.worker.sockets import connections
from suite.worker.steps import Trainee, bucket_sizes, distributed, free_steps, implausible, plain, timed_steps
from suite.worker.timing import bucket_all_reduces, sweep
from suite.worker.workloads import Workload, build

NOSYNC_WARMUP = 3


@dataclasses.dataclass(frozen=True)
class Context:
    """What every stage needs."""

    spec: LaunchSpec
    identity: Identity
    recorder: Recorder
    device: Device

    def workload(self) -> Workload:
        """The launch's workload, built afresh: the same weights and data each time."""
        return build(
            self.spec.workload,
            seed=self.spec.seed,
            rank=self.identity.rank,
            device=self.device.torch_device,
            batch_size=self.spec.batch_size,
        )


def run_launch(spec: LaunchSpec, identity: Identity, recorder: Recorder) -> None:
    """Run this rank's part of the launch and write its record."""
    torch.set_num_threads(spec.threads)
    index = device_index(own_slots(spec), identity.local_rank)
    # Before CUDA is used: afterwards the memory in use is this rank's own too.
    memory_before = nvml.memory_in_use(index) if spec.device == "cuda" and _ranks_on_gpu(spec, identity) == 1 else None
    device = make_device(spec.device, index)
    context = Context(spec, identity, recorder, device)
    recorder.enter("environment")
    recorder.add_environment({**environment_facts(spec, identity, device), "gpu_memory_before_bytes": memory_before})
    gc.collect()
    gc.freeze()  # what was imported is never garbage: collections before each timed mode stay short
    sampler = nvml.Sampler(device.uuid)
    if spec.kind == "single":
        _single(context)
    else:
        _together(context)
    recorder.enter("finish")
    steps = recorder.span("warmup", "measure")
    facts, warnings = nvml.summarise(
        sampler.stop(), _ranks_on_gpu(spec, identity), span=steps, on_gpu=device.kind == "cuda"
    )
    recorder.add_environment({**facts, **facts_after(device)})
    for text in (*warnings, *filter(None, [nvml.held_by_others(memory_before)])):
        recorder.warn(text)
    recorder.succeed()


def _ranks_on_gpu(spec: LaunchSpec, identity: Identity) -> int:
    """How many ranks of this launch use this rank's GPU."""
    devices = own_slots(spec).devices
    return devices.count(devices[identity.local_rank]) if devices else 1


def _together(context: Context) -> None:
    """All kinds with process groups."""
    spec, identity, recorder, device = context.spec, context.identity, context.recorder, context.device
    recorder.enter("rendezvous")
    groups = Groups(spec.arm.backend, identity.rank, identity.world_size, device, spec.deadline_seconds)
    recorder.enter("sanity")
    sanity.check(spec, device, groups, recorder)
    recorder.enter("setup")
    if spec.kind in ("train", "pilot"):
        _train(context, groups)
    elif spec.kind == "collectives":
        _collectives(context, groups)
    else:
        _article(context, groups)
    if spec.kind in ("pilot", "collectives"):
        recorder.enter("links")
        recorder.add_collectives(measure_links(groups))
    recorder.enter("finish")
    used = transport.describe(
        spec.arm.backend,
        read_log(recorder.log_path),
        connections() - groups.earlier_connections,
        device=spec.device,
        interface=own_slots(spec).interface,
        cuda_aware=mpi.cuda_aware() if spec.arm.backend == "mpi" else None,
    )
    recorder.keep(transport=used.text)
    recorder.add_environment({"connections": used.connections})
    for text in used.warnings:
        recorder.warn(text)
    groups.close()


def _single(context: Context) -> None:
    spec, recorder, device = context.spec, context.recorder, context.device
    recorder.enter("setup")
    workload = context.workload()
    _keep_facts(recorder, workload)
    trainee = plain(workload)
    recorder.enter("warmup")
    warmup = timed_steps(trainee, device, spec.warmup_steps)
    recorder.enter("measure")
    samples = timed_steps(trainee, device, spec.steps)
    recorder.keep(synchronised=_with_warmup(samples, warmup))


def _train(context: Context, groups: Groups) -> None:
    spec, recorder, device = context.spec, context.recorder, context.device
    fault = injected(spec.inject, context.identity.rank)
    if spec.kind == "train" and spec.equivalence_steps:
        recorder.enter("equivalence")
        gate = distributed(context.workload(), groups, spec.arm.ddp)
        result = run_gate(gate, groups, spec.equivalence_steps, corrupt=fault == "corrupt-gradient")
        recorder.keep(equivalence=result)
        del gate
    recorder.enter("setup")
    # Built afresh, so weights, optimizer and random state are those of the start.
    workload = context.workload()
    _keep_facts(recorder, workload)
    trainee = distributed(workload, groups, spec.arm.ddp)
    _check_weights(trainee, groups)
    device.reset_peak()

    recorder.enter("warmup")
    warmup = timed_steps(trainee, device, spec.warmup_steps, groups.barrier)

    recorder.enter("measure")
    measured = trainee
    if fault and fault != "corrupt-gradient":
        measured = dataclasses.replace(trainee, loss_fn=faulty_loss(fault, trainee.loss_fn))
    samples = timed_steps(measured, device, spec.steps, groups.barrier)
    recorder.keep(synchronised=_with_warmup(samples, warmup))
    _check_clock(samples, device, recorder)
    if spec.free_steps:
        recorder.keep(free_running=(free_steps(trainee, device, spec.free_steps, groups.barrier),))
    if spec.nosync_steps:
        recorder.keep(nosync=_without_sync(trainee, groups, spec.nosync_steps))

    recorder.enter("buckets")
    buckets = bucket_sizes(trainee, groups)
    _keep_facts(recorder, workload, buckets)
    if sum(buckets) != workload.gradient_bytes:
        recorder.warn(
            f"DDP's buckets hold {sum(buckets)} bytes, the gradients {workload.gradient_bytes}: "
            "some parameters got no gradient, or were reduced twice."
        )
    if spec.kind == "train" and spec.allreduce_repeats:
        recorder.add_collectives(bucket_all_reduces(groups, buckets, spec.allreduce_repeats))


def _check_weights(trainee: Trainee, groups: Groups) -> None:
    """Whether DDP's first broadcast has arrived whole, where it could not be synchronised (see ``distributed``).

    Raises:
        LaunchError: the ranks' weights differ; on every rank alike.
    """
    if not groups.needs_synchronise:
        return
    hashes = groups.gather(parameter_hash(list(trainee.model.parameters())))
    others = [rank for rank, found in enumerate(hashes) if found != hashes[0]]
    if others:
        raise LaunchError(
            f"DDP has broadcast its weights over {groups.backend}, and those of rank {others[0]} differ from rank 0's.",
            fix="use an Open MPI without UCX, which does not wait for what the GPU still computes.",
        )


def _check_clock(samples: StepSamples, device: Device, recorder: Recorder) -> None:
    """CUDA's events beside the host's clock: a diagnosis, never the result."""
    doubt = implausible(samples)
    if doubt:
        recorder.warn(doubt)
    if device.kind == "cuda" and samples.total_ns:
        phases = zip(samples.forward_ns, samples.backward_ns, samples.optimizer_ns, strict=True)
        recorder.add_environment({"gpu_events_seconds": statistics.median(map(sum, phases)) / 1e9})


def _collectives(context: Context, groups: Groups) -> None:
    if context.spec.sweep is None:
        raise LaunchError("A collectives launch needs a sweep, and its description has none.")
    context.recorder.enter("measure")
    context.recorder.add_collectives(sweep(groups, context.spec.sweep))


def _article(context: Context, groups: Groups) -> None:
    workload = context.workload()
    trainee = distributed(workload, groups, context.spec.arm.ddp)
    context.recorder.enter("measure")
    groups.barrier()
    context.recorder.keep(article_seconds=published_mean(trainee))
    _keep_facts(context.recorder, workload)


def _without_sync(trainee: Trainee, groups: Groups, steps: int) -> StepSamples:
    """Steps without DDP's reduction. The ranks' weights part ways here, so this comes last."""
    assert isinstance(trainee.model, DistributedDataParallel)
    with trainee.model.no_sync():
        warmup = timed_steps(trainee, groups.device, NOSYNC_WARMUP, groups.barrier)
        return _with_warmup(timed_steps(trainee, groups.device, steps, groups.barrier), warmup)


def _with_warmup(samples: StepSamples, warmup: StepSamples) -> StepSamples:
    return dataclasses.replace(samples, warmup_total_ns=warmup.total_ns)


def _keep_facts(recorder: Recorder, workload: Workload, buckets: tuple[int, ...] = ()) -> None:
    facts = _facts(workload, buckets)
    recorder.keep(facts=facts)
    recorder.add_environment({"parameters": facts.parameters, "batch_size": facts.batch_size, "dtype": facts.dtype})


def _facts(workload: Workload, buckets: tuple[int, ...]) -> WorkloadFacts:
    return WorkloadFacts(
        parameters=workload.parameters,
        parameter_bytes=workload.parameter_bytes,
        gradient_bytes=workload.gradient_bytes,
        buckets_bytes=buckets,
        batch_size=workload.batch_size,
        seed=workload.seed,
        description=workload.description,
    )
