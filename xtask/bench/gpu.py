"""PyTorch's part of the benchmark `gpu`: prints one JSON object per operation, with the seconds of a call.

Arguments: rows of square matrices, values of vectors, groups of least squares, rows and features of a group, and seconds
for which each operation is repeated. On an NVIDIA GPU, cuBLAS computes products; single precision does not use
TensorFloat-32, as in host-gpu.
"""

import json
import sys
import time

import torch

side, values, fits, rows, width = map(int, sys.argv[1:6])
least = float(sys.argv[6])
has_gpu = torch.cuda.is_available()
device = torch.device("cuda" if has_gpu else "cpu")
where = torch.cuda.get_device_name() if has_gpu else f"{torch.get_num_threads()} processors"
torch.backends.cuda.matmul.allow_tf32 = False


def seconds(run):
    """Returns the minimum seconds of a call, including its asynchronous work on the GPU."""

    def once():
        start = time.perf_counter()
        run()
        if has_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    end = time.perf_counter() + least
    best = once()
    while time.perf_counter() < end:
        best = min(best, once())
    return best


def measure(figure, run, what="PyTorch"):
    print(json.dumps({"figure": figure, "peer": f"{what} on {where}", "seconds": seconds(run)}), flush=True)


def random(*sizes, dtype=torch.float32):
    return torch.rand(*sizes, dtype=dtype, device=device)


product = "PyTorch (cuBLAS)" if has_gpu else "PyTorch"
for name, dtype in [("f32", torch.float32), ("f64", torch.float64), ("f16", torch.float16)]:
    square = random(side, side, dtype=dtype)
    out = torch.empty_like(square)
    measure(f"gpu/product {side} {name}", lambda: torch.mm(square, square, out=out), product)
del square, out
stack = random(values // 1024, 32, 32)
out = torch.empty_like(stack)
measure("gpu/products of 32 x 32", lambda: torch.bmm(stack, stack, out=out), product)
del stack, out

vector, other = random(values), random(values)
out = torch.empty_like(vector)
measure("gpu/copy", lambda: out.copy_(vector))
measure("gpu/sum", lambda: torch.sum(vector))
measure("gpu/a x + y", lambda: torch.add(other, vector, alpha=2.0, out=out))
del vector, other, out

# Least squares of many groups, with an intercept: by normal equations, as in the host, and by QR.
features = torch.cat([random(fits, rows, width, dtype=torch.float64), torch.ones(fits, rows, 1, dtype=torch.float64, device=device)], 2)
target = random(fits, rows, 1, dtype=torch.float64)


def normal():
    transposed = features.mT
    factor = torch.linalg.cholesky(transposed @ features)
    return torch.cholesky_solve(transposed @ target, factor)


figure = f"gpu/{fits} fits of {rows} x {width}"
measure(figure, normal, "PyTorch, normal equations,")
measure(figure, lambda: torch.linalg.lstsq(features, target).solution, "PyTorch, lstsq,")
