"""Ray's part of the benchmark `actors`: prints one JSON object per workload, with its number of calls and seconds.

The workloads are those of Ray's own micro-benchmark: `1:1 actor calls sync` and `async`.
"""

import json
import time

import ray


@ray.remote
class Echo:
    def nothing(self):
        pass


def measure(name, calls, run):
    run()
    start = time.perf_counter()
    run()
    print(json.dumps({"name": name, "seconds": time.perf_counter() - start, "tasks": calls}), flush=True)


ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
echo = Echo.remote()
ray.get(echo.nothing.remote())
measure("in flight", 5000, lambda: ray.get([echo.nothing.remote() for _ in range(5000)]))
measure("one at a time", 500, lambda: [ray.get(echo.nothing.remote()) for _ in range(500)])
