# ---- what the headers declare: csrc/include/mfs ---------------------------------------------------------------------

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "string.h" nogil:
    size_t strnlen(const char *text, size_t size)

cdef extern from "errno.h":
    int EAGAIN, EBUSY, EINVAL, ENODEV, ENOTCONN, ETIMEDOUT

cdef extern from * nogil:
    """
    #include <mfs/abi.h>
    #include <time.h>
    static const uint32_t mfs_none_u32 = MFS_NONE_U32;
    static uint64_t mfs_native_now_ns(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    static uint8_t mfs_dscp(const struct mfs_segment *s, unsigned i)
    {
        return atomic_load_explicit(&s->header.dscp[i], memory_order_relaxed);
    }
    static uint64_t mfs_load_u64(const void *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED); }
    static uint32_t mfs_load_u32(const void *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE); }
    struct mfs_layout_entry { const char *name; size_t offset; };
    static const struct mfs_layout_entry mfs_layout[] = {
    #define AT(label, member) {label, offsetof(struct mfs_segment, member)}
        AT("header.magic", header.magic), AT("header.major", header.major), AT("header.minor", header.minor),
        AT("header.header_bytes", header.header_bytes), AT("header.segment_bytes", header.segment_bytes),
        AT("header.epoch", header.epoch), AT("header.daemon_pid", header.daemon_pid),
        AT("header.client_id", header.client_id), AT("header.stale_after_ns", header.stale_after_ns),
        AT("header.max_hold_ns", header.max_hold_ns), AT("header.heartbeat_ns", header.heartbeat_ns),
        AT("header.state", header.state), AT("header.mode", header.mode),
        AT("header.arbiter_asleep", header.arbiter_asleep), AT("header.grant_word", header.grant_word),
        AT("header.grant_waiters", header.grant_waiters), AT("gate", gate), AT("nic", nic), AT("report", report),
        AT("usage", usage), AT("batch", batch), AT("rules", rules), AT("submit", submit),
        AT("submit.tail", submit[0].tail), AT("submit.head_seen", submit[0].head_seen),
        AT("submit.quarantined", submit[0].quarantined), AT("submit.head", submit[0].head),
        AT("submit.quarantine", submit[0].quarantine), AT("submit_slot", submit_slot),
        AT("grant", grant), AT("grant.tail", grant.tail), AT("grant.head", grant.head), AT("grant_slot", grant_slot),
        AT("header.classes", header.classes), AT("header.dscp", header.dscp),
        AT("request", request), AT("request.request_id", request[0].request_id), AT("request.batch", request[0].batch),
        AT("request.deadline_ns", request[0].deadline_ns), AT("request.budget_ns", request[0].budget_ns),
        AT("request.demand", request[0].demand), AT("request.version", request[0].version),
        AT("request.judgement", request[0].judgement),
        AT("demand", demand), AT("demand.request", demand[0].request), AT("demand.next", demand[0].next),
        AT("demand.bytes", demand[0].bytes), AT("demand.nic", demand[0].nic), AT("demand.stage", demand[0].stage),
    #undef AT
    };
    static const unsigned mfs_layout_count = sizeof(mfs_layout) / sizeof(mfs_layout[0]);
    """
    const uint32_t mfs_none_u32
    uint64_t mfs_native_now_ns()
    uint32_t mfs_load_u32(const void *p)
    uint64_t mfs_load_u64(const void *p)
    struct mfs_layout_entry:
        const char *name
        size_t offset
    const mfs_layout_entry *mfs_layout
    const unsigned mfs_layout_count

cdef extern from "mfs/abi.h" nogil:
    enum:
        MFS_ABI_MAJOR, MFS_ABI_MINOR, MFS_NICS_MAX, MFS_STAGES_MAX, MFS_CLASSES_MAX, MFS_ROLES_MAX, MFS_TASKS_MAX, MFS_DIRECTIONS
        MFS_BATCHES_MAX, MFS_RULES_MAX, MFS_COMMUNICATORS_MAX, MFS_OPERATIONS_MAX, MFS_DSCP_KEEP, MFS_SUBMIT_RINGS, MFS_SUBMIT_SLOTS, MFS_SUBMIT_SHARED, MFS_GRANT_SLOTS, MFS_QUARANTINE_MAX
        MFS_STAGE_CONTROL, MFS_STAGE_REUSE, MFS_STAGE_COLLECTIVE, MFS_STAGE_P2D, MFS_STAGE_BACKGROUND
        MFS_ROLE_UNKNOWN, MFS_ROLE_NCCL_DATA, MFS_ROLE_NCCL_CTS, MFS_ROLE_NCCL_FLUSH, MFS_ROLE_KV, MFS_ROLE_BULK
        MFS_SEGMENT_ACTIVE, MFS_SEGMENT_DETACHED, MFS_MESSAGE_SUBMIT, MFS_MESSAGE_COMPLETE, MFS_MESSAGE_CANCEL
        MFS_MESSAGE_BATCH, MFS_MESSAGE_REQUEST, MFS_TASK_BYPASSED, MFS_REQUESTS_MAX, MFS_DEMANDS_MAX, MFS_REQUEST_DEMANDS_MAX
        MFS_REQUEST_RELEGATED, MFS_REQUEST_SPECULATIVE, MFS_REQUEST_SWAP, MFS_REQUEST_WAITING, MFS_REQUEST_PRUNED, MFS_DIRECTION_OUT, MFS_DIRECTION_IN
        MFS_RULE_PASS, MFS_RULE_HOLD, MFS_HELLO_ATTACH, MFS_HELLO_NIC
    const uint64_t MFS_ABI_MAGIC
    enum mfs_mode:
        MFS_MODE_OFF, MFS_MODE_OBSERVE, MFS_MODE_ENFORCE
    struct mfs_message:
        pass
    struct mfs_mpsc:
        pass
    struct mfs_mpsc_slot:
        pass
    struct mfs_usage:
        pass
    struct mfs_gate:
        uint32_t word
    struct mfs_segment_header:
        uint64_t epoch
        uint32_t client_id
        uint32_t mode
        uint32_t state
        uint32_t classes
        uint64_t max_hold_ns
    struct mfs_batch:
        pass
    struct mfs_nic:
        char *name
    struct mfs_request:
        pass
    struct mfs_demand:
        pass
    struct mfs_segment:
        mfs_segment_header header
        mfs_gate *gate
        mfs_nic *nic
    struct mfs_rule:
        char *library
        char *process
        uint8_t *peer
        uint8_t peer_prefix_bits
        uint8_t role
        uint8_t action
        uint8_t stage
        uint8_t dscp
        uint8_t set_role
        char *communicator
    struct mfs_hello:
        uint64_t magic
        uint16_t major
        uint16_t minor
        uint32_t kind
        uint32_t pid
        uint32_t mode
        char *process
        char *nic_name
        uint64_t nic_guid
        uint64_t nic_rate_bytes_per_s
    struct mfs_welcome:
        uint64_t magic
        uint16_t major
        uint16_t minor
        int32_t error
        uint64_t segment_bytes
        uint32_t client_id
        char *reason
    struct mfs_nic_reply:
        uint64_t magic
        int32_t error
        uint32_t nic

cdef extern from * nogil:
    uint8_t mfs_dscp(const mfs_segment *segment, unsigned wire_class)

cdef extern from "mfs/window.h" nogil:
    cdef struct mfs_window:
        pass

    cdef struct mfs_window_config:
        uint64_t rate_bytes_per_s
        uint64_t window_ns
        uint64_t window_bytes_min

    cdef struct mfs_passage:
        uint64_t entered_ns
        uint64_t due_ns
        uint64_t bytes
        uint16_t destination

    cdef struct mfs_destination_window:
        uint64_t key
        uint64_t window_bytes
        uint64_t in_flight_bytes
        uint64_t rate_bytes_per_s

    int mfs_window_create(const mfs_window_config *config, mfs_window **window)
    void mfs_window_destroy(mfs_window *window)
    int mfs_window_set_rate(mfs_window *window, uint64_t rate_bytes_per_s, uint64_t now_ns)
    void mfs_window_set_drain(mfs_window *window, double bytes_per_s, uint64_t now_ns)
    uint16_t mfs_window_destination(mfs_window *window, uint64_t key, uint64_t destination_key, uint64_t now_ns)
    uint16_t mfs_window_destination_next(const mfs_window *window, uint16_t destination)
    bint mfs_window_destination_give(mfs_window *window, uint16_t destination)
    int mfs_window_room(mfs_window *window, uint16_t destination, uint64_t size_bytes, uint64_t now_ns, uint64_t *at_ns)
    void mfs_window_enter(mfs_window *window, uint16_t destination, uint64_t size_bytes, uint64_t now_ns, mfs_passage *passage)
    void mfs_window_complete(mfs_window *window, const mfs_passage *passage, uint64_t now_ns)
    void mfs_window_leave(mfs_window *window, const mfs_passage *passage, bint overdue, uint64_t now_ns)
    uint64_t mfs_window_bytes(const mfs_window *window)
    uint64_t mfs_window_in_flight(const mfs_window *window)
    uint64_t mfs_window_backlog(mfs_window *window, uint64_t now_ns)
    void mfs_window_snapshot(const mfs_window *window, uint16_t destination, mfs_destination_window *to)


cdef extern from "mfs/policy.h" nogil:
    enum:
        MFS_LEVELS_MAX, MFS_RENEWAL_BUDGETS, MFS_SIZE_NONE, MFS_LATE_SIZES
        MFS_TIER_CRITICAL, MFS_TIER_EARLY, MFS_TIER_LAST, MFS_TIER_SCAVENGER
        MFS_VARIANT_MFS, MFS_VARIANT_PAPER, MFS_EARLY_RANK, MFS_EARLY_COLLECTIVE_FIRST, MFS_EARLY_SHORTEST
        MFS_OWNER_BATCH, MFS_OWNER_UNKNOWN, MFS_OWNER_REQUEST, MFS_OWNER_FLOW
    const uint32_t MFS_RANK_NONE
    const uint64_t MFS_TIME_MAX
    const uint64_t MFS_TIME_NEVER
    const double MFS_THRESHOLD_TOP
    const double MFS_THRESHOLD_BASE
    const uint64_t MFS_LOAD_TIME_CONSTANT_NS
    struct mfs_policy:
        double *threshold
        uint32_t levels
        uint32_t classes
        uint32_t early_order
    struct mfs_parameter:
        const char *name
        double fallback
        double least
        double most
        uint32_t kind
    enum:
        MFS_PARAMETER_DOUBLE
    const mfs_parameter *mfs_policy_parameter(uint32_t index)
    void mfs_policy_set(mfs_policy *policy, const mfs_parameter *parameter, double value)
    struct mfs_early_facts:
        uint64_t now_ns
        uint64_t rate_bytes_per_s
        uint64_t bytes
        uint64_t needed_ns
        uint32_t rank
        uint32_t rli
        uint8_t owner
        uint8_t stage
    struct mfs_decision:
        uint8_t level
        bint critical
        bint lost
    struct mfs_last_facts:
        uint64_t now_ns
        uint64_t rate_bytes_per_s
        uint64_t deadline_ns
        uint64_t budget_ns
        uint64_t bytes
        uint64_t bytes_tail
        uint64_t compute_end_ns
        int64_t unit_slack_ns
        double rho
        mfs_decision decision
        bint pruned
    struct mfs_order_key:
        uint32_t tier
        uint32_t first
        uint64_t second
        uint32_t third
    struct mfs_place:
        mfs_order_key key
        uint8_t tier
        uint8_t wire_class
        bint late
    struct mfs_reasons:
        int64_t laxity_ns
        int64_t guard_ns
        uint64_t due_ns
        uint64_t effective_rate_bytes_per_s
        int64_t level_ns
    void mfs_policy_reasons(const mfs_policy *policy, const mfs_last_facts *facts, mfs_reasons *reasons)
    void mfs_policy_default(mfs_policy *policy, uint32_t classes)
    int mfs_policy_check(mfs_policy *policy)
    mfs_decision mfs_policy_first(const mfs_policy *policy)
    void mfs_policy_place_early(const mfs_policy *policy, const mfs_early_facts *facts, bint pruned, mfs_place *place)
    void mfs_policy_place_last(const mfs_policy *policy, const mfs_last_facts *facts, mfs_place *place)
    uint64_t mfs_policy_evaluate(const mfs_policy *policy, mfs_last_facts *facts)

cdef extern from "mfs/rmlq.h" nogil:
    enum:
        MFS_FLOWS_MAX, MFS_DESTINATIONS_MAX
    struct mfs_flow:
        uint64_t bytes
        uint64_t request
        uint64_t batch
        uint64_t deadline_ns
        uint64_t cookie
        uint16_t layer
        uint16_t destination
        uint8_t stage
    struct mfs_pick:
        uint64_t handle
        uint64_t cookie
        uint64_t bytes
        uint32_t rli
        uint8_t tier
        uint8_t level
        uint8_t wire_class
        uint8_t in_flight
        uint16_t destination
    struct mfs_batch_context:
        uint32_t layer_current
        uint32_t layers
        uint32_t rank
        uint32_t pruned
        uint64_t deadline_ns
        uint64_t compute_left_ns
    struct mfs_request_context:
        uint64_t deadline_ns
        uint64_t budget_ns
        uint64_t bytes_ahead
        uint64_t bytes_tail
    struct mfs_rmlq_snapshot:
        mfs_pick place
        uint64_t arrival
        uint32_t rank
        uint8_t batch_announced
        uint8_t batch_pruned
        uint64_t compute_end_ns
        uint64_t deadline_ns
        uint64_t budget_ns
        uint64_t bytes_left
        uint64_t bytes_ahead
        uint64_t bytes_tail
        uint8_t level
        uint8_t critical
        uint8_t lost
        uint8_t pruned
    struct mfs_rmlq_facts:
        uint64_t rate_bytes_per_s
        double rho
        int64_t unit_slack_ns
    struct mfs_rmlq_stats_t "mfs_rmlq_stats":
        uint64_t *waiting_bytes
        uint64_t *waiting_tasks
        uint64_t in_flight_bytes
        uint64_t in_flight_tasks
        uint64_t promotions
        uint64_t looks
        uint32_t requests
        uint32_t batches
    struct mfs_rmlq:
        pass
    int mfs_rmlq_create(const mfs_policy *policy, uint64_t rate, uint32_t flows_max, mfs_rmlq **queue)
    void mfs_rmlq_destroy(mfs_rmlq *queue)
    int mfs_rmlq_submit(mfs_rmlq *queue, const mfs_flow *flow, uint64_t now_ns, uint64_t *handle)
    int mfs_rmlq_peek(mfs_rmlq *queue, uint64_t now_ns, mfs_pick *pick)
    int mfs_rmlq_pick(mfs_rmlq *queue, uint64_t now_ns, mfs_pick *pick)
    void mfs_rmlq_destination_close(mfs_rmlq *queue, uint16_t destination)
    void mfs_rmlq_destination_open(mfs_rmlq *queue, uint16_t destination)
    int mfs_rmlq_place(mfs_rmlq *queue, uint64_t handle, mfs_pick *pick)
    int mfs_rmlq_promote(mfs_rmlq *queue, uint64_t handle, uint32_t level)
    int mfs_rmlq_complete(mfs_rmlq *queue, uint64_t handle, uint64_t bytes)
    int mfs_rmlq_cancel(mfs_rmlq *queue, uint64_t handle)
    int mfs_rmlq_batch(mfs_rmlq *queue, uint64_t batch, const mfs_batch_context *context, uint64_t now_ns)
    int mfs_rmlq_batch_end(mfs_rmlq *queue, uint64_t batch)
    int mfs_rmlq_request(mfs_rmlq *queue, uint64_t request, const mfs_request_context *context, uint64_t now_ns)
    int mfs_rmlq_request_end(mfs_rmlq *queue, uint64_t request)
    int mfs_rmlq_prune(mfs_rmlq *queue, uint64_t request)
    int mfs_rmlq_unprune(mfs_rmlq *queue, uint64_t request)
    int mfs_rmlq_set_load(mfs_rmlq *queue, double rho)
    int mfs_rmlq_set_rate(mfs_rmlq *queue, uint64_t rate_bytes_per_s)
    uint64_t mfs_rmlq_advance(mfs_rmlq *queue, uint64_t now_ns)
    uint32_t mfs_rmlq_waiting(const mfs_rmlq *queue)
    uint32_t mfs_rmlq_waiting_at(const mfs_rmlq *queue, uint16_t destination)
    void mfs_rmlq_stats_read "mfs_rmlq_stats"(mfs_rmlq *queue, mfs_rmlq_stats_t *stats)

cdef extern from "mfs/arbiter.h" nogil:
    enum:
        MFS_CLIENTS_MAX
        MFS_CPUS_MAX
    struct mfs_arbiter:
        pass
    struct mfs_arbiter_config:
        mfs_policy policy
        uint64_t epoch
        uint64_t heartbeat_ns
        uint64_t stale_after_ns
        uint64_t max_hold_ns
        uint64_t window_ns
        uint64_t window_bytes_min
        uint64_t quiet_ns
        uint64_t gate_max_ns
        uint64_t spin_ns
        uint64_t torn_slot_ns
        uint64_t load_time_constant_ns
        uint64_t rate_default_bytes_per_s
        uint32_t tasks_max
        uint64_t *cpus
        mfs_mode mode
    struct mfs_change:
        uint32_t client_id
        uint32_t slot
    struct mfs_batch_snapshot:
        uint64_t batch_id
        uint64_t deadline_ns
        uint64_t compute_left_ns
        uint32_t layers
        uint32_t layer_current
        uint32_t rank
        uint32_t requests
        uint32_t demands
    struct mfs_request_snapshot:
        uint64_t request_id
        uint64_t program_id
        uint64_t deadline_ns
        uint64_t budget_ns
        uint32_t value
        uint32_t flags
        uint32_t rank
        uint32_t tokens_left
        uint32_t pruned
        uint32_t demands
    struct mfs_demand_snapshot:
        uint64_t bytes
        uint64_t bytes_left
        uint8_t *peer
        uint16_t layer
        uint8_t stage
        uint8_t nic
        uint8_t direction
    struct mfs_task_snapshot:
        uint64_t task
        uint64_t bytes
        uint64_t submit_ns
        uint64_t request_id
        uint64_t batch_id
        uint64_t deadline_ns
        uint32_t in_flight
        uint16_t layer
        uint8_t stage
        uint8_t nic
        uint8_t direction
        uint8_t wire_class
        uint8_t queued
        mfs_rmlq_snapshot why
    struct mfs_nic_stats_t "mfs_nic_stats":
        char *name
        uint64_t guid
        uint64_t rate_bytes_per_s
        uint64_t window_bytes
        uint64_t *in_flight_bytes
        uint64_t unscheduled_in_flight_bytes
        uint64_t *held_bytes
        uint64_t *held_tasks
        uint64_t *in_flight_class_bytes
        uint64_t *granted_bytes
        uint64_t *grants
        uint64_t promotions
        uint64_t wait_ns
        double *load
        uint64_t carried_bytes[2][8]
        uint64_t unscheduled_carried_bytes
        uint64_t passed_bytes
        double *used
    struct mfs_client_stats_t "mfs_client_stats":
        uint32_t client_id
        uint32_t state
        int32_t detach_reason
        uint64_t submits
        uint64_t grants
        uint64_t taken
        uint64_t completes
        uint64_t cancels
        uint64_t torn_slots
        uint64_t bad_messages
        uint64_t held_bytes
        uint64_t in_flight_bytes
        uint64_t *posted_bytes
        uint64_t *completed_bytes
        uint64_t *collective_bytes
        uint32_t *queue_pairs
        uint64_t report_held_bytes
        uint64_t report_permits
        uint64_t bypassed_overflow
        uint64_t bypassed_hold
        uint64_t bypassed_stale
        uint64_t hold_ns
    struct mfs_communicator_snapshot:
        uint64_t id
        char *name
        uint32_t rank
        uint32_t ranks
        uint64_t operations
        uint64_t operation_bytes
        uint64_t work_requests
        uint64_t batch_bytes
        uint64_t *bytes
        uint32_t batch
        uint32_t layer
    int mfs_arbiter_communicators(mfs_arbiter *arbiter, uint32_t client_id, mfs_communicator_snapshot *communicators)
    struct mfs_arbiter_stats_t "mfs_arbiter_stats":
        uint64_t loops
        uint64_t wakeups
        uint64_t messages
        uint64_t grants
        uint64_t cpu_ns
        uint32_t clients
        uint32_t nics
    int mfs_arbiter_create(const mfs_arbiter_config *config, mfs_arbiter **arbiter)
    int mfs_arbiter_start(mfs_arbiter *arbiter)
    void mfs_arbiter_destroy(mfs_arbiter *arbiter)
    int mfs_arbiter_client_add(mfs_arbiter *arbiter, int *memfd, int *doorbell)
    int mfs_arbiter_client_remove(mfs_arbiter *arbiter, uint32_t client_id)
    int mfs_arbiter_nic(mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s)
    int mfs_arbiter_rules(mfs_arbiter *arbiter, const mfs_rule *rules, int n)
    int mfs_arbiter_mode(mfs_arbiter *arbiter, mfs_mode mode)
    int mfs_arbiter_batch_rank(mfs_arbiter *arbiter, uint32_t client, uint64_t batch, uint32_t rank)
    int mfs_arbiter_wire(mfs_arbiter *arbiter, const uint8_t *dscp)
    int mfs_arbiter_notice_fd(const mfs_arbiter *arbiter)
    int mfs_arbiter_changed(mfs_arbiter *arbiter, mfs_change *change, mfs_batch_snapshot *batch,
                            mfs_request_snapshot *requests, mfs_demand_snapshot *demands)
    int mfs_arbiter_batch_snapshot(mfs_arbiter *arbiter, uint32_t client, uint32_t slot, mfs_batch_snapshot *batch,
                               mfs_request_snapshot *requests, mfs_demand_snapshot *demands)
    struct mfs_far_port:
        uint8_t *peer
        uint32_t hash
        uint32_t direction
        uint64_t rate_bytes_per_s
        uint64_t owed_ns
    int mfs_arbiter_outlook_fd(const mfs_arbiter *arbiter)
    int mfs_arbiter_outlook(mfs_arbiter *arbiter, mfs_far_port *fars, uint32_t fars_count, uint64_t *pruned,
                            uint32_t pruned_count, uint64_t far_valid_until_ns)
    int mfs_arbiter_waiting(mfs_arbiter *arbiter, uint32_t *client_id, mfs_request_snapshot *requests,
                            uint32_t *requests_count, mfs_demand_snapshot *demands)
    int mfs_arbiter_request_prune(mfs_arbiter *arbiter, uint32_t client, uint64_t request, int pruned)
    int mfs_arbiter_tasks(mfs_arbiter *arbiter, uint32_t client, uint32_t first, mfs_task_snapshot *tasks, int n,
                          uint32_t *next)
    int mfs_arbiter_facts(mfs_arbiter *arbiter, uint32_t nic, uint32_t direction, mfs_rmlq_facts *facts)
    int mfs_arbiter_stats_read "mfs_arbiter_stats"(mfs_arbiter *arbiter, mfs_arbiter_stats_t *stats)
    int mfs_arbiter_nic_stats_read "mfs_arbiter_nic_stats"(mfs_arbiter *arbiter, uint32_t nic, mfs_nic_stats_t *stats)
    int mfs_arbiter_client_stats_read "mfs_arbiter_client_stats"(
        mfs_arbiter *arbiter, uint32_t client_id, mfs_client_stats_t *stats)

cdef extern from * nogil:
    """
    #include <mfs/outlook.h>
    static const uint64_t mfs_outlook_unknown = MFS_OUTLOOK_UNKNOWN;
    """
    const uint64_t mfs_outlook_unknown

cdef extern from "mfs/outlook.h" nogil:
    enum:
        MFS_OUTLOOK_TIERS, MFS_OUTLOOK_FARS_MAX, MFS_OUTLOOK_PRUNED_MAX, MFS_OUTLOOK_MINOR
    struct mfs_outlook_port:
        uint64_t rate_bytes_per_s
        uint64_t *waiting_bytes
        uint64_t in_flight_bytes
        uint64_t achieved_bytes_per_s
        uint64_t unscheduled_bytes_per_s
    struct mfs_outlook_far:
        uint64_t *peer
        uint64_t direction
        uint64_t rate_bytes_per_s
        uint64_t owed_ns
        uint64_t achieved_bytes_per_s
    struct mfs_outlook:
        uint64_t epoch
        uint32_t ports
        uint32_t fars
        uint32_t pruned
        uint64_t written_ns
        uint64_t valid_until_ns
        uint64_t far_valid_until_ns
        mfs_outlook_port *port
        mfs_outlook_far *far
        uint64_t *pruned_request

cdef extern from "mfs/client.h" nogil:
    struct mfs_port_outlook:
        uint64_t rate_bytes_per_s
        uint64_t *waiting_bytes
        uint64_t in_flight_bytes
        uint64_t achieved_bytes_per_s
        uint64_t unscheduled_bytes_per_s
    struct mfs_far_outlook:
        uint64_t rate_bytes_per_s
        uint64_t owed_ns
        uint64_t achieved_bytes_per_s
    struct mfs_client:
        pass
    struct mfs_client_options:
        const char *socket_path
        const char *process
        mfs_mode mode
        unsigned timeout_ms
    struct mfs_task:
        uint64_t bytes
        uint64_t request_id
        uint64_t deadline_ns
        uint32_t batch
        uint16_t layer
        uint8_t stage
        uint8_t nic
        uint8_t role
        bint class_marked
        bint incoming
        bint at_once
        uint32_t peer
        uint32_t queue
    struct mfs_permit:
        uint64_t task_id
        void *cookie
        uint32_t wire_class
    struct mfs_demand_info:
        uint64_t bytes
        uint8_t *peer
        uint16_t layer
        uint8_t stage
        uint8_t nic
        uint8_t direction
    struct mfs_request_info:
        uint64_t request_id
        uint64_t program_id
        uint64_t deadline_ns
        uint64_t budget_ns
        uint32_t value
        uint32_t flags
        uint32_t rank
        uint32_t tokens_left
        const mfs_demand_info *demands
        uint32_t demands_count
    struct mfs_batch_info:
        uint64_t batch_id
        uint32_t layers
        uint64_t deadline_ns
        uint64_t compute_ns
        const mfs_request_info *requests
        uint32_t requests_count
        uint32_t *request_slots
    void *MFS_COOKIE_NONE
    int mfs_client_attach(const mfs_client_options *options, mfs_client **client, const char **why)
    uint32_t mfs_peer_hash(const uint8_t *gid)
    uint32_t mfs_client_minor(const mfs_client *client)
    void mfs_client_detach(mfs_client *client)
    void mfs_client_forget(mfs_client *client)
    int mfs_client_outlook_port(const mfs_client *client, unsigned nic, unsigned direction, uint64_t now_ns,
                                mfs_port_outlook *port)
    int mfs_client_outlook_far(const mfs_client *client, const uint8_t *peer, unsigned direction, uint64_t now_ns,
                               mfs_far_outlook *far)
    int mfs_client_pruned(const mfs_client *client, uint64_t request_id, uint64_t now_ns)
    int mfs_client_fetch_ns(const mfs_client *client, unsigned nic, uint64_t size_bytes, const uint8_t *peer,
                            uint64_t deadline_ns, uint64_t *ns)
    uint64_t mfs_fetch_forecast(uint64_t size_bytes, const mfs_port_outlook *own, const mfs_far_outlook *far, unsigned tier)
    int mfs_client_outlook(const mfs_client *client, uint64_t now_ns, mfs_outlook *copy)
    int mfs_client_permit(mfs_client *client, uint64_t task_id)
    int mfs_client_permit_wait(mfs_client *client, uint64_t task_id, uint64_t timeout_ns)
    int mfs_client_ask(mfs_client *client, const mfs_task *task, uint64_t timeout_ns, uint64_t *task_id)
    int mfs_client_batch_begin_with(mfs_client *client, const mfs_batch_info *info)
    int mfs_client_request_begin(mfs_client *client, const mfs_request_info *info, uint32_t batch)
    int mfs_client_request_end(mfs_client *client, uint32_t request)
    uint32_t mfs_client_request_judgement(mfs_client *client, uint32_t request)
    int mfs_client_nic(mfs_client *client, const char *name, uint64_t guid, uint64_t rate_bytes_per_s)
    mfs_segment *mfs_client_segment(mfs_client *client)
    int mfs_client_alive(const mfs_client *client, uint64_t now_ns)
    int mfs_client_hung_up(mfs_client *client)
    int mfs_client_submit(mfs_client *client, const mfs_task *task, void *cookie, uint64_t *task_id)
    int mfs_client_permits(mfs_client *client, mfs_permit *permits, int n)
    int mfs_client_wait(mfs_client *client, uint64_t timeout_ns)
    void mfs_client_complete(mfs_client *client, uint64_t task_id)
    void mfs_client_cancel(mfs_client *client, uint64_t task_id, int bypassed)
    void mfs_client_count_posted(mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
    void mfs_client_count_completed(mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
    enum mfs_open:
        MFS_OPEN_OVERFLOW, MFS_OPEN_HOLD, MFS_OPEN_STALE
    void mfs_client_count_open(mfs_client *client, mfs_open why)
    int mfs_client_batch_layer(mfs_client *client, uint32_t batch, uint32_t layer_current)
    int mfs_client_batch_end(mfs_client *client, uint32_t batch)
    int mfs_client_rules(mfs_client *client, mfs_rule *rules, int n, uint32_t *version)
