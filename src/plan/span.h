/* SPDX-License-Identifier: Apache-2.0 */
/* How a statistic lies on a grid of rows and columns, and which splits into rows and columns are worth trying. */
#ifndef LF_PLAN_SPAN_H
#define LF_PLAN_SPAN_H

#include "plan/plan.h"

enum { LF_MAX_ROW_CHOICES = 8 };

/* A statistic of a node's first argument on the grid rows x width. */
typedef struct lf_spanned {
    lf_span span;
    lf_extent width;                 /* of the grid it is fed from */
    int row_axes;                    /* axes of the first argument's shape that count rows */
    lf_extent groups, length, count; /* as in lf_stat */
    lf_extent results;               /* statistics a row */
    lf_window window;
} lf_spanned;

/* NULL, or why the span does not lie within rows, nor over all of them. */
const char *lf_span_classify(const lf_graph *g, lf_node n, lf_extent rows, lf_spanned *out);

/* How the elements of the grid read result `result` of statistic `stat` (NORMALIZE: a statistic for each element). */
lf_access lf_span_access(const lf_spanned *s, lf_extent rows, int32_t stat, int result);

/* Splits a shape after the fewest axes that count `rows`; false when no split does. */
bool lf_split_rows(const lf_shape *shape, lf_extent rows, int *row_axes, lf_extent *width);

/* The numbers of rows that nodes ask for, in order; at most LF_MAX_ROW_CHOICES, at least one. */
int lf_row_choices(const lf_graph *g, const lf_node *nodes, int32_t count, lf_extent *rows);

#endif
