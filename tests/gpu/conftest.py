"""Tests that need a CUDA device, and of software nothing but Python, torch, numpy and pytest.

Without a device every test here is skipped, with the reason. They run the worker as the tests of the CPU do, with
the ranks' variables set by hand.
"""

from __future__ import annotations

import pytest


def reason_to_skip() -> str | None:
    """Why nothing here can run; None where it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything below this folder, and skip it where there is no GPU."""
    reason = reason_to_skip()
    for item in items:
        if "/tests/gpu/" not in str(item.path):
            continue
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"NOT RUN: {reason}"))
