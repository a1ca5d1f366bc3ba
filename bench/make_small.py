"""Writes one safetensors file of many small tensors.

    python3 bench/make_small.py FILE COUNT BYTES
"""

import json
import random
import struct
import sys


def main():
    path, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    header = {
        f"t{number}": {"dtype": "U8", "shape": [size], "data_offsets": [number * size, (number + 1) * size]}
        for number in range(count)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        values = random.Random(1)
        for _ in range(count):
            file.write(values.randbytes(size))


main()
