"""The system calls that an answer may make, with which arguments; all others are refused.

They are compared by number in the kernel (seccomp), which sees the arguments but nothing that they point to. The table
does not rely on namespaces or Landlock: where a kernel lacks these, it still keeps the answer from other processes.
"""

import os
import re

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # machine → its audit number
# Call, its numbers on these machines, and its arguments: a rule, and after a semicolon the reason. "1 & 15 in 1 2": the
# last four bits of argument 1 are 1 or 2; "own" is the number of the answer's process; "network": with a network
# namespace of its own. "absent": refused as a call that this kernel does not have.
CALLS = """
read               0   63  any; a descriptor that it has opened, here and below
write              1   64  any
readv             19   65  any
writev            20   66  any
pread64           17   67  any
pwrite64          18   68  any
lseek              8   62  any
close              3   57  any
close_range      436  436  any
dup               32   23  any
dup2              33    -  any
fcntl             72   25  1 in 0 1 2 3 4 1030 1032; copies and flags: no owner who gets signals, no lock, no lease
ioctl             16   29  1 in 0x5401 0x5413 0x541B 0x5421 0x5450 0x5451 0x802C542A; is it a terminal, how much waits
fstat              5   80  any; it only reads, here and below
stat               4    -  any
lstat              6    -  any
newfstatat       262   79  any
statx            332  291  any
access            21    -  any
faccessat        269   48  any
faccessat2       439  439  any
open               2    -  1 & 0x203 in 0 1 2 0x201 0x202; nothing that is not opened for writing is cut short
openat           257   56  2 & 0x203 in 0 1 2 0x201 0x202; as open: Landlock before Linux 6.2 knows no O_TRUNC
readlink          89    -  any
readlinkat       267   78  any
getcwd            79   17  any
getdents64       217   61  any
fadvise64        221  223  any
pipe              22    -  any
pipe2            293   59  any
eventfd2         290   19  any
poll               7    -  any
ppoll            271   73  any
select            23    -  any
pselect6         270   72  any
epoll_create1    291   20  any
epoll_ctl        233   21  any
epoll_wait       232    -  any
epoll_pwait      281   22  any
mmap               9  222  any; its own memory, here and below
mprotect          10  226  any
munmap            11  215  any
mremap            25  216  any
madvise           28  233  any; to poison pages needs a capability, of which it has none
brk               12  214  any
mincore           27  232  any
msync             26  227  any
membarrier       324  283  any
get_mempolicy    239  236  any
set_mempolicy    238  237  any
mbind            237  235  any; to move shared pages needs a capability
rt_sigaction      13  134  any; its own signals, here and below
rt_sigprocmask    14  135  any
rt_sigreturn      15  139  any
sigaltstack      131  132  any
tgkill           234  131  0 in own; a signal to itself
futex            202   98  any; memory that no other process shares
set_robust_list  273   99  any; of its own thread, here and below
set_tid_address  218   96  any
rseq             334  293  any
arch_prctl       158    -  any
prctl            157  167  0 in 2 3 15 16 21 23 30 39 51 56 64 0x53564D41; names, and questions: it dies with its keeper
sched_yield       24  124  any
sched_getaffinity 204 123  any; it only reads
sched_setaffinity 203 122  0 in 0 own; its own processors
getpriority      140  141  any; it only reads, here and below
getcpu           309  168  any
exit              60   93  any
exit_group       231   94  any
restart_syscall  219  128  any
nanosleep         35  101  any
clock_nanosleep  230  115  any
clock_gettime    228  113  any
clock_getres     229  114  any
gettimeofday      96  169  any
time             201    -  any
times            100  153  any
getrandom        318  278  any
getpid            39  172  any
getppid          110  173  any
gettid           186  178  any
getuid           102  174  any
geteuid          107  175  any
getgid           104  176  any
getegid          108  177  any
getgroups        115  158  any
uname             63  160  any
sysinfo           99  179  any
prlimit64        302  261  0 in 0 own; its own limits, which it can only lower
getrusage         98  165  any
wait4             61  260  any; it has no children
waitid           247   95  any
clone             56  220  0 & 0x7E030000 in 0x10000; a thread, in no new namespace
clone3           435  435  absent; clone starts threads as well, and its flags can be read
socketpair        53  199  0 in 1 and 1 & 15 in 1; two ends of a stream: a datagram may go to any socket by its name
socket            41  198  network and 0 in 2 10 and 1 & 15 in 1 2 and 2 in 0 6 17; TCP and UDP
connect           42  203  network
accept            43  202  network
accept4          288  242  network
bind              49  200  network; else it would take names that other processes want to listen at
listen            50  201  network
sendto            44  206  network or 4 in 0 and 4high in 0; without an address
recvfrom          45  207  any
sendmsg           46  211  any; a stream refuses an address
recvmsg           47  212  any
shutdown          48  210  any
getsockname       51  204  any
getpeername       52  205  any
setsockopt        54  208  any; its own sockets
getsockopt        55  209  any
"""
CONDITION = re.compile(r"(\d)(high)?(?: & (\S+))? in (.+)")
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06  # steps of a filter (BPF): load a word, ==, &, return
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000  # returned by it; REFUSE with the number of an error
REFUSED, ABSENT = REFUSE | 1, REFUSE | 38  # EPERM, ENOSYS
Step = tuple[int, int, int, int]  # what to do, steps to skip if equal, or if not, and a number


def table(machine: str) -> dict[str, tuple[int, str]]:
    """Return name → (number, rule) of the calls that a machine has."""
    column, found = 1 + list(MACHINES).index(machine), {}
    for line in CALLS.strip().splitlines():
        call = line.split(maxsplit=3)
        if call[column] != "-":
            found[call[0]] = int(call[column]), call[3].partition(";")[0]
    return found


def program(machine: str, network: bool) -> list[Step]:
    """Return the filter of a machine's calls for this process, with or without a ``network`` of its own."""
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, MACHINES[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    # Calls of the x32 ABI have numbers of their own, which are not in the table.
    for number, rule in table(machine).values():
        then = _checked(rule, network)
        steps += [(EQUAL, 0, len(then), number), *then]
    return [*steps, (RETURN, 0, 0, REFUSED)]


def _checked(rule: str, network: bool) -> list[Step]:
    """Return the steps for a call, which end with a decision."""
    needs, both, rest = rule.partition("network")
    if both and rest.startswith(" and "):
        rule = rest.removeprefix(" and ") if network else "refused"
    elif both:
        rule = "any" if network else rest.removeprefix(" or ") or "refused"
    fixed = {"any": ALLOW, "absent": ABSENT, "refused": REFUSED}
    if rule in fixed:
        return [(RETURN, 0, 0, fixed[rule])]
    steps: list[Step] = []
    for condition in rule.split(" and "):
        argument, high, mask, values = CONDITION.fullmatch(condition).groups()
        steps.append((LOAD, 0, 0, 16 + 8 * int(argument) + 4 * bool(high)))
        if mask:
            steps.append((AND, 0, 0, int(mask, 0)))
        numbers = [os.getpid() if value == "own" else int(value, 0) for value in values.split()]
        steps += [(EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
        steps.append((RETURN, 0, 0, REFUSED))
    return [*steps, (RETURN, 0, 0, ALLOW)]
