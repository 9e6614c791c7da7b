/* Opens a model that may be damaged, in a process of its own, and judges how that ends: with one clear line or with an answer; never by
 * a signal, never late, never with more than ATTEMPT_MEMORY_MAX beyond the folder's files. */
#ifndef DG_TESTS_ATTEMPT_H
#define DG_TESTS_ATTEMPT_H

#include <stdint.h>

#define ATTEMPT_MEMORY_MAX ((int64_t)64 << 20) /* not measured under the address sanitizer, whose own memory is larger */
#define ATTEMPT_SECONDS_MAX 20

/* What may come of it. An answer is what one denoise step after a short prompt gives. */
enum expect {
    MUST_FAIL,
    MAY_ANSWER,   /* an error or any answer: the damage may have changed a number that is as good as the old one */
    MAY_BE_RIGHT, /* an error or the answer of the first attempt of the log */
    MUST_ANSWER,
    MUST_BE_RIGHT
};

/* Zeroed to begin with. */
struct attempts {
    uint64_t answer; /* of the first attempt: the undamaged model */
    int n_run, n_failed, n_answered;
    int64_t worst_bytes;
    double worst_s;
    char worst_name[128];
};

/* Prints one TAP line. part: what an error must say; NULL = anything. With ATTEMPT_VERBOSE set in the environment the error's text
 * follows as a comment. */
void attempt_model(struct attempts *log, const char *dir, const char *name, enum expect want, const char *part);
/* The totals and worst figures, as a TAP comment. */
void attempts_print(const struct attempts *log);

#endif
