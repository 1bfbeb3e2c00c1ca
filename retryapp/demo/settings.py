"""Constants of the demo's programs, and the variables `RETRYAPP_DEMO_...` of its app and its feeder.

The policy survives the worst that the service plans: three failures, and those of the first moment of the outage, after
which the circuit is open and no attempts are spent. Its longest way is 1 + 2 + 4 + 8 + 8 + 8 s.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "RETRYAPP_DEMO_"
MAIN_TOPIC: Final = "flights"
PARTITIONS: Final = 4
GROUP: Final = "demo"
"""App id: consumer group and prefix of the topics."""
DEFAULT_PORT: Final = 6070
"""Of the service."""
POLICY: Final = "1s 2s 4s 8s*3"
OUTAGE_S: Final = 8.0
SESSION_TIMEOUT_S: Final = 6.0
"""After this time the group takes a killed worker's partitions away."""


class DemoSettings(BaseSettings):
    """Settings of a demo worker; the defaults suit a broker and a service started by hand on this machine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    broker: str = Field(default="localhost:9092", description="Address of the broker, without a scheme.")
    service_url: str = Field(default=f"http://127.0.0.1:{DEFAULT_PORT}", description="Base address of the service.")
