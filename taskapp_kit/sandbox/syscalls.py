"""The seccomp filter: a BPF program for the kernel that denies system calls to untrusted code.

This module replaces libseccomp, whose Python bindings need a shared library that slim containers lack. The table lists
forbidden calls instead of allowed calls, so that ordinary programs still work. Calls that could circumvent other
restrictions fail with EPERM: new namespaces, mounts, tracing, keyrings, io_uring, BPF, memory that no limit counts, and
kernel settings. Calls that are newer than this table fail with ENOSYS.

The numbers are from the kernel's `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64).
"""

from __future__ import annotations

import errno
import platform
import struct

from taskapp_kit.errors import Unavailable

EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's AUDIT_ARCH numbers. The filter kills programs that use calls of another architecture, such as 32-bit."""

NEWEST = 450
"""The newest call in this table (Linux 6.0: set_mempolicy_home_node). Newer calls fail with ENOSYS."""

FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # inspecting other processes or using their resources
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438),
    # changing namespaces and the root directory
    "unshare": (272, 97), "setns": (308, 268), "pivot_root": (155, 41), "chroot": (161, 51),
    # file systems
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    "fanotify_init": (300, 262), "acct": (163, 89), "nfsservctl": (180, 42), "lookup_dcookie": (212, 18),
    # parts of the kernel with many past vulnerabilities; io_uring also bypasses this filter
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "vmsplice": (278, 75), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # memory and messages that outlive the program, or that its limits do not count
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # settings of the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "syslog": (103, 116), "vhangup": (153, 58),
    "sethostname": (170, 161), "setdomainname": (171, 162), "personality": (135, 92),
    # x86 only
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    "_sysctl": (156, None), "sysfs": (139, None), "ustat": (136, None),
}  # fmt: skip
"""The numbers of the forbidden calls on x86_64 and aarch64. Each call fails with EPERM."""

CLONE, CLONE3 = (56, 220), (435, 435)
IOCTL, SOCKET, SOCKETPAIR = (16, 29), (41, 198), (53, 199)
NEW_NAMESPACES = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWCGROUP, NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into the terminal that started the program."""

# Classic BPF: each instruction is (code, jump if true, jump if false, k). A jump is the number of instructions to skip.
_LOAD = 0x20  # load a 32-bit word of `struct seccomp_data` at offset k
_EQUAL, _ABOVE, _ANY_BIT = 0x15, 0x25, 0x45  # compare the loaded word with k: ==, >, & != 0
_RETURN = 0x06
# of 64-bit arguments only the low halves, because both architectures are little-endian
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000  # FAIL: the low 16 bits are the errno

Instruction = tuple[int, int, int, int]


def _fail(number: int) -> Instruction:
    return (_RETURN, 0, 0, FAIL | number)


def _when(number: int, then: list[Instruction]) -> list[Instruction]:
    """Return instructions that run `then` for one system call only. Reaching the end of `then` allows the call."""
    then = [*then, (_RETURN, 0, 0, ALLOW)]
    return [(_EQUAL, 0, len(then), number), *then]


def instructions(machine: str, families: tuple[int, ...]) -> list[Instruction]:
    """Return the filter as BPF instructions. machine: `x86_64` or `aarch64`. families: the allowed socket families."""
    if machine not in ARCHITECTURES:
        raise Unavailable(
            f"The sandbox does not support {machine} processors.", hint="Use a machine with x86_64 or aarch64."
        )
    mine = list(ARCHITECTURES).index(machine)

    def of(pair: tuple[int, int]) -> int:
        return pair[mine]

    program: list[Instruction] = [
        # 1. Calls of another architecture have other numbers, so this filter cannot check them. Kill the program.
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, KILL),
        # 2. Calls that are newer than this table, and x32 calls (bit 30), do not exist.
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, NEWEST),
        _fail(ENOSYS),
    ]
    # 3. The flags of clone3 are in memory, which filters cannot read. Without clone3, the C library uses clone.
    program += _when(of(CLONE3), [_fail(ENOSYS)])
    # 4. clone may create threads and processes, but not namespaces.
    program += _when(of(CLONE), [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, NEW_NAMESPACES), _fail(EPERM)])
    # 5. ioctl must not type into a terminal.
    typed: list[Instruction] = [(_LOAD, 0, 0, _SECOND_ARGUMENT)]
    for request in TERMINAL_REQUESTS:
        typed += [(_EQUAL, 0, 1, request), _fail(EPERM)]
    program += _when(of(IOCTL), typed)
    # 6. Allow only some socket families, because a network namespace does not confine VSOCK, ALG and others.
    kinds: list[Instruction] = [(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for family in families:
        kinds += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, ALLOW)]
    program += _when(of(SOCKET), [*kinds, _fail(EPERM)])
    # 7. Allow socketpair for Unix sockets, because it reaches no other process and asyncio needs it.
    program += _when(of(SOCKETPAIR), [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, AF_UNIX), _fail(EPERM)])
    # 8. The calls in the table fail; all others are allowed.
    for pair in FORBIDDEN.values():
        number = pair[mine]
        if number is not None:
            program += [(_EQUAL, 0, 1, number), _fail(EPERM)]
    program.append((_RETURN, 0, 0, ALLOW))
    return program


def seccomp_program(*, sockets: bool, machine: str | None = None) -> bytes:
    """Return the filter as a sequence of `struct sock_filter` (8 bytes each), for the kernel and bubblewrap.

    Args:
        sockets: Whether the program may create Unix and internet sockets. This is only safe in a network namespace.
        machine: The architecture. Defaults to this machine's architecture.

    Raises:
        Unavailable: The architecture is not supported.
    """
    families = (AF_UNIX, AF_INET, AF_INET6) if sockets else ()
    program = instructions(machine or platform.machine(), families)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
