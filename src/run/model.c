/* SPDX-License-Identifier: Apache-2.0 */
/* The model handle: a graph in an arena of its own, with the builder and the questions one may ask of it. */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "io/file.h"
#include "io/kind.h"
#include "run/handles.h"
#include "run/tensor.h"

const char lf_not_finished[] = "the model is not finished: lf_model_return says what it returns";

lf_status lf_model_new(lf_context *context, lf_model **out)
{
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = calloc(1, sizeof **out);
    if (!*out)
        return lf_fail_nomem(&context->diag, "the model");
    lf_model *m = *out;
    m->context = context;
    lf_arena_init(&m->arena);
    lf_status status = lf_graph_init(&m->graph, &m->arena, &m->diag);
    if (status == LF_OK)
        return LF_OK;
    context->diag = m->diag;
    lf_model_free(m);
    *out = NULL;
    return status;
}

void lf_model_free(lf_model *model)
{
    if (!model)
        return;
    lf_arena_free(&model->arena);
    free(model);
}

const char *lf_model_message(const lf_model *model) { return model ? model->diag.text : "no model"; }

lf_status lf_model_read(lf_context *context, const char *name, const char *text, size_t length, lf_model **out)
{
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = NULL;
    if (!name || !text)
        return lf_fail_null(&context->diag, name ? "text" : "name");
    lf_status status = lf_model_new(context, out);
    if (status != LF_OK)
        return status;
    lf_model *m = *out;
    status = lf_text_read(&m->graph, name, text, length);
    if (status == LF_OK)
        status = lf_graph_verify(&m->graph);
    if (status != LF_OK) {
        context->diag = m->diag;
        lf_model_free(m);
        *out = NULL;
        return status;
    }
    m->returned = true;
    return LF_OK;
}

/* What a file is that holds something else than model text, and what to do with it; NULL where it may be text. */
static const char *mistaken_for_text(const char *path, const unsigned char *bytes, size_t size)
{
    const char *ending = strrchr(path, '.');
    switch (lf_file_kind_of(bytes, size)) {
    case LF_FILE_SAFETENSORS:
        return "safetensors, weights without a model; it goes with the model's .lf, as its weights";
    case LF_FILE_ARRAY: return "an array, data without a model; it goes with the model's .lf, as its --input";
    case LF_FILE_TORCH:
        return "a model as PyTorch saves it; linfuse.save(model, inputs, folder) in Python writes it as .lf and "
               ".safetensors";
    case LF_FILE_TEXT:
    case LF_FILE_OTHER: break;
    }
    if (ending && strcmp(ending, ".onnx") == 0)
        return "ONNX, which linfuse does not read yet; linfuse.save in Python writes a PyTorch model as .lf";
    if (ending && strcmp(ending, ".py") == 0)
        return "Python; linfuse.save(model, inputs, folder) in it writes a PyTorch model as .lf";
    return NULL;
}

lf_status lf_model_read_file(lf_context *context, const char *path, lf_model **out)
{
    lf_file file;
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = NULL;
    if (!path)
        return lf_fail_null(&context->diag, "path");
    lf_status status = lf_file_map(path, &file, &context->diag);
    if (status != LF_OK)
        return status;
    const char *other = mistaken_for_text(path, file.bytes, file.size);
    status = other ? lf_fail(&context->diag, LF_ERR_MODEL, "%s is no model text: it is %s", path, other)
                   : lf_model_read(context, path, file.bytes, file.size, out);
    lf_file_unmap(&file);
    return status;
}

lf_status lf_model_copy(const lf_model *model, lf_context *context, lf_model **out)
{
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = NULL;
    if (!model)
        return lf_fail_null(&context->diag, "model");
    if (!model->returned)
        return lf_fail(&context->diag, LF_ERR_ARG, "%s", lf_not_finished);
    lf_status status = lf_model_new(context, out);
    if (status != LF_OK)
        return status;
    status = lf_graph_copy(&model->graph, &(*out)->graph);
    (*out)->returned = status == LF_OK;
    if (status != LF_OK) {
        context->diag = (*out)->diag;
        lf_model_free(*out);
        *out = NULL;
    }
    return status;
}

/* ---- building ---- */

static lf_status is_open(lf_model *m, const char *what)
{
    return m->returned ? lf_fail(&m->diag, LF_ERR_ARG, "%s: the model is finished, nothing can be added", what)
                       : LF_OK;
}

static lf_status declare(lf_model *m, lf_op op, const char *name, lf_dtype dtype, int rank, const lf_dim *dims,
                         lf_value *out)
{
    lf_shape shape = {.rank = rank};
    if (!m)
        return LF_ERR_ARG;
    if (!name || !out)
        return lf_fail_null(&m->diag, name ? "out" : "name");
    if (rank < 0 || rank > LF_MAX_RANK)
        return lf_fail(&m->diag, LF_ERR_ARG, "%s %s: `rank` is %d, but must be between 0 and %d", lf_op_row(op)->name,
                       name, rank, LF_MAX_RANK);
    if (rank > 0 && !dims)
        return lf_fail_null(&m->diag, "dims");
    if ((unsigned)dtype >= LF_DTYPES)
        return lf_fail(&m->diag, LF_ERR_ARG, "%s %s: `dtype` is %d, which is no dtype", lf_op_row(op)->name, name,
                       (int)dtype);
    const int symbols = m->graph.symbols;
    lf_status status = is_open(m, name);
    for (int i = 0; i < rank && status == LF_OK; i++) {
        int symbol = 0;
        shape.dim[i] = lf_extent_of(dims[i].name ? 1 : dims[i].number);
        if (dims[i].name)
            status = lf_graph_symbol(&m->graph, dims[i].name, strlen(dims[i].name), &symbol);
        if (dims[i].name && status == LF_OK)
            shape.dim[i].pow[symbol] = 1;
    }
    if (status == LF_OK)
        status = lf_graph_leaf(&m->graph, op, name, dtype, &shape, out);
    if (status != LF_OK)
        m->graph.symbols = symbols; /* extents that no input has are not to be learnt */
    return status;
}

lf_status lf_model_input(lf_model *model, const char *name, lf_dtype dtype, int rank, const lf_dim *dims, lf_value *out)
{
    return declare(model, LF_OP_input, name, dtype, rank, dims, out);
}

lf_status lf_model_param(lf_model *model, const char *name, lf_dtype dtype, int rank, const lf_dim *dims, lf_value *out)
{
    return declare(model, LF_OP_param, name, dtype, rank, dims, out);
}

lf_status lf_model_op(lf_model *model, const char *name, const char *op, const lf_arg *args, size_t arg_count,
                      lf_value *out)
{
    if (!model)
        return LF_ERR_ARG;
    if (!op || !out)
        return lf_fail_null(&model->diag, op ? "out" : "op");
    if (arg_count > 0 && !args)
        return lf_fail_null(&model->diag, "args");
    if (is_open(model, op) != LF_OK)
        return LF_ERR_ARG;
    for (size_t i = 0; i < arg_count; i++)
        if ((args[i].kind == LF_ARG_LIST && args[i].count > 0 && !args[i].list) ||
            (args[i].kind == LF_ARG_STRING && !args[i].string))
            return lf_fail(&model->diag, LF_ERR_ARG, "%s: argument %zu has a NULL %s", op, i + 1,
                           args[i].kind == LF_ARG_LIST ? "list" : "string");
    for (size_t i = 0; i < arg_count; i++)
        if (args[i].kind == LF_ARG_VALUE && (args[i].value < 0 || args[i].value >= model->graph.count))
            return lf_fail(&model->diag, LF_ERR_ARG, "%s: argument %zu is not a value of this model", op, i + 1);
    return lf_graph_bind(&model->graph, name, op, args, arg_count, out, NULL);
}

lf_status lf_model_value_shape(lf_model *model, lf_value value, const int64_t *dims, int *rank, int64_t *extents)
{
    if (!model)
        return LF_ERR_ARG;
    const lf_graph *g = &model->graph;
    if (value < 0 || value >= g->count)
        return lf_fail(&model->diag, LF_ERR_ARG, "`value` is %d, which is not a value of this model", (int)value);
    if (!rank || !extents)
        return lf_fail_null(&model->diag, rank ? "extents" : "rank");
    if (g->symbols > 0 && !dims)
        return lf_fail_null(&model->diag, "dims");
    const lf_shape *s = &lf_at(g, value)->shape;
    *rank = s->rank;
    for (int i = 0; i < s->rank; i++)
        extents[i] = lf_extent_at(s->dim[i], dims);
    return LF_OK;
}

lf_dtype lf_model_value_dtype(const lf_model *model, lf_value value)
{
    return model && value >= 0 && value < model->graph.count ? lf_at(&model->graph, value)->dtype : LF_F32;
}

lf_status lf_model_return(lf_model *model, const lf_value *values, size_t count)
{
    if (!model)
        return LF_ERR_ARG;
    if (model->returned)
        return lf_fail(&model->diag, LF_ERR_ARG, "return: the model is finished, it has its return already");
    if (count > 0 && !values)
        return lf_fail_null(&model->diag, "values");
    for (size_t i = 0; i < count; i++)
        if (values[i] < 0 || values[i] >= model->graph.count)
            return lf_fail(&model->diag, LF_ERR_ARG, "return: value %zu is not a value of this model", i + 1);
    lf_status status = lf_graph_return(&model->graph, values, count);
    if (status == LF_OK)
        status = lf_graph_verify(&model->graph);
    model->returned = status == LF_OK;
    return status;
}

lf_status lf_model_print(lf_model *model, char **out)
{
    if (!model)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&model->diag, "out");
    *out = NULL;
    return model->returned ? lf_text_print(&model->graph, out)
                           : lf_fail(&model->diag, LF_ERR_ARG, "%s", lf_not_finished);
}

void lf_string_free(char *text) { free(text); }

/* ---- ports ---- */

static const lf_node *ports(const lf_model *m, lf_port port, size_t *count)
{
    const lf_graph *g = &m->graph;
    *count = (size_t)(port == LF_PORT_INPUT ? g->inputs : port == LF_PORT_PARAM ? g->params : g->outputs);
    return port == LF_PORT_INPUT ? g->input : port == LF_PORT_PARAM ? g->param : g->output;
}

static const lf_node_info *port_at(const lf_model *m, lf_port port, size_t index)
{
    size_t count = 0;
    const lf_node *list = m ? ports(m, port, &count) : NULL;
    return index < count ? lf_at(&m->graph, list[index]) : NULL;
}

size_t lf_model_port_count(const lf_model *model, lf_port port)
{
    size_t count = 0;
    if (model)
        ports(model, port, &count);
    return count;
}

const char *lf_model_port_name(const lf_model *model, lf_port port, size_t index)
{
    const lf_node_info *info = port_at(model, port, index);
    return info ? info->name : NULL;
}

lf_dtype lf_model_port_dtype(const lf_model *model, lf_port port, size_t index)
{
    const lf_node_info *info = port_at(model, port, index);
    return info ? info->dtype : LF_F32;
}

int lf_model_port_rank(const lf_model *model, lf_port port, size_t index)
{
    const lf_node_info *info = port_at(model, port, index);
    return info ? info->shape.rank : -1;
}

size_t lf_model_dim_count(const lf_model *model) { return model ? (size_t)model->graph.symbols : 0; }

const char *lf_model_dim_name(const lf_model *model, size_t index)
{
    return index < lf_model_dim_count(model) ? model->graph.symbol[index] : NULL;
}

int64_t lf_model_port_extent(const lf_model *model, lf_port port, size_t index, int axis, const int64_t *dims)
{
    const lf_node_info *info = port_at(model, port, index);
    if (!info || axis < 0 || axis >= info->shape.rank || (!dims && model->graph.symbols > 0))
        return -1;
    return lf_extent_at(info->shape.dim[axis], dims);
}

int64_t lf_model_port_factors(const lf_model *model, lf_port port, size_t index, int axis, int *powers)
{
    const lf_node_info *info = port_at(model, port, index);
    if (!info || axis < 0 || axis >= info->shape.rank)
        return -1;
    const lf_extent *extent = &info->shape.dim[axis];
    for (int s = 0; powers && s < model->graph.symbols; s++)
        powers[s] = extent->pow[s];
    return extent->coef;
}

bool lf_model_rows_independent(const lf_model *model, bool *has_rows)
{
    if (!model || !model->returned)
        return false;
    bool *rows = calloc((size_t)model->graph.count + 1, sizeof *rows);
    if (!rows)
        return false;
    bool independent = lf_graph_rows(&model->graph, rows, NULL);
    for (int32_t i = 0; has_rows && i < model->graph.inputs; i++)
        has_rows[i] = independent && rows[model->graph.input[i]];
    free(rows);
    return independent;
}

/* ---- its meaning ---- */

/* What evaluation reads: one per node; copies of tensors whose elements are not in order. */
typedef struct bindings {
    lf_bound *bound;
    const int64_t **extents; /* one list per input, borrowed */
    const void **input;      /* one per input, its elements in order */
    void **copy;
    int32_t copies;
} bindings;

static lf_status bindings_begin(lf_model *m, bindings *b)
{
    const lf_graph *g = &m->graph;
    b->bound = calloc((size_t)g->count + 1, sizeof *b->bound);
    b->extents = calloc((size_t)g->inputs + 1, sizeof *b->extents);
    b->input = calloc((size_t)g->inputs + 1, sizeof *b->input);
    b->copy = calloc((size_t)g->inputs + (size_t)g->params + 1, sizeof *b->copy);
    return b->bound && b->extents && b->input && b->copy ? LF_OK : lf_fail_nomem(&m->diag, "evaluation");
}

static void bindings_end(bindings *b)
{
    for (int32_t i = 0; i < b->copies; i++)
        free(b->copy[i]);
    free(b->copy);
    free(b->input);
    free(b->extents);
    free(b->bound);
}

static lf_status bind(lf_model *m, bindings *b, const char *kind, lf_node node, const lf_tensor *t)
{
    lf_status status = lf_tensor_check(t, (lf_port_ref){kind, &m->graph, node}, &m->diag);
    if (status == LF_OK && t->memory != LF_HOST)
        return lf_fail(&m->diag, LF_ERR_ARG, "%s %s: evaluation needs host memory", kind, lf_at(&m->graph, node)->name);
    if (status != LF_OK)
        return status;
    b->bound[node] = (lf_bound){.data = t->data, .dtype = t->dtype};
    if (lf_tensor_is_dense(t))
        return LF_OK;
    void *copy = malloc(lf_tensor_bytes(t));
    if (!copy)
        return lf_fail_nomem(&m->diag, "evaluation");
    lf_tensor_pack(t, copy);
    b->bound[node].data = b->copy[b->copies++] = copy;
    return LF_OK;
}

static lf_status bind_all(lf_model *m, bindings *b, const lf_tensor *inputs, const lf_tensor *params)
{
    const lf_graph *g = &m->graph;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++) {
        status = bind(m, b, "input", g->input[i], &inputs[i]);
        b->extents[i] = inputs[i].extents;
        b->input[i] = b->bound[g->input[i]].data;
    }
    for (int32_t i = 0; i < g->params && status == LF_OK; i++)
        status = bind(m, b, "parameter", g->param[i], &params[i]);
    return status;
}

static lf_status eval(lf_model *m, bindings *b, const lf_tensor *inputs, const lf_tensor *params,
                      double *const *outputs)
{
    const lf_graph *g = &m->graph;
    int64_t dims[LF_MAX_DIMS] = {0};
    lf_status status = bindings_begin(m, b);
    if (status == LF_OK)
        status = bind_all(m, b, inputs, params);
    if (status == LF_OK)
        status = lf_learn_dims(g, b->extents, dims, &m->diag);
    for (int32_t i = 0; i < g->outputs && status == LF_OK; i++)
        if (!outputs[i] && lf_shape_count(&lf_at(g, g->output[i])->shape, dims) > 0)
            status = lf_fail(&m->diag, LF_ERR_ARG, "output %s: the address must not be NULL",
                             lf_at(g, g->output[i])->name);
    if (status == LF_OK)
        status = lf_graph_check_targets(g, dims, b->input, &m->diag);
    return status == LF_OK ? lf_eval(g, dims, b->bound, g->output, (size_t)g->outputs, outputs, &m->diag) : status;
}

lf_status lf_model_eval(lf_model *model, const lf_tensor *inputs, const lf_tensor *params, double *const *outputs)
{
    if (!model)
        return LF_ERR_ARG;
    const lf_graph *g = &model->graph;
    if (!model->returned)
        return lf_fail(&model->diag, LF_ERR_ARG, "%s", lf_not_finished);
    if ((!inputs && g->inputs > 0) || (!params && g->params > 0))
        return lf_fail_null(&model->diag, !inputs && g->inputs > 0 ? "inputs" : "params");
    if (!outputs)
        return lf_fail_null(&model->diag, "outputs");
    bindings b = {0};
    lf_status status = eval(model, &b, inputs, params, outputs);
    bindings_end(&b);
    return status;
}
