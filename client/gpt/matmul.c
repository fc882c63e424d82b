/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/matmul.h"

#include "client/gpt/memory.h"
#include "client/gpt/parallel.h"
#include "proto/isa.h"

#include <dnnl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Shapes that are kept compiled. A dense model uses about 20. A mixture uses some for each number
 * of rows of an expert. */
#define MAX_SHAPES 512

/* Before it multiplies in fp32, oneDNN copies an operand whose rows are summed over into blocks.
 * For AVX2 a block has 24 columns, so that the end of a block shares cache lines with the begin of
 * the next one. Rows that are a multiple of SLOW_ROW_BYTES apart lie in few sets of the caches:
 * their lines are evicted before the next block needs them, and the product takes up to twice as
 * long. Therefore oneDNN gets a copy of such an operand, with a gap of one cache line between its
 * rows. */
#define SLOW_ROW_BYTES 2048
#define GAP_ELEMS 16

struct product {
    size_t m, n, k;
    bool turn_a, turn_b;   /* the operands are stored transposed */
    size_t a_row, b_row;   /* elements from one stored row to the next, with the gap of a copy */
    dnnl_primitive_t run;  /* compiled product */
    dnnl_memory_t a, b, c; /* descriptors; their pointers are set before each run */
    dnnl_memory_t scratch; /* descriptor of the scratchpad; its pointer is set before each run */
    uint64_t used;         /* use_count at the last use */
};

/* Memory that grows on demand and never shrinks. */
struct buffer {
    void *p;
    size_t bytes;
};

struct gpt_matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16;                    /* operands are bf16 */
    bool gaps;                    /* operands with slow rows are copied */
    unsigned n_threads;           /* threads that copy them */
    struct buffer scratch;        /* scratchpad of all products */
    struct buffer a_copy, b_copy; /* operands with gaps between their rows */
    uint64_t use_count;           /* products computed so far */
    size_t n_products;            /* entries in products */
    struct product products[MAX_SHAPES];
};

/* Pass the limit of the instruction set to oneDNN, which accepts it only before its first use. On
 * AArch64, oneDNN has no limits. */
static void limit_isa(void)
{
#ifndef __aarch64__
    switch (cst_isa_limit()) {
    case CST_ISA_PLAIN:
        (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
        break;
    case CST_ISA_AVX2:
        (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
        break;
    case CST_ISA_AVX512:
    default:
        break;
    }
#endif
}

static void begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, limit_isa);
}

/* True where oneDNN uses the instruction set @isa. */
static bool uses(dnnl_cpu_isa_t isa)
{
    begin();
    /* The values are sets of bits: each set includes the sets of the instruction sets below it. */
    return ((int)dnnl_get_effective_cpu_isa() & (int)isa) == (int)isa;
}

bool gpt_matmul_fast_bf16(void)
{
    return uses(dnnl_cpu_isa_avx512_core_bf16);
}

static int dnnl_fault(dnnl_status_t status, const char *what, struct cst_err *err)
{
    if (status == dnnl_unimplemented) {
        return cst_err_set(err, CST_EUNSUPPORTED, "oneDNN has no %s on this CPU", what);
    }
    return cst_err_set(err, status == dnnl_out_of_memory ? CST_ENOMEM : CST_EINTERNAL,
                       "oneDNN: %s: status %d", what, (int)status);
}

int gpt_matmul_open(struct gpt_matmul **out, bool bf16, unsigned n_threads, struct cst_err *err)
{
    struct gpt_matmul *mm = calloc(1, sizeof *mm);
    dnnl_status_t status;

    begin();
    if (mm == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory");
    }
    mm->bf16 = bf16;
    mm->gaps = !bf16 && uses(dnnl_cpu_isa_sse41) && !uses(dnnl_cpu_isa_avx512_core);
    mm->n_threads = n_threads;
    status = dnnl_engine_create(&mm->engine, dnnl_cpu, 0);
    if (status == dnnl_success) {
        status = dnnl_stream_create(&mm->stream, mm->engine, dnnl_stream_default_flags);
    }
    if (status != dnnl_success) {
        gpt_matmul_close(mm);
        return dnnl_fault(status, "engine", err);
    }
    *out = mm;
    return 0;
}

static void product_close(struct product *p)
{
    dnnl_memory_destroy(p->a);
    dnnl_memory_destroy(p->b);
    dnnl_memory_destroy(p->c);
    dnnl_memory_destroy(p->scratch);
    dnnl_primitive_destroy(p->run);
}

void gpt_matmul_close(struct gpt_matmul *mm)
{
    if (mm == NULL) {
        return;
    }
    for (size_t i = 0; i < mm->n_products; i++) {
        product_close(&mm->products[i]);
    }
    dnnl_stream_destroy(mm->stream);
    dnnl_engine_destroy(mm->engine);
    gpt_memory_put(mm->scratch.p);
    gpt_memory_put(mm->a_copy.p);
    gpt_memory_put(mm->b_copy.p);
    free(mm);
}

/* Make @b hold at least @bytes. Its contents are lost if it has to grow. */
static bool grow(struct buffer *b, size_t bytes)
{
    void *p;

    if (bytes <= b->bytes) {
        return true;
    }
    p = gpt_memory_get(bytes);
    if (p == NULL) {
        return false;
    }
    gpt_memory_put(b->p);
    *b = (struct buffer){.p = p, .bytes = bytes};
    return true;
}

/* @row: elements from one stored row to the next. */
static dnnl_status_t describe(dnnl_memory_desc_t *md, size_t rows, size_t columns, bool turned,
                              size_t row, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    const dnnl_dims_t strides = {turned ? 1 : (dnnl_dim_t)row, turned ? (dnnl_dim_t)row : 1};

    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

/* Make the primitive descriptor of @p. The caller provides the scratchpad of each run. */
static dnnl_status_t product_plan(const struct gpt_matmul *mm, const struct product *p,
                                  dnnl_memory_desc_t md[3], dnnl_primitive_desc_t *out)
{
    const dnnl_data_type_t type = mm->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = describe(&md[0], p->m, p->k, p->turn_a, p->a_row, type);

    if (status == dnnl_success) {
        status = describe(&md[1], p->k, p->n, p->turn_b, p->b_row, type);
    }
    if (status == dnnl_success) {
        status = describe(&md[2], p->m, p->n, false, p->n, dnnl_f32);
    }
    if (status == dnnl_success) {
        status = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_create(&attr);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(out, &desc, attr, mm->engine, NULL);
    }
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t product_build(struct gpt_matmul *mm, struct product *p, size_t *scratch_out)
{
    dnnl_memory_desc_t md[3];
    dnnl_primitive_desc_t plan = NULL;
    const dnnl_memory_desc_t *scratch;
    dnnl_status_t status = product_plan(mm, p, md, &plan);

    if (status != dnnl_success) {
        return status;
    }
    scratch = dnnl_primitive_desc_query_md(plan, dnnl_query_scratchpad_md, 0);
    *scratch_out = dnnl_memory_desc_get_size(scratch);
    status = dnnl_memory_create(&p->scratch, scratch, mm->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success) {
        status = dnnl_memory_create(&p->a, &md[0], mm->engine, DNNL_MEMORY_NONE);
    }
    if (status == dnnl_success) {
        status = dnnl_memory_create(&p->b, &md[1], mm->engine, DNNL_MEMORY_NONE);
    }
    if (status == dnnl_success) {
        status = dnnl_memory_create(&p->c, &md[2], mm->engine, DNNL_MEMORY_NONE);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_create(&p->run, plan);
    }
    dnnl_primitive_desc_destroy(plan);
    return status;
}

/* Return a free entry. If all are taken, return the entry whose last use is longest ago. */
static struct product *entry_get(struct gpt_matmul *mm)
{
    struct product *oldest = &mm->products[0];

    if (mm->n_products < MAX_SHAPES) {
        return &mm->products[mm->n_products++];
    }
    for (size_t i = 1; i < MAX_SHAPES; i++) {
        oldest = mm->products[i].used < oldest->used ? &mm->products[i] : oldest;
    }
    product_close(oldest);
    return oldest;
}

/* Find the product of this shape, or make it. */
static int product_get(struct gpt_matmul *mm, const struct product *key, struct product **out,
                       struct cst_err *err)
{
    struct product fresh = *key;
    dnnl_status_t status;
    size_t bytes = 0;

    for (size_t i = 0; i < mm->n_products; i++) {
        struct product *p = &mm->products[i];

        if (p->m == key->m && p->n == key->n && p->k == key->k && p->turn_a == key->turn_a &&
            p->turn_b == key->turn_b) {
            *out = p;
            return 0;
        }
    }
    status = product_build(mm, &fresh, &bytes);
    /* The scratchpad is shared, because products of a context run one after the other. */
    if (status == dnnl_success && !grow(&mm->scratch, bytes)) {
        status = dnnl_out_of_memory;
    }
    if (status != dnnl_success) {
        product_close(&fresh);
        return dnnl_fault(status, mm->bf16 ? "matmul in bf16" : "matmul in fp32", err);
    }
    *out = entry_get(mm);
    **out = fresh;
    return 0;
}

static void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

/* Elements from one row of an operand to the next, as oneDNN gets it. The operand is stored with
 * @columns columns. @summed: the product sums over its rows. */
static size_t row_elems(const struct gpt_matmul *mm, size_t columns, bool summed)
{
    const bool slow = columns * sizeof(float) % SLOW_ROW_BYTES == 0;

    return mm->gaps && summed && slow ? columns + GAP_ELEMS : columns;
}

struct copy {
    const float *from;
    float *to;
    size_t columns, row; /* elements of a row; elements from one row of @to to the next */
};

static void copy_body(void *arg, unsigned thread, size_t first, size_t last)
{
    const struct copy *c = arg;

    (void)thread;
    for (size_t i = first; i < last; i++) {
        memcpy(c->to + i * c->row, c->from + i * c->columns, c->columns * sizeof(float));
    }
}

/* The operand @from of @rows x @columns elements, or a copy of it in @buffer whose rows are @row
 * elements apart. NULL: no memory. */
static const void *spaced(const struct gpt_matmul *mm, struct buffer *buffer, size_t rows,
                          size_t columns, size_t row, const void *from)
{
    struct copy c = {.from = from, .columns = columns, .row = row};

    if (row == columns) {
        return from;
    }
    if (!grow(buffer, rows * row * sizeof(float))) {
        return NULL;
    }
    c.to = buffer->p;
    gpt_parallel(mm->n_threads, rows, copy_body, &c);
    return c.to;
}

static dnnl_status_t product_run(struct gpt_matmul *mm, struct product *p, const void *a,
                                 const void *b, float *c)
{
    dnnl_status_t status;

    a = spaced(mm, &mm->a_copy, p->turn_a ? p->k : p->m, p->turn_a ? p->m : p->k, p->a_row, a);
    b = spaced(mm, &mm->b_copy, p->turn_b ? p->n : p->k, p->turn_b ? p->k : p->n, p->b_row, b);
    if (a == NULL || b == NULL) {
        return dnnl_out_of_memory;
    }
    dnnl_memory_set_data_handle(p->a, unconst(a));
    dnnl_memory_set_data_handle(p->b, unconst(b));
    dnnl_memory_set_data_handle(p->c, c);
    dnnl_memory_set_data_handle(p->scratch, mm->scratch.p);
    status = dnnl_primitive_execute(p->run, mm->stream, 4,
                                    (const dnnl_exec_arg_t[]){
                                        {DNNL_ARG_SRC, p->a},
                                        {DNNL_ARG_WEIGHTS, p->b},
                                        {DNNL_ARG_DST, p->c},
                                        {DNNL_ARG_SCRATCHPAD, p->scratch},
                                    });
    return status == dnnl_success ? dnnl_stream_wait(mm->stream) : status;
}

int gpt_matmul(struct gpt_matmul *mm, size_t m, size_t n, size_t k, const void *a, bool turn_a,
               const void *b, bool turn_b, float *c, struct cst_err *err)
{
    const struct product key = {
        .m = m,
        .n = n,
        .k = k,
        .turn_a = turn_a,
        .turn_b = turn_b,
        .a_row = row_elems(mm, turn_a ? m : k, turn_a),
        .b_row = row_elems(mm, turn_b ? k : n, !turn_b),
    };
    struct product *p = NULL;
    dnnl_status_t status;
    int rc = product_get(mm, &key, &p, err);

    if (rc != 0) {
        return rc;
    }
    p->used = ++mm->use_count;
    status = product_run(mm, p, a, b, c);
    return status == dnnl_success ? 0 : dnnl_fault(status, "matmul", err);
}
