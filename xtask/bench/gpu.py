"""PyTorch's part of the benchmark of dense algebra: one JSON object a line, how many seconds a call takes.

Arguments: the side of matrices, the values of vectors, the groups of least squares, the rows and the features of each, and
for how many seconds each is done again and again. On an NVIDIA GPU products are cuBLAS's; single precision is without
TensorFloat-32, since ours is.
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
    """The least that a call takes, each with what it has under way."""

    def once():
        begun = time.perf_counter()
        run()
        if has_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    once()
    end = time.perf_counter() + least
    best = once()
    while time.perf_counter() < end:
        best = min(best, once())
    return best


def tell(figure, run, what="PyTorch"):
    print(json.dumps({"figure": figure, "peer": f"{what} on {where}", "seconds": seconds(run)}), flush=True)


def of(*sizes, dtype=torch.float32):
    return torch.rand(*sizes, dtype=dtype, device=device)


product = "PyTorch (cuBLAS)" if has_gpu else "PyTorch"
for name, dtype in [("f32", torch.float32), ("f64", torch.float64), ("f16", torch.float16)]:
    square = of(side, side, dtype=dtype)
    out = torch.empty_like(square)
    tell(f"gpu/product {side} {name}", lambda: torch.mm(square, square, out=out), product)
del square, out
stack = of(values // 1024, 32, 32)
out = torch.empty_like(stack)
tell("gpu/products of 32 x 32", lambda: torch.bmm(stack, stack, out=out), product)
del stack, out

vector, other = of(values), of(values)
out = torch.empty_like(vector)
tell("gpu/copy", lambda: out.copy_(vector))
tell("gpu/sum", lambda: torch.sum(vector))
tell("gpu/a x + y", lambda: torch.add(other, vector, alpha=2.0, out=out))
del vector, other, out

# Least squares of many groups, with an intercept: by normal equations, as ours are, and by QR.
features = torch.cat([of(fits, rows, width, dtype=torch.float64), torch.ones(fits, rows, 1, dtype=torch.float64, device=device)], 2)
target = of(fits, rows, 1, dtype=torch.float64)


def normal():
    transposed = features.mT
    factor = torch.linalg.cholesky(transposed @ features)
    return torch.cholesky_solve(transposed @ target, factor)


figure = f"gpu/{fits} fits of {rows} x {width}"
tell(figure, normal, "PyTorch, normal equations,")
tell(figure, lambda: torch.linalg.lstsq(features, target).solution, "PyTorch, lstsq,")
