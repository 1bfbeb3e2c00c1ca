"""What the demo's worker reads from the environment: variables `RETRYAPP_DEMO_...`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from retryapp.demo.client import DEFAULT_TIMEOUT_S
from retryapp.demo.service import DEFAULT_PORT

PREFIX = "RETRYAPP_DEMO_"
MAIN_TOPIC = "flights"
DEFAULT_GROUP = "demo"


class DemoSettings(BaseSettings):
    """Settings of a demo worker; the defaults suit a broker and a service started by hand on this machine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    broker: str = Field(default="localhost:9092", description="Address of the broker, without a scheme.")
    group: str = Field(default=DEFAULT_GROUP, description="App id: consumer group and prefix of the topics.")
    service_url: str = Field(default=f"http://127.0.0.1:{DEFAULT_PORT}", description="Base address of the service.")
    timeout_s: float = Field(default=DEFAULT_TIMEOUT_S, gt=0, description="Time-out of one request, seconds.")
    worker: str = Field(default="worker", description="Name told to the service, for its log.")
