"""The fault matrix: F1 to F25, each with how it is done here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos import clocks, crashes, disks, mixed, network, processes, records, topics
from chaos.act import Act
from chaos.ground import LONG_SESSION

LIVES = 10
WIDE = {"partitions": 4}
PAUSES_S = ((2.0, 5.0, 12.0), (3.0, 60.0))

KNOWN_BAR = (
    "The first kill of a round is the slow one: the other worker has no store of those partitions and reads 100,000 "
    "rows from the changelog. That is work for a processor, and other programs ran on the two that there were. Beside "
    "a running campaign, at a load average of 20, it took 8 and 24 s."
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the fault matrix."""

    id: str
    title: str
    how: str
    """How it is done here, for the report."""
    run: Callable[[Act, int], object] | None = None
    """Do it to one group, in the round of this number."""
    crowd: Callable[[Sequence[Act], int], object] | None = None
    """Instead of `run`, where the fault is done to a broker of its own with several groups on it."""
    rounds: int = 4
    """Rounds of a whole campaign."""
    known: str = ""
    """Why its rounds may fail through no fault of retryapp's: the page tells it, with each round that did."""
    alone: bool = False
    """It measures times: nothing else of ours may run meanwhile."""
    link: bool = False
    """Workers may go through a link."""
    groups: int = 3
    """For a crowd: how many."""
    broker: Mapping[str, str] = field(default_factory=dict)
    """For a crowd: settings of the broker."""
    three: bool = False
    """For a crowd: the broker is a cluster of three."""
    disk_mb: int = 0
    """For a crowd: size of a file system in memory that the broker writes to; 0 for the usual disk."""
    act: dict[str, Any] = field(default_factory=dict)
    """What differs from the usual act."""
    needs: Callable[[], str] = lambda: ""
    """Return why this machine cannot do it; empty where it can."""


FAULTS: tuple[Fault, ...] = (
    Fault(
        "F1", "kill -9 at named crash points",
        "the worker sends itself SIGKILL at a named call; ten lives in a row, a fifth of them without a store",
        run=lambda act, n: crashes.die_in_turn(act, LIVES, n), rounds=56,
    ),
    Fault(
        "F2", "a worker stands still past its session and goes on",
        "SIGSTOP until the other worker has its partitions, then SIGCONT; a fifth of them shorter than the session",
        run=lambda act, _: processes.stand_still(act, 10), act=WIDE, rounds=8,
    ),
    Fault(
        "F3", "rebalance storm",
        "every two seconds a worker joins, leaves on SIGTERM or is killed; up to four at a time",
        run=lambda act, _: processes.storm(act, 24, 2.0), act=WIDE, rounds=4,
    ),
    Fault(
        "F4", "broker restarts",
        "a broker of its own with three groups ends in good order or by SIGKILL, also while workers start",
        crowd=lambda acts, _: network.restart_broker(acts, 8), rounds=6,
    ),
    Fault(
        "F5", "broker stands still",
        "SIGSTOP for 2 to 60 s with three groups on it",
        crowd=lambda acts, n: network.pause_broker(acts, PAUSES_S[n % 2]), rounds=6, broker=LONG_SESSION,
    ),
    Fault(
        "F6", "network between workers and broker",
        "a TCP proxy: 200 ms of latency, 20 kB/s, resets, one way dead, both ways dead past the session, lost "
        "answers, refused connections; for the whole group, or for one of two workers",
        run=lambda act, n: network.cut_off(act, 14, both=n % 4 < 2), link=True, act=WIDE, rounds=12,
    ),
    Fault(
        "F6-loss", "10 % of all packets lost",
        "iptables between network namespaces",
        run=lambda *_: None, rounds=1,
        needs=lambda: "needs packet filters (iptables or tc netem); the proxy works on streams",
    ),
    Fault(
        "F7", "disk of the local store full, read-only, or of limited file size",
        "a file system of 24 MB in memory, filled up under load; RLIMIT_FSIZE on the running worker",
        run=lambda act, _: disks.fill_store(act, 8), needs=disks.no_mounts, rounds=4,
    ),
    Fault(
        "F7-broker", "disk of the broker full",
        "the broker's data in a file system of 420 MB in memory, filled up under load, then restarted with room",
        crowd=lambda acts, _: disks.fill_broker(acts, 4), needs=disks.no_mounts, rounds=2,
        groups=2, disk_mb=disks.BROKER_MB,
    ),
    Fault(
        "F7-errors", "input and output errors of a disk",
        "a device mapper that fails reads and writes",
        run=lambda *_: None, needs=lambda: "needs a failing block device (dm-error) or a FUSE file system", rounds=1,
    ),
    Fault(
        "F8", "local stores lost and damaged",
        "between two lives: lost, bits flipped, files cut or missing, an older copy, ahead of its changelog, that "
        "of another partition",
        run=lambda act, _: disks.damage_stores(act, 12), act=disks.LONG, rounds=8,
    ),
    Fault(
        "F9", "changelog truncated and compacted",
        "DeleteRecords behind the last live row, tiny segments; then a kill and a start, more often than not "
        "without a store",
        run=lambda act, _: topics.shrink_changelog(act, 6), act={"partitions": 4, **disks.LONG}, rounds=4,
    ),
    Fault(
        "F10", "retention expires before a record is due",
        "DeleteRecords on the main topic up to the group's offsets, and on all of the retry topic, while records wait",
        run=lambda act, _: topics.expire(act, 8), act=disks.LONG, rounds=4,
    ),
    Fault(
        "F11", "the main topic grows",
        "a partition more under load, with records in it; then our topics follow, and workers are stopped or "
        "killed, and started again",
        run=lambda act, _: topics.grow(act, 3), rounds=2,
    ),
    Fault(
        "F12", "clocks jump and drift",
        "each worker's clock follows a file: jumps of an hour, 40 days, 10 years, 5 s between two workers, leaps, "
        "1 % of drift",
        run=lambda act, _: clocks.jump(act, 16), act=WIDE, rounds=8,
    ),
    Fault(
        "F13", "extreme delays",
        "the service asks for waits of nothing, of a negative time, of 49.7 days and of 2^63 s",
        run=lambda act, _: records.delays(act, 12), act={"waits_ms": (0, 0)}, rounds=2,
    ),
    Fault(
        "F14", "duplicates on our topics",
        "records of the retry topic published again, byte for byte",
        run=lambda act, _: topics.copy_records(act, 10), rounds=6,
    ),
    Fault(
        "F15", "poison records",
        "values that cannot be read or are refused, handlers that hang past their time-out, records that kill "
        "their worker",
        run=lambda act, _: records.poison(act, 10), act={"max_crashes": 3, "timeout": "1s"}, rounds=6,
    ),
    Fault(
        "F16", "sizes",
        "the largest that the main topic takes, empty, null, null key, 400 headers; all fail and wait",
        run=lambda act, _: records.sizes(act, 28), act={"value": "bytes"}, rounds=4,
    ),
    Fault(
        "F17", "thundering herd and slow service",
        "600 records due in one second, answers after 0.3 s, a worker killed in the middle",
        run=lambda act, _: records.herd(act, 600), act={"waits_ms": (0, 600), **WIDE}, rounds=4,
    ),
    Fault(
        "F18", "limits of a process",
        "RLIMIT_NOFILE and RLIMIT_AS lowered on a running worker; the event loop held past the session",
        run=lambda act, _: processes.starve(act, 8), act=WIDE, rounds=6,
    ),
    Fault(
        "F19", "rights taken away",
        "an ACL denies one topic, the group or the transactions for some seconds; workers that end are started "
        "again",
        run=lambda act, _: topics.take_rights(act, 8), rounds=4,
    ),
    Fault(
        "F20", "another policy is deployed",
        "workers with other delays take over, at once or one by one, while rows wait",
        run=lambda act, _: records.deploy(act, 6), act=WIDE, rounds=4,
    ),
    Fault(
        "F21", "stops at awkward moments",
        "SIGTERM during start-up, under load, during recovery and twice; SIGINT; two starts at once",
        run=lambda act, _: processes.ask_to_end(act, 12), rounds=6,
    ),
    Fault(
        "F22", "aborted and hanging transactions on the main topic",
        "a transactional producer aborts, commits late, or leaves its transaction to the broker's time-out",
        run=lambda act, _: topics.abort(act, 18), rounds=6,
    ),
    Fault(
        "F23", "the last record",
        "one record at a time on idle topics",
        run=lambda act, _: records.alone(act, 12), act={"waits_ms": (1000, 1500), "policy": "1s 1500ms"}, rounds=4,
    ),
    Fault(
        "F24", "several at once",
        "two or three of: kill -9, stores lost, stopped, SIGTERM, event loop held; network; clock or transactions",
        run=lambda act, _: mixed.combine(act, 10), link=True, act=WIDE, rounds=12,
    ),
    Fault(
        "F24-soak", "several at once, for ten minutes",
        "the same, while one worker that is never ended is watched for memory that grows",
        run=lambda act, _: mixed.soak(act, 10), link=True, act=WIDE, rounds=2,
    ),
    Fault(
        "F25", "brokers of a cluster of three end, stand still and come back",
        "three copies, two in sync: the node that leads a partition, coordinates the group or its transactions, two "
        "nodes or all of them by SIGKILL; each in turn in good order; one by SIGSTOP",
        crowd=lambda acts, _: network.break_nodes(acts, 8), rounds=8, groups=2, three=True,
    ),
    Fault(
        "bar", "kill -9 with 200,000 waiting",
        "one of two workers is killed while records come due on all partitions",
        run=lambda act, _: mixed.many_waiting(act, 3),
        act={"waits_ms": (3000, 3000), "policy": "3s 3s", "concurrency": 64, **WIDE},
        rounds=2, known=KNOWN_BAR, alone=True,
    ),
)  # fmt: skip
