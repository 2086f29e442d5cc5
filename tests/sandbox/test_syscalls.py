"""The filter, run by a small interpreter of the same machine language against what it says that it forbids."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import Unavailable
from taskapp_kit.sandbox import syscalls
from taskapp_kit.sandbox.syscalls import ALLOW, ARCHITECTURES, ENOSYS, EPERM, FAIL, FORBIDDEN, KILL, NEWEST

MACHINES = st.sampled_from(list(ARCHITECTURES))
WORDS = st.integers(0, 2**32 - 1)


def verdict(machine: str, sockets: bool, number: int, first: int = 0, second: int = 0, arch: int | None = None) -> int:
    """What the kernel would answer. Written from its own description of classic BPF, not from ours."""
    program = [
        struct.unpack_from("<HBBI", data)
        for data in chunks(syscalls.seccomp_program(sockets=sockets, machine=machine), 8)
    ]
    data = struct.pack("<IIQQQ", number, ARCHITECTURES[machine] if arch is None else arch, 0, first, second)
    at = loaded = 0
    while True:
        code, true, false, k = program[at]
        at += 1
        if code == 0x06:
            return int(k)
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, k)
        else:
            holds = {0x15: loaded == k, 0x25: loaded > k, 0x45: loaded & k != 0}[code]
            at += true if holds else false


def chunks(data: bytes, size: int) -> list[bytes]:
    assert len(data) % size == 0
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(MACHINES, st.booleans(), st.integers(0, 2**32 - 1) | st.integers(0, NEWEST + 5), WORDS, WORDS)
def test_every_call_gets_the_answer_of_the_table(
    machine: str, sockets: bool, number: int, first: int, second: int
) -> None:
    mine = list(ARCHITECTURES).index(machine)
    answer = verdict(machine, sockets, number, first, second)
    if number > NEWEST or number == syscalls.CLONE3[mine]:
        assert answer == FAIL | ENOSYS
    elif number in {pair[mine] for pair in FORBIDDEN.values()}:
        assert answer == FAIL | EPERM
    elif number == syscalls.CLONE[mine]:
        assert answer == (FAIL | EPERM if first & syscalls.NEW_NAMESPACES else ALLOW)
    elif number == syscalls.IOCTL[mine]:
        assert answer == (FAIL | EPERM if second in syscalls.TERMINAL_REQUESTS else ALLOW)
    elif number == syscalls.SOCKET[mine]:
        assert answer == (ALLOW if sockets and first in (1, 2, 10) else FAIL | EPERM)
    elif number == syscalls.SOCKETPAIR[mine]:
        assert answer == (ALLOW if first == 1 else FAIL | EPERM)
    else:
        assert answer == ALLOW


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_calls_with_arguments_are_met(machine: str) -> None:
    mine = list(ARCHITECTURES).index(machine)
    for family, answer in [(1, ALLOW), (2, ALLOW), (10, ALLOW), (16, FAIL | EPERM), (40, FAIL | EPERM)]:
        assert verdict(machine, True, syscalls.SOCKET[mine], family) == answer
        assert verdict(machine, False, syscalls.SOCKET[mine], family) == FAIL | EPERM
    for request, answer in [(0x5412, FAIL | EPERM), (0x541C, FAIL | EPERM), (0x5401, ALLOW)]:
        assert verdict(machine, True, syscalls.IOCTL[mine], 0, request) == answer
    assert verdict(machine, True, syscalls.CLONE[mine], 0x10000000 | 17) == FAIL | EPERM
    assert verdict(machine, True, syscalls.CLONE[mine], 17) == ALLOW


@given(MACHINES, st.booleans(), WORDS, WORDS)
def test_another_architecture_is_killed(machine: str, sockets: bool, number: int, arch: int) -> None:
    if arch != ARCHITECTURES[machine]:
        assert verdict(machine, sockets, number, arch=arch) == KILL


def test_call_numbers_are_unique_and_filter_fits_the_kernel() -> None:
    for mine in (0, 1):
        numbers = [pair[mine] for pair in FORBIDDEN.values() if pair[mine] is not None]
        others = [
            pair[mine]
            for pair in (syscalls.CLONE, syscalls.CLONE3, syscalls.IOCTL, syscalls.SOCKET, syscalls.SOCKETPAIR)
        ]
        assert len(set(numbers + others)) == len(numbers) + len(others)
        assert max(number for number in numbers if number is not None) <= NEWEST
    assert len(syscalls.seccomp_program(sockets=True, machine="x86_64")) // 8 < 4096


def test_the_numbers_are_those_of_the_kernel_headers() -> None:
    """The other tests read the filter's own table; a wrong number in it would leave a call open unnoticed."""
    lines = (Path(__file__).parent / "syscall_numbers.txt").read_text().splitlines()
    kernel = {
        name: tuple(None if number == "-" else int(number) for number in numbers)
        for name, *numbers in (line.split() for line in lines if not line.startswith("#"))
    }
    with_arguments = ("CLONE", "CLONE3", "IOCTL", "SOCKET", "SOCKETPAIR")
    assert FORBIDDEN | {name.lower(): getattr(syscalls, name) for name in with_arguments} == kernel


def test_unsupported_processor_raises() -> None:
    with pytest.raises(Unavailable, match="riscv64"):
        syscalls.seccomp_program(sockets=False, machine="riscv64")
