"""Run square matrix products through PyTorch, one per format; prints the operations of each as JSON."""

import json
import sys

import torch

SIDE = 4096


def main() -> int:
    """One product a format, in this order: fp64, xf32, fp16, bf16, fp8."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    numbers = [torch.randn(SIDE, SIDE, device="cuda", generator=generator) for _ in range(2)]
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.cuda.synchronize()
    done = []
    formats = {"fp64": torch.float64, "xf32": torch.float32, "fp16": torch.half, "bf16": torch.bfloat16}
    for name, dtype in formats.items():
        left, right = (one.to(dtype) for one in numbers)
        left @ right
        torch.cuda.synchronize()
        done.append({"format": name, "element_bytes": left.element_size(), "operations": 2 * SIDE**3})
    left, right = (one.to(torch.float8_e4m3fn) for one in numbers)
    one = torch.ones((), device="cuda")
    torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    torch.cuda.synchronize()
    done.append({"format": "fp8", "element_bytes": 1, "operations": 2 * SIDE**3})
    print(json.dumps({"side": SIDE, "products": done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
