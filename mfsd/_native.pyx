# cython: language_level=3, binding=True, embedsignature=False
"""The only binding of MFS's native core. Its interface is documented in _native.pyi."""

import os
import time
from collections import namedtuple
from enum import IntEnum, IntFlag
from threading import Lock

cimport cython
from libc.errno cimport ENOENT, ENOSPC, ESHUTDOWN
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

include "_headers.pxi"
include "_extern.pxi"

# ---- ABI -------------------------------------------------------------------------------------------------------------

ABI_MAGIC = MFS_ABI_MAGIC
ABI_MAJOR = MFS_ABI_MAJOR
ABI_MINOR = MFS_ABI_MINOR
NICS_MAX = MFS_NICS_MAX
NICS_FIRST = MFS_NICS_FIRST
NICS_MINOR = MFS_NICS_MINOR
CLIENTS_MAX = MFS_CLIENTS_MAX
CLASSES_MAX = MFS_CLASSES_MAX
LEVELS_MAX = MFS_LEVELS_MAX
TASKS_MAX = MFS_TASKS_MAX
BATCHES_MAX = MFS_BATCHES_MAX
REQUESTS_MAX = MFS_REQUESTS_MAX
DEMANDS_MAX = MFS_DEMANDS_MAX
REQUEST_DEMANDS_MAX = MFS_REQUEST_DEMANDS_MAX
REQUEST_BYTES = sizeof(mfs_request)
DEMAND_BYTES = sizeof(mfs_demand)
BATCH_BYTES = sizeof(mfs_batch)
RANK_NONE = MFS_RANK_NONE
RULES_MAX = MFS_RULES_MAX
STAGES_MAX = MFS_STAGES_MAX
QUARANTINE_MAX = MFS_QUARANTINE_MAX
SUBMIT_RINGS = MFS_SUBMIT_RINGS
SUBMIT_SHARED = MFS_SUBMIT_SHARED
SUBMIT_SLOTS = MFS_SUBMIT_SLOTS
SUBMIT_RING_BYTES = sizeof(mfs_mpsc)
GRANT_SLOTS = MFS_GRANT_SLOTS
DSCP_KEEP = MFS_DSCP_KEEP
OUTLOOK_FARS_MAX = MFS_OUTLOOK_FARS_MAX
OUTLOOK_PRUNED_MAX = MFS_OUTLOOK_PRUNED_MAX
OUTLOOK_MINOR = MFS_OUTLOOK_MINOR
MESSAGE_BYTES = sizeof(mfs_message)
SUBMIT_SLOT_BYTES = sizeof(mfs_mpsc_slot)
USAGE_BYTES = sizeof(mfs_usage)
SEGMENT_BYTES = sizeof(mfs_segment)
HELLO_BYTES = sizeof(mfs_hello)
WELCOME_BYTES = sizeof(mfs_welcome)
NIC_REPLY_BYTES = sizeof(mfs_nic_reply)
LAYOUT = {mfs_layout[i].name.decode(): mfs_layout[i].offset for i in range(mfs_layout_count)}


class Stage(IntEnum):
    CONTROL = MFS_STAGE_CONTROL
    REUSE = MFS_STAGE_REUSE
    COLLECTIVE = MFS_STAGE_COLLECTIVE
    P2D = MFS_STAGE_P2D
    BACKGROUND = MFS_STAGE_BACKGROUND


class Role(IntEnum):
    UNKNOWN = MFS_ROLE_UNKNOWN
    NCCL_DATA = MFS_ROLE_NCCL_DATA
    NCCL_CTS = MFS_ROLE_NCCL_CTS
    NCCL_FLUSH = MFS_ROLE_NCCL_FLUSH
    KV = MFS_ROLE_KV
    BULK = MFS_ROLE_BULK


class Mode(IntEnum):
    OFF = <int>MFS_MODE_OFF
    OBSERVE = <int>MFS_MODE_OBSERVE
    ENFORCE = <int>MFS_MODE_ENFORCE


class SegmentState(IntEnum):
    ACTIVE = MFS_SEGMENT_ACTIVE
    DETACHED = MFS_SEGMENT_DETACHED


class RuleAction(IntEnum):
    PASS = MFS_RULE_PASS
    HOLD = MFS_RULE_HOLD


class HelloKind(IntEnum):
    ATTACH = MFS_HELLO_ATTACH
    NIC = MFS_HELLO_NIC


class MessageKind(IntEnum):
    SUBMIT = MFS_MESSAGE_SUBMIT
    COMPLETE = MFS_MESSAGE_COMPLETE
    CANCEL = MFS_MESSAGE_CANCEL
    BATCH = MFS_MESSAGE_BATCH
    REQUEST = MFS_MESSAGE_REQUEST


class RequestFlag(IntFlag):
    RELEGATED = MFS_REQUEST_RELEGATED
    SPECULATIVE = MFS_REQUEST_SPECULATIVE
    SWAP = MFS_REQUEST_SWAP
    WAITING = MFS_REQUEST_WAITING


class Judgement(IntFlag):
    PRUNED = MFS_REQUEST_PRUNED


class Direction(IntEnum):
    OUT = MFS_DIRECTION_OUT
    IN = MFS_DIRECTION_IN


class Variant(IntEnum):
    MFS = MFS_VARIANT_MFS
    PAPER = MFS_VARIANT_PAPER


class EarlyOrder(IntEnum):
    RANK = MFS_EARLY_RANK
    COLLECTIVE_FIRST = MFS_EARLY_COLLECTIVE_FIRST
    SHORTEST = MFS_EARLY_SHORTEST


class Tier(IntEnum):
    CRITICAL = MFS_TIER_CRITICAL
    EARLY = MFS_TIER_EARLY
    LAST = MFS_TIER_LAST
    SCAVENGER = MFS_TIER_SCAVENGER


class TaskFlag(IntFlag):
    BYPASSED = MFS_TASK_BYPASSED


cdef int check(int rc) except -1:
    if rc < 0:
        raise OSError(-rc, os.strerror(-rc))
    return rc


cdef int name_copy(char *to, size_t size, text, what) except -1:
    data = text.encode()
    if len(data) >= size:
        raise ValueError(f"{what}: {text!r} is {len(data)} bytes, at most {size - 1} are allowed")
    memset(to, 0, size)
    memcpy(to, <const char *>data, len(data))
    return 0


cdef name_read(const char *text, size_t size):
    return text[:strnlen(text, size)].decode(errors="replace")


cdef numbers_u64(const uint64_t *values, int n):
    return [values[i] for i in range(n)]


include "_wire.pxi"
include "_policy.pxi"

# ---- rules -----------------------------------------------------------------------------------------------------------

Rule = namedtuple(
    "Rule", "library process peer peer_prefix_bits role action stage dscp set_role communicator",
    defaults=("", "", b"", 0, 0, 0, 0, MFS_DSCP_KEEP, 0, ""),
)
cdef int rule_read(mfs_rule *to, rule) except -1:
    if len(rule.peer) > 16 or not 0 <= rule.peer_prefix_bits <= 8 * len(rule.peer):
        raise ValueError(f"rule.peer_prefix_bits: {rule.peer_prefix_bits} of a prefix of {len(rule.peer)} bytes")
    if not (0 <= rule.dscp < 64 or rule.dscp == MFS_DSCP_KEEP):
        raise ValueError(f"rule.dscp: {rule.dscp}, allowed 0..63 or {MFS_DSCP_KEEP} (keep)")
    memset(to, 0, sizeof(mfs_rule))
    name_copy(to.library, 32, rule.library, "rule.library")
    name_copy(to.process, 32, rule.process, "rule.process")
    name_copy(to.communicator, 32, rule.communicator, "rule.communicator")
    memcpy(to.peer, <const char *><bytes>rule.peer, len(rule.peer))
    to.peer_prefix_bits = rule.peer_prefix_bits
    to.role = rule.role
    to.action = rule.action
    to.stage = rule.stage
    to.dscp = rule.dscp
    to.set_role = rule.set_role
    return 0


cdef rule_write(const mfs_rule *rule):
    return Rule(
        name_read(rule.library, 32), name_read(rule.process, 32), (<const char *>rule.peer)[:16], rule.peer_prefix_bits,
        rule.role, rule.action, rule.stage, rule.dscp, rule.set_role, name_read(rule.communicator, 32),
    )


include "_watch.pxi"
include "_arbiter.pxi"
include "_outlook.pxi"
include "_client.pxi"
include "_fast_path.pxi"
include "_posted_path.pxi"
include "_rmlq.pxi"
include "_window.pxi"
include "_fluid.pxi"
include "_plan.pxi"
include "_serving.pxi"
include "_serving_queue.pxi"
include "_serving_step.pxi"
