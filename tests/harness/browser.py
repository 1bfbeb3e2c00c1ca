"""A real browser: Debian's Chromium, steered by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WITHOUT = "no browser: 'apt-get install chromium', and 'pip install -e .[browser]' (make test-all does the second)"
LOOKS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
"""Widths in pixels, and colours, that pages are looked at with."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start it; where it is missing, the test is skipped on a laptop and fails where CI is set."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(WITHOUT)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]  # containers run as root, with little shared memory
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        try:
            yield browser
        finally:
            browser.close()
