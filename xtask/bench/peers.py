"""Runs a job's peers and prints one JSON object per peer: name, seconds and, if it trains only a part, number of models.

The job is the argument, as JSON. pandas or pyarrow read the files, scikit-learn fits; a quarter of each group's rows is
the test set.
"""

import glob
import json
import os
import sys
import time

import numpy as np
import pandas as pd
import pyarrow.dataset
import ray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeRegressor

JOB = json.loads(sys.argv[1])
SMALL_GROUPS = 5_000


def files():
    return sorted(
        file
        for path in JOB["input"]
        for file in (glob.glob(os.path.join(path, "*.parquet")) if os.path.isdir(path) else [path])
    )


def read(file):
    if file.endswith(".csv"):
        return pd.read_csv(file).dropna()
    columns = JOB["keys"] + JOB["features"] + [JOB["target"]]
    if JOB["clean"]:
        columns = ["pickup_at", "dropoff_at", "pickup_location_id", "dropoff_location_id"]
    table = pyarrow.dataset.dataset(file).to_table(columns=columns)
    frame = table.to_pandas()
    if JOB["clean"]:
        frame = frame[frame.pickup_location_id.notna()].copy()
        frame["trip_duration"] = (frame.dropoff_at - frame.pickup_at).dt.total_seconds().fillna(-1)
        frame["dropoff_location_id"] = frame.dropoff_location_id.fillna(-1)
    return frame


def model(name):
    if name == "linear":
        return LinearRegression()
    if name.startswith("tree"):
        return DecisionTreeRegressor(splitter="random" if name == "tree-random" else "best")
    return RandomForestRegressor(n_estimators=int(name.removeprefix("forest-")), n_jobs=1)


def fit(x, y, names):
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.25, random_state=201)
    fitted = ((model(name).fit(train_x, train_y), name) for name in names)
    return sorted((mean_absolute_error(test_y, m.predict(test_x)), name) for m, name in fitted)


def arrays(group):
    return group[JOB["features"]].to_numpy(np.float64), group[JOB["target"]].to_numpy(np.float64)


def groups():
    for file in files():
        frame = read(file)
        if not JOB["keys"]:
            yield arrays(frame)
            continue
        for index, (_, group) in enumerate(frame.groupby(JOB["keys"])):
            if JOB["name"] == "small-models" and index >= SMALL_GROUPS:
                return
            if len(group) >= 4:
                yield arrays(group)


def measure(name, run):
    start = time.perf_counter()
    models = run()
    seconds = time.perf_counter() - start
    part = {"models": models} if JOB["name"] == "small-models" else {}
    print(json.dumps({"name": name, "seconds": seconds, **part}), flush=True)


def sequential():
    return sum(len(fit(x, y, JOB["models"])) for x, y in groups())


def with_ray():
    remote = ray.remote(fit)
    if JOB["name"] == "forest":
        (x, y), = groups()
        x, y = ray.put(x), ray.put(y)
        tasks = [remote.remote(x, y, [name]) for name in JOB["models"]]
    else:
        tasks = [remote.remote(x, y, JOB["models"]) for x, y in groups()]
    return sum(len(scores) for scores in ray.get(tasks))


measure("scikit-learn, one process", sequential)
ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
ray.get([ray.remote(lambda: None).remote() for _ in range(4)])
measure("Ray, a task a group" if JOB["keys"] else "Ray, a task a model", with_ray)
