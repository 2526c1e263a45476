# ---- arbiter ---------------------------------------------------------------------------------------------------------

DemandSnapshot = namedtuple("DemandSnapshot", "bytes bytes_left peer layer stage nic direction")
RequestSnapshot = namedtuple(
    "RequestSnapshot", "request_id program_id deadline_ns budget_ns value flags pruned demands rank tokens_left",
    defaults=(0, 0),
)
BatchSnapshot = namedtuple(
    "BatchSnapshot",
    "client_id slot batch_id deadline_ns compute_left_ns layers layer_current rank requests",
)
TaskSnapshot = namedtuple(
    "TaskSnapshot",
    "task bytes submit_ns request_id batch_id deadline_ns in_flight layer stage nic direction wire_class queued tier rli arrival "
    "rank batch_announced batch_pruned compute_end_ns request_deadline_ns budget_ns bytes_left bytes_ahead bytes_tail "
    "bytes_whole level critical lost pruned",
)
NicFacts = namedtuple("NicFacts", "rate_bytes_per_s rho unit_slack_ns")
NicCounted = namedtuple("NicCounted", "posted_bytes unscheduled_bytes outstanding_bytes class_bytes")


cdef task_snapshot_write(const mfs_task_snapshot *t):
    cdef const mfs_rmlq_snapshot_t *why = &t.why
    return TaskSnapshot(
        t.task, t.bytes, t.submit_ns, t.request_id, t.batch_id, t.deadline_ns, bool(t.in_flight), t.layer, t.stage,
        t.nic, t.direction, t.wire_class, bool(t.queued), why.place.tier, why.place.rli, why.arrival, why.rank,
        bool(why.batch_announced), bool(why.batch_pruned), why.compute_end_ns, why.deadline_ns, why.budget_ns,
        why.bytes_left, why.bytes_ahead, why.bytes_tail, why.bytes_whole, why.level, bool(why.critical), bool(why.lost),
        bool(why.pruned),
    )


CommunicatorSnapshot = namedtuple(
    "CommunicatorSnapshot",
    "id name rank ranks operations operation_bytes work_requests batch_bytes sent_bytes batch layer",
)


cdef class BatchRoom:
    """Memory into which the arbiter writes one batch. It is too large for the stack. Pages that are not written cost
    nothing."""

    cdef mfs_batch_snapshot batch
    cdef mfs_request_snapshot *requests
    cdef mfs_demand_snapshot *demands

    def __cinit__(self):
        self.requests = <mfs_request_snapshot *>malloc(MFS_REQUESTS_MAX * sizeof(mfs_request_snapshot))
        self.demands = <mfs_demand_snapshot *>malloc(MFS_DEMANDS_MAX * sizeof(mfs_demand_snapshot))
        if self.requests is NULL or self.demands is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.requests)
        free(self.demands)

    cdef requests_snapshot(self, uint32_t count):
        cdef mfs_request_snapshot *r
        cdef mfs_demand_snapshot *demand = self.demands
        cdef uint32_t i, j
        requests = []
        for i in range(count):
            r = &self.requests[i]
            demands = []
            for j in range(r.demands):
                demands.append(DemandSnapshot(
                    demand.bytes, demand.bytes_left, (<const char *>demand.peer)[:16], demand.layer, demand.stage,
                    demand.nic, demand.direction,
                ))
                demand += 1
            requests.append(RequestSnapshot(
                r.request_id, r.program_id, r.deadline_ns, r.budget_ns, r.value, r.flags, bool(r.pruned),
                tuple(demands), r.rank, r.tokens_left,
            ))
        return requests

    cdef snapshot(self, uint32_t client_id, uint32_t slot):
        cdef mfs_batch_snapshot *b = &self.batch
        return BatchSnapshot(
            client_id, slot, b.batch_id, b.deadline_ns, b.compute_left_ns, b.layers, b.layer_current, b.rank,
            tuple(self.requests_snapshot(b.requests)),
        )


cdef class Arbiter:
    cdef mfs_arbiter *arbiter
    cdef readonly uint64_t epoch
    cdef object lock

    def __init__(
        self, *, epoch=0, policy=Policy(), mode=MFS_MODE_ENFORCE, heartbeat_ns=10_000_000, stale_after_ns=40_000_000,
        max_hold_ns=10_000_000_000, window_ns=200_000, window_bytes_min=131_072, quiet_ns=200_000, gate_max_ns=2_000_000,
        spin_ns=50_000, torn_slot_ns=10_000_000, load_time_constant_ns=LOAD_TIME_CONSTANT_NS,
        rate_default_bytes_per_s=12_500_000_000, tasks_max=262_144, cpus=(),
    ):
        cdef mfs_arbiter_config config
        self.lock = Lock()
        if self.arbiter is not NULL:
            raise RuntimeError("an Arbiter is initialised once")
        memset(&config, 0, sizeof(config))
        policy_read(&config.policy, policy)
        for name, value, least in (
            ("heartbeat_ns", heartbeat_ns, 1), ("stale_after_ns", stale_after_ns, heartbeat_ns + 1),
            ("max_hold_ns", max_hold_ns, 1), ("window_ns", window_ns, 0), ("window_bytes_min", window_bytes_min, 1),
            ("quiet_ns", quiet_ns, 0), ("gate_max_ns", gate_max_ns, 1), ("spin_ns", spin_ns, 0),
            ("torn_slot_ns", torn_slot_ns, 1), ("load_time_constant_ns", load_time_constant_ns, 1),
            ("rate_default_bytes_per_s", rate_default_bytes_per_s, 1), ("tasks_max", tasks_max, 1),
        ):
            if not least <= value < 2**63:
                raise ValueError(f"{name}: {value}, at least {least} is needed")
        if tasks_max > MFS_FLOWS_MAX:
            raise ValueError(f"tasks_max: {tasks_max}, at most {MFS_FLOWS_MAX} is allowed")
        if mode not in (MFS_MODE_OFF, MFS_MODE_OBSERVE, MFS_MODE_ENFORCE):
            raise ValueError(f"mode: {mode}, allowed 0 (off), 1 (observe), 2 (enforce)")
        for cpu in cpus:
            if not 0 <= cpu < MFS_CPUS_MAX:
                raise ValueError(f"cpus: {cpu}, allowed 0 to {MFS_CPUS_MAX - 1}")
            config.cpus[<int>cpu // 64] |= <uint64_t>1 << (<int>cpu % 64)
        self.epoch = epoch or time.time_ns()
        config.epoch = self.epoch
        config.heartbeat_ns = heartbeat_ns
        config.stale_after_ns = stale_after_ns
        config.max_hold_ns = max_hold_ns
        config.window_ns = window_ns
        config.window_bytes_min = window_bytes_min
        config.quiet_ns = quiet_ns
        config.gate_max_ns = gate_max_ns
        config.spin_ns = spin_ns
        config.torn_slot_ns = torn_slot_ns
        config.load_time_constant_ns = load_time_constant_ns
        config.rate_default_bytes_per_s = rate_default_bytes_per_s
        config.tasks_max = tasks_max
        config.mode = <mfs_mode><int>mode
        check(mfs_arbiter_create(&config, &self.arbiter))

    def __dealloc__(self):
        if self.arbiter is not NULL:
            mfs_arbiter_destroy(self.arbiter)

    cdef mfs_arbiter *enter(self) except NULL:
        """Takes the lock, which close() takes too, and returns the arbiter. One leave must follow each enter."""
        self.lock.acquire()
        if self.arbiter is NULL:
            self.lock.release()
            raise OSError(ESHUTDOWN, "the arbiter is closed")
        return self.arbiter

    cdef int leave(self, int rc) except -1:
        self.lock.release()
        return check(rc)

    def start(self):
        self.leave(mfs_arbiter_start(self.enter()))

    def close(self):
        cdef mfs_arbiter *arbiter
        with self.lock:
            arbiter = self.arbiter
            self.arbiter = NULL
        if arbiter is not NULL:
            with nogil:
                mfs_arbiter_destroy(arbiter)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def client_add(self):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int memfd = -1, doorbell = -1, rc
        with nogil:
            rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell)
        return self.leave(rc), memfd, doorbell

    def client_remove(self, uint32_t client_id):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_client_remove(arbiter, client_id)
        self.leave(rc)

    def nic(self, name, uint64_t guid=0, uint64_t rate_bytes_per_s=0):
        cdef char text[32]
        cdef int rc
        name_copy(text, sizeof(text), name, "nic name")
        cdef mfs_arbiter *arbiter = self.enter()
        with nogil:
            rc = mfs_arbiter_nic(arbiter, text, guid, rate_bytes_per_s)
        return self.leave(rc)

    def rules(self, rules):
        cdef int n = len(rules), rc
        cdef mfs_arbiter *arbiter
        if n > MFS_RULES_MAX:
            raise ValueError(f"rules: {n}, at most {MFS_RULES_MAX} are allowed")
        cdef mfs_rule *table = <mfs_rule *>calloc(MFS_RULES_MAX, sizeof(mfs_rule))
        if table is NULL:
            raise MemoryError
        try:
            for i, rule in enumerate(rules):
                rule_read(&table[i], rule)
            arbiter = self.enter()
            with nogil:
                rc = mfs_arbiter_rules(arbiter, table, n)
            self.leave(rc)
        finally:
            free(table)

    def mode(self, int mode):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_mode(arbiter, <mfs_mode>mode)
        self.leave(rc)

    def batch_rank(self, uint32_t client_id, uint64_t batch_id, uint32_t rank):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_batch_rank(arbiter, client_id, batch_id, rank)
        self.leave(rc)

    def wire(self, dscp):
        cdef mfs_arbiter *arbiter
        cdef uint8_t table[MFS_CLASSES_MAX]
        cdef int rc
        if len(dscp) > MFS_CLASSES_MAX or not all(0 <= d < 64 for d in dscp):
            raise ValueError(f"dscp: {list(dscp)}, at most {MFS_CLASSES_MAX} values of 0..63 are allowed")
        for i in range(MFS_CLASSES_MAX):
            table[i] = dscp[i] if i < len(dscp) else MFS_DSCP_KEEP
        arbiter = self.enter()
        with nogil:
            rc = mfs_arbiter_wire(arbiter, table)
        self.leave(rc)

    def request_prune(self, uint32_t client_id, uint64_t request_id, bint pruned):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_request_prune(arbiter, client_id, request_id, pruned)
        self.leave(rc)

    def notice_fd(self):
        cdef mfs_arbiter *arbiter = self.enter()
        return self.leave(mfs_arbiter_notice_fd(arbiter))

    def changed(self):
        cdef mfs_arbiter *arbiter
        cdef mfs_change change
        cdef BatchRoom room = BatchRoom()
        cdef int rc = 2
        found = []
        while rc > 1:
            arbiter = self.enter()
            with nogil:
                rc = mfs_arbiter_changed(arbiter, &change, &room.batch, room.requests, room.demands)
            self.leave(rc)
            if rc > 0:
                snapshot = room.snapshot(change.client_id, change.slot) if room.batch.batch_id else None
                found.append((change.client_id, change.slot, snapshot))
        return found

    def waiting(self):
        cdef mfs_arbiter *arbiter
        cdef BatchRoom room = BatchRoom()
        cdef uint32_t client_id = 0, count = 0
        cdef int rc = 2
        found = []
        while rc > 1:
            arbiter = self.enter()
            with nogil:
                rc = mfs_arbiter_waiting(arbiter, &client_id, room.requests, &count, room.demands)
            self.leave(rc)
            if rc > 0:
                found.append((client_id, tuple(room.requests_snapshot(count))))
        return found

    def outlook_fd(self):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc = mfs_arbiter_outlook_fd(arbiter)
        self.leave(0)
        return None if rc < 0 else rc

    def outlook(self, fars, pruned, uint64_t far_valid_until_ns, uint64_t pruned_valid_until_ns):
        cdef mfs_far_port far[MFS_OUTLOOK_FARS_MAX]
        cdef uint64_t requests[MFS_OUTLOOK_PRUNED_MAX]
        cdef uint32_t n = len(fars), m = len(pruned)
        cdef mfs_arbiter *arbiter
        cdef int rc
        if n > MFS_OUTLOOK_FARS_MAX or m > MFS_OUTLOOK_PRUNED_MAX:
            raise ValueError(f"{n} far ports and {m} pruned requests: at most {MFS_OUTLOOK_FARS_MAX} and {MFS_OUTLOOK_PRUNED_MAX}")
        for i, (peer, direction, rate_bytes_per_s, owed_ns) in enumerate(fars):
            memcpy(far[i].peer, peer_of(peer), 16)
            far[i].hash = mfs_peer_hash(far[i].peer)
            far[i].direction = direction
            far[i].rate_bytes_per_s = rate_bytes_per_s
            far[i].owed_ns = mfs_outlook_unknown if owed_ns is None else owed_ns
        for i, request_id in enumerate(pruned):
            requests[i] = request_id
        arbiter = self.enter()
        with nogil:
            rc = mfs_arbiter_outlook(arbiter, far, n, requests, m, far_valid_until_ns, pruned_valid_until_ns)
        self.leave(rc)

    def batch_snapshot(self, uint32_t client_id, uint32_t slot):
        cdef BatchRoom room = BatchRoom()
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_batch_snapshot(arbiter, client_id, slot, &room.batch, room.requests, room.demands)
        self.leave(0)
        if rc == -ENOENT:
            return None
        check(rc)
        return room.snapshot(client_id, slot)

    def tasks(self, uint32_t client_id):
        cdef mfs_arbiter *arbiter
        cdef uint32_t slot = 0
        cdef int rc
        cdef mfs_task_snapshot *t = <mfs_task_snapshot *>malloc(1024 * sizeof(mfs_task_snapshot))
        if t is NULL:
            raise MemoryError
        found = []
        try:
            while slot < MFS_TASKS_MAX:
                arbiter = self.enter()
                with nogil:
                    rc = mfs_arbiter_tasks(arbiter, client_id, slot, t, 1024, &slot)
                self.leave(rc)
                found += [task_snapshot_write(&t[i]) for i in range(rc)]
        finally:
            free(t)
        return found

    def facts(self, uint32_t nic, uint32_t direction):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_rmlq_facts_t facts
        cdef int rc
        with nogil:
            rc = mfs_arbiter_facts(arbiter, nic, direction, &facts)
        self.leave(rc)
        return NicFacts(
            facts.rate_bytes_per_s, facts.rho, None if facts.unit_slack_ns == INT64_MAX else facts.unit_slack_ns
        )

    def accounts(self, uint64_t request_id=0):
        cdef mfs_arbiter *arbiter
        cdef uint32_t slot = 0, cells_max = 4 * MFS_LEDGER_REQUEST_CELLS, cell
        cdef int rc
        cdef mfs_account *a = <mfs_account *>malloc(256 * sizeof(mfs_account))
        cdef mfs_account_cell *c = <mfs_account_cell *>malloc(cells_max * sizeof(mfs_account_cell))
        found = []
        try:
            if a is NULL or c is NULL:
                raise MemoryError
            while slot < MFS_LEDGER_REQUESTS:
                arbiter = self.enter()
                with nogil:
                    rc = mfs_arbiter_accounts(arbiter, request_id, slot, a, 256, c, cells_max, &slot)
                self.leave(rc)
                cell = 0
                for i in range(rc):
                    found.append(account_write(&a[i], &c[cell]))
                    cell += a[i].cells
        finally:
            free(a)
            free(c)
        return found

    def finished(self):
        cdef mfs_finished f[64]
        cdef mfs_arbiter *arbiter
        cdef int rc = 64
        found = []
        while rc == 64:
            arbiter = self.enter()
            with nogil:
                rc = mfs_arbiter_finished(arbiter, f, 64)
            self.leave(rc)
            found += [
                Finished(
                    f[i].request_id, f[i].client_id, f[i].batch_id, f[i].begin_ns, f[i].end_ns, f[i].done_ns,
                    f[i].deadline_ns, f[i].bytes, Verdict(f[i].verdict), bool(f[i].pruned),
                ) for i in range(rc)
            ]
        return found

    def ledger_totals(self):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_ledger_totals totals
        cdef int rc
        with nogil:
            rc = mfs_arbiter_ledger_totals(arbiter, &totals)
        self.leave(rc)
        return totals

    def opened(self):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef uint64_t counts[MFS_OPEN_REASONS]
        cdef int rc
        with nogil:
            rc = mfs_arbiter_opened(arbiter, counts)
        self.leave(rc)
        return dict(zip(("queue_full", "given_up", "written_off", "bypass"), numbers_u64(counts, MFS_OPEN_REASONS)))

    def trace_attach(self, uint32_t slots=65536):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_trace_attach(arbiter, slots)
        self.leave(rc)

    def trace_detach(self):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef int rc
        with nogil:
            rc = mfs_arbiter_trace_detach(arbiter)
        self.leave(rc)

    def trace_read(self, int n=4096):
        cdef mfs_arbiter *arbiter
        cdef uint64_t lost = 0
        cdef int rc
        cdef mfs_event *events = <mfs_event *>malloc(n * sizeof(mfs_event))
        if events is NULL:
            raise MemoryError
        try:
            arbiter = self.enter()
            rc = self.leave(mfs_arbiter_trace_read(arbiter, events, n, &lost))
            return (<const char *>events)[: rc * sizeof(mfs_event)], lost
        finally:
            free(events)

    def stats(self):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_arbiter_stats_t stats
        cdef int rc
        with nogil:
            rc = mfs_arbiter_stats(arbiter, &stats)
        self.leave(rc)
        return stats

    def nic_stats(self, uint32_t nic):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_nic_stats s
        cdef int rc
        with nogil:
            rc = mfs_arbiter_nic_stats(arbiter, nic, &s)
        self.leave(rc)
        return {
            "name": name_read(s.name, 32),
            "guid": s.guid,
            "rate_bytes_per_s": s.rate_bytes_per_s,
            "window_bytes": s.window_bytes,
            "in_flight_bytes": numbers_u64(s.in_flight_bytes, MFS_DIRECTIONS),
            "unscheduled_in_flight_bytes": s.unscheduled_in_flight_bytes,
            "held_bytes": numbers_u64(s.held_bytes, MFS_CLASSES_MAX),
            "held_tasks": numbers_u64(s.held_tasks, MFS_CLASSES_MAX),
            "in_flight_class_bytes": numbers_u64(s.in_flight_class_bytes, MFS_CLASSES_MAX),
            "granted_bytes": numbers_u64(s.granted_bytes, MFS_CLASSES_MAX),
            "grants": numbers_u64(s.grants, MFS_CLASSES_MAX),
            "promotions": s.promotions,
            "wait_ns": s.wait_ns,
            "load": None if s.load[0] < 0 else [s.load[d] for d in range(MFS_DIRECTIONS)],
            "carried_bytes": [[s.carried_bytes[d][c] for c in range(MFS_CLASSES_MAX)] for d in range(MFS_DIRECTIONS)],
            "unscheduled_carried_bytes": s.unscheduled_carried_bytes,
            "passed_bytes": s.passed_bytes,
            "used": [s.used[d] for d in range(MFS_DIRECTIONS)],
        }

    def counted(self, uint32_t nic):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_nic_counted s
        cdef int rc
        with nogil:
            rc = mfs_arbiter_counted(arbiter, nic, &s)
        self.leave(rc)
        return NicCounted(
            tuple(s.posted_bytes[d] for d in range(MFS_DIRECTIONS)), s.unscheduled_bytes, s.outstanding_bytes,
            tuple(tuple(s.class_bytes[d][c] for c in range(MFS_CLASSES_MAX)) for d in range(MFS_DIRECTIONS)),
        )

    def bypass(self, uint32_t nic, uint64_t sent_bytes_per_s, uint64_t received_bytes_per_s, uint64_t valid_until_ns):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef uint64_t bytes_per_s[2]
        cdef int rc
        bytes_per_s[:] = [sent_bytes_per_s, received_bytes_per_s]
        with nogil:
            rc = mfs_arbiter_bypass(arbiter, nic, bytes_per_s, valid_until_ns)
        self.leave(rc)

    def communicators(self, uint32_t client_id):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_communicator_snapshot found[MFS_COMMUNICATORS_MAX]
        cdef int rc
        with nogil:
            rc = mfs_arbiter_communicators(arbiter, client_id, found)
        self.leave(rc)
        return [
            CommunicatorSnapshot(
                found[i].id, name_read(found[i].name, 32), found[i].rank, found[i].ranks, found[i].operations,
                found[i].operation_bytes, found[i].work_requests, found[i].batch_bytes,
                numbers_u64(found[i].bytes, MFS_OPERATIONS_MAX),
                None if found[i].batch == MFS_NONE_U32 else found[i].batch, found[i].layer,
            )
            for i in range(rc)
        ]

    def client_stats(self, uint32_t client_id):
        cdef mfs_arbiter *arbiter = self.enter()
        cdef mfs_client_stats s
        cdef int rc
        with nogil:
            rc = mfs_arbiter_client_stats(arbiter, client_id, &s)
        self.leave(rc)
        return {
            "client_id": s.client_id,
            "state": s.state,
            "detach_reason": s.detach_reason,
            "submits": s.submits,
            "grants": s.grants,
            "taken": s.taken,
            "completes": s.completes,
            "cancels": s.cancels,
            "torn_slots": s.torn_slots,
            "bad_messages": s.bad_messages,
            "held_bytes": s.held_bytes,
            "in_flight_bytes": s.in_flight_bytes,
            "posted_bytes": numbers_u64(s.posted_bytes, MFS_STAGES_MAX),
            "completed_bytes": numbers_u64(s.completed_bytes, MFS_STAGES_MAX),
            "collective_bytes": numbers_u64(s.collective_bytes, MFS_NICS_MAX),
            "queue_pairs": [s.queue_pairs[i] for i in range(MFS_ROLES_MAX)],
            "report_held_bytes": s.report_held_bytes,
            "report_permits": s.report_permits,
            "bypassed_overflow": s.bypassed_overflow,
            "bypassed_hold": s.bypassed_hold,
            "bypassed_stale": s.bypassed_stale,
            "hold_ns": s.hold_ns,
        }
