#!/usr/bin/env python3
"""What the libraries on this machine reach, to hold our numbers against: ceilings.py CSV (appended to)."""
import csv
import datetime
import os
import pathlib
import sys

try:
    import torch
except ImportError:
    sys.exit("ceilings.py: no torch here; the read bandwidth that `moesaic bench` measures stands alone")


def seconds(body, repeats=10):
    for _ in range(3):
        body()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        body()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


rows = []
source = torch.randn(1 << 30, device="cuda")
target = torch.empty_like(source)
rows.append(("copy, read and written", 8 * source.numel() / seconds(lambda: target.copy_(source)) / 1e12, "TB/s"))
pinned = torch.empty(1 << 28, pin_memory=True)
rows.append(("pinned host to device", 4 * pinned.numel() /
             seconds(lambda: target[: 1 << 28].copy_(pinned, non_blocking=True)) / 1e9, "GB/s"))
del source, target, pinned
n = 8192
a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
rows.append(("cuBLAS bf16 8192^3", 2 * n**3 / seconds(lambda: a @ b) / 1e12, "TFLOP/s"))
a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
one = torch.ones((), device="cuda")
rows.append(("cuBLASLt FP8 8192^3", 2 * n**3 / seconds(
    lambda: torch._scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)) / 1e12, "TFLOP/s"))

path = pathlib.Path(sys.argv[1])
new = not path.exists()
with path.open("a", newline="") as file:
    out = csv.writer(file)
    if new:
        out.writerow(["date", "commit", "gpu", "what", "value", "unit"])
    for what, value, unit in rows:
        out.writerow([datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                      os.environ.get("MOESAIC_COMMIT", ""), torch.cuda.get_device_name(), what, f"{value:.4g}", unit])
        print(f"{what}: {value:.4g} {unit}")
