# The commands of the README. Each installs what is missing, builds, and runs.
PRESET ?= release
BUILD := build/$(PRESET)
JOBS := $(shell nproc)

.PHONY: all demo test fast bench site bootstrap build clean

all: build

bootstrap:
	@tools/bootstrap --check || tools/bootstrap
	@tools/python_env

build: bootstrap
	@cmake --preset $(PRESET) >build-$(PRESET).log 2>&1 || { cat build-$(PRESET).log; exit 1; }
	@rm -f build-$(PRESET).log
	@cmake --build $(BUILD)

demo: build
	@$(BUILD)/apps/koine/koine demo

test: build
	@rm -rf $(BUILD)/results
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)
	@tools/check_rows --results $(BUILD)/results

fast: build
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -L fast

bench: build
	@$(BUILD)/bench/koine_bench $(BENCH_ARGS)

site: build
	@KOINE_BUILD=$(BUILD) tools/site

clean:
	rm -rf build
