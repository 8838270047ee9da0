"""Ray's part of the benchmark of objects: one JSON object a line, with how many of what took how many seconds.

The first argument is how many bytes the large object has. The workloads are those of Ray's own micro-benchmark (`single
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


def tell(name, times, run):
    run()
    start = time.perf_counter()
    run()
    print(json.dumps({"name": name, "seconds": time.perf_counter() - start, "tasks": times}), flush=True)


large = numpy.ones(int(sys.argv[1]), dtype=numpy.uint8)
ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
tell("put", 5, lambda: [ray.put(large) for _ in range(5)])
stored = ray.put(large)
tell("peeks", 1000, lambda: [ray.get([peek.remote(stored, at) for at in range(200)]) for _ in range(5)])
tell("small", 1000, lambda: [ray.get(ray.put(at)) for at in range(1000)])
