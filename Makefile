# Every verb is one step of CI and sets up .venv by itself.
.DEFAULT_GOAL := help

# The first Python that is new enough; `make PYTHON=... test` takes another.
PYTHON ?= $(firstword $(foreach python, python3 python3.14 python3.13 python3.12 python3.11, \
	$(shell $(python) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(python))))
BIN := .venv/bin
READY := .venv/.ready
PIP := -m pip --disable-pip-version-check install -qq
LEARNING_PEERS := tianshou@1.2.0 sb3-contrib@2.9.2
PEERS := $(LEARNING_PEERS) tianshou@2.0.1 ray[rllib]@2.60.0
REPLAY_PEERS := $(LEARNING_PEERS) cpprb@11.0.0

GPU_DAY := $(if $(LIMIT_S),--limit-s $(LIMIT_S)) $(if $(PIECE),--piece $(PIECE)) $(if $(OUT),--out $(OUT)) \
	$(if $(WORK),--work $(WORK)) $(if $(DEVICE),--device $(DEVICE)) $(if $(REHEARSE),--rehearse)

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

$(READY): pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error trainkit needs Python 3.11 or newer, found none: make PYTHON=/path/to/python))
	@echo "installing into .venv (some minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train Rainbow on CartPole until it is solved
	@$(BIN)/python examples/rainbow_cartpole.py

test: $(READY)  ## run the fast tests on all cores
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto  # the second run compiles nothing again

coverage: $(READY)  ## run the fast tests and list the lines that none executes (two to three times as long)
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --cov

test-slow: $(READY)  ## run the slow tests: learning, soak, long random programs
	@$(BIN)/python $(PIP) -c constraints.txt -e '.[docs,mujoco,notebooks,tune]'
	@$(BIN)/pytest -m 'slow and not gpu' --timeout=3600

test-torch: .torch/$(VERSION)/.ready  ## run the tests of engines and policies with another torch: make test-torch VERSION=2.10.0
	@.torch/$(VERSION)/bin/python -m pytest -q tests/engine tests/policy tests/extensions/numpy_engine tests/extensions/compile tests/extensions/cuda

test-gpu: $(READY)  ## run the tests that need a CUDA device
	@$(BIN)/pytest -m gpu --timeout=600

test-accelerator: $(READY)  ## run everything that learns on a pretend accelerator, which needs a C++ compiler (5 minutes)
	@CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m 'accelerator or not slow and not gpu' --timeout=600 tests/accelerator tests/testing

gpu-day:  ## measure and test all on a GPU, 8 minutes a call, offline: LIMIT_S=480 PIECE=updates REHEARSE=1 OUT=FOLDER
	@PYTHONPATH=src:$$PYTHONPATH $(if $(filter command,$(firstword $(origin PYTHON))),$(PYTHON),$(firstword $(wildcard $(BIN)/python) $(PYTHON))) -m benchmarks.gpu $(GPU_DAY)

PY ?= 3.12
WHEELS = --dest wheels --only-binary=:all: --python-version $(PY) --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64
gpu-wheels: $(READY)  ## download into wheels/ what a machine with a GPU, torch and no network needs for gpu-day: PY=3.12
	@$(BIN)/python -m pip download -q -c constraints.txt $(WHEELS) gymnasium ale-py tqdm tensorboard threadpoolctl 'pytest>=9' pytest-timeout pytest-xdist hypothesis
	@$(BIN)/python -m pip download -q --no-deps $(WHEELS) stable-baselines3 pandas
	@ls -sh wheels
	@echo 'there: python3 -m pip install --no-index --no-deps wheels/*.whl && make gpu-day PYTHON=python3'

quick: $(if $(wildcard $(READY)),,$(READY))  ## what each commit needs: format, lint, types, the nearest tests (4 minutes); SINCE=COMMIT PURE=1
	@$(BIN)/python -m tests.quick $(if $(SINCE),--since $(SINCE)) $(if $(PURE),--pure $(RUNS))

check: $(READY)  ## all that must be green before a push: format, lint, types, fast tests with coverage
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory lint type type-user coverage

format: $(READY)  ## format the code and mend what the linter can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

lint: $(READY)  ## lint
	@$(BIN)/ruff check .

type: $(READY)  ## check the types
	@$(BIN)/mypy

type-user: $(READY)  ## check the types of examples and of README's and docs' code, by basedpyright and mypy (1 minute)
	@$(BIN)/python -m tests.user_types

digests: $(READY)  ## print a sha256 of small runs of every algorithm and way to train, or list what differs: AGAINST=COMMIT, or RESUME=1 (1 to 3 minutes)
	@$(BIN)/python -m tests.digests $(if $(AGAINST),--against $(AGAINST)) $(if $(RESUME),--resume) $(RUNS)

bench: $(READY)  ## print our rates against a calibration loop (3 minutes)
	@$(BIN)/python -m benchmarks.speed.quick

bench-peers: $(READY) $(PEERS:%=.peers/%/.ready)  ## measure a plain loop, peers and us on the same work, in turn (40 minutes)
	@for python in $(BIN)/python .peers/sb3-contrib@2.9.2/bin/python; do \
		$$python $(PIP) -c constraints.txt 'gymnasium[mujoco]' || exit; done
	@$(BIN)/python -m benchmarks.speed.peers

bench-replay: $(READY) $(REPLAY_PEERS:%=.peers/%/.ready) .peers/torchrl@0.14.1/.built  ## measure replay beside peers
	@$(BIN)/python -m benchmarks.replay.replay

bench-footprint: $(READY) .peers/tianshou@1.2.0/.ready  ## measure imports, the start, memory, a step without work
	@$(BIN)/python -m benchmarks.speed.footprint

bench-same: $(READY) $(LEARNING_PEERS:%=.peers/%/.ready)  ## learn beside peers at the same settings (4 hours)
	@for python in $(BIN)/python $(LEARNING_PEERS:%=.peers/%/bin/python); do \
		$$python $(PIP) -c constraints.txt 'box2d>=2.3.10' pygame-ce && $$python $(PIP) --no-deps minatar || exit; done
	@$(BIN)/python -m benchmarks.learning.same_settings --page same_settings

faults-peers: $(READY) $(LEARNING_PEERS:%=.peers/%/.ready)  ## put the same faults before peers and us (20 minutes)
	@$(BIN)/python -m benchmarks.faults.settings
	@$(BIN)/python -m benchmarks.faults.workers

bench-race: $(READY) .peers/sb3-contrib@2.9.2/.ready  ## learn CartPole beside Stable-Baselines3 until solved (30 minutes)
	@$(BIN)/python -m benchmarks.learning.same_settings --page time_to_475

bench-mujoco: $(READY) .peers/sb3-contrib@2.9.2/.ready  ## learn MuJoCo tasks beside Stable-Baselines3 (7 hours)
	@for python in $(BIN)/python .peers/sb3-contrib@2.9.2/bin/python; do \
		$$python $(PIP) -c constraints.txt 'gymnasium[mujoco]' || exit; done
	@$(BIN)/python -m benchmarks.learning.same_settings --page mujoco

bench-spread: $(READY) .peers/benchmarl@1.5.2/.ready  ## learn simple_spread by MAPPO and IPPO beside BenchMARL (1 hour)
	@for python in $(BIN)/python .peers/benchmarl@1.5.2/bin/python; do $$python $(PIP) 'mpe2==1.1.1' || exit; done
	@$(BIN)/python -m benchmarks.learning.same_settings --page spread

bench-engine: $(READY)  ## measure the numpy engine alongside torch (15 minutes)
	@$(BIN)/python -m benchmarks.speed.engine

learning-guard: $(READY)  ## train six presets briefly, and fail where one learns worse than recorded (1 hour)
	@$(BIN)/python $(PIP) --no-deps minatar
	@$(BIN)/python -m benchmarks.learning.guard

runs-next: $(READY)  ## make the runs that benchmarks/results/RUNS.md plans, one after the other, until stopped
	@$(BIN)/python $(PIP) -c constraints.txt 'gymnasium[mujoco]' 'box2d>=2.3.10' pygame-ce && $(BIN)/python $(PIP) --no-deps minatar
	@$(BIN)/python -m benchmarks.runs_next

bench-offline: $(READY)  ## learn from data that play badly, without an environment (15 minutes)
	@$(BIN)/python -m benchmarks.learning.offline --page

results-check: $(READY)  ## rerun sampled rows of the published learning results at their seeds (10 minutes)
	@$(BIN)/python $(PIP) -c constraints.txt 'box2d>=2.3.10' pygame-ce && $(BIN)/python $(PIP) --no-deps minatar
	@$(BIN)/python -m benchmarks.results_check

.torch/%/.ready: pyproject.toml constraints.txt
	@echo "installing torch $* into .torch/$* (gigabytes)"
	@$(PYTHON) -m venv .torch/$*
	@grep -v '^\(torch\|triton\|nvidia-.*\|setuptools\)==' constraints.txt > .torch/$*/constraints.txt
	@.torch/$*/bin/python $(PIP) 'torch==$*'
	@.torch/$*/bin/python $(PIP) -c .torch/$*/constraints.txt -e '.[dev]'
	@touch $@

.peers/%/.ready: constraints.txt
	@echo "installing $* into .peers/$*"
	@$(PYTHON) -m venv .peers/$*
	@.peers/$*/bin/python $(PIP) "$$(grep '^torch==' constraints.txt)" '$(subst @,==,$*)'
	@touch $@

.peers/torchrl@%/.built: .peers/torchrl@%/.ready
	@echo "building torchrl $* for our torch (2 minutes)"
	@.peers/torchrl@$*/bin/python -m benchmarks.replay.torchrl_build
	@touch $@

docs: $(READY)  ## build the docs as a site into site/, offline, every link checked
	@$(BIN)/python $(PIP) -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "open site/index.html"

docs-code: $(READY)  ## run all code of README and docs, follow their links
	@$(BIN)/pytest -m 'slow or not slow' --timeout=600 tests/test_readme.py tests/test_docs.py

build: $(READY)  ## build the wheel and the sdist into dist/
	@rm -rf build dist
	@$(BIN)/python -m build --quiet --no-isolation

clean:  ## remove what the verbs made, but the environments and runs
	@rm -rf build dist site src/*.egg-info .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests examples benchmarks docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: help demo test coverage test-slow test-torch test-gpu test-accelerator gpu-day gpu-wheels quick check format lint type type-user digests bench bench-peers bench-replay bench-footprint \
	bench-same bench-race faults-peers bench-mujoco bench-spread bench-engine bench-offline learning-guard runs-next results-check docs docs-code build clean
