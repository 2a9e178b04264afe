# A drafter: speculates for the leads of a pool. Build from the repository root:
#   docker build -f docker/drafter.Dockerfile -t duo-drafter .
# For an NVIDIA GPU: give a CUDA development image as BUILD, a CUDA runtime image with Python 3.11 as RUN,
# and CMAKE_ARGS=-DGGML_CUDA=on.
ARG BUILD=python:3.11-slim-bookworm
ARG RUN=python:3.11-slim-bookworm

FROM ${BUILD} AS build
# Debian keeps one version of a package per release: pinning it would break with every security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake ninja-build \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/duo
ENV PATH=/opt/duo/bin:$PATH
WORKDIR /src
# How llama.cpp is compiled. Not for the machine that builds, since another one may run the image: without
# GGML_NATIVE, x86-64 code needs AVX2 (any server since 2013).
ARG CMAKE_ARGS="-DGGML_NATIVE=OFF"
COPY requirements.lock ./
RUN CMAKE_ARGS="${CMAKE_ARGS} -DGGML_RPC=ON" pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
# The sources last: changing them does not compile llama.cpp again.
COPY pyproject.toml README.md LICENSE openapi.yaml ./
COPY server ./server
COPY drafters ./drafters
RUN pip install --no-cache-dir --no-deps .

FROM ${RUN}
# OpenMP, which the compiled llama.cpp is linked with.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home --uid 10001 duo
COPY --from=build /opt/duo /opt/duo
ENV PATH=/opt/duo/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/duo
# It listens on nothing. Healthy: process 1 is the drafter, and is neither stopped nor a zombie.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import sys; me = open('/proc/1/cmdline', 'rb').read(); state = open('/proc/1/stat').read().rpartition(')')[2].split()[0]; sys.exit(b'duo-drafter' not in me or state in 'TtZX')"]
ENTRYPOINT ["duo-drafter"]
