"""Writes a sharded safetensors model of a given size, the same bytes every time.

    python3 bench/make_model.py FOLDER GIB [SHARDS]

Each shard holds BF16 matrices of 4096 x 4096 and 200 vectors of 4096, as language models do.
Only the standard library is used.
"""

import json
import os
import random
import struct
import sys

ROWS = 4096
MATRIX = ROWS * ROWS * 2
VECTOR = ROWS * 2
CHUNK = 32 << 20


def main():
    folder, gib = sys.argv[1], float(sys.argv[2])
    shards = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    os.makedirs(folder, exist_ok=True)
    chunk = random.Random(1).randbytes(CHUNK)
    matrices = int(gib * 2**30 / shards / MATRIX)
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        header, end = {}, 0
        sizes = [("w", [ROWS, ROWS], MATRIX)] * matrices + [("b", [ROWS], VECTOR)] * 200
        for number, (kind, shape, size) in enumerate(sizes):
            tensor = f"shard{shard}.layer{number}.{kind}"
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            weight_map[tensor] = name
            end += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            written = 0
            while written < end:
                # Another rotation for every chunk: no two look alike.
                turn = (written // CHUNK * 977 + shard * 13) % CHUNK
                part = chunk[turn:] + chunk[:turn]
                file.write(part[: end - written])
                written += min(CHUNK, end - written)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


main()
