/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the page share: text within HTML, and reading the account's JSON object, in which anything may be
 * missing or of another type. */
#ifndef LF_RUN_PAGE_H
#define LF_RUN_PAGE_H

#include <jansson.h>

#include "base/str.h"
#include "run/account.h"

/* Text between tags or within the quotes of an attribute: escaped, and what is no character is replaced. */
void lf_page_text(lf_str *s, const char *text);
/* An amount; microseconds with their letter. */
lf_amount lf_page_amount(lf_field_unit unit, double value);

/* A text of an object; "" where there is none. */
const char *lf_page_text_of(const json_t *object, const char *key);
/* A number of an object; 0 where there is none that is finite. */
double lf_page_number_of(const json_t *object, const char *key);

/* Work per byte against work per second: ops as written hollow, kernels filled, under the machine's roof. Marks have
 * numbers; a table says what they are, and why one lies above the roof. Nothing where the account has no such figures.
 * False: no memory. */
bool lf_page_roofline(lf_str *s, const json_t *account);

#endif
