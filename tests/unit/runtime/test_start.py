"""What a worker hides while it starts."""

from __future__ import annotations

import logging

import pytest

from retryapp.runtime.start import BriefStart


@pytest.mark.parametrize(
    ("own", "meanwhile"), [(logging.NOTSET, logging.WARNING), (logging.DEBUG, logging.WARNING), (logging.ERROR,) * 2]
)
def test_the_levels_of_the_app_are_back_after_a_brief_start(own: int, meanwhile: int) -> None:
    """They were forgotten: what an app had silenced was shown from then on."""
    logger = logging.getLogger("aiokafka")
    before = logger.level
    try:
        logger.setLevel(own)
        brief = BriefStart()
        assert logger.level == meanwhile
        brief.end()
        assert logger.level == own
        logger.setLevel(logging.CRITICAL)
        brief.end()
        assert logger.level == logging.CRITICAL
    finally:
        logger.setLevel(before)
