from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite.errors import RecordError
from suite.records import to_json
from suite.worker.spec import load_spec
from tests.worker.conftest import make_spec


def write(folder: Path, **changes: Any) -> Path:
    document = json.loads(to_json(make_spec(folder)))
    document.update(changes)
    path = folder / "spec.json"
    path.write_text(json.dumps({k: v for k, v in document.items() if v != "MISSING"}))
    return path


def test_a_description_comes_back_as_it_was_written(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, environment={"OMP_PROC_BIND": "true"}, batch_size=None)
    path = tmp_path / "spec.json"
    path.write_text(to_json(spec))
    assert load_spec(path) == spec


def test_whole_numbers_are_accepted_where_seconds_are_meant(tmp_path: Path) -> None:
    assert load_spec(write(tmp_path, deadline_seconds=30)).deadline_seconds == 30.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "has format 99, this worker reads format 1"),
        ({"steps": "6"}, "steps is str, not int"),
        ({"steps": True}, "steps is bool, not int"),
        ({"speed": 1}, "speed is not a field of LaunchSpec"),
        ({"threads": "MISSING"}, "threads is missing"),
        ({"hosts": [{"name": "h1"}]}, r"hosts\[0\].address is missing"),
        ({"hosts": {}}, "hosts is dict, not a list"),
        ({"environment": {"A": 1}}, "environment.A is int, not str"),
        ({"arm": None}, "arm is NoneType, not an object"),
        ({"kind": "dance"}, "kind 'dance' is none of"),
    ],
)
def test_a_wrong_description_is_refused_with_the_field_that_is_wrong(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        load_spec(write(tmp_path, **changes))


def test_damage_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    with pytest.raises(RecordError, match=r"spec\.json: cannot be read"):
        load_spec(path)
    path.write_text("{")
    with pytest.raises(RecordError, match=r"spec\.json: is not JSON"):
        load_spec(path)
