#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "sampler/rng.h"

/* Computed apart with integers of any size. */
static void known_streams(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        uint32_t high[4];
        uint64_t end;
    } want[] = {
        {0, {1u, 99832574u, 1806711590u, 3679581957u}, 0xdb51f705147bb181u},
        {1, {3u, 2808590400u, 2876103033u, 1177349226u}, 0x462cec6a8cc7d682u},
        {42, {69u, 2198511578u, 3771479198u, 1665022378u}, 0x633e39aad0f9c3abu},
        {UINT64_MAX, {0u, 1686042043u, 737320148u, 1886847391u}, 0x7077019f9c2f8c80u},
        {1ull << 63, {2147483649u, 2247316222u, 3954195238u, 1532098309u}, 0x5b51f705147bb181u},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct dg_rng a, b, c;
        dg_rng_init(&a, want[i].seed);
        dg_rng_init(&b, want[i].seed);
        dg_rng_init(&c, want[i].seed);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(dg_rng_next(&a), want[i].high[k]);
            assert_int_equal(dg_rng_id(&b, 262144), want[i].high[k] % 262144);
            assert_true(dg_rng_uniform(&c) == want[i].high[k] * 0x1p-32);
        }
        assert_true(a.state == want[i].end && b.state == want[i].end && c.state == want[i].end);
    }
}

static void ranges(void **state) {
    (void)state;
    struct dg_rng r;
    dg_rng_init(&r, 7);
    for (int i = 0; i < 100000; i++) {
        double u = dg_rng_uniform(&r);
        assert_true(u >= 0 && u < 1);
        int32_t id = dg_rng_id(&r, 3);
        assert_true(id >= 0 && id < 3);
        assert_int_equal(dg_rng_id(&r, 1), 0);
    }
    /* ids above 2^31 would turn negative in 32 bits */
    for (int i = 0; i < 100000; i++)
        assert_true(dg_rng_id(&r, INT32_MAX) >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_streams), cmocka_unit_test(ranges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
