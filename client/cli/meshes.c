/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern meshes`: how ranks can divide a linear layer, and what each of them
 * receives. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "offload/parallel/volume.h"
#include "proto/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ROWS = 512,
    MOST_OF_MODE = 64,
    ELEM_BYTES = 2,     /* bf16 */
    MOST_SIZE = 1 << 26 /* Of M, N and K: the bytes that 64 ranks receive fit in 64 bits. */
};

/* A mode on a mesh; or a mode that has none, with the reason. */
struct row {
    const struct cst_linear_mode *mode;
    struct cst_mesh mesh;
    uint64_t blocks[CST_LINEAR_OPERANDS]; /* Elements of a rank. */
    uint64_t received, kept;              /* Elements, with gathers again for backward, or kept. */
    struct cst_err err;
};

struct rows {
    struct cst_linear_shape shape;
    struct row list[MOST_ROWS]; /* Those with a mesh first, those that receive least first. */
    size_t n, n_working;
};

/* -- rows ------------------------------------------------------------------------------------- */

static void add_mesh(struct rows *rows, const struct cst_linear_mode *mode,
                     const struct cst_mesh *mesh)
{
    struct row *row = &rows->list[rows->n];

    if (rows->n == MOST_ROWS) {
        return;
    }
    *row = (struct row){.mode = mode, .mesh = *mesh};
    if (cst_linear_check(mode, mesh, &rows->shape, &row->err) == CST_OK) {
        for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
            const struct cst_linear_box box =
                cst_linear_box(mode, mesh, &rows->shape, (enum cst_linear_operand)o, 0);

            row->blocks[o] = box.size[0] * box.size[1];
        }
        row->received = cst_linear_received(mode, mesh, &rows->shape, false);
        row->kept = cst_linear_received(mode, mesh, &rows->shape, true);
        rows->n_working++;
    }
    rows->n++;
}

/* Add the meshes of a mode that divide the shape; if there are none, one that does not, or none. */
static void add_mode(struct rows *rows, const struct cst_linear_mode *mode, uint32_t n_ranks)
{
    struct cst_mesh meshes[MOST_OF_MODE];
    size_t n = cst_linear_meshes(mode, n_ranks, &rows->shape, meshes, MOST_OF_MODE);

    if (n == 0) {
        n = cst_linear_meshes(mode, n_ranks, NULL, meshes, 1);
    }
    if (n == 0) {
        meshes[n++] = (struct cst_mesh){{1, n_ranks, 1, 1}};
    }
    for (size_t i = 0; i < n; i++) {
        add_mesh(rows, mode, &meshes[i]);
    }
}

static int compare(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    const bool works = x->err.status == CST_OK;

    if (works != (y->err.status == CST_OK)) {
        return works ? -1 : 1;
    }
    if (x->received != y->received) {
        return x->received < y->received ? -1 : 1;
    }
    return x->mode < y->mode ? -1 : x->mode > y->mode;
}

/* Write "2 x 4". Returns @out. */
static const char *mesh_words(const struct row *row, char out[CLI_HUMAN_BYTES])
{
    out[0] = '\0';
    for (int i = 0; i < CST_MESH_AXES && row->mode->axes[i] != 0; i++) {
        const size_t used = strlen(out);

        (void)snprintf(out + used, CLI_HUMAN_BYTES - used, "%s%" PRIu32, i > 0 ? " x " : "",
                       row->mesh.sizes[row->mode->axes[i] - 1]);
    }
    return out;
}

/* -- output ----------------------------------------------------------------------------------- */

static bool print_working(const struct rows *rows)
{
    static const char *const titles[] = {"MODE",    "MESH",      ">X",       ">W", ">Y",
                                         ">MEMORY", ">RECEIVED", ">KEEPING", NULL};
    struct cli_table table;
    char text[CLI_HUMAN_BYTES];

    cli_table_init(&table, titles);
    for (size_t i = 0; i < rows->n_working; i++) {
        const struct row *row = &rows->list[i];
        uint64_t all = 0;

        cli_table_cell(&table, "%s", row->mode->name);
        cli_table_cell(&table, "%s", mesh_words(row, text));
        for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
            cli_table_cell(&table, "%s", cli_bytes(row->blocks[o] * ELEM_BYTES, text));
            all += row->blocks[o];
        }
        cli_table_cell(&table, "%s", cli_bytes(all * ELEM_BYTES, text));
        cli_table_cell(&table, "%s", cli_bytes(row->received * ELEM_BYTES, text));
        cli_table_cell(&table, "%s", cli_bytes(row->kept * ELEM_BYTES, text));
    }
    return cli_table_print(&table, stdout);
}

static bool print_refused(const struct rows *rows)
{
    static const char *const titles[] = {"MODE", "REFUSED BECAUSE", NULL};
    struct cli_table table;

    if (rows->n_working == rows->n) {
        return true;
    }
    cli_table_init(&table, titles);
    for (size_t i = rows->n_working; i < rows->n; i++) {
        cli_table_cell(&table, "%s", rows->list[i].mode->name);
        cli_table_cell(&table, "%s", rows->list[i].err.text);
    }
    (void)printf("%s", rows->n_working > 0 ? "\n" : "");
    return cli_table_print(&table, stdout);
}

static json_t *row_json(const struct row *row)
{
    char text[CLI_HUMAN_BYTES];

    if (row->err.status != CST_OK) {
        return json_pack("{s:s, s:s}", "mode", row->mode->name, "why", row->err.text);
    }
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "mode", row->mode->name, "mesh",
                     mesh_words(row, text), "x_elems", (json_int_t)row->blocks[CST_LINEAR_X],
                     "w_elems", (json_int_t)row->blocks[CST_LINEAR_W], "y_elems",
                     (json_int_t)row->blocks[CST_LINEAR_Y], "received_elems",
                     (json_int_t)row->received, "received_keeping_elems", (json_int_t)row->kept);
}

static bool print_json(const struct rows *rows)
{
    json_t *working = json_array(), *refused = json_array();
    json_t *root = json_pack("{s:o, s:o}", "meshes", working, "refused", refused);
    bool good = root != NULL;

    for (size_t i = 0; good && i < rows->n; i++) {
        good = json_array_append_new(i < rows->n_working ? working : refused,
                                     row_json(&rows->list[i])) == 0;
    }
    if (!good) {
        json_decref(root);
        root = NULL;
    }
    return cli_json_print(root);
}

/* -- the command ------------------------------------------------------------------------------ */

static int read_shape(struct cst_linear_shape *out, char **args, struct cst_err *err)
{
    uint64_t *const fields[] = {&out->m, &out->n, &out->k};

    for (int i = 0; i < 3; i++) {
        if (cst_size_parse(args[i], 0, fields[i], err) != CST_OK) {
            return CST_EINVAL;
        }
        if (*fields[i] == 0 || *fields[i] > MOST_SIZE) {
            return cst_err_set(err, CST_EINVAL, "'%.40s': wanted a number from 1 to %d", args[i],
                               MOST_SIZE);
        }
    }
    return CST_OK;
}

int cli_meshes(struct cli *cli)
{
    struct rows *rows;
    struct cst_err err = {0};
    bool printed;

    if (cli->plan.ranks < 2) {
        return cli_usage("meshes needs --ranks N, at least 2", "");
    }
    rows = calloc(1, sizeof *rows);
    if (rows == NULL) {
        return cli_fail(&(struct cst_err){.text = "out of memory"});
    }
    if (read_shape(&rows->shape, cli->args, &err) != CST_OK) {
        free(rows);
        return cli_usage(err.text, "");
    }
    for (uint32_t i = 0; cst_linear_mode(i) != NULL; i++) {
        add_mode(rows, cst_linear_mode(i), (uint32_t)cli->plan.ranks);
    }
    qsort(rows->list, rows->n, sizeof *rows->list, compare);
    printed = cli->json ? print_json(rows)
                        : (rows->n_working == 0 || print_working(rows)) && print_refused(rows);
    free(rows);
    return printed ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
