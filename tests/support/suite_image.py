"""The suite's own image, for the tests that run it: built once where this machine does not have it yet."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from suite.cluster.build import build
from suite.cluster.images import describe
from suite.cluster.transport import local_engine
from suite.paths import project_root

TAG = "ddp-backend-suite:cpu"


def suite_image() -> str:
    """The tag of the cpu image, after building it if need be."""
    client = local_engine(60)
    try:
        if describe(client, TAG) is None:
            build("cpu", root=project_root(), progress=print)
    finally:
        client.close()
    return TAG


@contextmanager
def changed_image(path: str, data: bytes) -> Iterator[str]:
    """The tag of an image that is the suite's with one file changed, in a layer of its own; removed afterwards."""
    tag = f"ddp-suite-test:{secrets.token_hex(4)}"
    name, _, version = tag.partition(":")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    client = local_engine(120)
    try:
        container = client.create_container(suite_image())["Id"]  # not started: its command stays the image's
        try:
            client.put_archive(container, "/", buffer.getvalue())
            client.commit(container, repository=name, tag=version)
        finally:
            client.remove_container(container, v=True)
        try:
            yield tag
        finally:
            client.remove_image(tag, force=True)
    finally:
        client.close()
