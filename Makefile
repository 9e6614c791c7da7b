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
LDLIBS := -ljansson -lxxhash -lcurl -lcrypto -lm -ldl -pthread
ifneq ($(SAN),)
CFLAGS_ALL += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=$(SAN)
endif

# The reference ops write their sums as independent lanes; -O3 turns the lanes into vectors without changing a bit.
OPT_ref := -O3

SRC := $(wildcard src/*/*.c src/*/*/*.c)
LIB_SRC := $(filter-out src/cli/main.c,$(SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
TEST_SRC := $(wildcard tests/unit/*.c tests/oracle/*.c tests/ops/*.c tests/fuzz/*.c)
TEST_BIN := $(foreach t,$(TEST_SRC),$(B)/tests/$(basename $(notdir $(t))))
SUPPORT_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tests/support/*.c))
BENCH_SRC := $(wildcard bench/*.c)
BENCH_BIN := $(foreach t,$(BENCH_SRC),$(B)/bench/$(basename $(notdir $(t))))

.PHONY: all tests test test-sanitize bench clean help FORCE
all: $(B)/diffgemma

help:
	@echo "make              build/diffgemma"
	@echo "make test         build and run the whole suite"
	@echo "make test-sanitize  the same under the address and undefined-behaviour sanitizers"
	@echo "make bench        measure; CSV on stdout with the command beside each row"
	@echo "make clean        remove build/"

$(B)/libdiffgemma.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(B)/diffgemma: $(B)/src/cli/main.o $(B)/libdiffgemma.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/src/ops/ref/%.o: OPT_FILE := $(OPT_ref)
$(B)/src/cli/version.o: CFLAGS_FILE := -DDG_VERSION='"$(VERSION)"' -DDG_COMMIT='"$(COMMIT)"'

# made anew when version or commit is another than at the last build
$(B)/version.txt: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION) $(COMMIT)' | cmp -s - $@ || echo '$(VERSION) $(COMMIT)' >$@
$(B)/src/cli/version.o: $(B)/version.txt

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT_FILE) $(CFLAGS_FILE) -MMD -MP -c -o $@ $<

define TEST_RULE
$(B)/tests/$(basename $(notdir $(1))): $(B)/$(1:.c=.o) $(SUPPORT_OBJ) $(B)/libdiffgemma.a
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS) -lcmocka
endef
$(foreach t,$(TEST_SRC),$(eval $(call TEST_RULE,$(t))))

define BENCH_RULE
$(B)/bench/$(basename $(notdir $(1))): $(B)/$(1:.c=.o) $(B)/libdiffgemma.a
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS)
endef
$(foreach t,$(BENCH_SRC),$(eval $(call BENCH_RULE,$(t))))

$(B)/tests/%.o: CFLAGS_FILE := -Itests

tests: $(B)/diffgemma $(TEST_BIN)

test: tests
	tests/run.sh $(B)

test-sanitize:
	$(MAKE) tests B=build/asan SAN=address,undefined
	tests/run.sh build/asan

bench: $(B)/diffgemma $(BENCH_BIN)
	bench/run.sh $(B)

clean:
	rm -rf build

-include $(LIB_OBJ:.o=.d) $(B)/src/cli/main.d $(TEST_SRC:%.c=$(B)/%.d) $(SUPPORT_OBJ:.o=.d) $(BENCH_SRC:%.c=$(B)/%.d)
