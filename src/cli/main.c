/* diffgemma: the command line. Every command is a row of the table; each has its own file. */
#include "cli/cli.h"
#include "ops/cuda/cuda.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct dg_command commands[] = {
    {"ask", "[-m MODEL] -p PROMPT [options]", "Answer one prompt.", dg_cmd_ask},
    {"chat", "[-m MODEL] [options]", "Talk with the model, line by line, on a terminal or through a pipe.", dg_cmd_chat},
    {"tokenize", "[-m MODEL] [-p TEXT | FILE | -] [options]", "Turn text into token ids, or ids into text.", dg_cmd_tokenize},
    {"summary", "[-m MODEL]", "Say what a model is: shape, parameters, bytes.", dg_cmd_summary},
    {"config", "[-m MODEL]", "Print a model's configuration as the engine reads it, as JSON.", dg_cmd_config},
    {"step-parity", "[-m MODEL] -p PROMPT [options]",
     "Run one denoise step on the scalar oracle and on another path and compare them layer by layer.", dg_cmd_step_parity},
    {"quantize", "-m MODEL -o FOLDER --profile NAME [options]", "Make a quantised pack from a checkpoint.", dg_cmd_quantize},
    {"repack", "-m PACK -o FOLDER --overlay | --monolithic [options]", "Turn a pack into one that refers to its checkpoint, or back.", dg_cmd_repack},
    {"verify", "-m PACK [--source MODEL] [options]", "Check a pack; with its checkpoint, report the error of every tensor.", dg_cmd_verify},
    {"manifest", "-m PACK [--tensors | --json]", "Say what a pack holds and where.", dg_cmd_manifest},
    {"synth", "--shape SHAPE -o FOLDER [options]", "Make a model of random weights, for benchmarks and tests.", dg_cmd_synth},
    {"download", "REPO [-o DIR] [options]", "Fetch a model from the Hugging Face hub, or go on where an earlier call ended.",
     dg_cmd_download},
    {"replay", "[-m MODEL] FILE [options]", "Run a recorded op log again and compare every event with the recorded one.", dg_cmd_replay},
    {"golden", "[-m MODEL] [FILE] [options]", "Check token ids and KV cache of fixed cases byte for byte against a file.", dg_cmd_golden},
    {"bench", "step|prefill|load|turn [-m MODEL | --synth SHAPE] [options]",
     "Measure a denoise step, prompt, loading or turn, op by op; CSV with floors measured in the same run.", dg_cmd_bench},
    {"probe-device", "[options]", "Say which instruction sets and kernels the CPU backend uses here, and how fast they are.", dg_cmd_probe},
    {"flags", "", "List the DGQ_* switches with type, range, default and meaning.", dg_cmd_flags},
};

const struct dg_command *dg_command_find(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

static void help(FILE *f) {
    fprintf(f, "usage: diffgemma COMMAND [options]\n\nRuns DiffusionGemma, a block-diffusion language model, on this machine.\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(f, "  %-12s %s\n", commands[i].name, commands[i].about);
    fprintf(f, "\ndiffgemma COMMAND --help shows a command's options; diffgemma --list-models the models on this machine;\n"
               "diffgemma --version the version.\n");
}

/* A file opened later must not become standard output or error: text would be written into it. A closed output stays one that cannot be
 * written to. */
static bool claim_standard_streams(void) {
    static const int modes[3] = {O_RDONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
            return false;
    return true;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        help(stderr);
        return DG_EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help(stdout);
        return DG_EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("diffgemma %s, backends: cpu, cuda%s\n", dg_version(),
               dg_cuda_built_in() ? "" : " (built without nvcc: kernels are compiled at run time, where libnvrtc is there)");
        return DG_EXIT_OK;
    }
    if (!strcmp(argv[1], "--list-models"))
        return dg_list_models();
    const struct dg_command *cmd = dg_command_find(argv[1]);
    if (!cmd) {
        fprintf(stderr, "diffgemma: unknown command '%s'; see diffgemma --help\n", argv[1]);
        return DG_EXIT_USAGE;
    }
    return cmd->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    if (!claim_standard_streams())
        return DG_EXIT_FAILED;
    /* a closed pipe is a failed write, reported as such, not a silent end */
    signal(SIGPIPE, SIG_IGN);
    int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "diffgemma: cannot write to standard output\n");
        return status ? status : DG_EXIT_FAILED;
    }
    return status;
}
