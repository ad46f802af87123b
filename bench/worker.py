# SPDX-License-Identifier: Apache-2.0
"""One contender in a process of its own, told by the parent what to do over a pipe.

Forked, so that PyTorch and ONNX Runtime are imported once, and what the parent drew is shared, not sent. Memory is
read from /proc: what a contender holds once loaded (RssAnon, before against after), and how far the peak of the calls
lies above that (VmHWM, reset through clear_refs where the kernel lets us).
"""

import ctypes
import gc
import multiprocessing
import os
import statistics
import time

import machine

LONG = 0.1          # s: a call this long is timed alone; shorter ones come in bursts
LOAD_SECONDS = 240  # more means that something hangs
fork = multiprocessing.get_context("fork")


class Failed(Exception):
    pass


# ---- in the child ----


def settle(limit=0.25):
    """Waits until this process's threads stopped spinning, so that the next contender has the cores to itself."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        wall, cpu = time.monotonic(), time.process_time()
        time.sleep(0.004)
        if time.process_time() - cpu < 0.1 * (time.monotonic() - wall):
            return


def give_back():
    """Memory that nobody uses any more goes back to the system, so that it is not counted."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def timed(call):
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e6


def default_burst(contender, seconds):
    """Milliseconds of each call. Of a burst, the first tenth wakes threads and caches and does not count."""
    first = timed(contender.call)
    if first > 1e3 * LONG:
        return [first]
    end, times = time.perf_counter() + seconds, [first]
    while time.perf_counter() < end or len(times) < 3:
        times.append(timed(contender.call))
    return times[1 + len(times) // 10:]


class Child:
    def __init__(self, contender, job, result):
        self.contender, self.job, self.result = contender, job, result

    def load(self):
        give_back()
        before = machine.memory("RssAnon")
        self.contender.load(self.job)
        give_back()
        return {**self.job.facts, "held_bytes": max(0, machine.memory("RssAnon") - before)}

    def warm(self, seconds):
        """Calls until `seconds` passed, at least twice; the peak of memory over what was held before the first."""
        if not hasattr(self.contender, "call"):
            return {}
        can_reset = machine.reset_peak()
        before, end = machine.memory("VmRSS"), time.monotonic() + seconds
        calls = 0
        while calls < 2 or time.monotonic() < end:
            self.contender.call()
            calls += 1
        settle()
        return {"call_bytes": max(0, machine.memory("VmHWM") - before)} if can_reset else {}

    def burst(self, seconds):
        if hasattr(self.contender, "burst"):
            times = self.contender.burst(seconds)
        else:
            times = default_burst(self.contender, seconds)
        settle()
        return statistics.median(times)

    def show(self):
        """Copies the result to where the parent can read it; its shape."""
        value = self.contender.result()
        self.result[: value.size] = value.ravel()
        return value.shape

    def serve(self, pipe):
        while True:
            name, args = pipe.recv()
            if name == "end":
                os._exit(0)  # no destructors: the parent is waiting, and the memory goes back anyway
            try:
                pipe.send((True, getattr(self, name)(*args)))
            except Exception as error:  # whatever it is, the others go on, and the table says why
                pipe.send(
                    (False, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
                )


# ---- in the parent ----


class Worker:
    def __init__(self, contender_class, job, result):
        self.pipe, far_end = fork.Pipe()
        child = Child(contender_class(), job, result)
        self.process = fork.Process(target=child.serve, args=(far_end,), daemon=True)
        self.process.start()
        far_end.close()

    def start(self, name, *args):
        try:
            self.pipe.send((name, args))
        except OSError:
            raise self.death() from None

    def death(self):
        self.process.join(5)
        return Failed(f"died with status {self.process.exitcode}")

    def finish(self, seconds=LOAD_SECONDS):
        try:
            if not self.pipe.poll(seconds):
                raise Failed(f"no answer for {seconds:.0f} s")
            fine, answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise self.death() from None
        if not fine:
            raise Failed(answer)
        return answer

    def ask(self, name, *args):
        self.start(name, *args)
        return self.finish()

    def end(self):
        try:
            self.start("end")
        except Failed:
            pass
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
