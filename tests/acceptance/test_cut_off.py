"""A worker that was cut off from its broker starts nothing that another may have done since."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.ground import Ground
from chaos.proxy import Link
from harness import HandlerSpec, Stage, Worker, wait_for
from harness.stage import open_stage

ROUND = 40


@pytest.mark.broker
@pytest.mark.acceptance
@pytest.mark.extended
@pytest.mark.timeout(150)
def test_a_worker_that_was_cut_off_asks_before_it_starts_records(cache_dir: Path, tmp_path: Path) -> None:
    """What it asked for when the cut began arrives when it ends: records that the other one has done meanwhile."""
    (tmp_path / "stage").mkdir()
    with (
        Ground(cache_dir, tmp_path / "broker", links=1) as ground,
        ground.link() as link,
        open_stage(ground.bootstrap, tmp_path / "stage") as stage,
    ):
        topic = stage.main_topic(partitions=2)
        stage.program(HandlerSpec(topic=topic, policy="300ms"))
        far = stage.worker("far", ready=False, env={"STAGE_BOOTSTRAP": f"127.0.0.1:{link.port}"})
        near = stage.worker("near", ready=False)
        for worker in (far, near):
            worker.wait_ready()
        for number in range(3):
            cut_off(stage, topic, link, far, near, 2 * ROUND * number)
        stage.wait_settled(topic, timeout_s=60)
        assert len(stage.service.of(topic)) == 6 * ROUND, "each was started once"


def cut_off(stage: Stage, topic: str, link: Link, far: Worker, near: Worker, start: int) -> None:
    """Have both work; cut one off until the other has done a round alone; have it back."""
    publish(stage, topic, start)
    near_opened, far_opened = opened(near), opened(far)
    link.change(up=False, down=False)
    wait_for(lambda: opened(near) >= near_opened + 2, "the other one has all partitions")
    publish(stage, topic, start + ROUND)
    link.heal()
    wait_for(lambda: opened(far) > far_opened, "it has a share again", timeout_s=60)


def opened(worker: Worker) -> int:
    return worker.log.count("retryapp.lane_opened")


def publish(stage: Stage, topic: str, start: int) -> None:
    """Publish a round and wait until it is done."""
    stage.produce(topic, [{"id": n, "fail": 0} for n in range(start, start + ROUND)], 2)
    wait_for(lambda: len(stage.service.done(topic)) == start + ROUND, "all is done")
    stage.wait_settled(topic, timeout_s=30)
