# diffgemma: build, test and bench. `make help` lists the targets.
#
# Every src/**/*.c but src/cli/main.c goes into libdiffgemma.a; every tests/{unit,oracle,fuzz,ops}/NAME.c becomes $(B)/tests/NAME.
# A file whose name ends in an instruction set (foo_avx2.c) is compiled with that set's flags and no other file is.
# Variants live in their own folder: make SAN=address,undefined B=build/asan
B ?= build
CC ?= cc
SAN ?=
OPT ?= -O2
VERSION := $(shell cat VERSION)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

WARN := -Wall -Wextra -Wshadow -Wundef -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Werror=implicit-function-declaration
CFLAGS_ALL := -std=c17 -D_GNU_SOURCE -g $(OPT) -ffp-contract=off -fno-math-errno -fvisibility=hidden -pthread $(WARN) -Isrc $(CFLAGS)
LDLIBS := -ledit -ljansson -lxxhash -lcurl -lcrypto -lm -ldl -pthread
ifneq ($(SAN),)
CFLAGS_ALL += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=$(SAN)
# Watching the scope of locals keeps the sums of a kernel in memory, which makes a step 2.2 times as slow; every access stays checked.
SAN_ops := -fno-sanitize-address-use-after-scope
endif

# Flags of the instruction sets, by the last word of a file's name; what is another architecture's is left out of the build.
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ISA_x86_64 := avx2 avx512 avx512bf16 amx
ISA_aarch64 := neon neonbf16
ISA_FLAGS_avx2 := -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 := $(ISA_FLAGS_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq
ISA_FLAGS_avx512bf16 := $(ISA_FLAGS_avx512) -mavx512bf16 -mavx512vnni -mavx512vbmi
ISA_FLAGS_amx := $(ISA_FLAGS_avx512bf16) -mamx-tile -mamx-bf16
ISA_FLAGS_neon :=
ISA_FLAGS_neonbf16 := -march=armv8.2-a+bf16
ISA_ALL := $(ISA_x86_64) $(ISA_aarch64)
ISA_FOREIGN := $(filter-out $(ISA_$(ARCH)),$(ISA_ALL))

# The reference ops write their sums as independent lanes; -O3 turns the lanes into vectors without changing a bit.
OPT_ref := -O3
# So are the formats: decoding and encoding rows is the cost of quantising.
OPT_formats := -O3
OPT_cpu := -O3

SRC := $(wildcard src/*/*.c src/*/*/*.c)
LIB_SRC := $(filter-out src/cli/main.c $(foreach i,$(ISA_FOREIGN),%_$(i).c),$(SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
TEST_SRC := $(wildcard tests/unit/*.c tests/oracle/*.c tests/ops/*.c tests/fuzz/*.c)
TEST_BIN := $(foreach t,$(TEST_SRC),$(B)/tests/$(basename $(notdir $(t))))
SUPPORT_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/support/*.c))
BENCH_SRC := $(wildcard bench/*.c)
BENCH_BIN := $(foreach t,$(BENCH_SRC),$(B)/bench/$(basename $(notdir $(t))))

# CUDA kernels. `make cuda` compiles them with nvcc, one fatbin a file, and from then on this build folder's binary carries them; without it the
# binary carries their sources alone. A file named *_sm90a.cu is compiled for that target only.
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null) nvcc)
CUDA_ARCHS ?= 80 86 89 90a 100 120
CUDA_PTX ?= 80 90
CUDA_SRC := $(sort $(wildcard src/ops/cuda/kernels/*.cu))
CUDA_HDR := src/ops/cuda/kernels.h src/ops/sample.h $(sort $(wildcard src/ops/cuda/kernels/*.cuh))
CUDA_ON := $(wildcard $(B)/cuda/on)
CUDA_FATBIN := $(CUDA_SRC:src/ops/cuda/kernels/%.cu=$(B)/cuda/%.fatbin)
CUDA_GEN := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) $(foreach a,$(CUDA_PTX),-gencode arch=compute_$(a),code=compute_$(a))
CUDA_GEN_90A := -gencode arch=compute_90a,code=sm_90a
LIB_OBJ += $(B)/cuda/images.o

.PHONY: all gpu-check tests test test-long soak test-sanitize emulated test-emulated bench bench-pack clean help cuda cuda-kernels FORCE
all: $(B)/diffgemma

help:
	@echo "make              build/diffgemma"
	@echo "make test         build and run the whole suite"
	@echo "make test-long    the same at full length, tests of minutes included"
	@echo "make soak         the same and what takes longer still: 10,000 ops under the thread sanitizer, every kernel by the run-time compiler"
	@echo "make test-sanitize  the same under the address and undefined-behaviour sanitizers"
	@echo "make test-emulated  the CPU backend's op tests on other processors, under qemu-user"
	@echo "make bench        measure; CSV on stdout with the command beside each row"
	@echo "make bench-pack   build/bench-pack.tar.gz: all of the CPU's figures on another machine, with one command"
	@echo "make cuda         the same with CUDA kernels (nvcc); CUDA_ARCHS=\"90a\" CUDA_PTX= chooses targets"
	@echo "make gpu-check    kernels for this machine's GPU, and every check that needs one"
	@echo "make clean        remove build/"

$(B)/libdiffgemma.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(B)/diffgemma: $(B)/src/cli/main.o $(B)/libdiffgemma.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/src/ops/ref/%.o: OPT_FILE := $(OPT_ref) $(SAN_ops)
$(B)/src/ops/cpu/%.o: OPT_FILE := $(OPT_cpu) $(SAN_ops)
$(foreach i,$(ISA_ALL),$(eval $(B)/src/ops/cpu/%_$(i).o: CFLAGS_FILE := $(ISA_FLAGS_$(i))))
$(B)/src/formats/%.o: OPT_FILE := $(OPT_formats)
$(B)/src/cli/version.o: CFLAGS_FILE := -DDG_VERSION='"$(VERSION)"' -DDG_COMMIT='"$(COMMIT)"'

# made anew when version or commit is another than at the last build
$(B)/version.txt: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION) $(COMMIT)' | cmp -s - $@ || echo '$(VERSION) $(COMMIT)' >$@
$(B)/src/cli/version.o: $(B)/version.txt

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT_FILE) $(CFLAGS_FILE) -MMD -MP -c -o $@ $<

cuda: cuda-kernels
	@test -e $(B)/cuda/on || touch $(B)/cuda/on
	$(MAKE) all
cuda-kernels: $(CUDA_FATBIN)

# rewritten when the choice of targets changes
$(B)/cuda/targets: FORCE
	@mkdir -p $(@D)
	@echo '$(CUDA_GEN)' | cmp -s - $@ || echo '$(CUDA_GEN)' >$@
FORCE:

$(B)/cuda/%.fatbin: src/ops/cuda/kernels/%.cu $(CUDA_HDR) $(B)/cuda/targets
	$(NVCC) -std=c++17 -O3 --fatbin $(if $(filter %_sm90a,$*),$(CUDA_GEN_90A),$(CUDA_GEN)) -Xptxas -v -Isrc -o $@.tmp $< 2>$(B)/cuda/$*.ptxas.txt \
		|| { cat $(B)/cuda/$*.ptxas.txt >&2; rm -f $@.tmp; exit 1; }
	@mv $@.tmp $@

$(B)/cuda/images.c: src/ops/cuda/images.sh $(CUDA_SRC) $(CUDA_HDR) $(CUDA_ON) $(if $(CUDA_ON),$(CUDA_FATBIN))
	@mkdir -p $(@D)
	sh src/ops/cuda/images.sh $(CUDA_SRC) $(CUDA_HDR) -- $(if $(CUDA_ON),$(CUDA_FATBIN)) >$@.tmp && mv $@.tmp $@

$(B)/cuda/images.o: $(B)/cuda/images.c
	$(CC) $(CFLAGS_ALL) -c -o $@ $<

define TEST_RULE
$(B)/tests/$(basename $(notdir $(1))): $(B)/$(1:.c=.o) $(SUPPORT_OBJ) $(B)/libdiffgemma.a
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS) -lcmocka
endef
$(foreach t,$(TEST_SRC),$(eval $(call TEST_RULE,$(t))))

# the yardstick of the products is built in where its library is
YARD := $(if $(wildcard /usr/include/dnnl.h),onednn,no_yard)
$(B)/bench/cpu: LDLIBS += $(if $(filter onednn,$(YARD)),-ldnnl -l:libgomp.so.1)
$(B)/bench/%.o: CFLAGS_FILE := -Ibench
$(B)/bench/cpu: $(B)/bench/support/$(YARD).o

define BENCH_RULE
$(B)/bench/$(basename $(notdir $(1))): $(B)/$(1:.c=.o) $(B)/libdiffgemma.a
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -o $$@ $$^ $$(LDLIBS)
endef
$(foreach t,$(BENCH_SRC),$(eval $(call BENCH_RULE,$(t))))

# The stub CUDA driver: kernels compiled as C behind the driver's interface. Tests find it through LD_LIBRARY_PATH.
STUB_SRC := tests/cuda/stub.c tests/cuda/emulate.c
STUB_CFLAGS := -std=gnu17 -O2 -g -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -Isrc -Itests
$(B)/tests/stub/k_%.o: src/ops/cuda/kernels/%.cu $(CUDA_HDR) tests/cuda/emulate.h
	@mkdir -p $(@D)
	$(CC) $(STUB_CFLAGS) -Wno-unknown-pragmas -x c -include tests/cuda/emulate.h -c -o $@ $<
$(B)/tests/stub/libcuda.so.1: $(STUB_SRC) tests/cuda/emulate.h $(patsubst src/ops/cuda/kernels/%.cu,$(B)/tests/stub/k_%.o,$(filter-out %_sm90a.cu,$(CUDA_SRC)))
	$(CC) $(STUB_CFLAGS) -Wall -Wextra -shared -o $@ $(STUB_SRC) $(filter %.o,$^) -lm
$(B)/tests/stub/nvrtc/libnvrtc.so.13: tests/cuda/stub_nvrtc.c
	@mkdir -p $(@D)
	$(CC) $(STUB_CFLAGS) -Wall -Wextra -shared -o $@ $<
$(B)/tests/stub/nvml/libnvidia-ml.so.1: tests/cuda/stub_nvml.c
	@mkdir -p $(@D)
	$(CC) $(STUB_CFLAGS) -Wall -Wextra -shared -o $@ $<
$(B)/tests/cuda_nvrtc: $(B)/tests/cuda/nvrtc.o $(B)/libdiffgemma.a | $(B)/tests/stub/nvrtc/libnvrtc.so.13
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
# Tests on the stub carry a placeholder for the compiled kernels, so that they need no nvcc.
$(B)/tests/cuda_ops_emulated: $(B)/tests/ops/cuda_ops.o
$(B)/tests/cuda_host_emulated: $(B)/tests/cuda/host.o
$(B)/tests/cuda_turns_emulated: $(B)/tests/cuda/turns.o
# without sanitizers, which do not follow the emulator's stacks
$(B)/tests/cuda_top_rows: tests/cuda/top_rows.c tests/cuda/emulate.c $(B)/tests/stub/k_topk.o
	$(CC) $(STUB_CFLAGS) -Wall -Wextra -o $@ $^ -lm
$(B)/tests/diffgemma_emulated: $(B)/src/cli/main.o | $(B)/tests/stub/nvml/libnvidia-ml.so.1
EMULATED := $(B)/tests/cuda_ops_emulated $(B)/tests/cuda_host_emulated $(B)/tests/cuda_turns_emulated $(B)/tests/diffgemma_emulated
$(EMULATED): $(B)/tests/cuda/placeholder.o $(SUPPORT_OBJ) $(B)/libdiffgemma.a | $(B)/tests/stub/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(B)/libdiffgemma.a $(LDLIBS)

# The op tests alone, in one static program that an emulator of another processor runs:
# make CC=aarch64-linux-gnu-gcc B=build/arm64 build/arm64/tests/cpu_ops_static
KCHECK_SRC := $(addprefix src/core/,mem.c pool.c status.c) src/formats/formats.c src/ops/backend.c $(filter src/ops/cpu/%,$(LIB_SRC)) \
	$(wildcard tests/support/op_*.c) tests/ops/cpu_ops.c
$(B)/tests/cpu_ops_static: $(KCHECK_SRC:%.c=$(B)/%.o)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(if $(SAN),,-static) -o $@ $^ -lm -pthread

# The kernels of AVX-512 on intrinsics that any CPU with AVX2 runs.
ifeq ($(ARCH),x86_64)
EMULATED_CPU := $(patsubst src/ops/cpu/%.c,$(B)/tests/emulated/%.o,$(wildcard src/ops/cpu/*_avx512.c src/ops/cpu/*_avx512bf16.c src/ops/cpu/*_amx.c))
$(B)/tests/emulated/%.o: src/ops/cpu/%.c tests/cpu/emulate_avx512.h tests/cpu/emulate_amx.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA_FLAGS_avx2) -Wno-psabi -Wno-undef -Itests '-DDG_SIMD_HEADER="cpu/emulate_amx.h"' -MMD -MP -c -o $@ $<
$(B)/tests/cpu_ops_emulated: $(B)/tests/ops/cpu_ops.o $(B)/tests/cpu/emulated.o $(EMULATED_CPU) $(SUPPORT_OBJ) $(B)/libdiffgemma.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(B)/tests/cpu_tiles_emulated: $(B)/tests/unit/cpu_tiles_test.o $(B)/tests/cpu/emulated.o $(EMULATED_CPU) $(SUPPORT_OBJ) $(B)/libdiffgemma.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
TEST_CPU := $(B)/tests/cpu_ops_emulated $(B)/tests/cpu_tiles_emulated
endif

$(B)/tests/%.o: CFLAGS_FILE := -Itests

tests: $(B)/diffgemma $(TEST_BIN) $(EMULATED) $(TEST_CPU) $(B)/tests/cuda_nvrtc $(B)/tests/cuda_top_rows

test: tests
	tests/run.sh $(B)

test-long: tests
	DG_LONG=1 tests/run.sh $(B)
soak: tests
	DG_LONG=1 DG_SOAK=1 tests/run.sh $(B)

test-sanitize:
	$(MAKE) tests B=build/asan SAN=address,undefined
	tests/run.sh build/asan

# The CPU backend's op tests on processors that are not here, under qemu-user.
emulated: $(B)/tests/cpu_ops_static
	$(MAKE) CC=aarch64-linux-gnu-gcc B=$(B)/arm64 $(B)/arm64/tests/cpu_ops_static
test-emulated: emulated
	tests/run.sh $(B) cpu_qemu

bench: $(B)/diffgemma $(BENCH_BIN)
	bench/run.sh $(B)

# Programs, the libraries they need with their loader, the bundled model: runs wherever a kernel and a shell are.
PACK := $(B)/bench-pack
PACK_BIN := $(B)/diffgemma $(B)/bench/cpu $(B)/bench/cpu_attention $(B)/tests/cpu_ops $(B)/tests/cpu_tiles_test
bench-pack: $(PACK_BIN)
	rm -rf $(PACK) && mkdir -p $(PACK)/bin $(PACK)/lib
	strip -o $(PACK)/bin/diffgemma $(B)/diffgemma
	for p in $(filter-out $(B)/diffgemma,$(PACK_BIN)); do strip -o $(PACK)/bin/$$(basename $$p) $$p; done
	ldd $(PACK_BIN) | grep -o '/[^ :]*\.so[^ :]*' | sort -u | xargs cp -L -t $(PACK)/lib
	cp -r models/mini $(PACK)/mini
	cp bench/machine.sh $(PACK)
	tar -C $(B) -czf $(PACK).tar.gz bench-pack && rm -rf $(PACK)

# The kernels for this machine's GPU (by nvcc where it is, else at run time), then every check that needs one.
GPU_CC = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
GPU_ARCH = $(if $(and $(filter file,$(origin CUDA_ARCHS)),$(GPU_CC)),CUDA_ARCHS=$(if $(filter 90,$(GPU_CC)),90a,$(GPU_CC)) CUDA_PTX=)
gpu-check:
	$(MAKE) $(if $(shell command -v $(NVCC) 2>/dev/null),cuda $(GPU_ARCH),all)
	$(MAKE) $(addprefix $(B)/tests/,cuda_ops oracle_parity turn_oracle) $(GPU_ARCH)
	tests/gpu_check.sh $(B)

clean:
	rm -rf build

-include $(LIB_OBJ:.o=.d) $(B)/src/cli/main.d $(TEST_SRC:%.c=$(B)/%.d) $(SUPPORT_OBJ:.o=.d) $(BENCH_SRC:%.c=$(B)/%.d) $(patsubst %.c,$(B)/%.d,$(wildcard tests/cuda/*.c tests/cpu/*.c)) $(EMULATED_CPU:.o=.d)
