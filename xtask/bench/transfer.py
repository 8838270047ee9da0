"""Ray's part of the benchmark of transfers, between two local nodes: one JSON object a line.

The first argument is how many bytes the large object has. It is made on one node, and got by the driver, which is on the
other: Ray's object manager moves it from store to store.
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
def make(count):
    return numpy.ones(count, dtype=numpy.uint8)


def moved(references):
    ray.wait(references, num_returns=len(references), fetch_local=False)
    start = time.perf_counter()
    ray.get(references)
    return time.perf_counter() - start


ray.get(make.remote(1))
seconds = []
for _ in range(RUNS):
    seconds.append(moved([make.remote(size)]))
print(json.dumps({"name": "large", "seconds": sorted(seconds)[RUNS // 2]}), flush=True)


@ray.remote(resources={"other": 0.01})
def puts(count):
    # Of values as small as these Ray sends results in messages; stored ones it moves.
    return [ray.put(numpy.ones(10 << 10, dtype=numpy.uint8)) for _ in range(count)]


references = ray.get(puts.remote(SMALL))
print(json.dumps({"name": "small", "seconds": moved(references), "tasks": SMALL}), flush=True)
ray.shutdown()
cluster.shutdown()
