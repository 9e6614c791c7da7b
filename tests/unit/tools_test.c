/* Tools: what --tool and harness files say, what commands get to see, and what becomes of commands that misbehave. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "chat/tools.h"
#include "core/mem.h"
#include "template/exact.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char folder[] = "/tmp/dg_tools_XXXXXX";

static int set_up(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    static const char *const names[] = {"h.json", "v.txt", "pid"};
    char path[200];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void write_file(const char *name, const char *text, size_t n) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static enum dg_status load(struct dg_toolbox *b, const char *text, struct dg_error *err) {
    char path[200];
    write_file("h.json", text, strlen(text));
    snprintf(path, sizeof path, "%s/h.json", folder);
    memset(b, 0, sizeof *b);
    return dg_toolbox_load(b, path, err);
}

/* Result of calling a tool with these arguments; dg_free. */
static char *call(const struct dg_toolbox *b, const char *name, const char *arguments) {
    struct dg_tool_call c;
    struct dg_buf out;
    struct dg_error err = {0};
    json_t *a;
    dg_buf_init(&out, DG_TOOL_OUTPUT_MAX * 4);
    dg_buf_str(&out, "");
    assert_int_equal(dg_json_load_exact(arguments, strlen(arguments), &a, &err), DG_OK);
    const struct dg_tool *t = dg_toolbox_find(b, name);
    assert_non_null(t);
    enum dg_status st = dg_tool_call_init(&c, t, a, &err);
    if (st == DG_OK) {
        st = dg_tool_call_run(&c, NULL, &out, &err);
        dg_tool_call_deinit(&c);
    }
    if (st != DG_OK)
        dg_buf_fmt(&out, "failed: %s", dg_error_text(&err));
    dg_error_clear(&err);
    json_decref(a);
    char *s = dg_buf_take(&out, NULL);
    return s;
}

static void expect(const struct dg_toolbox *b, const char *name, const char *arguments, const char *want) {
    char *got = call(b, name, arguments);
    if (strcmp(got, want))
        fail_msg("%s %s: '%.300s', not '%.300s'", name, arguments, got, want);
    dg_free(got);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void arguments_reach_commands(void **state) {
    (void)state;
    struct dg_toolbox b;
    struct dg_error err = {0};
    assert_int_equal(load(&b,
                          "{\"tools\": ["
                          "{\"name\": \"words\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
                          "\"string\"}, \"b\": {\"type\": \"number\"}}},"
                          " \"command\": [\"printf\", \"[%s]\", \"{a}\", \"--b={b}\", \"{b}\", \"{c}\", \"{{a}}\"]},"
                          "{\"name\": \"json\", \"command\": [\"cat\"], \"input\": \"json\"},"
                          "{\"name\": \"shell\", \"command\": \"read x; echo \\\"$x\\\" | tr a-z A-Z\", \"shell\": true},"
                          "{\"name\": \"here\", \"command\": [\"pwd\"]}]}",
                          &err),
                     DG_OK);
    expect(&b, "words", "{\"a\": \"x y\", \"b\": 1.5}", "[x y][--b=1.5][1.5][{c}][{x y}]");
    /* nothing an argument holds is looked at by a shell or again by us */
    expect(&b, "words", "{\"a\": \"$(id); `id` {b} '\\\"\", \"b\": 2}",
           "[$(id); `id` {b} '\"][--b=2][2][{c}][{$(id); `id` {b} '\"}]");
    /* absent: the word that is only it is left out */
    expect(&b, "words", "{}", "[--b=][{c}][{}]");
    expect(&b, "words", "{\"a\": {\"k\": [1, null]}, \"b\": 123456789012345678901234567890}",
           "[{\"k\":[1,null]}][--b=123456789012345678901234567890][123456789012345678901234567890][{c}][{{\"k\":[1,null]}}]");
    expect(&b, "words", "{\"a\": \"nul\\u0000\"}", "failed: an argument holds a NUL character");
    expect(&b, "json", "{\"s\": \"q\\\"\\\\\\u0000\", \"n\": 123456789012345678901234567890, \"e\": {}}",
           "{\"s\":\"q\\\"\\\\\\u0000\",\"n\":123456789012345678901234567890,\"e\":{}}");
    expect(&b, "shell", "{\"q\": \"$(touch /tmp/x)\"}", "{\"Q\":\"$(TOUCH /TMP/X)\"}");
    char want[300];
    assert_non_null(realpath(folder, want));
    expect(&b, "here", "{}", want);
    dg_toolbox_deinit(&b);
}

static void tools_of_the_command_line(void **state) {
    (void)state;
    struct dg_toolbox b = {0};
    struct dg_error err = {0};
    assert_int_equal(dg_toolbox_add(&b, "say:Say it.=printf '[%s]' \"a b\" c\\ d", &err), DG_OK);
    assert_int_equal(dg_toolbox_add(&b, "plain=echo", &err), DG_OK);
    expect(&b, "say", "{\"input\": \"x y\"}", "[a b][c d][x y]");
    expect(&b, "say", "{\"city\": \"Oslo\"}", "[a b][c d][Oslo]");
    expect(&b, "say", "{\"p\": 1, \"q\": 2}", "[a b][c d][{\"p\":1,\"q\":2}]");
    expect(&b, "plain", "{}", "(no output)");
    const json_t *f = json_object_get(json_array_get(b.declared, 0), "function");
    assert_string_equal(json_string_value(json_object_get(f, "description")), "Say it.");
    static const char *const bad[] = {
        "", "x", "=echo", "a b=echo", "x=", "x=  ", "say=echo", "x='open", "x=\"open", "\xff=echo", "n:\xff=echo"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (dg_toolbox_add(&b, bad[i], &err) == DG_OK)
            fail_msg("--tool '%s' was taken", bad[i]);
        dg_error_clear(&err);
    }
    assert_int_equal(b.n, 2);
    dg_toolbox_deinit(&b);
}

static void shown_as_typed(void **state) {
    (void)state;
    struct dg_toolbox b = {0};
    struct dg_error err = {0};
    struct dg_tool_call c;
    struct dg_buf out;
    dg_buf_init(&out, 1000);
    assert_int_equal(dg_toolbox_add(&b, "t=echo -n", &err), DG_OK);
    json_t *a = json_pack("{s:s}", "input", "it's $HOME");
    assert_int_equal(dg_tool_call_init(&c, &b.v[0], a, &err), DG_OK);
    assert_int_equal(dg_tool_call_show(&c, &out), DG_OK);
    assert_string_equal(dg_buf_cstr(&out), "echo -n 'it'\\''s $HOME'");
    dg_tool_call_deinit(&c);
    json_decref(a);
    dg_buf_deinit(&out);
    dg_toolbox_deinit(&b);
}

static void variables(void **state) {
    (void)state;
    struct dg_toolbox b;
    struct dg_error err = {0};
    write_file("v.txt", "{{who}} as it stands", 20);
    assert_int_equal(load(&b,
                          "{\"prompt\": \"I am {{who}}. {{file}}{ {x} }}\", \"prethink\": \"{{who}} thinks\","
                          " \"variables\": {\"who\": \"Ann\", \"file\": {\"file\": \"v.txt\"}}}",
                          &err),
                     DG_OK);
    assert_string_equal(b.prompt, "I am Ann. {{who}} as it stands{ {x} }}");
    assert_string_equal(b.prethink, "Ann thinks");
    assert_null(b.declared);
    dg_toolbox_deinit(&b);
}

static void hostile_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "h.json"},
        {"[]", "give an object"},
        {"{\"promt\": \"x\"}", "unknown key \"promt\""},
        {"{\"prompt\": 3}", "\"prompt\" must be a string"},
        {"{\"prompt\": \"a\\u0000b\"}", "without NUL"},
        {"{\"prompt\": \"{{x}}\"}", "no variable {{x}}"},
        {"{\"variables\": []}", "variables: give an object"},
        {"{\"variables\": {\"x\": 1}}", "variables"},
        {"{\"variables\": {\"x\": {\"file\": \"none.txt\"}}}", "none.txt"},
        {"{\"variables\": {\"x\": {\"file\": \"/dev/zero\"}}}", "is not a file"},
        {"{\"variables\": {\"x\": {\"file\": \"/\"}}}", "is not a file"},
        {"{\"variables\": {\"x\": {\"path\": \"v.txt\"}}}", "unknown key \"path\""},
        {"{\"tools\": {}}", "tools: give an array"},
        {"{\"tools\": [3]}", "tools[0]: give an object"},
        {"{\"tools\": [{}]}", "\"name\" is missing"},
        {"{\"tools\": [{\"name\": \"a\"}]}", "\"command\""},
        {"{\"tools\": [{\"name\": \"a\", \"command\": \"ls\"}]}", "\"shell\": true"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"shell\": true}]}", "must be one string"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"shell\": 1}]}", "true or false"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": []}]}", "\"command\""},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"\"]}]}", "not empty"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\", 1]}]}", "array of strings"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\", \"a\\u0000\"]}]}", "without NUL"},
        {"{\"tools\": [{\"name\": \"a b\", \"command\": [\"ls\"]}]}", "no name for a tool"},
        {"{\"tools\": [{\"name\": \"\", \"command\": [\"ls\"]}]}", "no name for a tool"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"]}, {\"name\": \"a\", \"command\": [\"ls\"]}]}", "two tools named a"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"timeout_s\": 0}]}", "timeout_s"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"timeout_s\": \"1\"}]}", "timeout_s"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"output_max\": 1e12}]}", "output_max"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"input\": \"stdin\"}]}", "\"input\" must be"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"parameters\": []}]}", "parameters"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"parameters\": {\"properties\": 3}}]}", "properties"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"parameters\": {\"properties\": {\"x\": 3}}}]}", "properties"},
        {"{\"tools\": [{\"name\": \"a\", \"command\": [\"ls\"], \"confirm\": false}]}", "unknown key \"confirm\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dg_toolbox b;
        struct dg_error err = {0};
        if (load(&b, bad[i].text, &err) == DG_OK)
            fail_msg("taken: %s", bad[i].text);
        if (!strstr(dg_error_text(&err), bad[i].says) || !strstr(dg_error_text(&err), "h.json"))
            fail_msg("%s: says '%s', not '%s'", bad[i].text, dg_error_text(&err), bad[i].says);
        dg_error_clear(&err);
        dg_toolbox_deinit(&b);
    }
    /* deep, long and many: refused in time and memory */
    struct dg_toolbox b;
    struct dg_error err = {0};
    char *deep = calloc(1, 900000);
    memset(deep, '[', 899999);
    assert_int_not_equal(load(&b, deep, &err), DG_OK);
    dg_error_clear(&err);
    dg_toolbox_deinit(&b);
    char *big = calloc(1, DG_HARNESS_MAX + 100);
    memset(big, ' ', DG_HARNESS_MAX + 50);
    assert_int_equal(load(&b, big, &err), DG_E_LIMIT);
    dg_error_clear(&err);
    dg_toolbox_deinit(&b);
    struct dg_buf many;
    dg_buf_init(&many, 1 << 20);
    dg_buf_str(&many, "{\"tools\": [");
    for (int i = 0; i < DG_TOOLBOX_MAX + 1; i++)
        dg_buf_fmt(&many, "%s{\"name\": \"t%d\", \"command\": [\"x\"]}", i ? "," : "", i);
    dg_buf_str(&many, "]}");
    assert_int_equal(load(&b, dg_buf_cstr(&many), &err), DG_E_LIMIT);
    dg_error_clear(&err);
    dg_toolbox_deinit(&b);
    dg_buf_deinit(&many);
    free(deep);
    free(big);
}

/* Every prefix of a good file, and every byte of it changed: an answer and no crash. */
static void damaged_files(void **state) {
    (void)state;
    static const char good[] = "{\"prompt\": \"{{v}}\", \"variables\": {\"v\": \"x\"}, \"tools\": [{\"name\": \"a\", "
                               "\"description\": \"d\", \"parameters\": "
                               "{\"type\": \"object\", \"properties\": {\"p\": {\"type\": \"string\"}}}, \"command\": [\"ls\", "
                               "\"{p}\"], \"timeout_s\": 2}]}";
    char text[sizeof good];
    int taken = 0;
    for (size_t i = 0; i < sizeof good - 1; i++)
        for (int k = 0; k < 4; k++) {
            struct dg_toolbox b;
            struct dg_error err = {0};
            memcpy(text, good, sizeof good);
            text[i] = "\0\"}["[k];
            taken += load(&b, text, &err) == DG_OK;
            dg_error_clear(&err);
            dg_toolbox_deinit(&b);
        }
    assert_in_range(taken, 1, 600);
}

static void commands_that_misbehave(void **state) {
    (void)state;
    struct dg_toolbox b;
    struct dg_error err = {0};
    assert_int_equal(load(&b,
                          "{\"tools\": ["
                          "{\"name\": \"missing\", \"command\": [\"/no/such/program\"]},"
                          "{\"name\": \"folder\", \"command\": [\"/\"]},"
                          "{\"name\": \"fails\", \"command\": \"echo half; echo reason >&2; exit 3\", \"shell\": true},"
                          "{\"name\": \"dies\", \"command\": \"kill -9 $$\", \"shell\": true},"
                          "{\"name\": \"hangs\", \"command\": \"sleep 100\", \"shell\": true, \"timeout_s\": 0.2},"
                          "{\"name\": \"hides\", \"command\": \"trap '' TERM HUP INT; sleep 100 & echo $! > pid; echo out\", "
                          "\"shell\": true, \"timeout_s\": 5},"
                          "{\"name\": \"much\", \"command\": \"i=0; while [ $i -lt 3000 ]; do echo 0123456789; i=$((i+1)); done\", "
                          "\"shell\": true, \"output_max\": 100},"
                          "{\"name\": \"flood\", \"command\": [\"yes\"], \"output_max\": 4},"
                          "{\"name\": \"bytes\", \"command\": [\"printf\", \"a\\\\000b\\\\377c\\\\303\\\\n\\\\n\"]},"
                          "{\"name\": \"closes\", \"command\": \"exec >&- 2>&-; sleep 0.2\", \"shell\": true},"
                          "{\"name\": \"deaf\", \"command\": [\"true\"], \"input\": \"json\"}]}",
                          &err),
                     DG_OK);
    expect(&b, "missing", "{}", "error: cannot run /no/such/program: No such file or directory");
    expect(&b, "folder", "{}", "error: cannot run /: Permission denied");
    expect(&b, "fails", "{}", "error: exit status 3\nhalf\nreason");
    expect(&b, "dies", "{}", "error: ended by signal 9\n");
    double t = now();
    expect(&b, "hangs", "{}", "error: no end after 0.2 s\n");
    assert_true(now() - t < 5);
    t = now();
    expect(&b, "hides", "{}", "out");
    assert_true(now() - t < 4);
    /* what it left behind is gone */
    char path[200], digits[20] = "";
    snprintf(path, sizeof path, "%s/pid", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(digits, sizeof digits, f));
    fclose(f);
    for (int i = 0; i < 100 && kill((pid_t)strtol(digits, NULL, 10), 0) == 0; i++)
        usleep(20000);
    char stat[64], line[300] = "";
    snprintf(stat, sizeof stat, "/proc/%ld/stat", strtol(digits, NULL, 10));
    f = fopen(stat, "r");
    if (f && fgets(line, sizeof line, f))
        assert_non_null(strstr(line, ") Z")); /* dead, not yet fetched by whoever inherits it */
    if (f)
        fclose(f);
    char *s = call(&b, "much", "{}");
    assert_non_null(strstr(s, "\n[cut after 100 bytes]"));
    assert_int_equal(strlen(s), 100 + strlen("\n[cut after 100 bytes]"));
    dg_free(s);
    t = now();
    s = call(&b, "flood", "{}");
    assert_int_equal(strncmp(s, "error: far too much output\ny\ny", 30), 0);
    assert_true(now() - t < 20);
    dg_free(s);
    expect(&b, "bytes", "{}", "a\ufffdb\ufffdc\ufffd");
    expect(&b, "closes", "{}", "(no output)");
    char *big = malloc(1 << 20);
    snprintf(big, 1 << 20, "{\"x\": \"%0*d\"}", (1 << 20) - 100, 7);
    expect(&b, "deaf", big, "(no output)");
    free(big);
    dg_toolbox_deinit(&b);
}

static void cancelled(void **state) {
    (void)state;
    struct dg_toolbox b = {0};
    struct dg_error err = {0};
    struct dg_tool_call c;
    struct dg_buf out;
    atomic_bool cancel = true;
    dg_buf_init(&out, 1000);
    assert_int_equal(dg_toolbox_add(&b, "t=sleep 100", &err), DG_OK);
    json_t *a = json_object();
    assert_int_equal(dg_tool_call_init(&c, &b.v[0], a, &err), DG_OK);
    double t = now();
    assert_int_equal(dg_tool_call_run(&c, &cancel, &out, &err), DG_E_CANCELLED);
    assert_true(now() - t < 5);
    dg_error_clear(&err);
    dg_tool_call_deinit(&c);
    json_decref(a);
    dg_buf_deinit(&out);
    dg_toolbox_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_reach_commands),
        cmocka_unit_test(tools_of_the_command_line),
        cmocka_unit_test(shown_as_typed),
        cmocka_unit_test(variables),
        cmocka_unit_test(hostile_files),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(commands_that_misbehave),
        cmocka_unit_test(cancelled),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
