/* SPDX-License-Identifier: Apache-2.0 */
/* The machine of machine.h behind the functions of the CUDA driver and of NVRTC: a model on "cuda" is compiled,
 * prepared and launched as on a GPU, and its kernels run. The device has a few multiprocessors, and is the oldest that
 * has the units that LINFUSE_CUDA names: capability 7.5 (no tensor cores), 8.0 or 9.0. Its memory begins as NaN and
 * ends at a page that nobody may touch. */
#define _GNU_SOURCE /* memory in a file without a name */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"
#include "cuda/emit_parts.h"
#include "machine.h"
#include "stand_in_driver.h"

enum { UNITS = HOST_GPU_MOST_BLOCKS - 1, ALIGNED = 256, LAUNCH_FAILED = 719, OUT_OF_MEMORY = 2, INVALID = 1 };

const char *host_gpu_change_from, *host_gpu_change_to;

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER; /* there is one machine */
static const char *failure = "an argument that no driver takes";

/* ---- memory ---- */

/* What lies before every block of memory: how it was mapped. */
typedef struct mapping {
    char *at;
    size_t bytes;
} mapping;

static size_t whole(size_t bytes, size_t of)
{
    return (bytes + of - 1) / of * of;
}

static int take_memory(lf_cuda_ptr *memory, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), own = whole(bytes, ALIGNED), room = whole(own + ALIGNED, page);
    char *at = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + room, page, PROT_NONE) != 0)
        return OUT_OF_MEMORY;
    char *begin = at + room - own;
    const mapping map = {at, room + page};
    memset(begin, 0xff, own);
    memcpy(begin - sizeof map, &map, sizeof map);
    *memory = (lf_cuda_ptr)(uintptr_t)begin;
    return 0;
}

static int give_memory(lf_cuda_ptr memory)
{
    mapping map;
    if (memory == 0)
        return 0;
    memcpy(&map, (char *)(uintptr_t)memory - sizeof map, sizeof map);
    return munmap(map.at, map.bytes);
}

static int to_device(lf_cuda_ptr to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

static int to_host(void *to, lf_cuda_ptr from, size_t bytes, void *stream)
{
    (void)stream;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

static int copy(lf_cuda_ptr to, lf_cuda_ptr from, size_t bytes, void *stream)
{
    return to_host((void *)(uintptr_t)to, from, bytes, stream);
}

static int set_bytes(lf_cuda_ptr to, unsigned char value, size_t bytes, void *stream)
{
    (void)stream;
    memset((void *)(uintptr_t)to, value, bytes);
    return 0;
}

/* ---- the device ---- */

typedef struct model {
    int major, minor, shared; /* shared: bytes of it that a block can have */
} model;

static model device_model(void)
{
    const char *units = getenv("LINFUSE_CUDA");
    return !units || strcmp(units, "plain") == 0 ? (model){7, 5, 64 << 10}
           : strcmp(units, "mma") == 0           ? (model){8, 0, 163 << 10}
                                                 : (model){9, 0, HOST_GPU_RAW};
}

static int device_attribute(int *value, int attribute, int device)
{
    enum { MULTIPROCESSORS = 16, L2 = 38, MAJOR = 75, MINOR = 76, SHARED = 97 };
    (void)device;
    switch (attribute) {
    case MULTIPROCESSORS: *value = UNITS; break;
    case L2: *value = 1 << 20; break;
    case MAJOR: *value = device_model().major; break;
    case MINOR: *value = device_model().minor; break;
    case SHARED: *value = device_model().shared; break;
    default: *value = 0;
    }
    return 0;
}

static int device_name(char *name, int length, int device)
{
    (void)device;
    snprintf(name, (size_t)length, "the host");
    return 0;
}

static int clusters(int *count, void *of, const lf_cuda_config *config)
{
    (void)of;
    *count = HOST_GPU_MOST_BLOCKS / (int)config->attribute->value[0];
    return 0;
}

static int tensor_map(void *map, int type, unsigned rank, void *at, const uint64_t *extents, const uint64_t *strides,
                      const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
    enum { SWIZZLE_128 = 3, RANK = 3 };
    host_gpu_map m = {.at = at, .type = type};
    memcpy(m.extent, extents, sizeof m.extent);
    memcpy(m.stride, strides, sizeof m.stride);
    memcpy(m.box, box, sizeof m.box);
    memcpy(map, &m, sizeof m);
    if (rank != RANK || swizzle != SWIZZLE_128 || strides[0] % 16 != 0 || strides[1] % 16 != 0)
        return INVALID;
    return fake_tensor_map(map, type, rank, at, extents, strides, box, steps, interleave, swizzle, promotion, fill);
}

static int tensor_map_move(void *map, void *at)
{
    memcpy(map, &at, sizeof at); /* what it begins with */
    return (uintptr_t)at % 16 == 0 ? 0 : INVALID;
}

static int error_string(int error, const char **text)
{
    (void)error;
    *text = failure;
    return 0;
}

/* ---- modules ---- */

enum { FUNCTIONS = 8, KERNEL_NAME = 64 };

typedef struct function {
    host_gpu_kernel *kernel;
    host_gpu_shared shared;
    unsigned cluster;
} function;

typedef struct module {
    void *library;
    int file; /* open as long as its library is: libraries are told apart by their paths */
    function function[FUNCTIONS];
    int functions;
} module;

static int module_unload(void *of)
{
    module *m = of;
    if (m->library)
        dlclose(m->library);
    if (m->file >= 0)
        close(m->file);
    free(m);
    return 0;
}

/* image: the size of a shared library, and that library. */
static int module_load(void **out, const void *image)
{
    char path[64];
    size_t size;
    module *m = *out = calloc(1, sizeof *m);
    if (!m)
        return OUT_OF_MEMORY;
    m->file = memfd_create("host_gpu", MFD_CLOEXEC);
    memcpy(&size, image, sizeof size);
    if (m->file >= 0 && write(m->file, (const char *)image + sizeof size, size) == (ssize_t)size) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", m->file);
        m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (m->library)
        return 0;
    failure = m->file >= 0 ? dlerror() : "no memory for the library";
    module_unload(m);
    *out = NULL;
    return INVALID;
}

static int function_get(void **out, void *of, const char *name)
{
    module *m = of;
    char call[sizeof "host_gpu_cluster_" + KERNEL_NAME];
    snprintf(call, sizeof call, "host_gpu_call_%s", name);
    void *kernel = dlsym(m->library, call);
    if (!kernel || m->functions == FUNCTIONS)
        return INVALID;
    function *f = &m->function[m->functions++];
    memcpy(&f->kernel, &kernel, sizeof kernel);
    f->shared.raw = dlsym(m->library, "raw");
    f->shared.own = dlsym(m->library, "scratch");
    snprintf(call, sizeof call, "host_gpu_cluster_%s", name);
    f->cluster = *(const unsigned *)dlsym(m->library, call);
    *out = f;
    return 0;
}

static int launch(const lf_cuda_config *config, void *of, void **params, void **extra)
{
    const function *f = of;
    host_gpu_shared shared = f->shared;
    (void)extra;
    shared.raw_bytes = config->shared;
    shared.own_bytes = (unsigned)lf_cuda_own_shared((int)config->bx);
    pthread_mutex_lock(&running);
    const char *error = host_gpu_run(f->kernel, params, (host_gpu_index){config->gx, config->gy, config->gz},
                                     (host_gpu_index){config->bx, config->by, config->bz}, shared, f->cluster,
                                     config->attributes > 0);
    if (error)
        failure = error;
    pthread_mutex_unlock(&running);
    return error ? LAUNCH_FAILED : 0;
}

/* ---- the compiler ---- */

/* What this machine has functions of its own for, or could hang, and what stands for it here. All of it is in every
 * text. */
static const struct exchange {
    const char *from, *to;
    bool rare; /* there are texts that do not have it */
} exchanges[] = {
    {lf_text_ptx, "", false}, /* cuda.h has them */
    {lf_text_ptx_hopper, "#include \"" HOST_GPU_FOLDER "/hopper.h\"\n", true},
    {lf_text_ptx_wgmma, "#include \"" HOST_GPU_FOLDER "/wgmma.h\"\n", true},
    {"for (int spin = 0; spin < (1 << 27); ++spin) {", "for (;; host_gpu_pause()) {", false},
};

typedef struct job {
    lf_str text, log, image;
} job;

/* Every `from` becomes `to`; false where there is none. */
static bool exchange(lf_str *text, const char *from, const char *to)
{
    lf_str done = {0};
    const char *rest = text->text, *at;
    bool any = false;
    for (; (at = strstr(rest, from)); rest = at + strlen(from), any = true) {
        lf_str_addn(&done, rest, (size_t)(at - rest));
        lf_str_add(&done, to);
    }
    lf_str_add(&done, rest);
    lf_str_free(text);
    *text = done;
    return any;
}

/* The names of the kernels, for function_get. */
static void add_kernels(lf_str *text)
{
    static const char begins[] = "__global__ void ";
    lf_str calls = {0};
    for (const char *at = text->text; (at = strstr(at, begins));) {
        int cluster = 1;
        at += strlen(begins);
        while (strncmp(at, "__", 2) == 0) { /* bounds of a launch */
            sscanf(at, "__cluster_dims__(%d", &cluster);
            at = strchr(at, ')') + 1, at += strspn(at, " \n");
        }
        lf_str_addf(&calls, "HOST_GPU_KERNEL(%.*s, %d)\n", (int)strcspn(at, "("), at, cluster);
    }
    if (calls.text)
        lf_str_addn(text, calls.text, calls.length);
    lf_str_free(&calls);
}

static void read_file(const char *path, lf_str *to)
{
    char piece[4096];
    FILE *f = fopen(path, "rb");
    for (size_t n; f && (n = fread(piece, 1, sizeof piece, f)) > 0;)
        lf_str_addn(to, piece, n);
    if (f)
        fclose(f);
}

static bool write_file(const char *path, const lf_str *from)
{
    FILE *f = fopen(path, "wb");
    const bool good = f && fwrite(from->text, 1, from->length, f) == from->length;
    return f && fclose(f) == 0 && good;
}

static int program_new(void **out, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names)
{
    (void)name, (void)headers, (void)texts, (void)names;
    job *j = *out = calloc(1, sizeof *j);
    if (j)
        lf_str_add(&j->text, source);
    return j && !j->text.failed ? 0 : OUT_OF_MEMORY;
}

static int program_free(void **program)
{
    job *j = *program;
    lf_str_free(&j->text);
    lf_str_free(&j->log);
    lf_str_free(&j->image);
    free(j);
    return 0;
}

static bool translate(job *j)
{
    for (size_t i = 0; i < sizeof exchanges / sizeof *exchanges; i++)
        if (!exchange(&j->text, exchanges[i].from, exchanges[i].to) && !exchanges[i].rare) {
            lf_str_addf(&j->log, "error: the text has no longer '%s'\n", exchanges[i].from);
            return false;
        }
    if (host_gpu_change_from && !exchange(&j->text, host_gpu_change_from, host_gpu_change_to)) {
        lf_str_addf(&j->log, "error: nothing to change: '%s'\n", host_gpu_change_from);
        return false;
    }
    add_kernels(&j->text);
    return !j->text.failed;
}

/* No contraction and no vectors of sums: what is computed is what is written, on every machine. */
static int compile(void *program, int count, const char *const *options)
{
    char folder[] = "/tmp/linfuse_host_gpu_XXXXXX", path[sizeof folder + 16], command[1024];
    job *j = program;
    (void)count;
    if (!translate(j) || !mkdtemp(folder))
        return INVALID;
    snprintf(path, sizeof path, "%s/text.cpp", folder);
    snprintf(command, sizeof command,
             "cd %s && g++ -std=c++17 -D__CUDA_ARCH__=%d0 -O2 -march=native -ffp-contract=off -w -nostdinc++ "
             "-fno-exceptions -fno-rtti -fPIC -fno-semantic-interposition -fsanitize=alignment "
             "-fno-sanitize-recover=alignment -shared -Wl,--as-needed -include %s/cuda.h text.cpp -o image 2>log",
             folder, atoi(strchr(options[0], '_') + 1), HOST_GPU_FOLDER);
    const bool good = write_file(path, &j->text) && system(command) == 0;
    snprintf(path, sizeof path, "%s/log", folder);
    read_file(path, &j->log);
    snprintf(path, sizeof path, "%s/image", folder);
    if (good)
        read_file(path, &j->image);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 && good && j->image.length > 0 ? 0 : INVALID;
}

static int compiler_version(int *major, int *minor)
{
    *major = 12, *minor = 0;
    return 0;
}

static int cubin_size(void *program, size_t *size)
{
    *size = sizeof(size_t) + ((job *)program)->image.length;
    return 0;
}

static int cubin(void *program, char *to)
{
    const lf_str *image = &((job *)program)->image;
    memcpy(to, &image->length, sizeof image->length);
    memcpy(to + sizeof image->length, image->text, image->length);
    return 0;
}

static int log_size(void *program, size_t *size)
{
    *size = ((job *)program)->log.length + 1;
    return 0;
}

static int compiler_log(void *program, char *to)
{
    const lf_str *log = &((job *)program)->log;
    snprintf(to, log->length + 1, "%s", log->text ? log->text : "");
    return 0;
}

static char cache[] = "/tmp/linfuse_host_gpu_cache_XXXXXX";

static void drop_cache(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    if (system(command) != 0)
        fprintf(stderr, "%s is left\n", cache);
}

/* What was compiled by another version of this is not to be taken for what this makes. */
static void begin_process(void)
{
    const char *order = getenv("LINFUSE_HOST_GPU");
    host_gpu_downwards = order && strstr(order, "down");
    host_gpu_late = order && strstr(order, "late");
    if (mkdtemp(cache) && setenv("XDG_CACHE_HOME", cache, 1) == 0)
        atexit(drop_cache);
}

static void own_functions(lf_cuda_driver *to)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_process);
    to->alloc = take_memory;
    to->free = give_memory;
    to->to_device = to_device;
    to->to_host = to_host;
    to->copy = copy;
    to->set_bytes = set_bytes;
    to->device_attribute = device_attribute;
    to->device_name = device_name;
    to->error_string = error_string;
    to->clusters = clusters;
    to->tensor_map = tensor_map;
    to->tensor_map_move = tensor_map_move;
    to->module_load = module_load;
    to->module_unload = module_unload;
    to->function_get = function_get;
    to->launch = launch;
    compiler.version = compiler_version;
    compiler.program_new = program_new;
    compiler.program_free = program_free;
    compiler.compile = compile;
    compiler.cubin_size = cubin_size;
    compiler.cubin = cubin;
    compiler.log_size = log_size;
    compiler.log = compiler_log;
}
