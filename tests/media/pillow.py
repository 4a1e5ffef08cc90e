#!/usr/bin/env python3
"""Pillow as the oracle of the image tests.

pillow.py resize MODE WIDTH HEIGHT NEW_WIDTH NEW_HEIGHT < pixels > pixels
pillow.py encode FORMAT MODE WIDTH HEIGHT FILE < pixels
pillow.py decode FILE > pixels          as RGB, or RGBA where the file has transparency
pillow.py fixtures FOLDER               writes the image files and expected.safetensors beside this script
"""
import json
import pathlib
import struct
import sys

from PIL import Image


def decoded(path):
    image = Image.open(path)
    transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.convert("RGBA" if transparent else "RGB")


def resize(mode, width, height, new_width, new_height):
    image = Image.frombytes(mode, (int(width), int(height)), sys.stdin.buffer.read())
    sys.stdout.buffer.write(image.resize((int(new_width), int(new_height)), Image.BICUBIC).tobytes())


def encode(kind, mode, width, height, path):
    image = Image.frombytes(mode, (int(width), int(height)), sys.stdin.buffer.read())
    options = {"png": {}, "jpeg": {"quality": 83}, "progressive": {"quality": 60, "progressive": True, "subsampling": 0},
               "webp": {"quality": 70}, "lossless": {"lossless": True}}[kind]
    image.save(path, {"progressive": "jpeg", "lossless": "webp"}.get(kind, kind), **options)


def decode(path):
    sys.stdout.buffer.write(decoded(path).tobytes())


def scene(width, height):
    """Smooth colours with a hard edge, and transparency that fades to the right."""
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            edge = 90 if (x - 9) ** 2 + (y - 7) ** 2 < 30 else 0
            pixels += bytes(((7 * x + 3 * y) % 256, (5 * y + edge) % 256, (x * y + 2 * edge) % 256, 255 - 255 * x // width))
    return Image.frombytes("RGBA", (width, height), bytes(pixels))


def write_safetensors(path, arrays):
    header, data = {}, b""
    for name, image in arrays.items():
        raw = image.tobytes()
        shape = [image.height, image.width, len(image.getbands())]
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def fixtures(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    rgba = scene(37, 23)
    rgb = rgba.convert("RGB")
    rgb.save(folder / "photo.jpg", quality=85)
    rgb.save(folder / "progressive.jpg", quality=70, progressive=True, subsampling=0)
    rgb.convert("L").save(folder / "gray.jpg", quality=85)
    rgb.convert("CMYK").save(folder / "inks.jpg", quality=85)
    rgb.save(folder / "photo.png")
    rgba.save(folder / "alpha.png")
    rgb.convert("L").save(folder / "gray.png")
    rgba.convert("LA").save(folder / "gray-alpha.png")
    rgb.convert("1").save(folder / "bits.png")
    palette = rgb.quantize(16)
    palette.save(folder / "palette.png")
    palette.save(folder / "palette-alpha.png", transparency=3)
    rgb.save(folder / "photo.webp", quality=80)
    rgba.save(folder / "alpha.webp", lossless=True)
    expected = {path.name: decoded(path) for path in sorted(folder.iterdir()) if path.suffix != ".safetensors"}
    expected["source"] = rgba
    for width, height in ((1, 1), (37, 9), (12, 23), (17, 11), (80, 50), (5, 64)):
        expected[f"rgb {width} {height}"] = rgb.resize((width, height), Image.BICUBIC)
        expected[f"rgba {width} {height}"] = rgba.resize((width, height), Image.BICUBIC)
    write_safetensors(folder / "expected.safetensors", expected)


{"resize": resize, "encode": encode, "decode": decode, "fixtures": fixtures}[sys.argv[1]](*sys.argv[2:])
