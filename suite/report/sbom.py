"""A software bill of materials of a run, as CycloneDX 1.5: what ran on the hosts, and what analysed it here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any
from urllib.parse import quote

import suite
from suite.records import Manifest

# Facts of the hosts' environment that name a component: fact -> (component, type).
HOST_COMPONENTS = {
    "operating_system": ("operating system", "operating-system"),
    "kernel": ("linux", "operating-system"),
    "python_version": ("python", "platform"),
    "torch_version": ("torch", "library"),
    "numpy_version": ("numpy", "library"),
    "cuda_version": ("cuda", "library"),
    "cudnn_version": ("cudnn", "library"),
    "nccl_version": ("nccl", "library"),
    "mpi_version": ("mpi", "library"),
    "blas_library": ("blas", "library"),
    "gpu_driver": ("nvidia-driver", "device-driver"),
}
CONTROLLER = ("docker", "fabric", "jinja2", "msgspec", "numpy", "rich", "tabulate")


def render(manifest: Manifest, environment: Mapping[str, Any]) -> str:
    """The bill: the unified environment of a summary, the packages of the image, and those that are installed here."""
    components = [*_host_components(environment), *_image_components(manifest), *_controller_components()]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": manifest.created,
            "component": {
                "type": "application",
                "name": "ddp-backend-suite",
                "version": manifest.suite_version,
                "bom-ref": "suite",
                "properties": [
                    {"name": "commit", "value": manifest.suite_commit},
                    {"name": "uncommitted changes", "value": str(manifest.suite_dirty).lower()},
                    {"name": "image", "value": manifest.image_id or "none"},
                    {"name": "report made by", "value": suite.__version__},
                ],
            },
        },
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def _host_components(environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for fact, (name, kind) in HOST_COMPONENTS.items():
        for version in _values(environment.get(fact)):
            found.append(_component(name, version, kind, "hosts"))
    return found


def _image_components(manifest: Manifest) -> list[dict[str, Any]]:
    """Every package of the image that the hosts ran, Debian's and Python's."""
    found = []
    for key, version in next((probe.packages for probe in manifest.probes if probe.packages), {}).items():
        purl = f"pkg:{quote(key, safe='/')}@{quote(version, safe='')}"
        found.append(_component(key.rpartition("/")[2], version, "library", f"image/{key.partition('/')[0]}", purl))
    return found


def _values(value: Any) -> list[str]:
    """Every version that a unified fact holds: one, or one per host, or several."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        inner: Iterable[Any] = value.get("values") or value.get("per host", {}).values()
        return sorted({text for item in inner for text in _values(item)})
    return [str(value)]


def _controller_components() -> list[dict[str, Any]]:
    """The suite's dependencies as installed here, and theirs."""
    found: dict[str, str] = {}
    waiting = list(CONTROLLER)
    while waiting:
        name = _normal(waiting.pop())
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0])
    return [
        _component(name, found[name], "library", "controller", f"pkg:pypi/{name}@{found[name]}")
        for name in sorted(found)
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(name: str, version: str, kind: str, where: str, purl: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "name": name,
        "version": version,
        "bom-ref": f"{where}:{name}@{version}",
        **({"purl": purl} if purl else {}),
        "properties": [{"name": "where", "value": where}],
    }
