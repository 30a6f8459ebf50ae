"""Programs with a known cause in PyTorch; `catalogue.py` says what each is slow by, `torch_loop.py` how to run them."""

import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.live.programs.torch_loop import Programs, Step, graphed, main

# ---- each makes its data and gives its step --------------------------------------------------------------------------


def products(size: int, dtype: torch.dtype) -> Step:
    """Two products of square matrices."""
    left, right = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)

    def step() -> None:
        for _ in range(2):
            torch.mm(left, right, out=out)

    return step


def gemm_fp32(fixed: bool) -> Step:
    torch.set_float32_matmul_precision("high" if fixed else "highest")
    return products(4096, torch.float32)


def gemm_tf32(fixed: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    return products(8192, torch.bfloat16 if fixed else torch.float32)


def gemm_bf16(fixed: bool) -> Step:
    if not fixed:
        return products(8192, torch.bfloat16)
    left, right = (torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")

    def step() -> None:
        for _ in range(2):
            torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16)

    return step


def host_sleeps(fixed: bool) -> Step:
    work = products(4096, torch.bfloat16)

    def step() -> None:
        for _ in range(5):
            work()
        if not fixed:
            torch.cuda.synchronize()
            time.sleep(0.004)

    return step


def item_each_step(fixed: bool) -> Step:
    values = torch.randn(8 << 20, device="cuda")
    total = torch.zeros((), device="cuda")

    def step() -> None:
        for _ in range(4):
            torch.sum(values, 0, out=total)
            if not fixed:
                total.item()

    return step


def pageable_copies(fixed: bool) -> Step:
    host = torch.randn(16 << 20)  # 64 MiB
    weights = torch.randn(4096, 4096, device="cuda")
    if not fixed:

        def step() -> None:
            rows = host.to("cuda").view(4096, 4096)
            torch.mm(rows, weights)

        return step
    pinned = host.pin_memory()
    side = torch.cuda.Stream()
    places = [torch.empty_like(weights) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in places]
    used = [torch.cuda.Event() for _ in places]
    turn = 0

    def copy(into: int) -> None:
        with torch.cuda.stream(side):
            side.wait_event(used[into])
            places[into].view(-1).copy_(pinned, non_blocking=True)
            copied[into].record(side)

    copy(0)

    def overlapped() -> None:
        nonlocal turn
        copy(1 - turn)
        main = torch.cuda.current_stream()
        main.wait_event(copied[turn])
        torch.mm(places[turn], weights)
        used[turn].record(main)
        turn = 1 - turn

    return overlapped


def transformer_batch_1(fixed: bool) -> Step:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().train()  # the fast path fuses
    tokens = torch.randn(1, 32, 256, device="cuda")

    def eager() -> None:
        with torch.no_grad():
            model(tokens)

    return graphed(eager) if fixed else eager


class Block(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Two convolutions with a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = (torch.nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(images + self.second_norm(self.second(inner)))


def training(fixed: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 128, 7, stride=2, padding=3), *(Block(128) for _ in range(4)), torch.nn.AdaptiveAvgPool2d(1)
    )
    model.append(torch.nn.Flatten()).append(torch.nn.Linear(128, 100))
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images = torch.randn(64, 3, 128, 128, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (64,), device="cuda")

    def step() -> None:
        if not fixed:
            torch.cuda.synchronize()
            until = time.monotonic_ns() + 15_000_000
            while time.monotonic_ns() < until:  # stands for decoding and augmenting
                pass
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


# ---- what tracing costs where the device is the limit ----------------------------------------------------------------


def transformer_batch_8(_: bool) -> Step:
    where = {"device": "cuda", "dtype": torch.bfloat16}
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.0, **where)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).train()  # the fast path fuses
    tokens = torch.randn(8, 512, 2048, **where)

    def step() -> None:
        with torch.no_grad():
            model(tokens)

    return step


def resnet_inference(_: bool) -> Step:
    from torchvision.models import resnet50  # type: ignore[import-not-found]  # not installed where types are checked

    with torch.device("cuda"):
        model = resnet50(weights=None).eval().to(torch.bfloat16, memory_format=torch.channels_last)
        images = torch.randn(128, 3, 224, 224).to(torch.bfloat16, memory_format=torch.channels_last)

    def step() -> None:
        with torch.no_grad():
            model(images)

    return step


PROGRAMS: Programs = {
    "gemm_fp32": gemm_fp32,
    "gemm_tf32": gemm_tf32,
    "gemm_bf16": gemm_bf16,
    "host_sleeps": host_sleeps,
    "item_each_step": item_each_step,
    "pageable_copies": pageable_copies,
    "transformer_batch_1": transformer_batch_1,
    "training": training,
    "transformer_batch_8": transformer_batch_8,
    "resnet_inference": resnet_inference,
}

if __name__ == "__main__":
    main(PROGRAMS)
