"""Every candidate passes the guard of text with what it declares and no less; a hostile body passes it in no guise."""

import pytest

from aaco_pipeline.optimization.candidates import Candidate, Refused
from aaco_pipeline.optimization.guards.text import check_text
from aaco_pipeline.optimization.proposers import PROPOSERS
from aaco_pipeline.optimization.proposers.language_model import LanguageModelProposer
from tests.optimization.proposers.kernels import ROW_DOT, TRANSPOSE, task
from tests.optimization.proposers.test_language_model import BODY, Model, change
from tests.optimization.proposers.test_rewrites import BODIES, body, rewritten

SOURCES = {"row_dot": (ROW_DOT, (256, 1, 1)), "transpose": (TRANSPOSE, (32, 32, 1))}


def candidates(source: str, kernel: str, block: tuple[int, int, int]) -> list[Candidate]:
    about = task(source, kernel, block)
    return [one for proposer in PROPOSERS for one in proposer.propose(about) if isinstance(one, Candidate)]


@pytest.mark.parametrize("kernel", SOURCES)
def test_each_candidate_differs_in_what_it_declares_and_nothing_else(kernel: str) -> None:
    source, block = SOURCES[kernel]
    found = candidates(source, kernel, block)
    assert {one.signature for one in found} == {(), ("launch_bounds",), ("restrict",)}
    for one in found:
        check_text(source.encode(), one.source, kernel, allowed=one.signature)
        for declared in one.signature:
            others = [part for part in one.signature if part != declared]
            with pytest.raises(Refused, match=r"^signature: "):
                check_text(source.encode(), one.source, kernel, allowed=others)


@pytest.mark.parametrize("name", BODIES)
def test_each_rewrite_passes_the_guard_of_text(name: str) -> None:
    source = body(BODIES[name])
    for one in rewritten(source):
        check_text(source.encode(), one.source, "row_dot", allowed=one.signature)


def test_the_proposers_have_names_of_their_own_and_say_what_they_changed() -> None:
    assert len({proposer.name for proposer in PROPOSERS}) == len(PROPOSERS)
    for one in candidates(ROW_DOT, "row_dot", (256, 1, 1)):
        assert one.proposer in {proposer.name for proposer in PROPOSERS}
        assert one.parameters and one.kernel == "row_dot"


HOSTILE = {
    "reads a file": '{ FILE* f = fopen("/etc/passwd", "r"); out[0] = f != nullptr; }',
    "ends the process": "{ _exit(0); }",
    "assembles": '{ asm volatile("s_trap 2"); }',
    "another signature": "{ }\n__global__ void row_dot(const float* a, float* out) { }",
    "a second function": "{ }\nstatic int seen = 0;",
    "leaves its body": "{ } } extern int other; void f() { ",
    "comments the rest away": "{ out[0] = 0; } /*",
    "defines a macro": "{\n#define float double\n out[0] = 0; }",
    "includes a file": '{\n#include "/etc/passwd"\n }',
    "a pragma for fast arithmetic": "{\n#pragma clang fp reassociate(on)\n out[0] = 0; }",
    "an attribute": "{ __attribute__((optnone)) int x = 0; out[0] = x; }",
    "a static variable": "{ static int calls = 0; out[0] = ++calls; }",
    "a launch": "{ row_dot<<<1, 1>>>(a, b, out, 1, 1); }",
    "a system call": '{ system("id"); }',
    "a function by its address": "{ ((void (*)())0x1000)(); }",
    "a lowered type": "{ _Float16 x = 0; out[0] = x; }",
    "another language": "import os; os.system('id')",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_becomes_a_candidate_that_its_text_condemns(name: str) -> None:
    proposer = LanguageModelProposer(Model(change("rewrite", body=HOSTILE[name])), "tiny")
    one = next(proposer.propose(task(ROW_DOT)))
    assert isinstance(one, Candidate)
    with pytest.raises(Refused) as raised:
        check_text(ROW_DOT.encode(), one.source, "row_dot", allowed=one.signature)
    assert raised.value.reason


def test_an_honest_body_passes_the_same_way() -> None:
    proposer = LanguageModelProposer(Model(change("rewrite", body=BODY)), "tiny")
    one = next(proposer.propose(task(ROW_DOT)))
    assert isinstance(one, Candidate)
    check_text(ROW_DOT.encode(), one.source, "row_dot", allowed=one.signature)
