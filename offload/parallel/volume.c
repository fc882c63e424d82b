/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/volume.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { D = CST_MESH_D + 1, A = CST_MESH_A + 1, B = CST_MESH_B + 1, C = CST_MESH_C + 1 };

enum { WORDS_BYTES = 256, MOST_MESHES = 64, FAR_RANKS = 64 };

/* clang-format off */
static const struct cst_linear_mode modes[] = {
    /* name, axes          X: rows, columns, moves      W                          Y */
    {"column",    {A},       {{{0}, {0}, 0, false},       {{A}, {0}, 0, false},      {{0}, {A}, 0, false}}},
    {"row",       {A},       {{{0}, {A}, 0, false},       {{0}, {A}, 0, false},      {{0}, {0}, A, true}}},
    {"sp-column", {A},       {{{A}, {0}, A, false},       {{A}, {0}, 0, false},      {{0}, {A}, 0, false}}},
    {"sp-row",    {A},       {{{0}, {A}, 0, false},       {{0}, {A}, 0, false},      {{A}, {0}, A, false}}},
    {"zero3",     {A},       {{{A}, {0}, 0, false},       {{A}, {0}, A, false},      {{A}, {0}, 0, false}}},
    {"2d",        {A, B},    {{{A}, {B}, B, false},       {{B}, {A}, A, false},      {{A}, {B}, 0, false}}},
    {"2.5d",      {D, A, B}, {{{D, A}, {B}, B, false},    {{B}, {A}, A, false},      {{D, A}, {B}, 0, false}}},
    {"3d",        {A, B, C}, {{{A, B}, {C}, B, false},    {{B}, {C, A}, A, false},   {{A, C}, {B}, C, false}}},
};
/* clang-format on */

const struct cst_linear_mode *cst_linear_mode(uint32_t i)
{
    return i < sizeof modes / sizeof *modes ? &modes[i] : NULL;
}

int cst_linear_find(const struct cst_linear_mode **out, const char *name, struct cst_err *err)
{
    char known[WORDS_BYTES] = "";

    for (uint32_t i = 0; cst_linear_mode(i) != NULL; i++) {
        const size_t used = strlen(known);

        if (strcmp(modes[i].name, name) == 0) {
            *out = &modes[i];
            return CST_OK;
        }
        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", modes[i].name);
    }
    return cst_err_set(err, CST_ENOTFOUND, "no mode '%.63s' of tensor parallelism; there are %s",
                       name, known);
}

/* -- meshes ----------------------------------------------------------------------------------- */

static uint32_t count_axes(const struct cst_linear_mode *mode)
{
    uint32_t n = 0;

    while (n < CST_MESH_AXES && mode->axes[n] != 0) {
        n++;
    }
    return n;
}

static uint32_t size_of(const struct cst_mesh *mesh, uint8_t axis)
{
    return axis == 0 ? 1 : mesh->sizes[axis - 1];
}

static uint32_t parts(const struct cst_mesh *mesh, const uint8_t axes[2])
{
    return size_of(mesh, axes[0]) * size_of(mesh, axes[1]);
}

/* The rows and columns of an operand. */
static void dims_of(const struct cst_linear_shape *shape, enum cst_linear_operand operand,
                    uint64_t out[2])
{
    out[0] = operand == CST_LINEAR_W ? shape->n : shape->m;
    out[1] = operand == CST_LINEAR_Y ? shape->n : shape->k;
}

/* Return whether the mesh divides all operands; else *dim is what does not divide: "M", "N", "K",
 * and *wanted its divisor. */
static bool divides(const struct cst_linear_mode *mode, const struct cst_mesh *mesh,
                    const struct cst_linear_shape *shape, const char **dim, uint32_t *wanted)
{
    static const char *const names[CST_LINEAR_OPERANDS][2] = {{"M", "K"}, {"N", "K"}, {"M", "N"}};

    for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
        const struct cst_linear_blocks *blocks = &mode->operands[o];
        uint64_t dims[2];

        dims_of(shape, (enum cst_linear_operand)o, dims);
        for (int i = 0; i < 2; i++) {
            *wanted = parts(mesh, i == 0 ? blocks->rows : blocks->columns);
            *dim = names[o][i];
            if (dims[i] % *wanted != 0) {
                return false;
            }
        }
    }
    return true;
}

/* A search for meshes. */
struct meshes {
    const struct cst_linear_mode *mode;
    const struct cst_linear_shape *shape; /* May be NULL. */
    struct cst_mesh *out;
    size_t n, max;
};

/* Divide @n_ranks among the axes from @i on, in all ways. The axes before it are in @mesh. */
static void divide(struct meshes *m, struct cst_mesh mesh, uint32_t i, uint32_t n_ranks)
{
    const uint32_t n_axes = count_axes(m->mode);
    const char *dim;
    uint32_t wanted;

    if (i == n_axes) {
        if (n_ranks == 1 &&
            (m->shape == NULL || divides(m->mode, &mesh, m->shape, &dim, &wanted)) &&
            m->n < m->max) {
            m->out[m->n++] = mesh;
        }
        return;
    }
    for (uint32_t size = 2; size <= n_ranks; size++) {
        if (n_ranks % size == 0 && (i + 1 < n_axes || size == n_ranks)) {
            mesh.sizes[m->mode->axes[i] - 1] = size;
            divide(m, mesh, i + 1, n_ranks / size);
        }
    }
}

size_t cst_linear_meshes(const struct cst_linear_mode *mode, uint32_t n_ranks,
                         const struct cst_linear_shape *shape, struct cst_mesh *out, size_t max)
{
    struct meshes m = {.mode = mode, .shape = shape, .out = out, .max = max};

    divide(&m, (struct cst_mesh){{1, 1, 1, 1}}, 0, n_ranks);
    return m.n;
}

/* -- refusals --------------------------------------------------------------------------------- */

static uint32_t count_ranks(const struct cst_mesh *mesh)
{
    uint32_t n = 1;

    for (int i = 0; i < CST_MESH_AXES; i++) {
        n *= mesh->sizes[i];
    }
    return n;
}

/* Append "2 x 4" to @words. */
static void add_mesh(char words[WORDS_BYTES], const struct cst_linear_mode *mode,
                     const struct cst_mesh *mesh)
{
    for (uint32_t i = 0; i < count_axes(mode); i++) {
        const size_t used = strlen(words);

        (void)snprintf(words + used, WORDS_BYTES - used, "%s%" PRIu32, i > 0 ? " x " : "",
                       size_of(mesh, mode->axes[i]));
    }
}

/* Write which meshes of @n_ranks ranks divide the shape, or which numbers of ranks have one. */
static void name_meshes(char words[WORDS_BYTES], const struct cst_linear_mode *mode,
                        uint32_t n_ranks, const struct cst_linear_shape *shape)
{
    struct cst_mesh meshes[MOST_MESHES];
    const size_t n = cst_linear_meshes(mode, n_ranks, shape, meshes, MOST_MESHES);
    uint32_t below = n_ranks, above = n_ranks;
    size_t used;

    (void)snprintf(words, WORDS_BYTES, "meshes of %" PRIu32 " ranks that do: ", n_ranks);
    for (size_t i = 0; i < n && strlen(words) < WORDS_BYTES / 2; i++) {
        used = strlen(words);
        (void)snprintf(words + used, WORDS_BYTES - used, "%s", i > 0 ? ", " : "");
        add_mesh(words, mode, &meshes[i]);
    }
    if (n > 0) {
        return;
    }
    while (below > 1 && cst_linear_meshes(mode, below, shape, meshes, 1) == 0) {
        below--;
    }
    while (above < n_ranks + FAR_RANKS && cst_linear_meshes(mode, above, shape, meshes, 1) == 0) {
        above++;
    }
    (void)snprintf(words, WORDS_BYTES, "no mesh of %" PRIu32 " ranks does", n_ranks);
    used = strlen(words);
    if (below > 1) {
        (void)snprintf(words + used, WORDS_BYTES - used, "; one of %" PRIu32 " ranks does", below);
        used = strlen(words);
    }
    if (above < n_ranks + FAR_RANKS) {
        (void)snprintf(words + used, WORDS_BYTES - used, "; one of %" PRIu32 " ranks does", above);
    }
}

/* Return whether the mesh has the axes of the mode, and no others. */
static bool has_axes(const struct cst_linear_mode *mode, const struct cst_mesh *mesh)
{
    bool wanted[CST_MESH_AXES] = {false}, right = true;

    for (uint32_t i = 0; i < count_axes(mode); i++) {
        wanted[mode->axes[i] - 1] = true;
    }
    for (int i = 0; i < CST_MESH_AXES; i++) {
        right = right && (wanted[i] ? mesh->sizes[i] >= 2 : mesh->sizes[i] == 1);
    }
    return right;
}

int cst_linear_check(const struct cst_linear_mode *mode, const struct cst_mesh *mesh,
                     const struct cst_linear_shape *shape, struct cst_err *err)
{
    char words[WORDS_BYTES], own[WORDS_BYTES] = "";
    uint64_t value;
    uint32_t wanted;
    const char *dim;

    if (!has_axes(mode, mesh)) {
        name_meshes(words, mode, count_ranks(mesh), shape);
        return cst_err_set(err, CST_EINVAL,
                           "%s: wanted a mesh of %" PRIu32 " axes with at least 2 ranks each; %s",
                           mode->name, count_axes(mode), words);
    }
    if (divides(mode, mesh, shape, &dim, &wanted)) {
        return CST_OK;
    }
    value = dim[0] == 'M' ? shape->m : dim[0] == 'N' ? shape->n : shape->k;
    add_mesh(own, mode, mesh);
    name_meshes(words, mode, count_ranks(mesh), shape);
    return cst_err_set(err, CST_EINVAL,
                       "%s on %s: %s = %" PRIu64 " does not divide into %" PRIu32 " parts; %s",
                       mode->name, own, dim, value, wanted, words);
}

/* -- blocks and volumes ----------------------------------------------------------------------- */

/* The place of @rank on @axis. */
static uint32_t place(const struct cst_mesh *mesh, uint8_t axis, uint32_t rank)
{
    for (uint8_t last = CST_MESH_AXES; axis != 0 && last > axis; last--) {
        rank /= mesh->sizes[last - 1];
    }
    return axis == 0 ? 0 : rank % mesh->sizes[axis - 1];
}

struct cst_linear_box cst_linear_box(const struct cst_linear_mode *mode,
                                     const struct cst_mesh *mesh,
                                     const struct cst_linear_shape *shape,
                                     enum cst_linear_operand operand, uint32_t rank)
{
    const struct cst_linear_blocks *blocks = &mode->operands[operand];
    struct cst_linear_box box;
    uint64_t dims[2];

    dims_of(shape, operand, dims);
    for (int i = 0; i < 2; i++) {
        const uint8_t *axes = i == 0 ? blocks->rows : blocks->columns;

        box.size[i] = dims[i] / parts(mesh, axes);
        box.first[i] = box.size[i] * (place(mesh, axes[0], rank) * size_of(mesh, axes[1]) +
                                      place(mesh, axes[1], rank));
    }
    return box;
}

/* Return on how many ranks each block of an operand is. */
static uint32_t count_copies(const struct cst_mesh *mesh, const struct cst_linear_blocks *blocks)
{
    return count_ranks(mesh) / (parts(mesh, blocks->rows) * parts(mesh, blocks->columns));
}

uint64_t cst_linear_received(const struct cst_linear_mode *mode, const struct cst_mesh *mesh,
                             const struct cst_linear_shape *shape, bool keeps)
{
    const struct cst_linear_blocks *y = &mode->operands[CST_LINEAR_Y];
    uint64_t received = 0;

    for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
        const struct cst_linear_blocks *blocks = &mode->operands[o];
        const struct cst_linear_box box =
            cst_linear_box(mode, mesh, shape, (enum cst_linear_operand)o, 0);
        const uint64_t block = box.size[0] * box.size[1];
        const uint64_t others = size_of(mesh, blocks->moves) - 1;

        if (o == CST_LINEAR_Y) {
            /* The sum, and the gather of dY; or a sum that is left on all ranks, whose dY all have.
             */
            received += y->whole ? 2 * others * block / (others + 1) : 2 * others * block;
        } else {
            const uint64_t copies = count_copies(mesh, blocks);

            received += (keeps ? 2 : 3) * others * block; /* Gathers, and the sum of gradients. */
            received += 2 * (copies - 1) * block / copies;
        }
    }
    return received;
}
