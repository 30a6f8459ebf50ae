"""A code object as it is loaded, and what a launch puts into registers and arguments, by LLVM's guide to AMDGPU."""

import struct

import numpy as np
import pytest

from aaco_pipeline.optimization.targets import Buffer, Call, Launch, NotEmulated, Scalar
from aaco_pipeline.resources.targets.emulated.program import Program, argument_bytes, dispatch_packet, read_program
from aaco_pipeline.resources.toolchains.amdgpu.code_object import KernelArgument, KernelMetadata
from tests.resources.toolchains.amdgpu.code_objects import kept, with_bytes

#: Offset of the kernel's descriptor in the file lookup-gfx90a-1.hsaco, by llvm-readelf-19 -S.
DESCRIPTOR, ENTRY_FROM_IT = 1600, 0x15C0
PROPERTIES, RSRC1, RSRC2 = DESCRIPTOR + 56, DESCRIPTOR + 48, DESCRIPTOR + 52
#: Arguments alone in registers, as gfx942 has it; and the bit that asks for the dispatch packet.
ARGUMENTS_ALONE, PACKET = 1 << 3, 1 << 1


def linked(properties: int = ARGUMENTS_ALONE) -> bytes:
    return with_bytes(kept("lookup-gfx90a-1", "hsaco"), PROPERTIES, struct.pack("<H", properties))


def test_sections_lie_where_they_are_addressed_and_the_entry_is_the_descriptors() -> None:
    program = read_program(linked(), "lookup")
    assert program.entry == DESCRIPTOR + ENTRY_FROM_IT
    assert program.code == (5888, 1464)
    assert program.image[5888 : 5888 + 1464] == kept("lookup-gfx90a-1", "hsaco")[1792 : 1792 + 1464]
    assert struct.unpack_from("<8f", program.image, 15664) == (1, 2, 3, 5, 7, 11, 13, 17)
    assert program.writable == ((15664, 32), (15696, 1))


def test_registers_are_those_that_the_descriptor_asks_for() -> None:
    assert read_program(linked(), "lookup").user_registers == ("arguments.0", "arguments.1")
    both = read_program(linked(ARGUMENTS_ALONE | PACKET), "lookup")
    assert both.user_registers == ("packet.0", "packet.1", "arguments.0", "arguments.1")
    assert both.group_registers == (0,)
    each = with_bytes(linked(), RSRC2, struct.pack("<I", 7 << 7))
    assert read_program(each, "lookup").group_registers == (0, 1, 2)


def test_preloaded_arguments_take_their_registers() -> None:
    preloading = with_bytes(linked(), PROPERTIES + 2, struct.pack("<H", 3))
    assert read_program(preloading, "lookup").user_registers == ("arguments.0", "arguments.1", None, None, None)


def test_scratch_as_before_gfx942_is_not_emulated() -> None:
    with pytest.raises(NotEmulated, match="private segment buffer in registers"):
        read_program(kept("lookup-gfx90a-1", "hsaco"), "lookup")


def test_denormals_that_are_flushed_are_not_emulated() -> None:
    (mode,) = struct.unpack_from("<I", linked(), RSRC1)
    flushing = with_bytes(linked(), RSRC1, struct.pack("<I", mode & ~(3 << 16)))
    with pytest.raises(NotEmulated, match="floating-point mode 0xc0, and not 0xf0"):
        read_program(flushing, "lookup")


HIDDEN = {
    **{f"hidden_block_count_{axis}": (16 + 4 * at, 4) for at, axis in enumerate("xyz")},
    **{f"hidden_group_size_{axis}": (28 + 2 * at, 2) for at, axis in enumerate("xyz")},
    **{f"hidden_remainder_{axis}": (34 + 2 * at, 2) for at, axis in enumerate("xyz")},
    "hidden_grid_dims": (40, 2),
    "hidden_dynamic_lds_size": (44, 4),
}
LAUNCH = Launch((5, 6, 1), (64, 2, 1), 512)
CALL = Call(LAUNCH, (Buffer("x", "float32", 3, "in"), Scalar("n", "int32", -2)), {"x": np.zeros(3, np.float32)})


def program(*more: KernelArgument) -> Program:
    stated = (KernelArgument("global_buffer", 0, 8), KernelArgument("by_value", 8, 4), *more)
    kernel = KernelMetadata("k", 4, 0, 4, 0, 0, 256, 16, 48, 256, 64, False, stated)
    return Program(b"", 0, (0, 0), (), (), (), 64, kernel)


def test_arguments_lie_where_the_metadata_says() -> None:
    content, addresses = argument_bytes(program(), CALL)
    assert (len(content), addresses) == (48, [(0, 0)])
    assert struct.unpack_from("<i", content, 8) == (-2,)


def test_hidden_arguments_are_filled_as_the_runtime_does() -> None:
    content, _ = argument_bytes(program(*(KernelArgument(kind, *place) for kind, place in HIDDEN.items())), CALL)
    assert struct.unpack_from("<3I3H3HHxxI", content, 16) == (5, 6, 1, 64, 2, 1, 0, 0, 0, 2, 512)


@pytest.mark.parametrize("kind", ["hidden_hostcall_buffer", "hidden_heap_v1", "hidden_queue_ptr", "hidden_new_thing"])
def test_a_service_of_the_runtime_is_not_emulated(kind: str) -> None:
    with pytest.raises(NotEmulated, match=f"wants {kind} of the runtime"):
        argument_bytes(program(KernelArgument(kind, 16, 8)), CALL)


def test_an_argument_of_another_size_is_not_passed() -> None:
    wide = Call(LAUNCH, (CALL.arguments[0], Scalar("n", "int64", 1)), CALL.contents)
    with pytest.raises(NotEmulated, match="n has 8 bytes, and the kernel takes 4"):
        argument_bytes(program(), wide)
    with pytest.raises(NotEmulated, match="takes 2 arguments and the call gives 1"):
        argument_bytes(program(), Call(LAUNCH, CALL.arguments[:1], CALL.contents))


def test_the_packet_has_the_launchs_sizes_where_hsa_has_them() -> None:
    packet = dispatch_packet(program(), LAUNCH)
    assert len(packet) == 64
    assert struct.unpack_from("<HHHHH", packet) == (2, 2, 64, 2, 1)
    assert struct.unpack_from("<5I", packet, 12) == (320, 12, 1, 16, 256 + 512)
