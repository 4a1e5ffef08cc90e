#!/usr/bin/env python3
"""Writes configs of the shapes that are measured with random weights: shapes.py OUT_DIRECTORY."""
import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1])
configs = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"


def read(name):
    return json.loads((configs / f"{name}.json").read_text())


def write(name, config):
    (out / name).mkdir(parents=True, exist_ok=True)
    (out / name / "config.json").write_text(json.dumps(config))


def first_layers(config, count):
    """The first `count` layers; lists with an entry per layer are cut."""
    layers = config["num_hidden_layers"]
    for key, value in config.items():
        if isinstance(value, list) and len(value) >= layers:
            config[key] = value[:count]
    for key in ("kda_layers", "full_attn_layers"):
        if key in (config.get("linear_attn_config") or {}):
            config["linear_attn_config"][key] = [i for i in config["linear_attn_config"][key] if i <= count]
    config["num_hidden_layers"] = count
    return config


write("gpt-oss-120b", read("gpt-oss-120b"))
write("gpt-oss-20b", read("gpt-oss-20b"))

k3 = read("kimi-k3")
linear = read("kimi-linear-48b")
linear["quantization_config"] = k3["text_config"].get("quantization_config") or k3.get("quantization_config")
write("kimi-linear-48b-mxfp4", linear)

k3["text_config"] = first_layers(k3["text_config"], 5)
write("kimi-k3-5layers", k3)

flash = first_layers(read("deepseek-v4-flash"), 8)
write("deepseek-v4-flash-8layers", flash)
