"""Held-out PyTorch programs with a known cause: run once, when the analysis is done, and never tuned on."""

import collections
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.live.programs.torch_loop import Programs, Step, graphed, main


def gradient_norms(fixed: bool) -> Step:
    where = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(1024, 1024, **where), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
    rows, targets = (torch.randn(8192, 1024, **where) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        functional.mse_loss(model(rows), targets).backward()
        for parameter in model.parameters():
            for values in (parameter.detach(), parameter.grad):
                norm = values.norm()
                if not fixed:
                    norm.item()  # what a logger does
        optimizer.step()

    return step


def lstm_by_hand(fixed: bool) -> Step:
    times, batch, width = 64, 32, 128
    rows = torch.randn(times, batch, width, device="cuda")
    of_input, of_state = (torch.randn(width, 4 * width, device="cuda") / width for _ in range(2))
    bias = torch.zeros(4 * width, device="cuda")

    def step() -> None:
        state = cell = torch.zeros(batch, width, device="cuda")
        with torch.no_grad():
            for row in rows:
                gates = torch.addmm(bias, row, of_input) + state @ of_state
                keep, let, new, out = gates.chunk(4, dim=1)
                cell = torch.sigmoid(keep) * cell + torch.sigmoid(let) * torch.tanh(new)
                state = torch.sigmoid(out) * torch.tanh(cell)

    return graphed(step) if fixed else step


def numpy_preparation(fixed: bool) -> Step:
    rows, width, inner = 4096, 2048, 8192
    raw = np.random.default_rng(0).integers(0, 256, (rows, width), dtype=np.uint8)
    places = [torch.empty(rows, width, pin_memory=True) for _ in range(8)]
    first = torch.randn(width, inner, device="cuda", dtype=torch.bfloat16) / 45
    inner_weights = torch.randn(inner, inner, device="cuda", dtype=torch.bfloat16) / 90

    def prepared(into: torch.Tensor) -> torch.Tensor:
        values = raw.astype(np.float32)
        values -= 127.5
        values /= 64.0
        np.clip(values, -2.0, 2.0, out=into.numpy())
        return into

    def predicted(batch: torch.Tensor) -> None:
        with torch.no_grad():
            hidden = batch.to("cuda", non_blocking=True).to(torch.bfloat16) @ first
            for _ in range(6):
                hidden = torch.relu(hidden @ inner_weights)
            hidden[:, :16].float().cpu()

    if not fixed:
        return lambda: predicted(prepared(places[0]))
    pool = ThreadPoolExecutor(6)
    coming = collections.deque(pool.submit(prepared, place) for place in places)

    def prefetched() -> None:
        batch = coming.popleft().result()
        predicted(batch)
        coming.append(pool.submit(prepared, batch))

    return prefetched


def emptied_cache(fixed: bool) -> Step:
    rows = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)

    def forward() -> None:
        activations = [rows]
        for _ in range(8):
            activations.append(functional.gelu(activations[-1]))

    def step() -> None:
        forward()
        if not fixed:
            torch.cuda.empty_cache()

    return step


def products_and_a_read(fixed: bool) -> Step:
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)

    def step() -> None:
        for _ in range(4):
            torch.mm(left, right, out=out)
        if not fixed:
            out[0, 0].item()

    return step


PROGRAMS: Programs = {
    "gradient_norms": gradient_norms,
    "lstm_by_hand": lstm_by_hand,
    "numpy_preparation": numpy_preparation,
    "emptied_cache": emptied_cache,
    "products_and_a_read": products_and_a_read,
}

if __name__ == "__main__":
    main(PROGRAMS)
