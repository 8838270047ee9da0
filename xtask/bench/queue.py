"""Ray's part of the benchmark `queue`: prints one JSON object, with the number of tasks and their seconds.

The workload is that of Ray's published scalability envelope (`1M+ tasks queued on a single node`), with fewer tasks.
"""

import json
import time

import ray

TASKS = 20_000


@ray.remote
def nothing():
    pass


ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
ray.get(nothing.remote())
start = time.perf_counter()
ray.get([nothing.remote() for _ in range(TASKS)])
print(json.dumps({"name": "queue", "seconds": time.perf_counter() - start, "tasks": TASKS}), flush=True)
