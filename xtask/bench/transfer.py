"""Ray's part of the benchmark `transfer`, between two local nodes: prints one JSON object per workload.

The argument is the number of bytes of the large object. A task on one node creates it, and the driver on the other node
gets it: Ray's object manager moves it between the stores.
"""

import json
import sys
import time

import numpy
import ray
from ray.cluster_utils import Cluster

SMALL = 10_000
RUNS = 3
size = int(sys.argv[1])
store = 3 * size + (256 << 20)
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": store})
cluster.add_node(num_cpus=1, resources={"other": 1}, object_store_memory=store)
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)


@ray.remote(resources={"other": 0.01})
def create(count):
    return numpy.ones(count, dtype=numpy.uint8)


def transfer_seconds(references):
    ray.wait(references, num_returns=len(references), fetch_local=False)
    start = time.perf_counter()
    ray.get(references)
    return time.perf_counter() - start


ray.get(create.remote(1))
seconds = []
for _ in range(RUNS):
    seconds.append(transfer_seconds([create.remote(size)]))
print(json.dumps({"name": "large", "seconds": sorted(seconds)[RUNS // 2]}), flush=True)


@ray.remote(resources={"other": 0.01})
def puts(count):
    # Ray sends small results in messages, but moves stored values.
    return [ray.put(numpy.ones(10 << 10, dtype=numpy.uint8)) for _ in range(count)]


references = ray.get(puts.remote(SMALL))
print(json.dumps({"name": "small", "seconds": transfer_seconds(references), "tasks": SMALL}), flush=True)
ray.shutdown()
cluster.shutdown()
