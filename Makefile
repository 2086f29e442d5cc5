# Two commands do everything: `make demo` and `make test`. They need Python 3.11+ with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processors have work for three processes, as many tests wait for something. Each process collects all tests for
# itself (12 s). A process that has nothing left takes over half of what another one still has.
TEST_PROCESSES ?= 3
# make suite TESTS="tests/store tests/cli": a part of it
TESTS ?=
# make suite ORDER=7: the modules in another order, and the tests in each; 7 gives the same order again
ORDER ?=
# The markers are explained in pyproject.toml.
TRAIN_MARKS ?= train and not exhaustive
LARGE ?= large
ELSEWHERE := not interop and not browser and not large
MARKS ?= not exhaustive and not ci
GOLDEN ?=
# of make faults-proof
ROLLOUTS ?= 20000
STARTED := $(shell date +%s)
# The tests start some hundreds of Python processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Not `.`: the README saves an app in the clone, which is its author's.
LINTED := taskapp_kit environments templates tests docs examples bench modal_app.py
# $(call stage,1,lint): a heading with the stage, and the time so far
stage = @seconds=$$(( $$(date +%s) - $(STARTED) )); printf '\n[%s of 2] %s (%d min %02d s so far)\n' '$(1)' '$(2)' $$((seconds / 60)) $$((seconds % 60))
EXTRAS := crafter,gymnasium,jobs,mcp,modal,otel,parquet,postgres,textarena,dev
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

.PHONY: demo test test-fast test-all test-train trained faithfulness learn learned kills killed faults-proof doctor-foreign suite check lint types hooks drawn interop interop-full interop-fully browser large golden fuzz sentinels bench docs site wheel clean help

help:
	@echo "make demo     play and score episodes over HTTP; leaves a GIF and a page in out/demo"
	@echo "make test     lint and the test suite, in minutes; CI (.ci/run) runs the tests marked ci, too"
	@echo "make test-fast  the tests that need neither a server nor another process, in seconds"
	@echo "make test-all lint, types, and all tests that need no further tool: also those marked ci or exhaustive, and make drawn"
	@echo "make test-train  the tests that need torch, in an environment of their own (.venv-train); TRAIN_MARKS=train: with every repetition"
	@echo "make kills       training jobs whose processes are killed thirty times"
	@echo "make faults-proof  20 000 rollouts under ten kinds of faults: none wrong, none lost; writes docs/evaluate/failures.md (ROLLOUTS=1000 prints only)"
	@echo "make faithfulness  500 rollouts: rows have the sampled tokens, whatever clients do (after make test-train)"
	@echo "make check    lint and types"
	@echo "make hooks    make check before each commit of this clone"
	@echo "make suite    the test suite alone; TESTS=tests/store: a part of it, MARKS=ci: its tests that CI runs, ORDER=7: in another order"
	@echo "make drawn    requests drawn from the OpenAPI documents"
	@echo "make interop  the tests against real foreign clients (builds their environments once); prints their matrix, and writes docs/connect/clients.md"
	@echo "make interop-full  services, the scripts of examples/forge and training jobs on Ray; a real vLLM samples for training jobs (after make test-train)"
	@echo "make browser  the viewer in a real Chromium, at two widths, light and dark; the web environment"
	@echo "make large    stores of 100 000 rollouts: lists, filters, exports, in time and memory"
	@echo "make doctor-foreign  the doctor on environments of other libraries and on foreign graders: each finding was judged by hand"
	@echo "make golden   200 rollouts of every environment, compared with committed hashes of what they were"
	@echo "make fuzz     10 000 requests drawn from the OpenAPI document"
	@echo "make sentinels  the suite again, everything it leaves searched for keys"
	@echo "make bench    measure, and write docs/operate/performance.md"
	@echo "make site     build the documentation in out/site, in an environment of its own (.venv-site)"
	@echo "make wheel    build the wheel in dist/"

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "taskapp-kit needs Python 3.11 or newer; run: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "making a virtual environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/core: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing taskapp-kit …"
	@$(PIP) -e .
	@touch $@

$(VENV)/crafter: $(VENV)/core
	@echo "installing the Crafter extra, and pytest for your own environments …"
	@$(PIP) -e '.[crafter,test]'
	@touch $@

# Nothing is compiled before it is imported: most modules never are.
$(VENV)/dev: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing taskapp-kit and what its tests need …"
	@$(PIP) --no-compile -e '.[$(EXTRAS),math]' || { \
	  echo "the math extra could not be installed (one of its packages needs a C compiler): its tests are skipped" >&2; \
	  $(PIP) --no-compile -e '.[$(EXTRAS)]'; }
	@touch $@ $(VENV)/core $(VENV)/crafter

demo: $(VENV)/core
	@$(BIN)/taskapp rollout examples/adder.py --seed 3 --policy gold --store none
	@$(MAKE) --no-print-directory $(VENV)/crafter
	@$(BIN)/python examples/demo.py
	@printf '\nnext: source %s/activate\n      taskapp rollout examples/capitals.py --seed 0 --policy constant --action Paris\n' $(BIN)

test: $(VENV)/dev
	$(call stage,1,lint)
	@$(MAKE) --no-print-directory lint
	$(call stage,2,the test suite in $(TEST_PROCESSES) processes)
	@$(MAKE) --no-print-directory suite

# Seconds instead of minutes: what needs neither a server nor another process.
test-fast:
	@$(MAKE) --no-print-directory suite MARKS="$(MARKS) and not server and not process"

test-all:
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory suite MARKS="ci or not ci"
	@$(MAKE) --no-print-directory drawn

# torch is large, and nothing else needs it: the other targets skip these tests. The CPU
# build of torch, which PyTorch's own index has, is a tenth of the size: put it into .venv-train first where space is short.
test-train:
	@$(MAKE) --no-print-directory trained VENV=.venv-train

$(VENV)/ray: $(VENV)/train
	@$(PIP) --no-compile -e '.[ray]'
	@touch $@

$(VENV)/train: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing taskapp-kit, torch and what the tests of train/ need …"
	@$(PIP) --no-compile -e '.[jobs,postgres,train,dev]'
	@$(PIP) --no-compile trl || echo "trl could not be installed: the comparison with its loss is skipped" >&2
	@touch $@

trained: $(VENV)/train
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -p no:schemathesis -m "$(TRAIN_MARKS)" -n 2 --dist loadfile tests/train tests/cli tests/guides

# 500 rollouts with clients that strip, rewrite and repeat; FAITHFULNESS_MODEL=FOLDER plays with another model
faithfulness:
	HF_HUB_OFFLINE=1 .venv-train/bin/pytest -p no:schemathesis -s -m exhaustive tests/train/driver/test_faithfulness.py

# SmolLM2 on words that it was never trained on, seeds 0 to 2, and the controls; about 20 CPU-minutes on a quiet machine
learn:
	@$(MAKE) --no-print-directory learned VENV=.venv-train

learned: $(VENV)/train
	OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=1000000000 $(BIN)/pytest -p no:schemathesis -s tests/train/test_words_are_learned.py tests/train/test_agents.py

# ten kills each of backend, trainer and task app; about ten minutes
kills:
	@$(MAKE) --no-print-directory killed VENV=.venv-train

killed: $(VENV)/train
	HF_HUB_OFFLINE=1 $(BIN)/pytest -p no:schemathesis -s tests/train/engine/test_killed.py

# about ten minutes; the second file plays the same faults against other frameworks, each in an environment that is built once
faults-proof: $(VENV)/dev
	TASKAPP_FAULT_ROLLOUTS=$(ROLLOUTS) $(BIN)/pytest -p no:schemathesis -s --timeout 3600 tests/stress/test_fault_proof.py tests/interop/test_fault_peers.py

suite: $(VENV)/dev
	$(BIN)/pytest -p no:schemathesis -m "$(ELSEWHERE) and ($(MARKS))" -n $(TEST_PROCESSES) --dist worksteal $(ORDER:%=--order-seed %) --ignore tests/fuzz $(TESTS)

check: lint types

lint: $(VENV)/dev
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)

types: $(VENV)/dev
	$(BIN)/mypy

# Before each commit, `make check`; once in a clone.
hooks:
	git config core.hooksPath .githooks

# In one process: these tests share names, which several processes could not tell apart. They alone need schemathesis,
# whose import takes over half a second.
drawn: $(VENV)/dev
	$(BIN)/pytest tests/fuzz

# prints the matrix of clients, and writes docs/connect/clients.md where all of it is as it should be
interop: $(VENV)/dev
	TASKAPP_WRITE_INTEROP_PAGE=1 $(BIN)/pytest -p no:schemathesis -m interop

# Services on Ray. vLLM as the sampler of real jobs: an environment of 3 GB, built once, and about five minutes. TASKAPP_VLLM names another one
interop-full:
	@$(MAKE) --no-print-directory interop-fully VENV=.venv-train

interop-fully: $(VENV)/train $(VENV)/ray
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -p no:schemathesis -m interop -k ray --timeout 300 tests/services tests/guides/test_workflow_guide.py
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -p no:schemathesis -s tests/train/policy_services/test_job_on_services.py
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -p no:schemathesis -s tests/train/engine/test_real_vllm.py

# the doctor on environments that were not written for it; the table is in docs/environments/doctor.md
doctor-foreign: $(VENV)/dev
	$(BIN)/pytest -p no:schemathesis -m "$(LARGE)" tests/doctor

$(VENV)/web: $(VENV)/dev
	@$(PIP) -e '.[web,miniwob]' && touch $@ || echo "the web extra could not be installed: its tests are skipped" >&2

# Uses the system's Chromium; without it, the tests are skipped with the reason.
browser: $(VENV)/web
	$(BIN)/pytest -p no:schemathesis -m "browser and not exhaustive" -n 2 --dist loadfile tests/browser tests/environments/web tests/services/test_web_browsing.py tests/interop/shared/test_same_episode.py tests/cli/author/test_prompts.py -rs

large: $(VENV)/dev
	$(BIN)/pytest -p no:schemathesis -m large tests/store

# make golden GOLDEN="--only 'adder.*' --write DIR": a part of it, and the whole texts; --help has the rest
golden: $(VENV)/dev
	$(BIN)/python tests/golden $(GOLDEN)

fuzz: $(VENV)/dev
	FUZZ_CASES=10000 $(BIN)/pytest tests/fuzz -s --timeout 1800

sentinels: $(VENV)/dev
	$(BIN)/pytest -m "$(ELSEWHERE)" --sentinels="$$(mktemp -d)"

bench: $(VENV)/dev
	$(BIN)/python -m bench

docs: $(VENV)/dev
	$(BIN)/python docs/tools/cli_page.py > docs/reference/cli.md
	$(BIN)/python docs/tools/support_page.py > docs/reference/support.md
	$(BIN)/python docs/tools/settings_page.py > docs/reference/settings.md
	$(BIN)/python docs/tools/config_pages.py docs/reference/rl-config.md docs/train/fine-tuning.md

# the documentation as a site, with search and the API reference: python3 -m http.server -d out/site shows it
site:
	@test -d .venv-site || $(PYTHON) -m venv .venv-site
	@.venv-site/bin/python -m pip --disable-pip-version-check --quiet install -r docs/site/requirements.txt
	.venv-site/bin/python docs/tools/site.py

wheel: $(VENV)/dev
	$(BIN)/python -m build --wheel --outdir dist

clean:
	rm -rf $(VENV) .venv-site build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
