/* SPDX-License-Identifier: Apache-2.0 */
/* Normalization by numbers that are known beforehand. */
#include "rewrite/rules.h"

/* A vector of channels, [C], beside a value whose axis 1 they are: [C, 1, ...]. */
static lf_node by_channel(lf_rw *rw, lf_node vector, const lf_shape *x)
{
    lf_shape shape = {.rank = x->rank - 1, .dim = {x->dim[1]}};
    for (int i = 1; i < shape.rank; i++)
        shape.dim[i] = lf_extent_of(1);
    return lf_rw_view(rw, vector, &shape);
}

/* (x - mean) / sqrt(var + eps) * w + b = (x - mean) * s + b with s = w / sqrt(var + eps), where all of these are fixed.
 * The difference is taken first, as written: x and mean may nearly cancel. A linear before it takes all three into its
 * weights. */
static lf_node norm_of_known(lf_rw *rw, lf_node n)
{
    if (!lf_uses_running_stats(rw->g, n))
        return LF_KEEP;
    lf_node_info info = *lf_rw_at(rw, n);
    for (int i = 1; i < LF_MAX_ARGS; i++)
        if (info.arg[i] != LF_NONE && !lf_rw_fixed(rw, info.arg[i]))
            return lf_rw_refuse(rw, "its statistics and weights are not parameters");
    lf_affine affine = lf_affine_of(rw->g, n);
    double numbers[3];
    lf_op_numbers(rw->g, n, numbers);
    lf_node scale = lf_rw_one(rw, LF_OP_rsqrt, lf_rw_two(rw, LF_OP_add, info.arg[2], lf_rw_number(rw, numbers[0])));
    if (affine.weight_slot >= 0)
        scale = lf_rw_two(rw, LF_OP_mul, info.arg[affine.weight_slot], scale);
    lf_node y = lf_rw_two(rw, LF_OP_sub, info.arg[0], by_channel(rw, info.arg[1], &info.shape));
    y = lf_rw_two(rw, LF_OP_mul, y, by_channel(rw, scale, &info.shape));
    if (affine.bias_slot >= 0)
        y = lf_rw_two(rw, LF_OP_add, y, by_channel(rw, info.arg[affine.bias_slot], &info.shape));
    return y;
}

static const lf_rule rules[] = {
    {.info = {"norm_of_known",
              "batch_norm(x, mean, var, w, b) = (x - mean) * (w / sqrt(var + eps)) + b outside training", LF_REROUNDS},
     .gain = "its statistics are known beforehand",
     .ops = {LF_OP_batch_norm, LF_OP_instance_norm},
     .apply = norm_of_known},
};
const lf_rule_table lf_rules_norm = LF_TABLE(rules);
