/* SPDX-License-Identifier: Apache-2.0 */
/* linfuse_tools.h: numbers drawn from a seed, a device's peak, words that were meant. */
#include <linfuse_tools.h>

#include <string.h>

#include "base/guess.h"
#include "base/rng.h"
#include "rewrite/rewrite.h"
#include "run/handles.h"

void lf_draw_uniform(uint64_t seed, const char *name, float low, float high, size_t count, float *out)
{
    lf_rng rng = lf_rng_seed(seed, name);
    for (size_t i = 0; i < count; i++)
        out[i] = lf_rng_uniform(&rng, low, high);
}

lf_status lf_device_peak(lf_context *context, const char *device, double *flops, double *bytes)
{
    if (!context)
        return LF_ERR_ARG;
    if (!device)
        return lf_fail_null(&context->diag, "device");
    lf_device found;
    lf_status status = lf_context_describe(context, device, &found);
    if (status != LF_OK)
        return status;
    if (flops)
        *flops = found.flops;
    if (bytes)
        *bytes = found.bytes;
    return LF_OK;
}

const char *lf_rule_name(size_t index)
{
    const lf_rule_info *rule = lf_rule_at(index);
    return rule ? rule->name : NULL;
}

const char *lf_rule_law(size_t index)
{
    const lf_rule_info *rule = lf_rule_at(index);
    return rule ? rule->law : NULL;
}

const char *lf_rule_class_of(size_t index)
{
    const lf_rule_info *rule = lf_rule_at(index);
    return rule ? lf_rule_class_name(rule->class) : NULL;
}

void lf_printable(const char *text, char *out, size_t capacity)
{
    lf_text_printable(text, out, capacity);
}

const char *lf_word_near(const char *word, const char *const *words, size_t count)
{
    const size_t length = strlen(word);
    lf_guess guess = lf_guess_of(word, length, lf_guess_most(length));
    for (size_t i = 0; i < count; i++)
        if (words[i])
            lf_guess_try(&guess, words[i]);
    return guess.best;
}
