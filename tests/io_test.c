/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* for O_TMPFILE */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/npy.h"

/* ---- memory that runs out ---- */

static long allocations_left = -1; /* -1: no end to them */

static bool may_allocate(void)
{
    if (allocations_left < 0)
        return true;
    if (allocations_left == 0)
        return false;
    allocations_left--;
    return true;
}

void *__real_malloc(size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    return may_allocate() ? __real_malloc(size) : NULL;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    return may_allocate() ? __real_posix_memalign(out, alignment, size) : ENOMEM;
}

/* ---- file systems that cannot, and a process that is killed ---- */

static enum { ABLE, NO_UNNAMED_FILES, NO_LINKS } file_system;
static bool killed_in_write; /* by its second one */

int __real_open(const char *path, int flags, ...);
int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
ssize_t __real_write(int fd, const void *bytes, size_t size);
int __wrap_open(const char *path, int flags, ...);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

int __wrap_open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    unsigned mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, unsigned) : 0;
    va_end(rest);
    if (file_system == NO_UNNAMED_FILES && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return __real_open(path, flags, mode);
}

int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    if (file_system != NO_LINKS)
        return __real_linkat(from_folder, from, to_folder, to, flags);
    errno = ENOENT; /* as without /proc */
    return -1;
}

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    static int writes;
    if (killed_in_write && ++writes == 2)
        raise(SIGKILL);
    return __real_write(fd, bytes, size);
}

/* ---- a folder of our own ---- */

static char folder[] = "/tmp/linfuse_io_test_XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"f", "g", "link", "empty", "pipe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(names[i]);
    rmdir("d");
    return chdir("/") == 0 && rmdir(folder) == 0 ? 0 : -1; /* fails if a temporary file was left behind */
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void assert_holds(const char *path, const char *text)
{
    char found[256] = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(found, 1, sizeof found - 1, f);
    fclose(f);
    assert_int_equal(n, strlen(text));
    assert_string_equal(found, text);
}

static void assert_says(const lf_diag *d, const char *what)
{
    if (!strstr(d->text, what))
        fail_msg("\"%s\" does not say \"%s\"", d->text, what);
    assert_null(strchr(d->text, '\n'));
}

/* Permissions mean nothing to root, so as someone else where we are root. False where that cannot be had. */
static bool become_ordinary(void)
{
    return geteuid() != 0 || (chmod(folder, 0777) == 0 && seteuid(65534) == 0);
}

static void become_ourselves(void)
{
    if (geteuid() != getuid())
        assert_int_equal(seteuid(getuid()), 0);
}

/* ---- files ---- */

static void file_maps(void **state)
{
    (void)state;
    lf_file file;
    put("f", "hello");
    assert_int_equal(lf_file_map("f", &file, NULL), LF_OK);
    assert_int_equal(file.size, 5);
    assert_memory_equal(file.bytes, "hello", 5);
    lf_file_unmap(&file);
    assert_null(file.bytes);
    lf_file_unmap(&file);
}

static void file_map_refuses(void **state)
{
    (void)state;
    lf_file file;
    lf_diag d;
    mkdir("d", 0777);
    put("empty", "");
    mkfifo("pipe", 0666);
    static const struct {
        const char *path, *says;
    } cases[] = {{"no/such", "cannot read no/such: No such file"}, {"d", "d: it is a directory"},
                 {"empty", "the file is empty"},                   {"pipe", "it is a pipe"},
                 {"/dev/null", "it is a pipe or a device"},        {"", "No such file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(lf_file_map(cases[i].path, &file, &d), LF_ERR_IO);
        assert_null(file.bytes);
        assert_says(&d, cases[i].says);
    }
    put("f", "secret");
    chmod("f", 0);
    if (become_ordinary()) {
        assert_int_equal(lf_file_map("f", &file, &d), LF_ERR_IO);
        become_ourselves();
        assert_says(&d, "check the permissions");
    }
    unlink("f");
}

static void file_writes_and_replaces(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(lf_file_write("g", "he", 2, "llo", 3, NULL), LF_OK);
    assert_holds("g", "hello");
    chmod("g", 0640);
    assert_int_equal(lf_file_write("g", "bye", 3, NULL, 0, NULL), LF_OK);
    assert_holds("g", "bye");
    assert_int_equal(stat("g", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(symlink("g", "link"), 0);
    assert_int_equal(lf_file_write("link", NULL, 0, "through", 7, NULL), LF_OK);
    assert_holds("g", "through");
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lf_file_write("/dev/null", "x", 1, "y", 1, NULL), LF_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

/* What a redirection has open is written to, not replaced. */
static void file_writes_to_open_descriptors(void **state)
{
    (void)state;
    char path[64], found[8];
    int fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0666);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(lf_file_write(path, "ab", 2, "cd", 2, NULL), LF_OK);
    assert_int_equal(pread(fd, found, sizeof found, 0), 4);
    assert_memory_equal(found, "abcd", 4);
    close(fd);

    int ends[2];
    assert_int_equal(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[1]);
    assert_int_equal(lf_file_write(path, "ab", 2, "cd", 2, NULL), LF_OK);
    assert_int_equal(read(ends[0], found, sizeof found), 4);
    close(ends[0]);
    close(ends[1]);
}

static void file_write_refuses(void **state)
{
    (void)state;
    lf_diag d;
    mkdir("d", 0777);
    assert_int_equal(lf_file_write("d", "x", 1, NULL, 0, &d), LF_ERR_IO);
    assert_says(&d, "it is a directory");
    assert_int_equal(lf_file_write("no/such", "x", 1, NULL, 0, &d), LF_ERR_IO);
    assert_says(&d, "cannot write no/such: No such file");
    assert_int_equal(lf_file_write("/dev/full", "x", 1, "y", 1, &d), LF_ERR_IO);
    assert_says(&d, "cannot write /dev/full: No space left on device (free some space");
    put("f", "old");
    chmod("f", 0444);
    if (become_ordinary()) {
        lf_status in_place = lf_file_write("f", "x", 1, NULL, 0, &d);
        become_ourselves();
        assert_int_equal(in_place, LF_ERR_IO);
        assert_says(&d, "check the permissions");
        assert_holds("f", "old");
    }
}

/* A disk that fills up half-way, played by a limit on the size of a file. */
static void file_write_leaves_the_old_one(void **state)
{
    (void)state;
    static char body[100000];
    struct rlimit before, small;
    lf_diag d;
    unlink("f");
    unlink("g");
    put("f", "old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 50000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    lf_status replaced = lf_file_write("f", "head", 4, body, sizeof body, &d);
    lf_status made = lf_file_write("g", "head", 4, body, sizeof body, &d);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(replaced, LF_ERR_IO);
    assert_int_equal(made, LF_ERR_IO);
    assert_says(&d, "cannot write g: ");
    assert_holds("f", "old");
    assert_int_equal(access("g", F_OK), -1);
    assert_int_equal(lf_file_write("g", "head", 4, body, sizeof body, &d), LF_OK);

    allocations_left = 0;
    replaced = lf_file_write("f", "x", 1, NULL, 0, &d);
    allocations_left = -1;
    assert_int_equal(replaced, LF_ERR_NOMEM);
    assert_holds("f", "old");
}

/* Without unnamed files, and where they cannot be named, all is the same but for a process that is killed. */
static void file_writes_the_other_way(void **state)
{
    for (file_system = NO_UNNAMED_FILES; file_system <= NO_LINKS; file_system++) {
        unlink("g");
        unlink("link");
        file_writes_and_replaces(state);
        file_write_refuses(state);
        file_write_leaves_the_old_one(state);
    }
    file_system = ABLE;
}

/* A link that leads nowhere is in the way like a file, and is replaced. */
static void file_replaces_a_link_to_nowhere(void **state)
{
    (void)state;
    struct stat st;
    unlink("link");
    assert_int_equal(symlink("nowhere", "link"), 0);
    assert_int_equal(lf_file_write("link", "new", 3, NULL, 0, NULL), LF_OK);
    assert_holds("link", "new");
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISREG(st.st_mode));
}

static int entries(void)
{
    DIR *here = opendir(".");
    int count = 0;
    assert_non_null(here);
    while (readdir(here))
        count++;
    closedir(here);
    return count;
}

/* Killed between head and body: the old file stands, or none does, and nothing lies beside. */
static void file_write_killed_half_way(void **state)
{
    (void)state;
    static const char *const paths[] = {"f", "killed"};
    int unnamed = open(".", O_TMPFILE | O_WRONLY, 0666);
    if (unnamed < 0)
        skip(); /* this file system has only the other way */
    close(unnamed);
    unlink("f");
    put("f", "old");
    const int before = entries();
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            killed_in_write = true;
            lf_file_write(paths[i], "head", 4, "body", 4, NULL);
            _exit(1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_holds("f", "old");
        assert_int_equal(access("killed", F_OK), -1);
        assert_int_equal(entries(), before);
    }
}

/* ---- npy ---- */

/* A file of this version, dict and data. Caller frees; exactly as long as it is, so that a sanitizer sees overruns. */
static char *npy_make(int version, const char *dict, size_t data, size_t *n)
{
    size_t length = strlen(dict), prefix = version == 1 ? 10 : 12;
    *n = prefix + length + data;
    char *b = calloc(1, *n);
    assert_non_null(b);
    memcpy(b, "\x93NUMPY", 6);
    b[6] = (char)version;
    b[8] = (char)(length & 0xff);
    b[9] = (char)(length >> 8);
    memcpy(b + prefix, dict, length);
    return b;
}

static void npy_reads(void **state)
{
    (void)state;
    static const struct {
        int version;
        const char *dict;
        int rank;
        int64_t first, count;
    } cases[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n", 2, 3, 12},
        {2, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n", 2, 3, 12},
        {3, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n", 2, 3, 12},
        {1, "{\"shape\":(5,),\"fortran_order\":True,\"descr\":\"=f4\"}", 1, 5, 5},
        {1, "{ 'shape' : ( 2 , 3 , ) , 'descr' : 'f4' , 'fortran_order' : False }\n", 2, 2, 6},
        {1, "{'descr': '|f4', 'fortran_order': False, 'shape': ()}", 0, 0, 1},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (7L,)}", 1, 7, 7},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,2)}", 8, 1, 2},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976, 0)}", 2, 1152921504606846976, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        lf_npy npy;
        lf_diag d = {{0}};
        char *b = npy_make(cases[i].version, cases[i].dict, (size_t)cases[i].count * 4, &n);
        if (lf_npy_read(b, n, "x.npy", &npy, &d) != LF_OK)
            fail_msg("%s: %s", cases[i].dict, d.text);
        assert_int_equal(npy.rank, cases[i].rank);
        if (npy.rank)
            assert_int_equal(npy.extents[0], cases[i].first);
        assert_int_equal(npy.count, cases[i].count);
        assert_int_equal(npy.offset, n - (size_t)cases[i].count * 4);
        free(b);
    }
}

static void npy_refuses(void **state)
{
    (void)state;
#define F4 "{'descr': '<f4', 'fortran_order': False, 'shape': "
    static const struct {
        const char *dict;
        size_t data;
        const char *says;
    } cases[] = {
        {F4 "(3,)}", 11, "x.npy is cut short: the header announces 12 bytes of data, there are 11"},
        {F4 "(3,)}", 13, "x.npy has 1 bytes after the data its header announces; save one array a file"},
        {F4 "(3,)}", 0, "cut short"},
        {F4 "(3)}", 12, "'shape' is a number"},
        {F4 "(3 3)}", 36, "not a tuple"},
        {F4 "(-3,)}", 12, "whole numbers"},
        {F4 "(3.0,)}", 12, "not a tuple"},
        {F4 "(,)}", 4, "whole numbers"},
        {F4 "[3]}", 12, "not a tuple"},
        {F4 "(3,", 12, "whole numbers"},
        {F4 "(3", 12, "not a tuple"},
        {F4 "(3,)", 12, "not a dict"},
        {F4 "(3,)} x", 12, "goes on after its end"},
        {F4 "(3,)}\n\n", 12, "goes on after its end"},
        {F4 "(9223372036854775808,)}", 12, "too large"},
        {F4 "(4611686018427387904, 2)}", 12, "more data than any file"},
        {F4 "(3000000000, 3000000000, 3000000000, 3000000000)}", 12, "more data than any file"},
        {F4 "(1,1,1,1,1,1,1,1,1)}", 4, "more than 8 dimensions"},
        {F4 "(3,), 'shape': (3,)}", 12, "the same thing twice"},
        {F4 "(3,), 'x': 1}", 12, "does not belong"},
        {"{'descr': '<f4', 'shape': (3,)}", 12, "lacks"},
        {"{}", 12, "lacks"},
        {"", 12, "not a dict"},
        {"[]", 12, "not a dict"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}", 24,
         "x.npy holds f8, not f4 (float32), f2, V2 (bfloat16) or i8; convert it with .astype(\"float32\")"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,)}", 7, "bytes after the data"},
        {"{'descr': '<V4', 'fortran_order': False, 'shape': (3,)}", 12, "holds V4"},
        {"{'descr': '>i8', 'fortran_order': False, 'shape': (3,)}", 24, "holds big-endian i8"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", 3, "holds b1"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (3,)}", 12, "holds big-endian f4, not little-endian f4"},
        {"{'descr': '', 'fortran_order': False, 'shape': (3,)}", 12, "not f4"},
        {"{'descr': '\n', 'fortran_order': False, 'shape': (3,)}", 12, "not a string"},
        {"{'descr': '\a\x1b[2J', 'fortran_order': False, 'shape': (3,)}", 12, "holds ??[2J"},
        {"{'descr': '<f4\\'', 'fortran_order': False, 'shape': (3,)}", 12, "not a string"},
        {"{'descr': [('a', '<f4'), ('b', '<f4', (2,))], 'fortran_order': False, 'shape': (3,)}", 36, "holds records"},
        {"{'descr': [('a', '<f4'", 12, "does not end"},
        {"{'descr': 4, 'fortran_order': False, 'shape': (3,)}", 12, "not a string"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}", 12, "not True or False"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 1)}", 12, "Fortran order; convert it with numpy.asc"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)", 12, "not a dict"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}", 12, "not a dict"},
        {"{'descr", 12, "not a dict"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        lf_npy npy;
        lf_diag d;
        char *b = npy_make(1, cases[i].dict, cases[i].data, &n);
        assert_int_equal(lf_npy_read(b, n, "x.npy", &npy, &d), LF_ERR_DATA);
        assert_says(&d, cases[i].says);
        assert_int_equal(strncmp(d.text, "x.npy", 5), 0);
        free(b);
    }
}

/* Every prefix of a good file, and every byte of its header changed: an error, or a file of the same size. */
static void npy_survives_damage(void **state)
{
    (void)state;
    size_t n;
    lf_npy npy;
    lf_diag d;
    char *good = npy_make(1, F4 "(3,)}", 12, &n);
    for (size_t cut = 0; cut < n; cut++) {
        char *b = malloc(cut ? cut : 1);
        assert_non_null(b);
        memcpy(b, good, cut);
        assert_int_equal(lf_npy_read(b, cut, "x.npy", &npy, &d), LF_ERR_DATA);
        free(b);
    }
    for (size_t at = 0; at < n - 12; at++) {
        for (int value = 0; value < 256; value++) {
            char was = good[at];
            good[at] = (char)value;
            if (lf_npy_read(good, n, "x.npy", &npy, &d) == LF_OK)
                assert_int_equal(npy.offset + (size_t)npy.count * lf_dtype_size(npy.dtype), n);
            good[at] = was;
        }
    }
    good[6] = 4;
    assert_int_equal(lf_npy_read(good, n, "x.npy", &npy, &d), LF_ERR_DATA);
    assert_says(&d, "version 4.0");
    assert_int_equal(lf_npy_read("PK\3\4", 4, "x.npz", &npy, &d), LF_ERR_DATA);
    assert_says(&d, "x.npz is an .npz archive");
    free(good);
}

static void npy_data_at_any_alignment(void **state)
{
    (void)state;
    static const float values[3] = {1.5f, -2.0f, 3.25f};
    int copies = 0;
    for (int pad = 0; pad < 4; pad++) {
        char dict[80];
        size_t n;
        lf_npy npy;
        const void *data;
        void *copy;
        snprintf(dict, sizeof dict, "%s(3,)}%*s", F4, pad, "");
        char *b = npy_make(1, dict, 12, &n);
        memcpy(b + n - 12, values, 12);
        assert_int_equal(lf_npy_read(b, n, "x", &npy, NULL), LF_OK);
        assert_int_equal(lf_npy_data(b, &npy, &data, &copy, NULL), LF_OK);
        assert_memory_equal(data, values, 12);
        assert_int_equal((uintptr_t)data % _Alignof(float), 0);
        if (copy) {
            copies++;
            allocations_left = 0;
            void *second;
            lf_status status = lf_npy_data(b, &npy, &data, &second, NULL);
            allocations_left = -1;
            assert_int_equal(status, LF_ERR_NOMEM);
        }
        lf_aligned_free(copy);
        free(b);
    }
    assert_int_equal(copies, 3);
}

static void npy_knows_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *descr;
        lf_dtype type;
    } cases[] = {{"<f4", LF_F32}, {"<f2", LF_F16}, {"<V2", LF_BF16}, {"|V2", LF_BF16}, {"<i8", LF_I64}};
    static const int64_t extents[] = {3, 2};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t bytes = 6 * lf_dtype_size(cases[i].type);
        char dict[100], head[LF_NPY_HEADER_MAX];
        size_t n, used;
        lf_npy npy;
        snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (3, 2)}", cases[i].descr);
        char *b = npy_make(1, dict, bytes, &n);
        assert_int_equal(lf_npy_read(b, n, "x", &npy, NULL), LF_OK);
        assert_int_equal(npy.dtype, cases[i].type);
        assert_int_equal(npy.count, 6);
        free(b);
        assert_int_equal(lf_npy_header(cases[i].type, 2, extents, head, sizeof head, &used), LF_OK);
        b = calloc(1, used + bytes);
        assert_non_null(b);
        memcpy(b, head, used);
        assert_int_equal(lf_npy_read(b, used + bytes, "x", &npy, NULL), LF_OK);
        assert_int_equal(npy.dtype, cases[i].type);
        free(b);
    }
}

static void npy_header_reads_back(void **state)
{
    (void)state;
    static const int64_t extents[] = {1, 2, 3, 0, 5, 1, 7, 8};
    char buf[LF_NPY_HEADER_MAX];
    size_t used;
    lf_npy npy;
    for (int rank = 0; rank <= 3; rank++) {
        assert_int_equal(lf_npy_header(LF_F32, rank, extents, buf, sizeof buf, &used), LF_OK);
        assert_int_equal(used % 64, 0);
        assert_int_equal(buf[used - 1], '\n');
        size_t size = rank == 0 || rank == 1 ? 4 : rank == 2 ? 8 : 24;
        char *b = calloc(1, used + size);
        assert_non_null(b);
        memcpy(b, buf, used);
        assert_int_equal(lf_npy_read(b, used + size, "x", &npy, NULL), LF_OK);
        assert_int_equal(npy.rank, rank);
        assert_memory_equal(npy.extents, extents, (size_t)rank * sizeof *extents);
        free(b);
    }
    static const int64_t largest[] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
                                      INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    assert_int_equal(lf_npy_header(LF_F32, 8, largest, buf, sizeof buf, &used), LF_OK);
    assert_int_equal(lf_npy_header(LF_F32, 8, largest, buf, used - 1, &used), LF_ERR_ARG);
    assert_int_equal(lf_npy_header(LF_F32, 9, largest, buf, sizeof buf, &used), LF_ERR_ARG);
    assert_int_equal(lf_npy_header(LF_F32, -1, largest, buf, sizeof buf, &used), LF_ERR_ARG);
    assert_int_equal(lf_npy_header(LF_F32, 1, &(int64_t){-1}, buf, sizeof buf, &used), LF_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_maps),
        cmocka_unit_test(file_map_refuses),
        cmocka_unit_test(file_writes_and_replaces),
        cmocka_unit_test(file_writes_to_open_descriptors),
        cmocka_unit_test(file_write_refuses),
        cmocka_unit_test(file_write_leaves_the_old_one),
        cmocka_unit_test(file_writes_the_other_way),
        cmocka_unit_test(file_replaces_a_link_to_nowhere),
        cmocka_unit_test(file_write_killed_half_way),
        cmocka_unit_test(npy_reads),
        cmocka_unit_test(npy_refuses),
        cmocka_unit_test(npy_survives_damage),
        cmocka_unit_test(npy_data_at_any_alignment),
        cmocka_unit_test(npy_knows_every_type),
        cmocka_unit_test(npy_header_reads_back),
    };
    return cmocka_run_group_tests_name("io", tests, enter_folder, leave_folder);
}
