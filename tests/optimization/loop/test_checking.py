"""The emulated verdict: what it says of right and wrong kernels, and that it says nothing where it cannot."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.harness import Harness, Launch, buffer, draw, make_call, output, rounding_bound
from aaco_pipeline.optimization.loop.checking import BARRIERS, EmulatedChecker
from aaco_pipeline.optimization.loop.means import Builder, Record, Version
from aaco_pipeline.optimization.targets import Build, Call, Execution, Layout, NotEmulated, Parameter

SIZES = (1, 7)
POISON = b"\xff\xff\xff\xff"


def called(size: Any, distribution: Any, rng: np.random.Generator) -> Call:
    return make_call(Launch((1, 1, 1), (64, 1, 1)), buffer("x", draw(distribution, rng, size)), output("y", size))


def reference(call: Call) -> dict[str, Any]:
    twice = 2 * call.contents["x"].astype(np.float64)
    return {"y": (twice, rounding_bound(np.abs(twice), 4))}


HARNESS = Harness(kernel="k", sizes=SIZES, timing_size=7, call=called, reference=reference, floor=lambda size: (1, 8))


@dataclass
class FakeTarget:
    """Computes what the source's words say: twice its input, else `off` a little, `wrong`, `faults`, …"""

    executed_on = "emulated gfx950 (a stand-in)"
    built: list[bytes] = field(default_factory=list)

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        if b"uncompiled" in source:
            raise Refused("compile", "unknown builtin")
        self.built.append(source)
        return Build("amd-emulated", kernel, folder, source.decode(), "", "", (), layout)

    def start(self, build: Build) -> AbstractContextManager["FakeWorker"]:
        return nullcontext(FakeWorker(build.source_sha256))


@dataclass
class FakeWorker:
    words: str
    unconfined = ("no Landlock",)

    @property
    def instructions(self) -> Mapping[str, int]:
        return {"vector": 10 if "baseline" in self.words else 8, "lds": 0}

    def emulate(self, call: Call, *, backwards: bool) -> Execution:
        if "lacks" in self.words:
            raise NotEmulated("v_new_thing: no such instruction")
        if "faults" in self.words:
            raise Refused("memory", "the kernel touched memory that it was not given")
        twice = (2 * call.contents["x"]).astype(np.float32)
        if "off" in self.words:
            twice = np.nextafter(twice, np.float32(np.inf))
        if "wrong" in self.words or ("races" in self.words and backwards):
            twice = twice + np.float32(1)
        if "unwritten" in self.words:
            twice[-1:] = np.frombuffer(POISON, np.float32)
        return Execution({"y": twice}, None, poison={"y": POISON})


class Passing:
    """A checker that finds everything right."""

    def check(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool = False
    ) -> Record:
        return {"calls": 30 if is_deep else 12}


def version(words: str) -> Version:
    return Version(words.encode(), "k", ())


BASELINE = version("baseline")


def verdict(folder: Path, words: str | None, baseline: Version = BASELINE) -> Record:
    """The verdict on a candidate, or on the baseline alone."""
    checker = EmulatedChecker(Passing(), HARNESS, FakeTarget(), folder)
    return checker.verdict(baseline, version(words), 5) if words is not None else checker.verdict(None, baseline, 5)


@pytest.mark.parametrize(("words", "expected"), [("same", "bit_exact"), ("off a little", "within_bound")])
def test_the_verdict_on_a_right_candidate_says_how_near_it_is_and_what_it_executes(
    tmp_path: Path, words: str, expected: str
) -> None:
    said = verdict(tmp_path, words)
    assert said == {
        "executed_on": "emulated gfx950 (a stand-in)",
        "verdict": expected,
        "lacking": None,
        "unconfined": ["no Landlock"],
        "calls": len(SIZES),
        "elements": sum(SIZES),
        "instructions": {"before": {"vector": 20, "lds": 0}, "after": {"vector": 16, "lds": 0}},
        "barriers": BARRIERS,
    }


def test_only_what_is_about_to_be_accepted_is_emulated_beside_the_other_checks(tmp_path: Path) -> None:
    target = FakeTarget()
    checker = EmulatedChecker(Passing(), HARNESS, target, tmp_path / "emulated")
    builder = Builder(target, tmp_path)  # type: ignore[arg-type]
    assert checker.check(builder, BASELINE, version("same"), 5) == {"calls": 12}
    assert target.built == []
    facts = checker.check(builder, BASELINE, version("same"), 5, is_deep=True)
    assert (facts["calls"], facts["emulated"]["verdict"]) == (30, "bit_exact")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("wrong", "is"),
        ("faults", "memory that it was not given"),
        ("races", "depends on the order in which wavefronts run"),
        ("unwritten", "never written"),
    ],
)
def test_a_candidate_that_is_wrong_there_is_refused(tmp_path: Path, words: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        verdict(tmp_path, words)
    assert refused.value.guard == "emulated"
    assert refused.value.reason.startswith("on emulated gfx950 (a stand-in): ")


@pytest.mark.parametrize("words", ["lacks", "uncompiled"])
def test_what_cannot_be_emulated_speaks_for_and_against_nobody(tmp_path: Path, words: str) -> None:
    said = verdict(tmp_path, words)
    assert said["verdict"] is None
    assert {"lacks": "v_new_thing", "uncompiled": "is not built for emulated gfx950"}[words] in said["lacking"]
    assert "instructions" not in said


@pytest.mark.parametrize("words", ["wrong", "faults", "races", "unwritten", "lacks"])
def test_a_baseline_that_fails_there_condemns_no_candidate(tmp_path: Path, words: str) -> None:
    for candidate in (None, "same", words):
        said = verdict(tmp_path, candidate, version(f"baseline {words}"))
        assert (said["verdict"], said["lacking"] is None) == (None, False)


def test_the_baseline_alone_is_emulated_once(tmp_path: Path) -> None:
    target = FakeTarget()
    said = EmulatedChecker(Passing(), HARNESS, target, tmp_path).verdict(None, BASELINE, 5)
    assert (said["verdict"], target.built) == ("within_bound", [b"baseline"])
