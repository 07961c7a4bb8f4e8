"""A real headless Chromium, driven by its own chromedriver; also takes the screenshots of the docs.

python -m tests.support.browser results/published/NAME/report.html docs/images/report.png [--dark] [--width 1280]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REQUIRE_BROWSER = "SUITE_REQUIRE_BROWSER"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name resolves: a page that needs the network is seen to
)


def browser_problem() -> str:
    """Why no browser can be driven here; empty when one can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"there is no {' and no '.join(missing)} (apt install chromium chromium-driver)" if missing else ""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A started browser with an empty profile, ended and removed afterwards."""
    from selenium import webdriver

    os.environ.setdefault("SE_AVOID_STATS", "true")
    os.environ.setdefault("SE_OFFLINE", "true")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(prefix="suite-chromium-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.set_page_load_timeout(60)
            driver.set_script_timeout(60)
            yield driver
        finally:
            driver.quit()


def set_screen(driver: Any, width: int, height: int, *, mobile: bool = False) -> None:
    """Emulate a screen of that many CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def set_scheme(driver: Any, scheme: str) -> None:
    """ "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def screenshot(driver: Any, path: Path, height: int | None = None) -> None:
    """The page from its top, whole, or cut at ``height`` CSS pixels."""
    size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height or size["height"]), "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def main() -> None:
    """Take one screenshot."""
    parser = argparse.ArgumentParser(description="Take a screenshot of a report.")
    parser.add_argument("page", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, help="cut the picture there")
    options = parser.parse_args()
    with chromium() as driver:
        set_screen(driver, options.width, 900, mobile=options.width < 600)
        set_scheme(driver, "dark" if options.dark else "light")
        driver.get(options.page.resolve().as_uri())
        screenshot(driver, options.target, options.height)


if __name__ == "__main__":
    main()
