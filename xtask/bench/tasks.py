"""Ray's part of the benchmark `tasks`: prints one JSON object per workload, with its number of tasks and seconds.

The workloads are those of Ray's own micro-benchmark: `single client tasks sync`, `async`, and `multi client`.
"""

import json
import time

import ray


@ray.remote
def nothing():
    pass


@ray.remote
def parent(children):
    ray.get([nothing.remote() for _ in range(children)])


def measure(name, tasks, run):
    run()
    start = time.perf_counter()
    run()
    print(json.dumps({"name": name, "seconds": time.perf_counter() - start, "tasks": tasks}), flush=True)


ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
measure("in flight", 2000, lambda: ray.get([nothing.remote() for _ in range(2000)]))
measure("one at a time", 300, lambda: [ray.get(nothing.remote()) for _ in range(300)])
measure("two parents", 2000, lambda: ray.get([parent.remote(1000) for _ in range(2)]))
