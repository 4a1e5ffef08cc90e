#!/usr/bin/env python3
"""Serves a model with random weights to 1, 16, 64 and 256 clients: serving.py MOESAIC CONFIG_DIRECTORY OUT.csv [DEVICE].

The demo model's tokenizer gives the random tokens text. Beside each row stands the decode step of the engine alone, at
the same batch and context, measured by `moesaic bench` in the same run: the difference is what scheduler and HTTP cost.
"""
import csv
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMPT, ANSWER = int(os.environ.get("PROMPT", 1024)), int(os.environ.get("ANSWER", 128))
CLIENTS = [int(n) for n in os.environ.get("CLIENTS", "1 16 64 256").split()]
RESULTS = ["completed", "duration", "total_token_throughput", "output_throughput"] + [
    f"{kind}_{metric}_ms" for metric in ("ttft", "tpot", "itl") for kind in ("median", "p90", "p99")]


def with_text(config, folder):
    """The config's directory with a tokenizer."""
    served = folder / pathlib.Path(config).name
    shutil.copytree(config, served)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "models/demo" / name, served)
    return served


def ready(url, process):
    while process.poll() is None:
        try:
            return urllib.request.urlopen(url + "/ready").read()
        except OSError:
            time.sleep(0.1)
    sys.exit(f"serve ended with {process.returncode} before it was ready")


def traffic(moesaic, url, clients, folder):
    out = folder / "result.json"
    subprocess.run([moesaic, "bench", "serve", "--base-url", url, "--endpoint", "/v1/completions", "--ignore-eos",
                    "--random-input-len", str(PROMPT), "--random-output-len", str(ANSWER), "--num-prompts",
                    str(max(4, 2 * clients)), "--max-concurrency", str(clients), "--num-warmups", "1",
                    "--metric-percentiles", "50,90,99", "--save-result", str(out)], check=True)
    return json.loads(out.read_text())


def decode_step_ms(moesaic, model, device, batch, folder):
    out = folder / f"decode{batch}.csv"
    subprocess.run([moesaic, "bench", model, "--device", device, "--load-format", "dummy", "-p", "0", "-n", "32", "-b",
                    str(batch), "-d", str(PROMPT), "--reps", "2", "--csv", str(out)], check=True,
                   stdout=subprocess.DEVNULL)
    rows = [r for r in csv.DictReader(out.open()) if r["test"].startswith("tg")]
    return 1e3 * batch / float(rows[-1]["tokens_per_second_median"])


def main(moesaic, config, out, device="cuda"):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = with_text(config, folder)
        steps = {n: decode_step_ms(moesaic, model, device, n, folder) for n in CLIENTS if n <= 64}
        url = "http://127.0.0.1:8765"
        longest = 6 * PROMPT + ANSWER  # the first request is as long as its words make it
        tokens = max(CLIENTS) * (PROMPT + PROMPT // 4 + ANSWER)
        serve = subprocess.Popen([moesaic, "serve", model, "--device", device, "--load-format", "dummy", "--port", "8765",
                                  "--max-num-seqs", str(max(CLIENTS)), "--max-model-len", str(longest),
                                  "--kv-cache-tokens", str(tokens), "--max-num-batched-tokens", "2048",
                                  "--log-requests", "none"])
        try:
            ready(url, serve)
            with open(out, "a", newline="") as file:
                table = csv.writer(file)
                if file.tell() == 0:
                    table.writerow(["date", "commit", "device", "model", "clients", "prompt_tokens", "answer_tokens",
                                    *RESULTS, "engine_step_ms", "step_tokens_overhead"])
                for clients in CLIENTS:
                    result = traffic(moesaic, url, clients, folder)
                    step = steps.get(clients)
                    table.writerow([datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                                    os.environ.get("MOESAIC_COMMIT", "unknown"), device, model.name, clients, PROMPT,
                                    ANSWER, *(result.get(k) for k in RESULTS), step,
                                    result["median_itl_ms"] / step - 1 if step else None])
                    file.flush()
        finally:
            serve.terminate()
            serve.wait(60)


main(*sys.argv[1:])
