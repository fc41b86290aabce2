# What a developer runs. `make test` is what CI runs; the logic is in scripts/, so that each step can be run alone too.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
FUZZTIME ?= 3s
BENCH ?= .
COUNT ?= 5
DURATION ?= 2s
ROUNDS ?= 3
PLAN ?= vllm-cpu-small
NOTE ?=

.PHONY: help build test check race fuzz readme openai-client qualify-vllm qualify-sglang eval-vllm generate fmt bench bench-gateway tools clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the static binary bin/perigee
	@scripts/build.sh

test: ## everything that CI runs: about 13 minutes cold on 2 cores, 8 warm
	@FUZZTIME=$(FUZZTIME) scripts/test.sh all

check: ## the quick part of it, for between edits: no race detector, no fuzzing, no Python
	@scripts/test.sh quick

race: ## the tests alone, with the race detector
	@scripts/race.sh

fuzz: ## each fuzz test in turn; make fuzz FUZZTIME=1h for a long run
	@FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

readme: build ## run the commands that the README and the page of perigee cache show
	@scripts/readme.sh README.md
	@scripts/readme.sh docs/cache-daemon.md

openai-client: build ## the real openai Python client and curl against perigee serve
	@scripts/openai-client.sh

qualify-vllm: build ## perigee serve before two real vLLM engines on the CPU, then perigee cache beside one: 3 GB of disk, 6 GB of memory
	@scripts/vllm/qualify.sh

qualify-sglang: build ## perigee cache beside a real SGLang engine on the CPU, and the gateway before both: 3 GB of disk, 4 GB of memory
	@scripts/sglang/qualify.sh

eval-vllm: build ## a real vLLM engine with the Cache Manager and without, paired and judged, into bench/results; PLAN=vllm-cpu-small NOTE='what else runs here'
	@scripts/vllm/eval.sh $(PLAN) '$(NOTE)'

generate: ## write the generated files anew
	@go generate ./...

fmt: ## format the Go code
	@gofmt -l -w $$(scripts/gofiles.sh)

bench: ## Go benchmarks with allocations, into .cache/bench.txt; BENCH=regexp COUNT=n; compare two files with .cache/bin/benchstat
	@mkdir -p .cache
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./... | tee .cache/bench.txt

bench-gateway: build ## perigee serve beside httputil.ReverseProxy and no proxy, on loopback; DURATION=2s ROUNDS=3
	@go build -o .cache/bin/bench-gateway ./bench/gateway
	@.cache/bin/bench-gateway -perigee bin/perigee -d $(DURATION) -rounds $(ROUNDS) $(BENCHFLAGS)

tools: ## build staticcheck and benchstat into .cache/bin, at the versions of tools/go.mod
	@scripts/tools.sh

clean: ## remove what was built; the Go caches stay
	rm -rf bin .cache
