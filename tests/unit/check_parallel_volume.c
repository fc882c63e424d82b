/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the modes of tensor parallelism: blocks, meshes and volumes of a linear layer. */
#include "offload/parallel/volume.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

enum { MOST_RANKS = 24, M = 24, N = 12, K = 24, MOST_DIM = 24 };

static const struct cst_linear_shape shape = {M, N, K};
static struct cst_err err;

static const struct cst_linear_mode *mode_of(const char *name)
{
    const struct cst_linear_mode *mode = NULL;

    suite_must(cst_linear_find(&mode, name, &err) == CST_OK, "%s", err.text);
    return mode;
}

static uint32_t count_ranks(const struct cst_mesh *mesh)
{
    return mesh->sizes[0] * mesh->sizes[1] * mesh->sizes[2] * mesh->sizes[3];
}

/* -- the product ------------------------------------------------------------------------------ */

/* What one rank has and computes. The regions are those of its gathered operands. */
struct rank {
    struct cst_linear_box own[CST_LINEAR_OPERANDS], region[CST_LINEAR_OPERANDS];
    int64_t y[MOST_DIM][MOST_DIM], dx[MOST_DIM][MOST_DIM], dw[MOST_DIM][MOST_DIM]; /* Its parts. */
};

static struct rank ranks[MOST_RANKS];
static int64_t x[M][K], w[N][K], dy[M][N];

static uint32_t place(const struct cst_mesh *mesh, uint32_t axis, uint32_t rank)
{
    for (uint32_t i = CST_MESH_AXES - 1; i > axis; i--) {
        rank /= mesh->sizes[i];
    }
    return rank % mesh->sizes[axis];
}

/* Return whether two ranks differ on axes of @axes alone. */
static bool are_apart_on(const struct cst_mesh *mesh, const bool axes[CST_MESH_AXES], uint32_t a,
                         uint32_t b)
{
    for (uint32_t i = 0; i < CST_MESH_AXES; i++) {
        if (!axes[i] && place(mesh, i, a) != place(mesh, i, b)) {
            return false;
        }
    }
    return true;
}

/* The axes over which the gradient of an operand is summed, or Y itself: that over which it moves,
 * and those on which its blocks are the same. */
static void axes_of(const struct cst_linear_mode *mode, int operand, bool copies,
                    bool out[CST_MESH_AXES])
{
    const struct cst_linear_blocks *blocks = &mode->operands[operand];

    for (uint8_t i = 0; i < CST_MESH_AXES; i++) {
        const uint8_t axis = (uint8_t)(i + 1);

        out[i] = axis == blocks->moves ||
                 (copies && axis != blocks->rows[0] && axis != blocks->rows[1] &&
                  axis != blocks->columns[0] && axis != blocks->columns[1]);
    }
}

static uint64_t area(const struct cst_linear_box *box)
{
    return box->size[0] * box->size[1];
}

/* Gather an operand: the blocks of the ranks that differ on its axis make a rectangle. Returns the
 * number of elements that @rank receives for it. */
static uint64_t gather(const struct cst_linear_mode *mode, const struct cst_mesh *mesh, int operand,
                       uint32_t rank)
{
    struct cst_linear_box all = ranks[rank].own[operand];
    uint64_t received = 0, end[2] = {all.first[0] + all.size[0], all.first[1] + all.size[1]};
    bool axes[CST_MESH_AXES];

    axes_of(mode, operand, false, axes);
    for (uint32_t s = 0; s < count_ranks(mesh); s++) {
        const struct cst_linear_box *box = &ranks[s].own[operand];

        if (s == rank || !are_apart_on(mesh, axes, rank, s) ||
            (operand == CST_LINEAR_Y && mode->operands[operand].whole)) {
            continue;
        }
        received += area(box);
        for (int i = 0; i < 2; i++) {
            all.first[i] = box->first[i] < all.first[i] ? box->first[i] : all.first[i];
            end[i] = box->first[i] + box->size[i] > end[i] ? box->first[i] + box->size[i] : end[i];
        }
    }
    all.size[0] = end[0] - all.first[0];
    all.size[1] = end[1] - all.first[1];
    suite_must(area(&all) == received + area(&ranks[rank].own[operand]), "%s: gaps in operand %d",
               mode->name, operand);
    ranks[rank].region[operand] = all;
    return received;
}

static bool is_within(const struct cst_linear_box *box, uint64_t row, uint64_t column)
{
    return row >= box->first[0] && row < box->first[0] + box->size[0] && column >= box->first[1] &&
           column < box->first[1] + box->size[1];
}

/* Compute a rank's parts of Y, dX and dW from what it has gathered. */
static void compute(struct rank *r)
{
    memset(r->y, 0, sizeof r->y);
    memset(r->dx, 0, sizeof r->dx);
    memset(r->dw, 0, sizeof r->dw);
    for (uint64_t i = 0; i < M; i++) {
        for (uint64_t j = 0; j < N; j++) {
            for (uint64_t k = 0; k < K; k++) {
                if (is_within(&r->region[CST_LINEAR_X], i, k) &&
                    is_within(&r->region[CST_LINEAR_W], j, k)) {
                    suite_must(is_within(&r->region[CST_LINEAR_Y], i, j), "a part without its dY");
                    r->y[i][j] += x[i][k] * w[j][k];
                    r->dx[i][k] += dy[i][j] * w[j][k];
                    r->dw[j][k] += dy[i][j] * x[i][k];
                }
            }
        }
    }
}

/* Return what the sum over the ranks that belong together leaves on @rank at @row, @column. */
static int64_t sum_of(const struct cst_linear_mode *mode, const struct cst_mesh *mesh, int operand,
                      uint32_t rank, uint64_t row, uint64_t column)
{
    bool axes[CST_MESH_AXES];
    int64_t sum = 0;

    axes_of(mode, operand, operand != CST_LINEAR_Y, axes);
    for (uint32_t s = 0; s < count_ranks(mesh); s++) {
        if (are_apart_on(mesh, axes, rank, s)) {
            sum += operand == CST_LINEAR_Y   ? ranks[s].y[row][column]
                   : operand == CST_LINEAR_X ? ranks[s].dx[row][column]
                                             : ranks[s].dw[row][column];
        }
    }
    return sum;
}

static int64_t truth(int operand, uint64_t row, uint64_t column)
{
    int64_t sum = 0;

    for (uint64_t i = 0; i < (operand == CST_LINEAR_X ? N : operand == CST_LINEAR_W ? M : K); i++) {
        sum += operand == CST_LINEAR_Y   ? x[row][i] * w[column][i]
               : operand == CST_LINEAR_X ? dy[row][i] * w[i][column]
                                         : dy[i][row] * x[i][column];
    }
    return sum;
}

static void is_right(const struct cst_linear_mode *mode, const struct cst_mesh *mesh, uint32_t rank)
{
    for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
        const struct cst_linear_box *box = &ranks[rank].own[o];

        for (uint64_t i = box->first[0]; i < box->first[0] + box->size[0]; i++) {
            for (uint64_t j = box->first[1]; j < box->first[1] + box->size[1]; j++) {
                suite_must(sum_of(mode, mesh, o, rank, i, j) == truth(o, i, j),
                           "%s, rank %u: operand %d is wrong", mode->name, rank, o);
            }
        }
    }
}

/* Return on how many ranks the block of @rank is: the sum of its gradient, or Y, is left on all. */
static uint64_t count_copies(uint32_t n_ranks, int operand, uint32_t rank)
{
    uint64_t n = 0;

    for (uint32_t s = 0; s < n_ranks; s++) {
        n += memcmp(&ranks[s].own[operand], &ranks[rank].own[operand],
                    sizeof ranks[s].own[operand]) == 0;
    }
    return n;
}

/* Let all ranks of the mesh compute. Returns the number of elements that each of them receives. */
static uint64_t run(const struct cst_linear_mode *mode, const struct cst_mesh *mesh)
{
    static const uint64_t moves[] = {3, 3, 2};
    const uint32_t n = count_ranks(mesh);
    uint64_t received = 0;

    for (uint32_t r = 0; r < n; r++) {
        for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
            ranks[r].own[o] = cst_linear_box(mode, mesh, &shape, (enum cst_linear_operand)o, r);
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        received = 0;
        for (int o = 0; o < CST_LINEAR_OPERANDS; o++) {
            const uint64_t copies = count_copies(n, o, r);

            received += moves[o] * gather(mode, mesh, o, r);
            received += 2 * (copies - 1) * area(&ranks[r].own[o]) / copies;
        }
        compute(&ranks[r]);
    }
    return received;
}

/* In every mode and on every mesh of up to 24 ranks, gathered blocks and sums give the product and
 * both gradients, and the elements that are counted are those of the formula. */
START_TEST(products)
{
    const struct cst_linear_mode *mode = cst_linear_mode((uint32_t)_i);
    uint32_t n_meshes = 0;

    for (uint64_t i = 0; i < M; i++) {
        for (uint64_t k = 0; k < K; k++) {
            x[i][k] = (int64_t)(i * 7 + k * 13) % 11 - 5;
            w[i % N][k] = (int64_t)(i % N * 5 + k * 3) % 7 - 3;
            dy[i][k % N] = (int64_t)(i * 3 + k % N * 17) % 13 - 6;
        }
    }
    for (uint32_t n = 2; n <= MOST_RANKS; n++) {
        struct cst_mesh meshes[64];
        const size_t n_found = cst_linear_meshes(mode, n, &shape, meshes, 64);

        for (size_t i = 0; i < n_found; i++, n_meshes++) {
            const uint64_t received = run(mode, &meshes[i]);

            ck_assert_uint_eq(count_ranks(&meshes[i]), n);
            ck_assert_uint_eq(received, cst_linear_received(mode, &meshes[i], &shape, false));
            for (uint32_t r = 0; r < n; r++) {
                is_right(mode, &meshes[i], r);
            }
        }
    }
    ck_assert_uint_ge(n_meshes, 5);
}
END_TEST

/* -- volumes ---------------------------------------------------------------------------------- */

static uint64_t received_of(const char *mode, uint32_t d, uint32_t a, uint32_t b, uint32_t c,
                            const struct cst_linear_shape *of, bool keeps)
{
    const struct cst_mesh mesh = {{d, a, b, c}};

    suite_must(cst_linear_check(mode_of(mode), &mesh, of, &err) == CST_OK, "%s", err.text);
    return cst_linear_received(mode_of(mode), &mesh, of, keeps);
}

/* The elements that were counted in runs of PyTorch's collectives, M 32, K 16, N 24. */
START_TEST(counted)
{
    static const struct cst_linear_shape small = {32, 24, 16};

    ck_assert_uint_eq(received_of("column", 1, 8, 1, 1, &small, false), 896);
    ck_assert_uint_eq(received_of("row", 1, 8, 1, 1, &small, false), 1344);
    ck_assert_uint_eq(received_of("zero3", 1, 8, 1, 1, &small, false), 1008);
    ck_assert_uint_eq(received_of("2d", 1, 2, 2, 1, &small, false), 672);
    ck_assert_uint_eq(received_of("2.5d", 2, 2, 2, 1, &small, false), 576);
    ck_assert_uint_eq(received_of("3d", 1, 2, 2, 2, &small, false), 528);
    ck_assert_uint_eq(received_of("3d", 1, 2, 2, 2, &small, true), 416);
}
END_TEST

/* Millions of elements for a layer of a transformer with 8192 tokens and 4096 hidden elements. */
START_TEST(layers)
{
    static const struct cst_linear_shape linears[] = {
        {8192, 3 * 4096, 4096}, {8192, 4096, 4096}, {8192, 4 * 4096, 4096}, {8192, 4096, 4 * 4096}};
    uint64_t one = 0, two = 0, two_and_a_half = 0, three = 0;

    for (int i = 0; i < 4; i++) {
        one += received_of(i % 2 == 0 ? "column" : "row", 1, 8, 1, 1, &linears[i], false);
        two += received_of("2d", 1, 4, 4, 1, &linears[i], false);
        two_and_a_half += received_of("2.5d", 2, 2, 2, 1, &linears[i], false);
        three += received_of("3d", 1, 2, 2, 2, &linears[i], true);
    }
    ck_assert_uint_eq((one + 500000) / 1000000, 235);
    ck_assert_uint_eq((two + 500000) / 1000000, 245);
    ck_assert_uint_eq((two_and_a_half + 500000) / 1000000, 289);
    ck_assert_uint_eq((three + 500000) / 1000000, 185);
}
END_TEST

/* -- refusals --------------------------------------------------------------------------------- */

static void refused(const char *mode, struct cst_mesh mesh, struct cst_linear_shape of,
                    const char *words)
{
    ck_assert_int_eq(cst_linear_check(mode_of(mode), &mesh, &of, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, words);
}

/* What does not divide is refused with the meshes that do, or with other numbers of ranks. */
START_TEST(refusals)
{
    refused("2d", (struct cst_mesh){{1, 4, 2, 1}}, (struct cst_linear_shape){8, 8, 10},
            "2d on 4 x 2: K = 10 does not divide into 4 parts; no mesh of 8 ranks does; one of 4 "
            "ranks does");
    refused("2d", (struct cst_mesh){{1, 2, 4, 1}}, (struct cst_linear_shape){64, 66, 64},
            "2d on 2 x 4: N = 66 does not divide into 4 parts; meshes of 8 ranks that do: 4 x 2");
    refused("column", (struct cst_mesh){{1, 3, 1, 1}}, (struct cst_linear_shape){64, 64, 64},
            "column on 3: N = 64 does not divide into 3 parts; no mesh of 3 ranks does; one of 2 "
            "ranks does; one of 4 ranks does");
    refused("3d", (struct cst_mesh){{1, 2, 2, 1}}, (struct cst_linear_shape){64, 64, 64},
            "3d: wanted a mesh of 3 axes with at least 2 ranks each; no mesh of 4 ranks does; one "
            "of 8 ranks does");
    refused("2.5d", (struct cst_mesh){{1, 4, 2, 1}}, (struct cst_linear_shape){64, 64, 64},
            "2.5d: wanted a mesh of 3 axes with at least 2 ranks each; meshes of 8 ranks that do: "
            "2 x 2 x 2");
}
END_TEST

START_TEST(no_such_mode)
{
    const struct cst_linear_mode *mode;

    ck_assert_int_eq(cst_linear_find(&mode, "4d", &err), CST_ENOTFOUND);
    ck_assert_str_eq(err.text, "no mode '4d' of tensor parallelism; there are column, row, "
                               "sp-column, sp-row, zero3, 2d, 2.5d, 3d");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parallel_volume");
    TCase *tc = suite_case(s, "products", NULL, NULL);

    tcase_add_loop_test(tc, products, 0, 8);
    tc = suite_case(s, "volumes", NULL, NULL);
    tcase_add_test(tc, counted);
    tcase_add_test(tc, layers);
    tc = suite_case(s, "refusals", NULL, NULL);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, no_such_mode);
    return suite_run(s);
}
