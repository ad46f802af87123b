/* SPDX-License-Identifier: Apache-2.0 */
/* A call like the last, without Python: the steps of linfuse/calling.py, as parts of graphs take them
 * (linfuse/fused.py).
 *
 * Python's own way through a part's call takes some 10 us behind PyTorch's guards, more than a small model does. Most
 * calls are like the one before: extents, threads, and parameters are the same. A shortcut is what PyTorch calls. It
 * looks whether that is so, asks PyTorch's objects what the Python code asks, and runs; in any doubt, and where
 * PyTorch or the library refuse something, it calls the part, which knows all cases and sets the shortcut up for the
 * next call (linfuse/shortcut.py). So it may be left out, and is where this library cannot be loaded.
 *
 * Whatever is asked may run Python code (a mode of PyTorch's, a collection of garbage, a handler of a signal): other
 * threads, and the same function again. So a call goes by what the shortcut was set up for when it began.
 *
 * It is loaded by ctypes.PyDLL and uses nothing but Python's stable ABI, of which it declares what it wants: no
 * headers of Python are needed, and one binary serves every Python from 3.10 on. All functions need the GIL. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "linfuse.h"

/* ---- Python's stable ABI, as of 3.10 ---- */

typedef struct _object PyObject;
typedef intptr_t Py_ssize_t;
typedef struct PyMethodDef {
    const char *name;
    PyObject *(*function)(PyObject *self, PyObject *const *args, Py_ssize_t count);
    int flags;
    const char *doc;
} PyMethodDef;
enum { METH_FASTCALL = 0x80, Py_EQ = 2 };

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
void PyErr_Clear(void);
PyObject *PyErr_Occurred(void);
void PyErr_Fetch(PyObject **sort, PyObject **value, PyObject **trace);
void PyErr_Restore(PyObject *sort, PyObject *value, PyObject *trace);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
int PyObject_SetAttr(PyObject *object, PyObject *name, PyObject *value);
PyObject *PyObject_CallObject(PyObject *callable, PyObject *args);
PyObject *PyObject_CallMethodObjArgs(PyObject *object, PyObject *name, ...);
int PyObject_RichCompareBool(PyObject *a, PyObject *b, int how);
PyObject *PyNumber_Add(PyObject *a, PyObject *b);
long long PyLong_AsLongLong(PyObject *number);
void *PyLong_AsVoidPtr(PyObject *number);
PyObject *PyTuple_New(Py_ssize_t count);
Py_ssize_t PyTuple_Size(PyObject *tuple);
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t at); /* borrowed */
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t at, PyObject *taken);
Py_ssize_t PyList_Size(PyObject *list);
PyObject *PyList_GetItem(PyObject *list, Py_ssize_t at); /* borrowed */
int PyList_SetSlice(PyObject *list, Py_ssize_t from, Py_ssize_t to, PyObject *items);
int PyList_Append(PyObject *list, PyObject *item);
PyObject *PyCapsule_New(void *pointer, const char *name, void (*end)(PyObject *capsule));
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
PyObject *PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module);
PyObject *PyCFunction_GetSelf(PyObject *function); /* borrowed */
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);

/* ---- what is the same for all ---- */

/* In the order in which linfuse/shortcut.py gives them. */
typedef struct world {
    PyObject *none, *one;
    PyObject *refusals; /* a tuple of exceptions: see is_serious */
    PyObject *version, *data_ptr, *stride, *stamps, *runs, *room_at; /* names */
} world;
enum { WORLD = sizeof(world) / sizeof(PyObject *) };

static world its;
static lf_status (*run_at)(lf_call *call, const int64_t *dims, const void *const *inputs, void *const *outputs,
                           const lf_run_options *options);
static bool (*params_hold)(const lf_program *program);

/* words: a tuple. Returns how many it wants to have in it, and takes everything if they are. The others are functions
 * of the C library, wherever it was loaded from: lf_call_run_at, lf_program_params_hold. */
LF_API Py_ssize_t lf_shortcut_teach(PyObject *words, void *at, void *hold);
LF_API Py_ssize_t lf_shortcut_teach(PyObject *words, void *at, void *hold)
{
    PyObject **to = (PyObject **)&its;
    if (PyTuple_Size(words) != WORLD)
        return WORLD;
    for (Py_ssize_t i = 0; i < WORLD; i++) {
        to[i] = PyTuple_GetItem(words, i);
        Py_IncRef(to[i]);
    }
    *(void **)&run_at = at;
    *(void **)&params_hold = hold;
    return WORLD;
}

/* ---- a shortcut ---- */

enum { MOST = 32 }; /* inputs, outputs and parameters, each */

typedef struct stamp {
    PyObject *param; /* who it is; not held */
    long long version;
    void *address;
    PyObject *strides; /* ready's stamps hold it */
} stamp;

/* What a call must be like, and what it then is. It never changes; calls under way keep it. */
typedef struct ready {
    unsigned users;
    PyObject *how;           /* holds all the others */
    PyObject *prepared;      /* a weak reference: programs go with their parameters */
    PyObject *stamps;        /* its list of them: another when they are no longer what is prepared */
    PyObject *idle, *slot;   /* its own */
    PyObject *questions;     /* functions, arguments, answers */
    PyObject *features;      /* of each input: names of attributes, or of methods, and answers */
    PyObject *makers;        /* of outputs: functions and arguments */
    const int64_t *dims;
    lf_program *program;     /* whose parameters may be written without PyTorch's knowledge; NULL: nobody looks */
    lf_call *call;
    const void **in_at;      /* slot's arrays */
    void **out_at;
    lf_run_options options;  /* on a GPU without the address of workspace */
    uintptr_t aligned;       /* what addresses of inputs are multiples of */
    PyObject *room_maker;    /* what makes workspace; NULL: slot has it */
    stamp param[MOST];
} ready;

typedef struct shortcut {
    PyObject *part;          /* what does all other calls */
    Py_ssize_t args, inputs, params, outputs;
    Py_ssize_t input[MOST], param[MOST]; /* which arguments they are */
    ready *as;               /* NULL: not set up */
} shortcut;

static const char NAME[] = "linfuse.shortcut";

static void drop(PyObject **object)
{
    if (*object)
        Py_DecRef(*object);
    *object = NULL;
}

static void let_go(ready *r)
{
    if (!r || --r->users > 0)
        return;
    drop(&r->how);
    free(r);
}

static void end(PyObject *capsule)
{
    shortcut *s = PyCapsule_GetPointer(capsule, NAME);
    let_go(s->as);
    drop(&s->part);
    free(s);
}

/* ---- questions; each takes what it is given, and says no where there was an error, which stays ---- */

static bool is_this(PyObject *got, const PyObject *wanted)
{
    const bool is = got == wanted;
    drop(&got);
    return is;
}

static bool is_address(PyObject *got, const void *wanted)
{
    const bool is = got && PyLong_AsVoidPtr(got) == wanted && !PyErr_Occurred();
    drop(&got);
    return is;
}

static bool is_number(PyObject *got, long long wanted)
{
    const bool is = got && PyLong_AsLongLong(got) == wanted && !PyErr_Occurred();
    drop(&got);
    return is;
}

static bool is_equal(PyObject *got, PyObject *wanted)
{
    const bool is = got && PyObject_RichCompareBool(got, wanted, Py_EQ) == 1;
    drop(&got);
    return is;
}

/* maker: a function, its arguments, and what else. */
static PyObject *call_maker(PyObject *maker)
{
    return PyObject_CallObject(PyTuple_GetItem(maker, 0), PyTuple_GetItem(maker, 1));
}

/* Is what is the same for all arguments (gradients, transforms, threads or stream) as it was? */
static bool is_plain(const ready *r)
{
    for (Py_ssize_t i = 0, count = PyTuple_Size(r->questions); i < count; i++) {
        PyObject *question = PyTuple_GetItem(r->questions, i);
        if (!is_equal(call_maker(question), PyTuple_GetItem(question, 2)))
            return false;
    }
    return true;
}

static bool is_input(PyObject *tensor, PyObject *features)
{
    for (Py_ssize_t i = 0, count = PyTuple_Size(features); i < count; i++) {
        PyObject *feature = PyTuple_GetItem(features, i), *name = PyTuple_GetItem(feature, 0),
                 *method = PyTuple_GetItem(feature, 1), *answer = PyTuple_GetItem(feature, 2);
        if (!is_equal(name != its.none ? PyObject_GetAttr(tensor, name)
                                       : PyObject_CallMethodObjArgs(tensor, method, NULL),
                      answer))
            return false;
    }
    return true;
}

static bool is_param(PyObject *tensor, const stamp *as)
{
    return tensor == as->param && is_number(PyObject_GetAttr(tensor, its.version), as->version) &&
           is_address(PyObject_CallMethodObjArgs(tensor, its.data_ptr, NULL), as->address) &&
           is_equal(PyObject_CallMethodObjArgs(tensor, its.stride, NULL), as->strides);
}

static bool are_stamps(const ready *r, PyObject *prepared)
{
    return is_this(PyObject_GetAttr(prepared, its.stamps), r->stamps);
}

/* Are the parameters what is prepared? Whoever holds a slot may ask: they stay so as long. */
static bool are_params(const shortcut *s, const ready *r, PyObject *prepared, PyObject *const *args)
{
    if (!are_stamps(r, prepared))
        return false;
    for (Py_ssize_t i = 0; i < s->params; i++)
        if (!is_param(args[s->param[i]], &r->param[i]))
            return false;
    return !r->program || params_hold(r->program);
}

static bool put_pointer(PyObject *number, void *to)
{
    if (!number)
        return false;
    *(void **)to = PyLong_AsVoidPtr(number);
    drop(&number);
    return !PyErr_Occurred();
}

static bool put_address(PyObject *tensor, void *to)
{
    return tensor && put_pointer(PyObject_CallMethodObjArgs(tensor, its.data_ptr, NULL), to);
}

/* ---- a call ---- */

/* New tensors for the results; the first that cannot be made is NULL. */
static bool make_outputs(const shortcut *s, const ready *r, PyObject **made)
{
    for (Py_ssize_t i = 0; i < s->outputs; i++) {
        made[i] = call_maker(PyTuple_GetItem(r->makers, i));
        if (!put_address(made[i], &r->out_at[i]))
            return false;
    }
    return true;
}

/* A tuple of them. Nothing of Python's runs before it is full: collectors of garbage show it to whoever asks. */
static PyObject *as_tuple(PyObject **made, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyTuple_SetItem(tuple, i, made[i]);
        made[i] = NULL;
    }
    return tuple;
}

static bool put_inputs(const shortcut *s, const ready *r, PyObject *const *args)
{
    for (Py_ssize_t i = 0; i < s->inputs; i++)
        if (!put_address(args[s->input[i]], &r->in_at[i]) || (uintptr_t)r->in_at[i] % r->aligned != 0)
            return false;
    return true;
}

/* The library's call, and whether it was made. */
static bool run(const ready *r)
{
    PyObject *room = NULL;
    lf_run_options options = r->options;
    if (options.memory == LF_DEVICE &&
        !(r->room_maker ? put_address(room = call_maker(r->room_maker), &options.workspace)
                        : put_pointer(PyObject_GetAttr(r->slot, its.room_at), &options.workspace))) {
        drop(&room);
        return false;
    }
    void *state = PyEval_SaveThread();
    const lf_status status = run_at(r->call, r->dims, r->in_at, r->out_at, &options);
    PyEval_RestoreThread(state);
    drop(&room); /* its memory is the stream's next work's */
    PyObject *runs = status == LF_OK ? PyObject_GetAttr(r->slot, its.runs) : NULL,
             *more = runs ? PyNumber_Add(runs, its.one) : NULL;
    const bool counted = more && PyObject_SetAttr(r->slot, its.runs, more) == 0;
    drop(&runs);
    drop(&more);
    return counted;
}

/* An error stays one. Where there is no memory for it, the slot is lost, and the program makes another. */
static void put_back(PyObject *idle, PyObject *slot)
{
    PyObject *sort, *value, *trace;
    PyErr_Fetch(&sort, &value, &trace);
    if (PyList_Append(idle, slot) != 0)
        PyErr_Clear();
    PyErr_Restore(sort, value, trace);
}

/* With a slot of the program, which is put back. */
static PyObject *run_prepared(const shortcut *s, const ready *r, PyObject *const *args, PyObject *prepared)
{
    PyObject *results = NULL, *made[MOST] = {NULL};
    const Py_ssize_t last = PyList_Size(r->idle) - 1;
    if (last < 0 || PyList_GetItem(r->idle, last) != r->slot || PyList_SetSlice(r->idle, last, last + 1, NULL) != 0)
        return NULL;
    if (are_params(s, r, prepared, args) && make_outputs(s, r, made) && put_inputs(s, r, args) && run(r))
        results = as_tuple(made, s->outputs);
    put_back(r->idle, r->slot);
    for (Py_ssize_t i = 0; i < s->outputs; i++)
        drop(&made[i]);
    return results;
}

static PyObject *run_ready(const shortcut *s, const ready *r, PyObject *const *args)
{
    PyObject *prepared, *results = NULL;
    if (!is_plain(r))
        return NULL;
    for (Py_ssize_t i = 0; i < s->inputs; i++)
        if (!is_input(args[s->input[i]], PyTuple_GetItem(r->features, i)))
            return NULL;
    prepared = PyObject_CallObject(r->prepared, NULL);
    if (prepared && prepared != its.none && are_stamps(r, prepared))
        results = run_prepared(s, r, args, prepared);
    drop(&prepared);
    return results;
}

/* Is there an error that the caller should see? What PyTorch refuses the part asks again, and knows what to do. What
 * comes from elsewhere, such as an interrupt, comes but once. */
static bool is_serious(void)
{
    const PyObject *sort = PyErr_Occurred();
    for (Py_ssize_t i = 0, count = PyTuple_Size(its.refusals); sort && i < count; i++)
        if (sort == PyTuple_GetItem(its.refusals, i))
            return false;
    return sort != NULL;
}

static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const shortcut *s = PyCapsule_GetPointer(self, NAME);
    ready *r = s->as;
    PyObject *results = NULL;
    if (r && count == s->args) {
        r->users++;
        results = run_ready(s, r, args);
        if (!results && !is_serious())
            PyErr_Clear();
        let_go(r);
    }
    if (results || PyErr_Occurred())
        return results;
    PyObject *all = PyTuple_New(count);
    for (Py_ssize_t i = 0; all && i < count; i++) {
        Py_IncRef(args[i]);
        PyTuple_SetItem(all, i, args[i]);
    }
    results = all ? PyObject_CallObject(s->part, all) : NULL;
    drop(&all);
    return results;
}

static PyMethodDef method = {"shortcut", call, METH_FASTCALL, NULL};

static bool read_places(PyObject *from, Py_ssize_t *to, Py_ssize_t *count)
{
    *count = PyTuple_Size(from);
    for (Py_ssize_t i = 0; *count <= MOST && i < *count; i++)
        to[i] = (Py_ssize_t)PyLong_AsLongLong(PyTuple_GetItem(from, i));
    return *count <= MOST;
}

/* A function that calls part with so many arguments, until it knows better. inputs, params: which of them are. None
 * where there are too many, or no memory. */
LF_API PyObject *lf_shortcut_new(PyObject *part, PyObject *inputs, PyObject *params, Py_ssize_t args,
                                      Py_ssize_t outputs);
LF_API PyObject *lf_shortcut_new(PyObject *part, PyObject *inputs, PyObject *params, Py_ssize_t args,
                                      Py_ssize_t outputs)
{
    shortcut *s = calloc(1, sizeof *s);
    if (!s || outputs > MOST || !read_places(inputs, s->input, &s->inputs) ||
        !read_places(params, s->param, &s->params)) {
        free(s);
        Py_IncRef(its.none);
        return its.none;
    }
    s->args = args, s->outputs = outputs, s->part = part;
    Py_IncRef(part);
    PyObject *capsule = PyCapsule_New(s, NAME, end);
    if (!capsule) {
        Py_DecRef(part);
        free(s);
        return NULL;
    }
    PyObject *function = PyCFunction_NewEx(&method, capsule, NULL);
    Py_DecRef(capsule);
    return function;
}

/* Sets it up for calls like one that was made. how: linfuse/shortcut.py's How. Where that is of another kind than this
 * library's, or there is no memory for it, there is none. */
LF_API PyObject *lf_shortcut_set(PyObject *function, PyObject *how);
LF_API PyObject *lf_shortcut_set(PyObject *function, PyObject *how)
{
    enum { PARTS = 10, ADDRESSES = 5, WHERE = 6 };
    shortcut *s = PyCapsule_GetPointer(PyCFunction_GetSelf(function), NAME);
    ready *r = NULL, *before = s->as;
    PyObject *part[PARTS];
    bool fits = PyTuple_Size(how) == PARTS;
    for (int i = 0; fits && i < PARTS; i++)
        part[i] = PyTuple_GetItem(how, i);
    fits = fits && PyTuple_Size(part[7]) == ADDRESSES && PyTuple_Size(part[8]) == WHERE;
    if (fits && (r = calloc(1, sizeof *r))) {
        void *at[ADDRESSES], *where[WHERE - 1];
        for (int i = 0; i < ADDRESSES; i++)
            at[i] = PyLong_AsVoidPtr(PyTuple_GetItem(part[7], i));
        for (int i = 0; i < WHERE - 1; i++)
            where[i] = PyLong_AsVoidPtr(PyTuple_GetItem(part[8], i));
        PyObject *maker = PyTuple_GetItem(part[8], WHERE - 1);
        *r = (ready){.users = 1,
                     .how = how,
                     .prepared = part[0],
                     .stamps = part[1],
                     .idle = part[2],
                     .slot = part[3],
                     .questions = part[4],
                     .features = part[5],
                     .makers = part[6],
                     .dims = at[0],
                     .program = at[1],
                     .call = at[2],
                     .in_at = at[3],
                     .out_at = at[4],
                     .options = {.memory = (lf_memory)(intptr_t)where[0],
                                 .threads = (int)(intptr_t)where[1],
                                 .stream = where[2],
                                 .workspace_bytes = (size_t)where[4]},
                     .aligned = (uintptr_t)where[3],
                     .room_maker = maker == its.none ? NULL : maker};
        Py_IncRef(how);
        for (Py_ssize_t i = 0; i < s->params; i++) {
            PyObject *one = PyList_GetItem(r->stamps, i);
            r->param[i] = (stamp){PyLong_AsVoidPtr(PyTuple_GetItem(one, 0)), PyLong_AsLongLong(PyTuple_GetItem(one, 1)),
                                  PyLong_AsVoidPtr(PyTuple_GetItem(one, 2)), PyTuple_GetItem(one, 3)};
        }
    }
    s->as = r;
    let_go(before);
    Py_IncRef(its.none);
    return its.none;
}
