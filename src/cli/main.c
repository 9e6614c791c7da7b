/* diffgemma: the command line. Every command is a row of the table; each has its own file. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct dg_command commands[] = {
    {"ask", "[-m MODEL] -p PROMPT [options]", "Answer one prompt.", dg_cmd_ask},
    {"tokenize", "[-m MODEL] [-p TEXT | FILE | -] [options]", "Turn text into token ids, or ids into text.", dg_cmd_tokenize},
    {"summary", "[-m MODEL]", "Say what a model is: shape, parameters, bytes.", dg_cmd_summary},
    {"config", "[-m MODEL]", "Print a model's configuration as the engine reads it, as JSON.", dg_cmd_config},
    {"step-parity", "[-m MODEL] -p PROMPT [options]",
     "Run one denoise step on the scalar oracle and on another path and compare them layer by layer.", dg_cmd_step_parity},
    {"download", "REPO [-o DIR] [options]", "Fetch a model from the Hugging Face hub, or go on where an earlier call ended.",
     dg_cmd_download},
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
    fprintf(f, "\ndiffgemma COMMAND --help shows a command's options; diffgemma --version shows the version.\n");
}

int main(int argc, char **argv) {
    /* a closed pipe is a failed write, reported as such, not a silent end */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help(stderr);
        return DG_EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help(stdout);
        return DG_EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("diffgemma %s, backends: cpu\n", dg_version());
        return DG_EXIT_OK;
    }
    const struct dg_command *cmd = dg_command_find(argv[1]);
    if (!cmd) {
        fprintf(stderr, "diffgemma: unknown command '%s'; see diffgemma --help\n", argv[1]);
        return DG_EXIT_USAGE;
    }
    int status = cmd->run(argc - 1, argv + 1);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "diffgemma %s: cannot write to standard output\n", cmd->name);
        return status ? status : DG_EXIT_FAILED;
    }
    return status;
}
