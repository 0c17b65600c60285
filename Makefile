SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# Passed on to go test: make test TESTFLAGS=-count=1
TESTFLAGS ?=

# All modules of go.work. "work" is go's own word for their packages.
MODULES = $(shell $(GO) list -m -f '{{.Dir}}')
CACHE := $(CURDIR)/.cache
TESTSUM := $(CACHE)/bin/testsum

# The tools are built once per version of Go and of tools.mod: building golangci-lint takes minutes.
TOOLS := $(CACHE)/bin/tools-$(shell { $(GO) version; cat tools.mod; } | cksum | cut -d ' ' -f 1)

# The slow suites: many seeds, real processes, real clusters. Their quick versions run in make test.
EVENKEEL_SEEDS ?= 200
EVENKEEL_KILLS ?= 50
EVENKEEL_INSTANCES ?= 40
EVENKEEL_CUT ?= 1m
EVENKEEL_CLUSTERS ?= 100

# The nats-servers that are tested beside that of go.mod: the last ones that are refused, and the least that is not.
OLD_NATS := v2.10.29 v2.11.17 v2.12.1

# How often make race runs every test, and how many of the seeds make integration runs under the race detector: a race shows on
# some schedules only. There a seed takes eight times as long.
RACE_COUNT ?= 1
RACE_SEEDS ?= 40

# The two packages that take longest, first: the others run beside them, instead of before, and no processor waits at the end.
ALL := ./internal/e2e ./controllers/workload work

# On one processor: the race detector crashes when two goroutines of a bubble of virtual time run timers that are due at
# once (Go 1.26.8). It compares the order of accesses, so it finds races all the same.
RACE_CPU := -cpu=1

BENCH ?= .
BENCH_COUNT ?= 6
FUZZTIME ?= 30s

# Passed on to the tool: make mutants MUTANTS_FLAGS='-only ^lock/ -by ./internal/e2e'. -h lists them.
MUTANTS_FLAGS ?=

# Passed on to evenkeel-kube up: make kube-up KUBE_FLAGS='--nodes 5 --kubeconfig FILE --dir FOLDER'
KUBE_FLAGS ?=

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: testsum ## Run the tests of all modules (go test work, with a summary)
	@$(GO) test -json -timeout=20m $(TESTFLAGS) $(ALL) | $(TESTSUM)

# make race leaves these packages, and the seeds, to make integration, which runs them under the race detector, too: they kill
# processes and start clusters, which takes long.
RACE_LATER = crash|kubetest|workload

.PHONY: race
race: testsum ## Run them under the race detector, RACE_COUNT times, but for those of make integration
	@$(GO) test -json -race $(RACE_CPU) -count=$(RACE_COUNT) -timeout=30m -skip '^TestSeeds$$' $(TESTFLAGS) $$($(GO) list $(ALL) | grep -vE '/($(RACE_LATER))$$') | $(TESTSUM)

# What runs in virtual time keeps one processor busy, so two such suites run at once.
.PHONY: integration
integration: testsum kube old-nats ## Run the slow suites: many seeds, each message disturbed, processes that are killed, clusters (builds kube first)
	@$(MAKE) --jobs=2 disturb seeds race-seeds
	@EVENKEEL_KILLS=$(EVENKEEL_KILLS) EVENKEEL_INSTANCES=$(EVENKEEL_INSTANCES) \
		EVENKEEL_CUT=$(EVENKEEL_CUT) EVENKEEL_CLUSTERS=$(EVENKEEL_CLUSTERS) \
		$(GO) test -json -race -count=1 -p=1 -timeout=30m $(TESTFLAGS) $$($(GO) list work | grep -E '/($(RACE_LATER))$$') | $(TESTSUM)

.PHONY: seeds
seeds: testsum old-nats
	@EVENKEEL_SEEDS=$(EVENKEEL_SEEDS) EVENKEEL_NATS_SERVERS=$(CACHE)/nats \
		$(GO) test -json -count=1 -timeout=30m $(TESTFLAGS) -run 'Seeds|ServersOfOtherVersions' ./internal/e2e/... | $(TESTSUM)

.PHONY: race-seeds
race-seeds: testsum
	@EVENKEEL_SEEDS=$(RACE_SEEDS) $(GO) test -json -race $(RACE_CPU) -count=1 -timeout=30m $(TESTFLAGS) -run 'Seeds' ./internal/e2e/explore | $(TESTSUM)

.PHONY: disturb
disturb: testsum
	@EVENKEEL_DISTURB=all $(GO) test -json -count=1 -timeout=30m $(TESTFLAGS) -run 'WhateverHappensToAMessage|WhereverTheReplicaDies' ./internal/e2e/explore ./controllers/workload | $(TESTSUM)

# Not a file target either: kubebin looks whether there is a program of these very sources in .cache/kube.
.PHONY: kube
kube: ## Build a real Kubernetes for tests, once (about ten minutes), and print where it is
	@$(GO) run -buildvcs=false ./controllers/internal/kubebin/cmd

.PHONY: old-nats
old-nats: ## Build the older nats-servers that tests start, once
	@for v in $(OLD_NATS); do \
		test -x $(CACHE)/nats/$$v/nats-server || GOBIN=$(CACHE)/nats/$$v $(GO) install github.com/nats-io/nats-server/v2@$$v; \
	done

.PHONY: kube-up
kube-up: ## Start a Kubernetes cluster to play with (builds kube first); Ctrl-C stops it
	@program=$$($(GO) run -buildvcs=false ./controllers/internal/kubebin/cmd) && exec "$$program" up $(KUBE_FLAGS)

.PHONY: bench
bench: tools ## Run the benchmarks, BENCH=regexp; compare two runs with benchstat
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count=$(BENCH_COUNT) -timeout=60m $(TESTFLAGS) work | tee $(CACHE)/bench.txt
	@$(TOOLS)/benchstat $(CACHE)/bench.txt

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME
	@{ grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . || true; } | while IFS=: read -r file func; do \
		$(GO) test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x "$$(dirname "$$file")"; \
	done

.PHONY: cover
cover: ## Show which functions of the root module its tests reach
	@mkdir -p $(CACHE)
	@$(GO) test -coverpkg=./... -coverprofile=$(CACHE)/cover.out ./... >/dev/null
	@$(GO) tool cover -func=$(CACHE)/cover.out

# Built and then run, not go run, so that Ctrl-C ends it alone and in good order.
.PHONY: mutants
mutants: ## Break the code in every way, one at a time, and show what no test beside it notices (an hour or two, or MUTANTS_FLAGS='-only ^lock/')
	@$(GO) build -buildvcs=false -o $(CACHE)/bin/mutants ./internal/tools/mutants
	@exec $(CACHE)/bin/mutants $(MUTANTS_FLAGS)

.PHONY: fmt
fmt: tools ## Format, and bring old idioms up to date
	@$(GO) fix work
	@$(TOOLS)/gofumpt -l -w .

.PHONY: lint
lint: tools ## Check the form: gofumpt, vet, go fix, golangci-lint, deadcode
	@.ci/lint $(TOOLS) $(MODULES)

.PHONY: api
api: tools ## Compare the exported API with the last release
	@.ci/api $(TOOLS)

.PHONY: ci
ci: ## Run everything, as CI does
	@.ci/run

.PHONY: tools
tools: $(TOOLS)/.built ## Build the pinned tools of tools.mod into .cache/bin

$(TOOLS)/.built:
	@echo "building the tools of tools.mod (minutes on a cold cache)"
	@mkdir -p $(TOOLS)
	@GOWORK=off $(GO) build -buildvcs=false -modfile=tools.mod -o $(TOOLS)/ tool
	@touch $@

# Not a file target: go build knows better than make whether anything changed.
.PHONY: testsum
testsum:
	@$(GO) build -buildvcs=false -o $(TESTSUM) ./internal/tools/testsum
