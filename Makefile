# Two main commands: `make run` shows Forebay on real data, `make test` runs all tests.
# `make check` is what CI runs, with less optimization (`.ci/run`). One profile (release) builds once for all commands.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR

FOREBAY := $(CARGO_TARGET_DIR)/release/forebay
PYTHON_ENV := $(CARGO_TARGET_DIR)/python
NVRTC_ENV := $(CARGO_TARGET_DIR)/nvrtc
# Tests compile every kernel, with or without a GPU, and keep the compiled kernels in the target folder.
KERNEL_ENV := LD_LIBRARY_PATH=$(NVRTC_ENV)/libraries$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} \
    FOREBAY_REQUIRE_NVRTC=1 FOREBAY_REQUIRE_CXX=1 FOREBAY_KERNEL_CACHE=$(CARGO_TARGET_DIR)/kernels
CARGO_TEST := $(KERNEL_ENV) cargo test --release --workspace --locked
NODE_FOLDER := $(CARGO_TARGET_DIR)/node
JAVA_FOLDER := $(CARGO_TARGET_DIR)/java
CONFORMANCE_ENV := $(CARGO_TARGET_DIR)/conformance
DRIVERS := tests/drivers

.PHONY: run build test test-rust test-drivers test-full conformance smoke check fetch format lint docs tools tools-test bench-host figures clean-data help

help:
	@sed -n 's/^## //p' Makefile

## make run        build, fetch real data, import, search, print a table, serve until Ctrl-C
run: build
	$(FOREBAY) demo

build: tools
	cargo build --release --workspace --locked

## make test       all tests: Rust, benchmarks at smoke size, Node, mongosh, Go, Java, Python
test: build test-rust smoke test-drivers

test-rust: tools $(NVRTC_ENV)/installed
	$(CARGO_TEST)

## make test-full  all tests at full size: ten million documents, more kills and rounds, random SQL, all kernels of queries; hours
test-full: build $(NVRTC_ENV)/installed
	FOREBAY_TEST_FULL=1 $(CARGO_TEST)
	FOREBAY_TEST_FULL=1 $(MAKE) smoke test-drivers

smoke: build
	$(FOREBAY) demo --once --json --memory --generated 20000 > $(CARGO_TARGET_DIR)/demo.jsonl
	$(FOREBAY) bench documents --host --smoke
	$(FOREBAY) bench documents --figure all --smoke --json --plot $(CARGO_TARGET_DIR)/figures > $(CARGO_TARGET_DIR)/figures.jsonl
	$(FOREBAY) bench io --smoke --json --folder $(CARGO_TARGET_DIR)/io --plot $(CARGO_TARGET_DIR)/io > $(CARGO_TARGET_DIR)/io.jsonl
	$(FOREBAY) bench q6 --smoke --json --folder $(CARGO_TARGET_DIR)/q6 > $(CARGO_TARGET_DIR)/q6.jsonl
	$(FOREBAY) bench transfer --smoke --json --plot $(CARGO_TARGET_DIR)/transfer > $(CARGO_TARGET_DIR)/transfer.jsonl
	$(FOREBAY) bench joins --smoke --json --plot $(CARGO_TARGET_DIR)/joins > $(CARGO_TARGET_DIR)/joins.jsonl

test-drivers: build tools-test fetch
	$(FOREBAY) bench ferretdb > $(CARGO_TARGET_DIR)/ferretdb.path
	export FOREBAY=$(FOREBAY) FERRETDB=$$(cat $(CARGO_TARGET_DIR)/ferretdb.path); \
	    node --test $(NODE_FOLDER)/*.test.js; \
	    (cd $(DRIVERS)/go && go test -count=1 ./...); \
	    java -cp '$(JAVA_FOLDER)/libraries/*' $(DRIVERS)/java/Tables.java; \
	    $(PYTHON_ENV)/bin/python -m pytest -q -rs -p no:cacheprovider $(DRIVERS)/python

$(PYTHON_ENV)/installed: $(DRIVERS)/python/requirements.txt
	python3 -m venv $(PYTHON_ENV)
	$(PYTHON_ENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# Installs only the kernel compiler, from PyPI. The link makes the path of its libraries independent of Python's
# version.
$(NVRTC_ENV)/installed: tests/kernels/requirements.txt
	python3 -m venv $(NVRTC_ENV)
	$(NVRTC_ENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	ln -sfn $(NVRTC_ENV)/lib/python3*/site-packages/nvidia/cu13/lib $(NVRTC_ENV)/libraries
	touch $@

# Node finds modules beside the importing file, so the tests are copied to the folder where npm installs.
$(NODE_FOLDER)/installed: $(DRIVERS)/node/package.json $(DRIVERS)/node/package-lock.json
	mkdir -p $(NODE_FOLDER)
	cp $(DRIVERS)/node/package.json $(DRIVERS)/node/package-lock.json $(NODE_FOLDER)
	cd $(NODE_FOLDER) && npm ci --omit=optional --no-audit --no-fund --ignore-scripts --silent
	for file in $(CURDIR)/$(DRIVERS)/node/*.js; do cp $$file $(NODE_FOLDER)/; done
	touch $@
$(NODE_FOLDER)/installed: $(wildcard $(DRIVERS)/node/*.js)

JAVA_FETCH := mvn --quiet --batch-mode --file $(DRIVERS)/java/pom.xml -Dmaven.repo.local=$(JAVA_FOLDER)/repository \
    dependency:copy-dependencies -DoutputDirectory=$(JAVA_FOLDER)/libraries

# Maven fetches the driver, twice if the first time fails; java itself compiles the test.
$(JAVA_FOLDER)/installed: $(DRIVERS)/java/pom.xml | tools-test
	mkdir -p $(JAVA_FOLDER)
	rm -rf $(JAVA_FOLDER)/libraries
	$(JAVA_FETCH) || $(JAVA_FETCH)
	touch $@

## make conformance  pymongo's own tests, directly on FerretDB, through Forebay and on our store, recorded in docs/conformance/
##                 PROXIED='...' are further arguments of the Forebay that is a proxy of FerretDB
conformance: build $(CONFORMANCE_ENV)/installed
	$(FOREBAY) bench ferretdb > $(CARGO_TARGET_DIR)/ferretdb.path
	FOREBAY=$(FOREBAY) FERRETDB=$$(cat $(CARGO_TARGET_DIR)/ferretdb.path) PYTHONPATH=$(DRIVERS)/python \
	    $(CONFORMANCE_ENV)/bin/python tests/conformance/pymongo_suite.py $(CONFORMANCE_ENV)/source/pymongo-*.tar.gz --proxied="$(PROXIED)"

$(CONFORMANCE_ENV)/installed: tests/conformance/requirements.txt tests/conformance/source.txt
	python3 -m venv $(CONFORMANCE_ENV)
	$(CONFORMANCE_ENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	rm -rf $(CONFORMANCE_ENV)/source
	$(CONFORMANCE_ENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary pymongo --require-hashes \
	    --dest $(CONFORMANCE_ENV)/source --requirement tests/conformance/source.txt
	touch $@

## make check      what CI runs: format, lints, documentation, tidy, licences, all tests
# Downloads run in the background while cargo builds.
check: tools tools-test
	mkdir -p $(CARGO_TARGET_DIR)
	$(MAKE) fetch > $(CARGO_TARGET_DIR)/fetch.log 2>&1 & fetch=$$!; \
	    trap 'kill $$fetch 2> /dev/null || true' EXIT; \
	    $(MAKE) format lint docs build; \
	    wait $$fetch || { cat $(CARGO_TARGET_DIR)/fetch.log; exit 1; }; \
	    trap - EXIT
	$(MAKE) test

fetch: $(NVRTC_ENV)/installed $(PYTHON_ENV)/installed $(NODE_FOLDER)/installed $(JAVA_FOLDER)/installed
	cd $(DRIVERS)/go && { go mod download || go mod download; }

format:
	cargo fmt --all --check

lint:
	cargo clippy --release --workspace --all-targets --locked -- --deny warnings

docs:
	RUSTDOCFLAGS="--deny warnings" cargo doc --release --workspace --no-deps --locked --quiet

## make bench-host the benchmarks of the host engine, appended to bench/record/
bench-host: build
	$(FOREBAY) bench documents --host --record bench/record/$$(date -u +%F)-host.jsonl

## make figures    the paper's figures on two host devices, appended to bench/record/ and drawn in docs/benchmarks/
figures: build
	$(FOREBAY) bench documents --figure all --rows 10000000 --record bench/record/$$(date -u +%F)-host-figures.jsonl
	$(FOREBAY) bench plot bench/record/$$(date -u +%F)-host-figures.jsonl

tools:
	@tools/install.sh

tools-test:
	@tools/install.sh test
