"""Speed of dequantisation on one core, in bytes of codes per second of CPU time."""

import time

import torch

from nextn.weights.dequantise import PIECE_BYTES, dequantise

ROW_BYTES = 4096
ROWS = PIECE_BYTES // ROW_BYTES
REPEATS = 50
SCALES = {
    "fp8_block": (ROWS // 128, ROW_BYTES // 128),
    "mxfp4": (ROWS, ROW_BYTES // 16),
    "int8_row": (ROWS, 1),
}


def main() -> None:
    torch.set_num_threads(1)
    codes = torch.randint(0, 256, (ROWS, ROW_BYTES), dtype=torch.uint8)
    for encoding, shape in SCALES.items():
        columns = 2 * ROW_BYTES if encoding == "mxfp4" else ROW_BYTES
        for dtype in (torch.float32, torch.bfloat16):
            out = torch.empty(ROWS, columns, dtype=dtype)
            seconds = []
            for _ in range(REPEATS):
                started = time.process_time()
                dequantise(encoding, codes, torch.ones(shape), out)
                seconds.append(time.process_time() - started)
            speed = codes.numel() / min(seconds) / 1e9
            print(f"{encoding:10} to {str(dtype).removeprefix('torch.'):9} {speed:5.2f} GB/s")


if __name__ == "__main__":
    main()
