"""Ray's part of the benchmark `objects`: prints one JSON object per workload, with its number of operations and seconds.

The argument is the number of bytes of the large object. The workloads are those of Ray's own micro-benchmark (`single
client put gigabytes`, `put calls`, `get calls`), and tasks that read a few pages of one object.
"""

import json
import sys
import time

import numpy
import ray

PAGES = 4
PAGE_BYTES = 4096


@ray.remote
def peek(stored, at):
    return sum(int(stored[(at * PAGE_BYTES + page * PAGE_BYTES) % len(stored)]) for page in range(PAGES))


def measure(name, times, run):
    run()
    start = time.perf_counter()
    run()
    print(json.dumps({"name": name, "seconds": time.perf_counter() - start, "tasks": times}), flush=True)


large = numpy.ones(int(sys.argv[1]), dtype=numpy.uint8)
ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
measure("put", 5, lambda: [ray.put(large) for _ in range(5)])
stored = ray.put(large)
measure("peeks", 1000, lambda: [ray.get([peek.remote(stored, at) for at in range(200)]) for _ in range(5)])
measure("small", 1000, lambda: [ray.get(ray.put(at)) for at in range(1000)])
