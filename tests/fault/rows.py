"""Every fault that must be survived, what happens then, and the tests that prove it.

``python -m tests.fault.rows docs/operations.md`` brings the table of that page up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from mfsd.text import with_part

BEGIN, END = "<!-- begin of generated table -->", "<!-- end of generated table -->"

HOSTILE = "tests/unit/core/test_hostile.py"
ATTACH = "tests/unit/core/test_attach.py"
DAEMON = "tests/fault/test_daemon_fails.py"
COORDINATOR = "tests/fault/test_coordinator_fails.py"
LINK = "tests/integration/test_coordinator_link.py"
LIFE = "tests/integration/test_node_lifecycle.py"
NODE = "tests/integration/test_node_attach.py"
SHIM = "tests/native/shim_fault.c"
SHIM_DAEMON = "tests/native/shim_daemon.c"
HARDWARE = "tests/unit/doctor/test_hardware_files.py"
PROGRAMS = "tests/integration/test_programs_under_mfs.py"
FUZZ = "tests/fuzz/test_fuzz.py"
SOAK = "tests/fault/test_soak.py::test_nothing_is_lost_while_everything_dies"


class Fault(NamedTuple):
    """`tests` are FILE::NAME; of a C file, NAME is that of the case."""

    what: str
    answer: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "`mfsd` killed with work requests held",
        "within 50 ms they are posted, in order of each queue pair, none lost or doubled; later ones pass",
        (f"{DAEMON}::test_daemon_killed_in_the_middle", f"{SHIM_DAEMON}::daemon_killed"),
    ),
    Fault(
        "`mfsd` hangs or is stopped",
        "the same; the service manager's watchdog restarts it; one that comes back is believed again",
        (
            f"{DAEMON}::test_daemon_stopped_for_ever",
            f"{DAEMON}::test_daemon_stopped_and_continued_schedules_again",
            f"{SHIM_DAEMON}::daemon_hangs",
            f"{LIFE}::test_a_stopped_daemon_is_taken_for_dead_and_believed_again",
            f"{LIFE}::test_the_service_manager_is_notified",
            f"{LIFE}::test_a_hung_arbiter_is_not_reported_alive",
        ),
    ),
    Fault(
        "`mfsd` restarted",
        "a new epoch; programs attach again by themselves; permits of the old epoch are ignored",
        (
            f"{DAEMON}::test_daemon_killed_and_restarted_schedules_again",
            f"{SHIM_DAEMON}::daemon_restarts_often",
            f"{LIFE}::test_a_restart_has_a_new_epoch_and_clients_attach_again",
            "tests/unit/core/test_permits.py::test_a_permit_of_another_epoch_is_ignored",
        ),
    ),
    Fault(
        "a program killed with requests held",
        "its tasks and bytes in flight are given back at once; no other waits for them",
        (
            f"{DAEMON}::test_clients_killed_anywhere_leave_nothing_behind",
            f"{NODE}::test_a_killed_client_leaves_nothing_behind",
            "tests/unit/core/test_arbiter.py::test_a_client_that_left_blocks_no_other",
        ),
    ),
    Fault(
        "a program's thread dies in the middle of a message",
        "the slot is passed by and counted; a late message is still taken",
        (
            f"{HOSTILE}::test_a_torn_slot_is_passed_by_and_delivered_late",
            f"{HOSTILE}::test_a_lane_outlives_its_thread",
            "tests/model/test_models.py::test_no_interleaving_breaks_the_protocol",
        ),
    ),
    Fault(
        "coordinator out of reach",
        "the last order holds until its time is over, then nodes order for themselves and prune nothing",
        (
            f"{LINK}::test_the_order_expires_when_it_is_not_confirmed",
            "tests/fault/test_cluster_hosts.py::test_leader_killed_host_cut_off_and_healed",
            f"{COORDINATOR}::test_a_leader_without_etcd_stops_before_its_lease_can_end",
        ),
    ),
    Fault(
        "coordinator fails over",
        "another leads within 3 s; decisions of the former leader are refused by their term",
        (
            f"{COORDINATOR}::test_a_killed_leader_is_replaced_in_time",
            f"{COORDINATOR}::test_a_stopped_leader_decides_nothing_when_it_wakes",
            f"{COORDINATOR}::test_terms_only_grow_over_many_failovers",
        ),
    ),
    Fault(
        "clocks differ between hosts, or jump",
        "only remaining budgets cross the network; each host reckons with its own monotonic clock",
        (
            "tests/fault/test_clocks.py::test_hosts_whose_clocks_are_days_apart_are_ordered_by_their_budgets",
            "tests/unit/coordinator/test_cluster_bad_input.py::test_the_clock_may_jump_back",
            "tests/unit/coordinator/test_cluster_bad_input.py::test_a_clock_that_jumps_ahead_takes_no_batch_away",
            f"{LINK}::test_a_lone_coordinator_whose_clock_went_back_outbids_its_former_life",
        ),
    ),
    Fault(
        "shared memory corrupted",
        "that program is given up and passes through; the daemon and others go on",
        (
            f"{HOSTILE}::test_random_bytes_anywhere",
            f"{HOSTILE}::test_an_absurd_index_detaches",
            f"{SHIM_DAEMON}::daemon_detaches",
            f"{DAEMON}::test_a_poisoned_ring_is_given_up_and_its_program_passes_through",
            f"{FUZZ}::test_random_inputs",
        ),
    ),
    Fault(
        "another version of the library",
        "refused with the reason, passes through; living memory is never laid out anew",
        (
            f"{SHIM_DAEMON}::other_version",
            f"{NODE}::test_another_abi_is_refused_with_the_reason",
            f"{ATTACH}::test_segments_that_cannot_be_trusted",
        ),
    ),
    Fault(
        "a hostile program",
        "has a segment of its own; everything is copied, then checked; quotas by container and user",
        (
            "tests/integration/test_node_hostile.py::test_random_bytes_all_over_the_segment",
            "tests/integration/test_node_hostile.py::test_a_flood_of_connections_is_refused_by_user",
            f"{NODE}::test_one_user_cannot_take_all_clients",
            f"{FUZZ}::test_mutated_inputs",
        ),
    ),
    Fault(
        "segment truncated",
        "impossible: it is sealed",
        ("tests/integration/test_node_hostile.py::test_a_segment_cannot_be_truncated_under_the_daemon",),
    ),
    Fault(
        "no memory, no descriptors, no room for log lines",
        "the program starts and passes through; log lines are dropped and counted, work requests never",
        (
            f"{SHIM_DAEMON}::no_memory",
            f"{NODE}::test_a_host_that_is_out_of_memory_or_descriptors",
            "tests/unit/node/test_log.py::test_a_full_pipe_and_a_closed_one_cost_lines_only",
        ),
    ),
    Fault(
        "ring or table full",
        "posted without a permit, behind the earlier ones of its queue pair; counted",
        (
            "tests/native/shim_hold.c::more_than_slots",
            "tests/unit/core/test_permits.py::test_what_finds_the_ring_full_is_reported_later",
            "tests/unit/core/test_permits.py::test_tasks_run_out_and_come_back",
        ),
    ),
    Fault(
        "`fork()` in a program under the library",
        "the child passes through, without the parent's memory or threads; the parent loses nothing",
        (
            f"{SHIM_DAEMON}::forked",
            f"{SHIM_DAEMON}::forked_without_pages",
            "tests/native/shim_metadata.c::child_starts_without",
            f"{PROGRAMS}::test_a_program_that_forks_while_its_work_requests_are_held",
        ),
    ),
    Fault(
        "`exec()`, setuid programs",
        "descriptors close on exec; the library does nothing in secure execution, and `mfs-run` says so",
        (
            "tests/fault/test_exec.py::test_no_descriptor_survives_exec",
            "tests/fault/test_exec.py::test_a_set_user_id_program_does_not_attach",
            "tests/unit/shim/test_run.py::test_programs_that_cannot_be_reached",
        ),
    ),
    Fault(
        "libibverbs opened late, several times, or after a fork",
        "every device context is patched once, however it was opened and by which library",
        (
            f"{SHIM_DAEMON}::opened_after_fork",
            "tests/unit/shim/test_native.py::test_programs_that_open_the_library_by_name",
            "tests/unit/shim/test_native.py::test_several_copies_of_the_library_in_one_program",
        ),
    ),
    Fault(
        "posts from signal handlers; threads that are cancelled",
        "no lock and no allocation on the way; nothing is left half done",
        (
            "tests/native/shim_threads.c::posts_in_handler",
            "tests/native/shim_threads.c::cancelled_while_posting",
            "tests/unit/core/test_hostile.py::test_a_lane_outlives_its_thread",
        ),
    ),
    Fault(
        "queue pair in error, reset or destroyed with requests held",
        "they are posted or flushed first, in order, with the completions that the provider would give",
        (
            f"{SHIM}::error_with_held",
            f"{SHIM}::destroy_with_held",
            f"{SHIM}::reset_with_held",
            f"{SHIM}::key_goes_away",
        ),
    ),
    Fault(
        "bad configuration on reload; a host-wide traffic class that overrides lanes; pause settings that differ",
        "the old configuration stays in force; `mfsctl doctor` fails with the reason",
        (
            f"{LIFE}::test_a_reload_of_a_bad_file_changes_nothing",
            f"{HARDWARE}::test_a_host_wide_class_is_refused",
            f"{HARDWARE}::test_rdma_cms_default_must_be_the_policys",
            f"{HARDWARE}::test_pfc_of_both_ends",
        ),
    ),
    Fault(
        "several of these at once, over and over",
        "nothing is lost, nothing is corrupted, everything serves again, nothing adds up (`make soak`)",
        (SOAK,),
    ),
)


def table() -> str:
    lines = ["| # | fault | what happens | tests |", "|---|---|---|---|"]
    for number, fault in enumerate(FAULTS, 1):
        names = ", ".join(f"`{test.rpartition('::')[2]}`" for test in fault.tests)
        lines.append(f"| {number} | {fault.what} | {fault.answer} | {names} |")
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """The page with the table between its two marks written anew."""
    return with_part(page, BEGIN, table(), END)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text()))
