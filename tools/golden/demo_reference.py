#!/usr/bin/env python3
"""Reference logits of the demo model from Hugging Face transformers in true float32.

    demo_reference.py models/demo OUT.safetensors

Needs torch, transformers and safetensors. The stored weights are dequantised exactly; the model runs in float32 on the
CPU. Where a CUDA device exists, the same is repeated there with and without TF32, to show what TF32 does to the logits.
"""
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float32)


def dequantise(blocks, scales):
    """[E, N, G, 16] codes and [E, N, G] scales -> [E, G*32, N] float32, K first as the model's parameter is."""
    E, N, G, _ = blocks.shape
    low, high = VALUES[(blocks & 15).long()], VALUES[(blocks >> 4).long()]
    values = torch.stack([low, high], -1).reshape(E, N, G, 32)
    values = torch.ldexp(values, (scales.int() - 127).unsqueeze(-1))
    return values.reshape(E, N, G * 32).transpose(1, 2).contiguous()


def load(path):
    config = GptOssConfig.from_pretrained(path)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = GptOssForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    state = {}
    stored = load_file(path + "/model.safetensors")
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            state[name[: -len("_blocks")]] = dequantise(tensor, stored[name[: -len("_blocks")] + "_scales"])
        elif not name.endswith("_scales"):
            state[name] = tensor.float()
    model.load_state_dict(state, strict=True)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


@torch.no_grad()
def logits(model, ids, device):
    return model.to(device)(ids[None].to(device), use_cache=False).logits[0].float().cpu()


def difference(a, b):
    return ((a - b).norm() / b.norm()).item()


def main():
    model = load(sys.argv[1])
    golden = load_file(sys.argv[1] + "/golden.safetensors")
    out = {}
    for i in range(4):
        rows = golden[f"prompt.{i}"].shape[0] + 8
        ids = torch.cat([golden[f"prompt.{i}"], golden[f"greedy.{i}"]])[:rows]
        out[f"input_ids.{i}"] = ids[None].contiguous()
        out[f"logits.{i}"] = logits(model, ids, "cpu")
        print(f"prompt {i}")
        if torch.cuda.is_available():
            for tf32 in (False, True):
                torch.backends.cuda.matmul.allow_tf32 = tf32
                got = logits(model, ids, "cuda")
                print(f"  CUDA, TF32 {'on' if tf32 else 'off'}: against the CPU {difference(got, out[f'logits.{i}']):.2e}")
    save_file(out, sys.argv[2])


main()
