from __future__ import annotations

import pytest

from suite.cluster.images import _complaint


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            '{"status":"Loading layer"}\n{"errorDetail":{"message":"mkdir /x: no space left on device"},'
            '"error":"mkdir /x: no space left on device"}\n',
            "mkdir /x: no space left on device",
        ),
        ('{"stream":"Loaded image ID: sha256:00"}\n', '{"stream":"Loaded image ID: sha256:00"}'),
        ("plain words\x1b[2J", "plain words\N{REPLACEMENT CHARACTER}[2J"),
        ('[1, 2]\n{"error": 5}', '[1, 2]\n{"error": 5}'),
        ("", "it said nothing"),
    ],
)
def test_what_an_engine_says_of_a_failed_load_is_read_from_its_stream(said: str, reason: str) -> None:
    assert _complaint(said) == reason
