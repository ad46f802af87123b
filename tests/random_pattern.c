/* SPDX-License-Identifier: Apache-2.0 */
/* Short runs of ops that rewrites are made for and that chance alone would seldom put together. */
#include <stdio.h>
#include <string.h>

#include "random_model.h"

/* Calls, one after the other. @ is the result before (first: the value at hand), @0 the value at hand, @1 the first
 * call's result ...; $w a weight for @ ($m: turned), $W one for @0, $s one for @0 as wide as @1, $b its bias, $c a
 * column and $r a row beside @, $o one number as a parameter, $v a positive vector of its channels, $k its last extent,
 * $n a number. */
static const char *const patterns[] = {
    "linear(@, $w)|sub(@, $c)|mean(@, dim=-1, keepdim=true)|logsumexp(@, dim=-1, keepdim=true)|gelu(@)",
    "linear(@, $w)|add($c, @)|mul(@, $c)|neg(@)|div(@, $n)",
    "linear(@, $w, $b)|sum(@, dim=-1)",
    "linear(@, $w, $b)|add(@, $r)|mul(@, $r)|sum(@, dim=-1, keepdim=true)",
    "linear(@, $w, $b)|neg(@)|div(@, $r)|mean(@, dim=-1)",
    "linear(@, $w, $b)|mul(@, $r)|sum(@, dim=-1, keepdim=true)",
    "linear(@, $w)|div(@, $r)|neg(@)|mean(@, dim=-1)",
    "linear(@, $w, $b)|avg_pool1d(@, 3, 2)",
    "linear(@, $w, $b)|linear(@, $w, $b)",
    "linear(@, $w)|gelu(@)|linear(@, $w)|log_softmax(@, dim=-1)",
    "mul(@, $c)|linear(@, $w, $b)",
    "div(@, $n)|matmul(@, $m)",
    "linear(@, $w)|batch_norm(@, $v, $v, $v, $v)",
    "instance_norm(@, $v, $v, $v, use_input_stats=false)",
    "linear(@, $w)|max(@, dim=-1, keepdim=true)|mean(@, dim=-1, keepdim=true)|sub(@2, @3)|gelu(@)",
    "linear(@, $w, $b)|relu(@)|sub(@2, @2)",
    "add($n, $n)|exp(@)|mul(@0, @2)",
    "add(@, 0)|mul(1, @)",
    "div(@, 1)|sub(@, 0)",
    "pow(@, 1)|leaky_relu(@, 1)",
    "clamp(@, -inf, inf)",
    "maximum(@, @)",
    "minimum(@, $n)|maximum($n, @)",
    "clamp(@, 0.5, 0.5)|exp(@)|add(@, $n)",
    "clamp(@, 2, 2)|pow(@, 0)",
    "relu(@)|hardtanh(@)|clamp(@, $n, $n)",
    "abs(@)|abs(@)",
    "exp(@)|relu(@)",
    "sigmoid(@)|leaky_relu(@, 0.3)",
    "neg(@)|neg(@)",
    "neg(@)|abs(@)",
    "leaky_relu(@, 0.1)|leaky_relu(@, $n)",
    "leaky_relu(@, -0.3)|leaky_relu(@, 0.2)",
    "relu(@)|max(@, dim=-1)",
    "neg(@)|min(@, dim=-1, keepdim=true)",
    "tanh(@)|mul(@, $n)|max(@, dim=-1)",
    "sigmoid(@)|sqrt(@)|min(@, dim=-1)",
    "sigmoid(@)|mul(@0, @)",
    "mul(@, 1.702)|sigmoid(@)|mul(@0, @)",
    "pow(@, 2)|mean(@, dim=-1, keepdim=true)|add(@, 0.001)|rsqrt(@)|mul(@0, @)",
    "mul(@, 0.5)|div(@0, 1.4142135623730951)|erf(@)|add(@, 1)|mul(@1, @)",
    "pow(@, 3)|add(@0, @, alpha=0.044715)|mul(@, 0.7978845608028654)|tanh(@)|add(1, @)|mul(@0, @)|mul(@, 0.5)",
    "clone(@)|dropout(@, 0.5, training=false)",
    "unsqueeze(@, 1)|squeeze(@, 1)",
    "flatten(@, 0, 0)",
    "unsqueeze(@, -1)|transpose(@, -1, -2)",
    "transpose(@, 0, 1)|transpose(@, 1, 0)",
    "transpose(@, -1, -2)|relu(@)|transpose(@, -2, -1)|add(@, @0)",
    "gelu(@)|unsqueeze(@, 1)|tanh(@)|mul(@, $n)",
    "gelu(@)|flatten(@)|tanh(@)",
    "max(@, dim=-1, keepdim=true)|softmax(@, dim=-1)",
    "mean(@, dim=-1, keepdim=true)|log_softmax(@, dim=-1)|add(@, @0)",
    "add(@, $n)|softmax(@, dim=-1)",
    "add(@, $o)|softmax(@, dim=-1)",
    "sub(@, $o)|logsumexp(@, dim=-1)",
    "mul(@, 40)|softmax(@, dim=-1)|log(@)",
    "sub(@, $r)|softmax(@, dim=-1)",
    "gelu(@)|mean(@, dim=-1, keepdim=true)|sub(@1, @2)|softmax(@, dim=-1)",
    "sigmoid(@)|add(@, 0.5)|logsumexp(@, dim=-1)",
    "add(@, $n)|logsumexp(@, dim=-1)",
    "add($r, @)|logsumexp(@, dim=-1, keepdim=true)",
    "gelu(@)|max(@, dim=-1, keepdim=true)|sub(@1, @2)|logsumexp(@, dim=-1)",
    "sigmoid(@)|add(@, 0.5)|logsumexp(@, dim=-1)",
    "exp(@)|add(2, @)|logsumexp(@, dim=-1, keepdim=true)",
    "log_softmax(@, dim=-1)|exp(@)",
    "softmax(@, dim=-1)|log(@)",
    "logsumexp(@, dim=-1, keepdim=true)|sub(@0, @1)",
    "gelu(@0)|gelu(@0)|add(@1, @2)",
    "softmax(@, dim=-1)|logsumexp(@0, dim=-1, keepdim=true)|mul(@1, @2)",
    "sum(@, dim=0)|sub(@0, @1)",
    "batch_norm(@, None, None, training=true)|relu(@)",
    "softmax(@, dim=1)|mul(@, @0)",
    "layer_norm(@, [$k], $c, $c)|linear(@, $w)|silu(@)",
    "linear(@, $w)|silu(@)|linear(@0, $s)|mul(@2, @3)",
    "matmul(@, $m)|linear(@0, $s, $b)|sigmoid(@)|mul(@1, @3)",
    "linear(@, $w, $b)|linear(@0, $W)|linear(@0, $W, $b)",
    "linear(@, $w)|softmax(@, dim=-1)|linear(@0, $W)|logsumexp(@, dim=-1)",
    "linear(@, $w)|linear(@0, $s)|softmax(@, dim=-1)|add(@1, @3)",
};

typedef struct run {
    rnd_maker *m;
    lf_node result[8]; /* result[0]: the value at hand */
    int done;
} run;

/* A weight for the value at hand, as wide as the first call's result; NULL when it cannot be. */
static const char *sibling_weight(run *p)
{
    const lf_graph *g = &p->m->read.g;
    const lf_shape *x = &lf_at(g, p->result[0])->shape, *y = &lf_at(g, p->result[1])->shape;
    if (p->done < 1 || x->rank < 2 || y->rank < 2)
        return NULL;
    const lf_extent n = y->dim[y->rank - 1], k = x->dim[x->rank - 1];
    return lf_extent_known(n) && lf_extent_known(k)
               ? rnd_leaf(p->m, true, &(lf_shape){.rank = 2, .dim = {n, k}}, ".w")
               : NULL;
}

/* The text of one placeholder, or NULL when it cannot be. */
static const char *placeholder(run *p, char what)
{
    rnd_maker *m = p->m;
    lf_node x = p->result[p->done];
    lf_shape s = lf_at(&m->read.g, x)->shape;
    if (s.rank == 0)
        return what == 'n' ? lf_arena_printf(&m->read.arena, "%.9g", rnd_number(m)) : NULL;
    lf_extent last = s.dim[s.rank - 1], channels = s.dim[s.rank > 1 ? 1 : 0];
    switch (what) {
    case 'w':
    case 'm': return rnd_weight(m, x, what == 'm');
    case 'W': return rnd_weight(m, p->result[0], false);
    case 's': return sibling_weight(p);
    case 'c': return rnd_leaf(m, true, &(lf_shape){.rank = 1, .dim = {last}}, rnd_chance(&m->r, 0.5) ? ".pos" : "");
    case 'v': return rnd_leaf(m, true, &(lf_shape){.rank = 1, .dim = {channels}}, ".pos");
    case 'o': return rnd_leaf(m, true, &(lf_shape){.rank = 1, .dim = {lf_extent_of(1)}}, "");
    case 'k': return lf_extent_known(last) ? lf_extent_text(&m->read.g, last) : NULL;
    case 'r':
        for (int i = 1; i < s.rank; i++)
            s.dim[i] = lf_extent_of(1);
        return rnd_leaf(m, false, &s, ".pos");
    case 'b': { /* as long as the weight whose line is the last one */
        char n[24];
        const char *w = strrchr(m->lines, '[');
        if (!w || sscanf(w, "[%23[0-9]", n) != 1)
            return "None";
        snprintf(m->lines + strlen(m->lines), sizeof m->lines - strlen(m->lines), "param l%d f32[%s]\n", m->leaves, n);
        return lf_arena_printf(&m->read.arena, "l%d", m->leaves++);
    }
    default: return lf_arena_printf(&m->read.arena, "%.9g", rnd_number(m));
    }
}

static bool one_call(run *p, const char *template, size_t length)
{
    char call[512];
    size_t used = 0;
    p->m->lines[0] = 0;
    for (size_t i = 0; i < length; i++) {
        const char *text = NULL;
        char one[2] = {template[i], 0};
        if (template[i] == '@') {
            bool counted = i + 1 < length && template[i + 1] >= '0' && template[i + 1] <= '9';
            int which = counted ? template[++i] - '0' : p->done;
            text = lf_at(&p->m->read.g, p->result[which])->name;
        } else if (template[i] == '$') {
            text = placeholder(p, template[++i]);
        } else {
            text = one;
        }
        if (!text || used + strlen(text) + 1 > sizeof call)
            return false;
        memcpy(call + used, text, strlen(text) + 1);
        used += strlen(text);
    }
    if (!rnd_append(p->m, call))
        return false;
    p->result[++p->done] = p->m->read.g.count - 1;
    return true;
}

void rnd_pattern(rnd_maker *m)
{
    run p = {.m = m, .result = {m->node[m->nodes - 1]}};
    const char *at = patterns[rnd_below(&m->r, sizeof patterns / sizeof patterns[0])];
    for (bool more = true; more && *at;) {
        size_t length = strcspn(at, "|");
        more = one_call(&p, at, length);
        at += length + (at[length] == '|');
    }
}
