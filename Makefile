# SPDX-License-Identifier: Apache-2.0
# The few words a person types; the building itself is CMake's (CMakeLists.txt, CMakePresets.json).
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build/release
COMMAND := $(BUILD)/linfuse

.PHONY: all demo test test-torch test-exhaustive test-gpu sanitize-gpu pack-gpu tested bench bench-cuda bench-models \
	bench-loss bench-torch install wheel clean help

all: $(BUILD)/build.ninja
	@tools/build $(BUILD) $(JOBS)

help:
	@echo "make           build the library and the linfuse command into $(BUILD)"
	@echo "make demo      four models, explained, checked and timed on this CPU: three minutes"
	@echo "make test      every test of this machine's build"
	@echo "make test-exhaustive  the vector math at all 2^32 floats (five hours of one core)," \
		"into bench/results/math-accuracy.txt"
	@echo "make test-gpu  the tests that need a GPU (BUILT=DIR: those that make pack-gpu put there," \
		"on a machine that cannot build them)"
	@echo "make sanitize-gpu  compute-sanitizer alone, which is one of them (likewise)"
	@echo "make pack-gpu  builds what test-gpu and bench-cuda run, for another machine, into build/gpu"
	@echo "make test-torch TORCH=2.4.1  the Python tests with another PyTorch (and PYTHON=python3.10)," \
		"several GB from PyPI"
	@echo "make bench     beside PyTorch and ONNX Runtime on this CPU (BENCH=--quick: in three minutes)"
	@echo "make bench-torch  torch.compile's linfuse backend beside eager and inductor on this CPU (BENCH=--quick)"
	@echo "make bench-models  whole models through torch.compile, beside eager and inductor (BENCH=--small: two cores)"
	@echo "make bench-loss  the loss head beside eager and inductor (BENCH=\"--device cuda\": Liger and CCE, too)"
	@echo "make bench-cuda  beside PyTorch on a GPU (BENCH=\"--only lse\", BUILT=DIR likewise)"
	@echo "make install   into PREFIX ($(PREFIX)), below DESTDIR where that is set"
	@echo "make wheel     for x86-64 and 64-bit Arm, glibc 2.17 or newer, into build/wheels"
	@echo "make clean     remove build/ (the Python environment .venv/ stays)"

# The first configuration leaves the tests out, so that the demo needs a compiler, CMake and jansson and no more.
$(BUILD)/build.ninja:
	@tools/setup build
	@tools/quietly cmake --preset release -DLINFUSE_TESTS=OFF

demo: $(BUILD)/build.ninja
	@tools/build $(BUILD) $(JOBS) linfuse_command
	@tools/demo $(COMMAND) .

test: .venv/ready
	@tools/setup test
	@tools/quietly cmake --preset release -DLINFUSE_TESTS=ON
	@tools/build $(BUILD) $(JOBS)
	ctest --preset release

.venv/ready: requirements-test.txt
	@tools/setup test
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet -r requirements-test.txt
	@touch $@

# The Python tests with another PyTorch, in an environment of its own. On x86-64 PyPI has older ones with CUDA only.
TORCH ?= 2.4.1
PYTHON ?= python3
test-torch: all
	$(PYTHON) -m venv build/torch-$(TORCH)
	build/torch-$(TORCH)/bin/python -m pip install --quiet torch==$(TORCH) build numpy pytest pytest-xdist safetensors \
		scikit-build-core
	build/torch-$(TORCH)/bin/python -m pytest -q -n 2 --dist loadfile -p no:cacheprovider tests/python/test_torch_*.py \
		tests/python/test_load.py tests/python/test_save.py tests/python/test_examples.py tests/package

test-exhaustive:
	@tools/setup test
	@tools/quietly cmake --preset release -DLINFUSE_TESTS=ON
	@tools/build $(BUILD) $(JOBS) math_exhaustive_tool
	@mkdir -p bench/results
	@{ date -u +%F; lscpu | grep 'Model name'; git describe --always --dirty; } | tee $(BUILD)/math-accuracy.txt
	@$(BUILD)/tests/math_exhaustive_tool > $(BUILD)/math-worst.txt; good=$$?; \
	cat $(BUILD)/math-worst.txt; \
	cat $(BUILD)/math-accuracy.txt $(BUILD)/math-worst.txt > bench/results/math-accuracy.txt; exit $$good

# BUILT: a folder from make pack-gpu, where the machine with the GPU has no cmocka and jansson to build with.
test-gpu: $(if $(BUILT),,tested .venv/ready)
	$(if $(BUILT),,@$(BUILD)/linfuse explain models/mlp.lf --device cuda >/dev/null)
	$(if $(BUILT),tools/test-gpu $(BUILT),ctest --test-dir $(BUILD) -L '^gpu$$' --output-on-failure --no-tests=error)

sanitize-gpu: $(if $(BUILT),,tested)
	$(if $(BUILT),,@$(BUILD)/linfuse explain models/mlp.lf --device cuda >/dev/null)
	$(if $(BUILT),tools/test-gpu $(BUILT) sanitize_gpu)
	$(if $(BUILT),,ctest --test-dir $(BUILD) -R '^sanitize_gpu$$' --verbose --no-tests=error)

pack-gpu: tested
	@tools/pack-gpu $(BUILD) build/gpu

tested:
	@tools/setup test
	@tools/quietly cmake --preset release -DLINFUSE_TESTS=ON
	@tools/build $(BUILD) $(JOBS)

# BENCH: options of bench/cpu.py, such as BENCH=--quick.
bench: $(BUILD)/build.ninja .venv-bench/ready
	@tools/build $(BUILD) $(JOBS) liblinfuse.so liblinfuse.a
	@.venv-bench/bin/python bench/cpu.py $(BENCH)

# BENCH: options of bench/cuda.py. PyTorch is the machine's own: one with CUDA is no small thing to install.
bench-cuda: $(if $(BUILT),,$(BUILD)/build.ninja)
	@$(if $(BUILT),,tools/build $(BUILD) $(JOBS) liblinfuse.so)
	@$(if $(BUILT),LD_LIBRARY_PATH=$(BUILT):$$LD_LIBRARY_PATH) $(PYTHON) bench/cuda.py --library \
		$(or $(BUILT),$(BUILD))/liblinfuse.so $(BENCH)

# BENCH: options of bench/door.py.
bench-torch: $(BUILD)/build.ninja .venv-bench/ready
	@tools/build $(BUILD) $(JOBS) liblinfuse.so liblinfuse.a liblinfuse_shortcut.so
	@.venv-bench/bin/python bench/door.py $(BENCH)

# BENCH: options of bench/models.py, such as BENCH=--small.
bench-models: $(BUILD)/build.ninja .venv-bench/ready
	@tools/build $(BUILD) $(JOBS) liblinfuse.so liblinfuse_shortcut.so
	@.venv-bench/bin/python bench/models.py $(BENCH)

bench-loss: $(BUILD)/build.ninja .venv-bench/ready
	@tools/build $(BUILD) $(JOBS) liblinfuse.so liblinfuse_shortcut.so
	@.venv-bench/bin/python bench/loss.py $(BENCH)

.venv-bench/ready: requirements-bench.txt
	@tools/setup test
	python3 -m venv .venv-bench
	@echo '*' >.venv-bench/.gitignore
	.venv-bench/bin/python -m pip install --quiet -r requirements-bench.txt
	@touch $@

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

wheel:
	@tools/wheel

clean:
	rm -rf build
