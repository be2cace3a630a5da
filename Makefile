# The front door. On Debian 12 each target first installs what it needs (needs root or sudo for that).
#   make demo      build, generate a video dense and sparse, compare: out/demo/
#   make compare   every method on captured attention calls and on a few videos: out/compare/; at most 10 minutes
#   make compare-full   the same on 20 prompts and more densities: out/compare-full/; some hours. COMPARE_FLAGS=--resume goes on
#   make compare-speedup   densities around 1.5x attention on 20 prompts: out/compare-speedup/; about 10 minutes on 16 cores, hours on 2
#   make cache-report   step-cache settings on 4 prompts, with guidance and without: out/cache/; at most 10 minutes
#   make cache-report-full   the same on 20 prompts: out/cache-full/; most of an hour. COMPARE_FLAGS=--resume goes on
#   make test      build and run every test
#   make build     the program at build/winnow
#   make bench     speed of the attention kernels, as ratios
#   make sanitize  the tests under ASan + UBSan, then TSan
#   make sanitize-quick  ASan + UBSan on the parts that read files, plan and keep state: what CI runs
#   make fuzz      each fuzz target for FUZZ_SECONDS (60)
#   make check     formatting, include rules, portable build: what CI checks beside the tests
#   make check-cuda   compiles the CUDA code if nvcc is there; fails if a kernel spills (tools/ptxas_gate.sh)
SHELL := /bin/bash
.DEFAULT_GOAL := build
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60

PACKAGES := g++ cmake ninja-build libdnnl-dev ocl-icd-opencl-dev libpng-dev nlohmann-json3-dev libcli11-dev libdlpack-dev \
  libgtest-dev libgmock-dev libbenchmark-dev ffmpeg python3
PLOT_PACKAGES := gnuplot-nox fonts-dejavu-core
CHECK_PACKAGES := clang-format-14 g++-aarch64-linux-gnu
CLANG_PACKAGES := clang-14 libclang-rt-14-dev

# $(call need,packages): installs those that dpkg does not have.
define need
	@if command -v dpkg-query >/dev/null; then \
	  missing=(); \
	  for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'install ok installed' || missing+=($$p); done; \
	  if [ $${#missing[@]} -gt 0 ]; then \
	    echo "installing: $${missing[*]}"; \
	    run=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	    $$run apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq --no-install-recommends $${missing[*]} >/dev/null \
	      || { echo "could not install $${missing[*]}; install them by hand and run make again" >&2; exit 1; }; \
	  fi; \
	else echo "not a Debian machine: this needs the equivalents of $(1)"; fi
endef

.PHONY: build demo compare compare-full compare-speedup cache-report cache-report-full test bench sanitize sanitize-quick fuzz format check check-format check-layers check-portable check-tables check-cuda clang deps clean
deps:
	$(call need,$(PACKAGES))

build/build.ninja: CMakeLists.txt CMakePresets.json $(wildcard cmake/*) | deps
	cmake --preset release

build: deps build/build.ninja
	cmake --build --preset release -j $(JOBS) --target winnow_cli

demo: build
	tools/demo.sh build/winnow out/demo

CAPTURE_FLAGS := --model models/winnow-tiny --layers 0,2,5 --steps 3,20 --branch cond --seed 77 \
  --prompt "a large red ball moving right over a checkered navy background"

compare: build
	$(call need,$(PLOT_PACKAGES))
	rm -rf out/compare/captures
	build/winnow capture $(CAPTURE_FLAGS) --output out/compare/captures
	build/winnow compare --captures out/compare/captures --settings bench/compare.json --model models/winnow-tiny \
	  --prompts bench/prompts.txt --num-prompts 2 --steps 12 --calls 10 --output out/compare $(COMPARE_FLAGS)

compare-full: build
	$(call need,$(PLOT_PACKAGES))
	rm -rf out/compare-full/captures
	build/winnow capture $(CAPTURE_FLAGS) --output out/compare-full/captures
	build/winnow compare --captures out/compare-full/captures --settings bench/compare.json --model models/winnow-tiny \
	  --densities 0.6,0.5,0.25,0.1 --video-densities 0.6,0.5,0.25 --prompts bench/prompts.txt --steps 20 --floor-prompts 3 \
	  --output out/compare-full $(COMPARE_FLAGS)

compare-speedup: build
	$(call need,$(PLOT_PACKAGES))
	rm -rf out/compare-speedup/captures
	build/winnow capture $(CAPTURE_FLAGS) --output out/compare-speedup/captures
	build/winnow compare --captures out/compare-speedup/captures --settings bench/speedup.json --model models/winnow-tiny \
	  --prompts bench/prompts.txt --steps 20 --calls 0 --floor-prompts 0 --output out/compare-speedup $(COMPARE_FLAGS)

cache-report: build
	$(call need,$(PLOT_PACKAGES))
	build/winnow compare-cache --model models/winnow-tiny --prompts bench/prompts.txt --num-prompts 4 --settings bench/cache.json \
	  --output out/cache $(COMPARE_FLAGS)

cache-report-full: build
	$(call need,$(PLOT_PACKAGES))
	build/winnow compare-cache --model models/winnow-tiny --prompts bench/prompts.txt --settings bench/cache.json \
	  --output out/cache-full $(COMPARE_FLAGS)

test: deps build/build.ninja
	$(call need,$(PLOT_PACKAGES))
	cmake --build --preset release -j $(JOBS)
	ctest --preset release

bench: deps build/build.ninja
	cmake --build --preset release -j $(JOBS)
	for b in build/*_bench; do $$b || exit 1; done

sanitize: deps
	cmake --preset asan && cmake --build --preset asan -j $(JOBS) && ctest --preset asan
	cmake --preset tsan && cmake --build --preset tsan -j $(JOBS) && ctest --preset tsan

# The parts that read files, plan and keep state; the kernels and whole programs take too long for every change.
QUICK_TESTS := core plan prep select steps calib run media metrics
sanitize-quick: deps
	cmake --preset asan && cmake --build --preset asan -j $(JOBS) --target $(QUICK_TESTS:%=%_tests) && \
	  ctest --preset asan -E NOT_BUILT -j $(JOBS)

clang: deps
	$(call need,$(CLANG_PACKAGES))
	cmake --preset clang && cmake --build --preset clang -j $(JOBS)

fuzz: deps
	$(call need,$(CLANG_PACKAGES))
	cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)
	for f in build-fuzz/*_fuzz; do n=$$(basename $$f _fuzz); mkdir -p build-fuzz/corpus/$$n; \
	  $$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=10 build-fuzz/corpus/$$n fuzz/corpus/$$n || exit 1; done

SOURCES = $(shell git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
format:
	$(call need,clang-format-14)
	@clang-format-14 -i $(SOURCES)

check: check-format check-layers check-portable check-tables

check-format:
	$(call need,clang-format-14)
	@clang-format-14 --dry-run -Werror $(SOURCES)

check-layers:
	python3 tools/check_layers.py

# The tables of the pages are those of the committed results.
check-tables:
	python3 tools/performance_table.py --check
	python3 tools/splice_tables.py --check bench/results/compare.md docs/comparison.md README.md
	python3 tools/splice_tables.py --check bench/results/cache.md docs/step-cache.md

# The portable path, compiled for a machine without x86 intrinsics.
check-portable: deps
	$(call need,g++-aarch64-linux-gnu)
	tools/check_portable.sh

# Needs nvcc, but no GPU.
check-cuda: deps
	@if command -v nvcc >/dev/null; then cmake --preset cuda && cmake --build --preset cuda -j $(JOBS) --target winnow_cli cuda_tests exec_tests && \
	  ctest --preset cuda -R 'Gpu'; \
	else echo "check-cuda: no nvcc on this machine: the CUDA code was not compiled"; fi

clean:
	rm -rf build build-dev build-clang build-asan build-tsan build-fuzz build-cuda build-gpu out
