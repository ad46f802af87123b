/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cache.h"
#include "base/str.h"
#include "cuda/driver.h"

enum { MOST_ENTRY = 256 << 20 };
static const char magic[8] = "lfcuda1";

char *lf_cuda_code(const char *text)
{
    char *code = malloc(strlen(text) + 1), *to = code;
    for (const char *from = text; code && *from;)
        if (from[0] == '/' && from[1] == '/')
            from += strcspn(from, "\n");
        else
            *to++ = *from++;
    if (code)
        *to = '\0';
    return code;
}

/* ---- the cache's entries: magic, lengths, checksum, then key and code ---- */

typedef struct entry_head {
    char magic[8];
    uint64_t key_length, code_length, sum;
} entry_head;

/* FNV-1a: names files and finds damage; a key is compared in full besides. */
static uint64_t hash(uint64_t h, const char *data, size_t length)
{
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)data[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_begin(void)
{
    return 0xcbf29ce484222325u;
}

static void entry_name(const char *key, size_t length, char *name, size_t size)
{
    snprintf(name, size, "cuda-%016llx.bin", (unsigned long long)hash(hash_begin(), key, length));
}

static bool load_entry(const char *key, size_t key_length, char **code, size_t *size)
{
    char name[40], *data;
    size_t length;
    entry_head head;
    entry_name(key, key_length, name, sizeof name);
    if (!lf_cache_read(name, MOST_ENTRY, &data, &length))
        return false;
    bool good = length >= sizeof head;
    if (good) {
        memcpy(&head, data, sizeof head);
        good = memcmp(head.magic, magic, sizeof magic) == 0 && head.key_length == key_length &&
               head.code_length == length - sizeof head - key_length && head.code_length > 0 &&
               memcmp(data + sizeof head, key, key_length) == 0 &&
               head.sum == hash(hash_begin(), data + sizeof head, length - sizeof head);
    }
    *code = good ? malloc((size_t)head.code_length) : NULL;
    if (*code) {
        *size = (size_t)head.code_length;
        memcpy(*code, data + sizeof head + key_length, *size);
    }
    free(data);
    return *code != NULL;
}

static void save_entry(const char *key, size_t key_length, const char *code, size_t size)
{
    char name[40];
    entry_head head = {.key_length = key_length, .code_length = size};
    lf_str entry = {0};
    memcpy(head.magic, magic, sizeof magic);
    head.sum = hash(hash(hash_begin(), key, key_length), code, size);
    lf_str_addn(&entry, (const char *)&head, sizeof head);
    lf_str_addn(&entry, key, key_length);
    lf_str_addn(&entry, code, size);
    entry_name(key, key_length, name, sizeof name);
    if (!entry.failed)
        lf_cache_write(name, entry.text, entry.length);
    lf_str_free(&entry);
}

/* ---- the compiler ---- */

static char *log_of(const lf_nvrtc *nvrtc, void *program)
{
    size_t size = 0;
    char *text = nvrtc->log_size(program, &size) == 0 ? malloc(size + 1) : NULL;
    if (text && nvrtc->log(program, text) != 0)
        size = 0;
    if (text)
        text[size] = '\0';
    return text;
}

/* The first line of a log that says "error", or all of it. */
static const char *complaint(char *log)
{
    char *at = log ? strstr(log, "error") : NULL;
    if (!at)
        return log && *log ? log : "it does not say why";
    while (at > log && at[-1] != '\n')
        at--;
    at[strcspn(at, "\n")] = '\0';
    return at;
}

static lf_status compile(const lf_nvrtc *nvrtc, const char *source, const char *const *options, int count, char **cubin,
                         size_t *size, char **log, lf_diag *diag)
{
    void *program = NULL;
    if (nvrtc->program_new(&program, source, "linfuse.cu", 0, NULL, NULL) != 0)
        return lf_fail_nomem(diag, "the run-time compiler");
    int failed = nvrtc->compile(program, count, options);
    char *text = log_of(nvrtc, program);
    lf_status status = LF_OK;
    if (failed)
        status = lf_fail(diag, LF_ERR_UNSUPPORTED, "the run-time compiler refuses the generated kernels (%s): %.1000s",
                         options[0], complaint(text));
    else if (nvrtc->cubin_size(program, size) != 0 || *size == 0 || !(*cubin = malloc(*size)) ||
             nvrtc->cubin(program, *cubin) != 0)
        status = lf_fail_nomem(diag, "the compiled kernels");
    nvrtc->program_free(&program);
    if (log)
        *log = text;
    else
        free(text);
    return status;
}

lf_status lf_cuda_compile(const char *source, const char *arch, char **cubin, size_t *size, char **log, lf_diag *diag)
{
    const lf_nvrtc *nvrtc;
    char target[48];
    /* two threads: the kernel, and what it rarely calls */
    const char *options[] = {target, "--std=c++17", "--ptxas-options=-v", "--split-compile=2"};
    int major = 0, minor = 0, count = sizeof options / sizeof *options;
    lf_str key = {0};
    *cubin = NULL;
    if (log)
        *log = NULL;
    lf_status status = lf_nvrtc_find(&nvrtc, diag);
    if (status != LF_OK)
        return status;
    snprintf(target, sizeof target, "--gpu-architecture=%.16s", arch);
    nvrtc->version(&major, &minor);
    if (major < 13) /* they may not know the last */
        count--;
    lf_str_addf(&key, "nvrtc %d.%d %s %s\n", major, minor, options[0], options[1]);
    char *code = lf_cuda_code(source);
    if (code)
        lf_str_add(&key, code);
    const bool known = code && !key.failed;
    free(code);
    if (!known) {
        lf_str_free(&key);
        return lf_fail_nomem(diag, "the run-time compiler");
    }
    if (log || !load_entry(key.text, key.length, cubin, size)) { /* who wants the log wants it compiled */
        status = compile(nvrtc, source, options, count, cubin, size, log, diag);
        if (status == LF_OK)
            save_entry(key.text, key.length, *cubin, *size);
    }
    lf_str_free(&key);
    if (status != LF_OK) {
        free(*cubin);
        *cubin = NULL;
    }
    return status;
}
