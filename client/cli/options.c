/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/options.h"

#include "client/cli/restarts.h"
#include "offload/parallel/schedule.h"
#include "offload/plan/plan.h"
#include "proto/job_options.h"
#include "proto/optimizers.h"

#include <stddef.h>

#define AT(name) offsetof(struct cli, name)
#define ROW CST_OPTION
#define PLAN(option, argument, help, ...)                                                          \
    CST_OPTION(option, 0, CLI_USES_PLAN, argument, help, __VA_ARGS__)

#define CST_JOB_AT(member) AT(plan.job.member)
#define CST_JOB_OPTION(...)
#define CST_JOB_PLAN_OPTION(member, in, has, section, option, argument, help, ...)                 \
    PLAN(option, argument, help, __VA_ARGS__),

enum { COUNT_MAX = 10000000, PRESET_MAX = 1 << 20 };

static const char *const weight_names[] = {"bf16", "fp32", NULL};
static const char *const parallel_names[] = {"none", "auto", NULL};

const struct cst_option cli_options[] = {
    CST_OPTION_HEADING("Options:"),
    ROW("json", 0, CLI_USES_JSON, NULL, "print JSON instead of text", CST_FLAG(AT(json))),
    CST_OPTION_MAY("watch", CLI_USES_WATCH, "SECONDS", "2",
                   "refresh every SECONDS (default: 2); q quits",
                   CST_REAL(AT(watch_seconds), 0.01, 86400)),
    ROW("no-color", 0, CLI_USES_TOP, NULL, "no colours, as with NO_COLOR in the environment",
        CST_FLAG(AT(no_color))),
    ROW("uid", 0, CLI_USES_UID, "UID", "the job of this owner",
        CST_U32(AT(uid), 0, CLI_NO_UID - 1)),
    ROW("count", 'c', CLI_USES_COUNT, "N", "number of round trips (default: 1000)",
        CST_U64(AT(count), 1, COUNT_MAX)),
    ROW("output", 'o', CLI_USES_OUTPUT, "FILE", "write to FILE", CST_TEXT(AT(output))),
    ROW("listen", 0, CLI_USES_LISTEN, "ADDRESS",
        "answer HTTP requests for /metrics at 127.0.0.1:PORT, [::1]:PORT, the path of a socket, or "
        "the socket of systemd",
        CST_TEXT(AT(listen))),
    ROW("own-jobs", 0, CLI_USES_LISTEN, NULL,
        "show your own jobs on the port, to all users of the machine (default: no jobs)",
        CST_FLAG(AT(own_jobs))),
    ROW("every", 0, CLI_USES_SAVE, "N", "follow the job, and save it after every N steps",
        CST_U64(AT(every), 1, UINT32_MAX)),
    ROW("keep", 0, CLI_USES_SAVE, "K",
        "remove older checkpoints when K newer ones are whole (default: all remain)",
        CST_U64(AT(keep), 1, 1000000)),
    ROW("weights", 0, CLI_USES_SAVE, "FORMAT",
        "model files have bf16 weights, or fp32 master weights (default: bf16)",
        CST_NAME(AT(weights), 0, weight_names)),
    ROW("frozen", 0, CLI_USES_LOAD, NULL, "load the weights alone, as the base of other jobs",
        CST_FLAG(AT(frozen))),
    ROW("force", 0, CLI_USES_FORCE, NULL, "remove the job even if ranks of it train",
        CST_FLAG(AT(force))),
    ROW("release-pools", 0, CLI_USES_PAUSE, NULL,
        "give the memory of the job's pools back, which other jobs can use then",
        CST_FLAG(AT(release_pools))),
    ROW("wait", 0, CLI_USES_DRAIN | CLI_USES_RESUME, NULL,
        "drain: take no new jobs, and end when all jobs are done or have failed; resume: wait "
        "while "
        "others use the memory of the pools",
        CST_FLAG(AT(wait))),
    ROW("steps", 0, CLI_USES_READER, "N", "read the weights of N steps (default: 1)",
        CST_U64(AT(steps), 1, COUNT_MAX)),
    ROW("keep-version", 0, CLI_USES_READER, NULL,
        "let steps wait until a version is read, at most for the time limit of the job",
        CST_FLAG(AT(keep_version))),
    ROW("check", 0, CLI_USES_CHECK, NULL, "read all files, and compare their checksums",
        CST_FLAG(AT(check))),
    ROW("disk", 0, CLI_USES_DISK | CLI_USES_PLAN, "DIR",
        "probe: measure the drive of DIR; plan: states are on drives: DIR[,DIR...], one on each, "
        "or "
        "the number of drives (none)",
        CST_TEXT(AT(disk))),
    ROW("bytes", 0, CLI_USES_DISK, "SIZE",
        "size of the file for --disk, of which four times as much is moved (default: 4G, at most "
        "a quarter of the free space)",
        CST_SIZE(AT(bytes))),
    PLAN("device", "SIZE",
         "memory of each rank's device (default: auto, what [gpu] pool = auto has)",
         CST_SIZE_OR(AT(plan.device_bytes), 0, "auto", CST_PLAN_NO_LIMIT)),
    PLAN("host", "SIZE", "memory of the node for states", CST_SIZE(AT(plan.host_bytes))),
    ROW("ranks", 'n', CLI_USES_PLAN | CLI_USES_RUN | CLI_USES_SCHEDULE | CLI_USES_MESHES, "N",
        "run: ranks to start; plan: ranks on this node (default: as the model says); schedule: "
        "ranks of the pipeline (default: one for each stage); meshes: ranks of the mesh",
        CST_U64(AT(plan.ranks), 1, CST_JOB_MAX_WORLD)),
    PLAN("config", "FILE",
         "options of the job in a file of cistern-gpt --config; the command line overrides them",
         CST_TEXT(AT(plan.config))),
    ROW("stages", 0, CLI_USES_SCHEDULE, "N", "stages of the pipeline",
        CST_U64(AT(stages), 1, CST_SCHEDULE_MAX_STAGES)),
    ROW("micro-batches", 0, CLI_USES_PLAN | CLI_USES_SCHEDULE, "N",
        "micro-batches of a step (plan: default: 1; with --parallel: those of all ranks, default: "
        "8 "
        "for each)",
        CST_U32(AT(plan.job.updates.micro_batches), 1, CLI_PLAN_MICRO_BATCHES)),
    PLAN("parallel", "HOW",
         "none (default); auto: the fastest product of data, tensor and pipeline parallelism",
         CST_NAME(AT(plan.parallel), 0, parallel_names)),
    PLAN("dp", "N", "with --parallel: only products with N replicas of the model",
         CST_U64(AT(plan.dp), 1, 64)),
    PLAN("tp", "N", "with --parallel: only products whose tensors are divided into N parts",
         CST_U64(AT(plan.tp), 1, 64)),
    PLAN("pp", "N", "with --parallel: only products with pipelines of N ranks",
         CST_U64(AT(plan.pp), 1, 64)),
    PLAN("kind", "NAME", "with --parallel: only this kind of schedule (see cistern schedule)",
         CST_TEXT(AT(plan.kind))),
    PLAN("schedule", "FILE", "with --parallel: write the schedule of the fastest product to FILE",
         CST_TEXT(AT(plan.schedule))),
    PLAN("batch", "N", "preset: sequences of a micro-batch (default: 1)",
         CST_U64(AT(plan.batch), 1, PRESET_MAX)),
    PLAN("context", "N", "preset: tokens of a sequence", CST_U64(AT(plan.context), 1, PRESET_MAX)),
#include "proto/job_options.def"
    PLAN("rates", "FILE", "rates of a machine; a100: published rates", CST_TEXT(AT(plan.rates))),
    PLAN("on", "DEVICE", "device of each rank, by its name in the rates (default: the first)",
         CST_TEXT(AT(plan.on))),
    PLAN("flops", "F", "flop/s of the device, if the rates do not say",
         CST_REAL(AT(plan.flops), 1, 1e18)),
    PLAN("share", "S", "share of the flop/s that the model reaches (default: 1)",
         CST_REAL(AT(plan.share), 0.001, 1)),
    ROW("recompute", 0, CLI_USES_PLAN | CLI_USES_SCHEDULE, NULL,
        "repeat each forward pass before its backward pass",
        CST_FLAG(AT(plan.job.planning.recompute))),
    ROW("save", 0, CLI_USES_PLAN | CLI_USES_DRAIN, "FILE|DIR",
        "plan: save the plan for a job in FILE, with --parallel as a file of cistern-gpt --config; "
        "drain: save all jobs in DIR before the daemon ends",
        CST_TEXT(AT(plan.save))),
    ROW("nodes", 0, CLI_USES_PLAN | CLI_USES_RUN, "N|A,B..",
        "run: nodes on which to start ranks, by --rsh; plan: number of machines that train the "
        "model together, each with the ranks of the plan (default: 1)",
        CST_TEXT(AT(nodes))),
    PLAN("link", "GBIT", "with --nodes: what a machine receives, in Gbit/s, while it sends as much",
         CST_REAL(AT(plan.link), 0.001, 1e6)),
    PLAN("copies", "R", "with --nodes: machines that have the states of a chunk (default: 1)",
         CST_U32(AT(plan.copies), 1, CST_SET_MAX)),
    PLAN("simulate", NULL, "simulate six steps", CST_FLAG(AT(plan.simulate))),
    PLAN("tbw", "TB",
         "terabytes that may be written to each drive in its life: print how many days that takes",
         CST_REAL(AT(plan.tbw), 0.001, 1e9)),
    PLAN("timeline", "FILE", "write the steps as a trace for Perfetto",
         CST_TEXT(AT(plan.timeline))),
    CST_OPTION_MAY("restart", CLI_USES_RUN, "N", "10",
                   "start ranks again that die, each at most N times in 10 minutes (default: 10)",
                   CST_U32(AT(restart), 1, CLI_RESTARTS_MAX)),
    ROW("standby", 0, CLI_USES_RUN, "N",
        "keep N more processes waiting that have started already; each takes the place of a rank "
        "that dies",
        CST_U32(AT(standby), 1, 64)),
    ROW("grace", 0, CLI_USES_RUN | CLI_USES_DRAIN, "TIME",
        "run: time for ranks to end before they are killed; drain: time for each job to let its "
        "save begin: 30, 90s, 5m (default: 30s)",
        CST_SECONDS(AT(grace), 1, 86400)),
    ROW("ranks-per-node", 0, CLI_USES_RUN, "N", "with --nodes: ranks on each node (default: 1)",
        CST_U32(AT(ranks_per_node), 1, CST_JOB_MAX_WORLD)),
    ROW("rsh", 0, CLI_USES_RUN, "COMMAND",
        "with --nodes: the program, and its options, that runs a command on a node: COMMAND NODE "
        "WORDS (default: ssh)",
        CST_TEXT(AT(rsh))),
    ROW("first-rank", 0, CLI_USES_RUN, "N",
        "number of the first of these ranks in a job on several nodes (default: 0)",
        CST_U32(AT(first_rank), 0, CST_JOB_MAX_ALL_RANKS - 1)),
    ROW("all-ranks", 0, CLI_USES_RUN, "N", "number of ranks on all nodes (default: those of -n)",
        CST_U32(AT(all_ranks), 1, CST_JOB_MAX_ALL_RANKS)),
    ROW("follow", 0, CLI_USES_RUN, NULL,
        "take signals from the standard input, as --nodes needs it on each node, and kill all "
        "ranks when it ends",
        CST_FLAG(AT(follow))),
    ROW("no-pin", 0, CLI_USES_RUN, NULL, "let ranks run on all processors", CST_FLAG(AT(no_pin))),
    ROW("socket", 's', 0, "PATH",
        "socket of the daemon (default: $CISTERN_SOCKET or " CST_DEFAULT_SOCKET ")",
        CST_TEXT(AT(socket))),
    ROW("manager-socket", 0, 0, "PATH",
        "socket for other users' jobs (default: manager.sock in the same directory)",
        CST_TEXT(AT(manager_socket))),
    ROW("help", 'h', 0, NULL, "print this text, or the options of a command", CST_FLAG(AT(help))),
    ROW("version", 'V', 0, NULL, "print the version of this program", CST_FLAG(AT(version))),
    CST_OPTION_END,
};

struct cli cli_options_none(void)
{
    return (struct cli){
        .count = 1000,
        .steps = 1,
        .uid = CLI_NO_UID,
        .grace = 30,
        .plan = {.device_bytes = CST_PLAN_NO_LIMIT, .host_bytes = CST_PLAN_NO_LIMIT}};
}
