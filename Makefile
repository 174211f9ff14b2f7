# Bifröst. `make demo` runs the main job, `make test` passes the tests; each sets
# up what it needs. `make help` lists everything.
GO      ?= go
P4C     ?= p4c-bm2-ss
THRIFT  ?= thrift
PREFIX  ?= /usr/local
BIN     ?= bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# How long "fuzz" tries each target, "explore-fresh" new programs, or with FRESHCASES how many cases, and "validate" all programs together (of CPU).
FUZZTIME ?= 1m
FRESHTIME ?= 1h
VALIDATETIME ?= 1h
FRESHCASES ?=
# The modules of go.work.
ALL     := ./... ./bench/... ./checks/... ./internal/crash/... ./p4switch/...

# All builds alike, those that tests make too: what one stage has compiled no other
# compiles again. The directories are those that a sparing PATH may lack.
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)
# Nothing here is written in C; without it, Go links in two thirds of the time.
export CGO_ENABLED := 0
export PATH := $(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin
# Property tests draw the same values each time; "fuzz" has them draw others.
export RAPID_SEED ?= 1
# For binaries of tests, which nobody debugs and the linter's vet has seen.
TESTFLAGS := -count=1 -timeout 40m -vet=off '-ldflags=-s -w'

.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

# bench needs Linux.
build: ## build bin/bifrost and the examples
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o bin/ ./cmd/bifrost $(if $(filter linux,$(shell $(GO) env GOOS)),./bench/cmd/...) ./examples/...

switch: ## build the switch alone: bin/bifrost-switch-amd64 and -arm64, static
	for a in amd64 arm64; do GOOS=linux GOARCH=$$a $(GO) build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/bifrost-switch-$$a ./p4switch/cmd/bifrost-switch || exit; done

install: ## install what is in bin to PREFIX/bin (/usr/local), where sudo finds it
	install -m755 -t $(DESTDIR)$(PREFIX)/bin $(wildcard $(BIN)/*)

demo: build ## a whole rack in one process: calls by reference, protection, proof
	bin/bifrost demo

test: ## everything CI runs, and how long each stage took
	@MAKE="$(MAKE)" scripts/test.sh

setup: ## install what the tests use (as root), or say what is skipped
	scripts/setup.sh

check: ## lint and test only what has changed since BASE (origin/main): before each commit
	@LINT="$(LINT)" scripts/check.sh

# Its heap is large, and most of it lives until the end: to collect less often saves a fifth of its CPU.
# The same saves tests of whole racks an eighth.
lint: ## the linters, go vet among them
	GOGC=$${GOGC:-400} GOMEMLIMIT=$${GOMEMLIMIT:-4GiB} $(GO) run '-ldflags=-s -w' $(LINT) run --allow-parallel-runners $(ALL)

unit: build ## tests but those of "explore", those that need root included when root
	GOGC=$${GOGC:-400} GOMEMLIMIT=$${GOMEMLIMIT:-2GiB} $(GO) test $(TESTFLAGS) ./docs ./p4/proof ./cmd/bifrost ./... ./bench/... ./checks/... ./p4switch/...

# On one CPU, since a case's goroutines take turns: two cost a fifth more, and the other one
# is for "unit", which waits much. It needs a quarter of an hour of CPU: 70 minutes are for a machine that others use, too.
explore: ## the crash explorer: 10,000 random programs and crashes, the same each time
	$(GO) test $(TESTFLAGS) -timeout 70m -cpu 1 -parallel 1 ./internal/crash

explore-fresh: ## the crash explorer with programs that nobody has run, for FRESHTIME (1h) or with FRESHCASES cases; by hand or nightly
	$(GO) test $(TESTFLAGS) -timeout 0 -v -run TestCrashEverywhere ./internal/crash -crash.from=$$(date +%s) $(if $(FRESHCASES),-crash.total=$(FRESHCASES),-crash.for=$(FRESHTIME))

# Where goroutines meet. The cores start none (the linter holds them to it), and what
# stands on these packages runs without the detector, in "unit".
# The longest come first: go test begins packages in this order, two at a time.
# The detector needs cgo; what tests build themselves is built as everywhere.
RACE := ./internal/simrack ./gatekeeper ./rpc ./rpc/gen/... ./dsm/dsmclient ./dsm/memory ./daemon ./gatekeeper/wal ./gatekeeper/admin/... ./gatekeeper/history \
	./gatekeeper/p4rtclient ./gatekeeper/spans ./p4switch/interp ./p4switch/ebpf ./p4switch/gnmi ./p4switch/p4rt ./p4switch/softswitch/... ./internal/control ./internal/join/... \
	./internal/netio/... ./p4switch/shared/outstream ./internal/wire ./internal/devrack

race: ## tests under the race detector
	GOGC=$${GOGC:-400} GOMEMLIMIT=$${GOMEMLIMIT:-2GiB} CGO_ENABLED=1 $(GO) test -race -short $(TESTFLAGS) -exec 'env CGO_ENABLED=0' $(RACE)

# What is last in line for the CPU runs beside "rack", which mostly waits.
darwin: ## build for macOS what runs there: bifrost with dev, new and the commands, the client library, the examples
	for arch in amd64 arm64; do GOOS=darwin GOARCH=$$arch nice -n 19 $(GO) build '-ldflags=-s -w' ./cmd/bifrost ./rpc ./dsm ./bifrosttest ./examples/... || exit; done

proof: ## what the P4 program promises, proved for all packets and tables; "unit" runs it too
	$(GO) test $(TESTFLAGS) -v ./p4/proof | sed -n 's/^ *proof_test.go:[0-9]*: //; /^=== RUN/d; p'
	/usr/bin/python3 p4/proof/prove.py --rights all

validate: ## the eBPF of each program in the tests, compared with its model by Z3 for VALIDATETIME of CPU (1h); by hand. "unit" does the small ones
	$(GO) test -count=1 -timeout 0 -run 'TestValidated$$' -v ./p4switch/ebpf -validate-all -validate-budget $(VALIDATETIME) -validate $(CURDIR)/p4/bifrost.json

tidy: ## go mod tidy for all modules, against this checkout
	scripts/tidy.sh

fuzz: ## look for inputs that fail: every fuzz target for FUZZTIME (1m), properties with new values; by hand or nightly
	scripts/fuzz.sh $(FUZZTIME)

mutants: ## put each known fault of the protocols into the code: the tests must find it
	$(GO) run ./internal/mutants $(MUTANTS)

some-mutants: ## twenty of the mutants, in turn with the commits, last in line for the CPU
	nice -n 19 $(GO) run ./internal/mutants --pick 20

rack: build ## the namespace rack and Mininet, as root
	scripts/rack-test.sh

systemd: build ## a rack of machines under systemd, with the units of packaging, as root
	scripts/systemd-test.sh

eval: build ## measure everything beside its peers, as root, in about 7 minutes; writes docs/evaluation.md and docs/eval
	bin/bifrost bench --out docs/eval --document docs/evaluation.md

gen: ## regenerate Thrift code with a thrift compiler on PATH
	mkdir -p out/gen-py
	cd rpc/idl && $(THRIFT) --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote -out . bifrost.thrift
	$(THRIFT) --gen py -out out/gen-py rpc/idl/bifrost.thrift && cp out/gen-py/bifrost/ttypes.py clients/python/bifrost/
	cd examples/arrays && $(THRIFT) --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote -out gen-go arrays.thrift
	gofmt -w rpc/idl examples/arrays/gen-go
	$(GO) generate ./examples/counter ./examples/feed ./examples/kv ./examples/pipeline ./examples/wordcount ./rpc/gen/internal/lab ./rpc/internal/crosstest

p4: ## recompile the P4 program with a p4c on PATH
	$(P4C) --arch v1model --std p4-16 -o p4/bifrost.json --p4runtime-files p4/bifrost.p4info.txt p4/bifrost.p4
	python3 p4/strip.py p4/bifrost.json
	{ sha256sum p4/bifrost.p4 p4/rights.p4 p4/rights_headers.p4 p4/bifrost.json p4/bifrost.p4info.txt; $(P4C) --version 2>&1 | sed -n "s,^Version \([^ ]*\).*,p4c \1,p"; } > p4/bifrost.stamp

clean: ## remove what was built
	rm -rf bin out

.PHONY: help build switch install demo test setup check lint unit explore explore-fresh race darwin proof validate tidy fuzz mutants some-mutants rack systemd eval gen p4 clean
