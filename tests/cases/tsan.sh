#!/bin/sh
# The pipeline's tests under the thread sanitizer, in a build folder of its own that holds no more than they need. The random sequences:
# 1,500 ops, 4,000 with DG_LONG=1, 10,000 with DG_SOAK=1.
case $DG_BUILD in
*asan* | *tsan* | *ubsan*)
    echo "ok - thread sanitizer # SKIP this is a sanitizer's build already"
    exit 0
    ;;
esac
probe=$(mktemp -d) || exit 1
trap 'rm -rf "$probe"' EXIT
echo 'int main(void) { return 0; }' >"$probe/a.c"
if ! "${CC:-cc}" -fsanitize=thread -o "$probe/a" "$probe/a.c" 2>/dev/null || ! "$probe/a"; then
    echo "ok - thread sanitizer # SKIP the compiler has none, or it does not run here"
    exit 0
fi
B=$DG_BUILD/tsan
cd "$DG_ROOT" || exit 1
if ! make -s -j 2 B="$B" SAN=thread OPT=-O1 "$B/tests/pipeline_test" "$B/tests/pipeline_property_test" >"$probe/make" 2>&1; then
    tail -n 20 "$probe/make" >&2
    echo "not ok - building with the thread sanitizer: $(tail -n 1 "$probe/make")"
    exit 1
fi
run() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$probe/out" 2>"$probe/err" && ! grep -q 'WARNING: ThreadSanitizer' "$probe/err" "$probe/out"; then
        echo "ok - $name under the thread sanitizer: $(grep -c '^ok' "$probe/out") tests"
    else
        tail -n 60 "$probe/err" >&2
        echo "not ok - $name under the thread sanitizer: $(grep -m 1 -h 'ThreadSanitizer\|^not ok' "$probe/err" "$probe/out")"
    fi
}
TSAN_OPTIONS=halt_on_error=1
export TSAN_OPTIONS
ops=1500
[ -n "${DG_LONG:-}" ] && ops=4000
[ -n "${DG_SOAK:-}" ] && ops=10000
run pipeline_property_test env PROPERTY_OPS=$ops "$B/tests/pipeline_property_test"
run pipeline_test env PIPELINE_THREADS_ONLY=1 "$B/tests/pipeline_test"
