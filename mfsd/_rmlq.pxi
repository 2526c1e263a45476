# ---- queue -----------------------------------------------------------------------------------------------------------

Pick = namedtuple("Pick", "handle cookie bytes rli tier level wire_class in_flight destination")


cdef pick_write(const mfs_pick *p):
    return Pick(p.handle, p.cookie, p.bytes, p.rli, p.tier, p.level, p.wire_class, bool(p.in_flight), p.destination)


cdef uint16_t destination_checked(uint16_t destination) except? 0xffff:
    if destination >= MFS_DESTINATIONS_MAX:
        raise ValueError(f"destination: {destination}, use one below {MFS_DESTINATIONS_MAX}")
    return destination


cdef class Rmlq:
    cdef mfs_rmlq *queue

    def __init__(self, uint64_t rate_bytes_per_s, *, policy=Policy(), uint32_t flows_max=4096,
                 bint incoming=False):
        cdef mfs_policy native
        if self.queue is not NULL:
            raise RuntimeError("an Rmlq is initialised once")
        policy_read(&native, policy)
        check(mfs_rmlq_create(&native, rate_bytes_per_s, flows_max, &self.queue))
        if incoming:
            mfs_rmlq_set_incoming(self.queue)

    def __dealloc__(self):
        mfs_rmlq_destroy(self.queue)

    def submit(self, uint64_t now_ns, uint64_t size_bytes, *, uint8_t stage, uint64_t request=0, uint64_t batch=0,
               uint64_t deadline_ns=0, uint64_t cookie=0, uint16_t layer=0, uint16_t destination=0,
               uint64_t left_bytes=0):
        cdef mfs_flow flow
        cdef uint64_t handle = 0
        memset(&flow, 0, sizeof(flow))
        flow.bytes = size_bytes
        flow.bytes_left = left_bytes
        flow.request = request
        flow.batch = batch
        flow.deadline_ns = deadline_ns
        flow.cookie = cookie
        flow.layer = layer
        flow.destination = destination_checked(destination)
        flow.stage = stage
        check(mfs_rmlq_submit(self.queue, &flow, now_ns, &handle))
        return handle

    def peek(self, uint64_t now_ns):
        cdef mfs_pick pick
        cdef int rc = mfs_rmlq_peek(self.queue, now_ns, &pick)
        if rc == -EAGAIN:
            return None
        check(rc)
        return pick_write(&pick)

    def pick(self, uint64_t now_ns):
        cdef mfs_pick pick
        cdef int rc = mfs_rmlq_pick(self.queue, now_ns, &pick)
        if rc == -EAGAIN:
            return None
        check(rc)
        return pick_write(&pick)

    def close_destination(self, uint16_t destination):
        mfs_rmlq_destination_close(self.queue, destination_checked(destination))

    def open_destination(self, uint16_t destination):
        mfs_rmlq_destination_open(self.queue, destination_checked(destination))

    def place(self, uint64_t handle):
        cdef mfs_pick pick
        check(mfs_rmlq_place(self.queue, handle, &pick))
        return pick_write(&pick)

    def complete(self, uint64_t handle, size_bytes=None):
        cdef uint64_t size = <uint64_t>-1 if size_bytes is None else size_bytes
        return bool(check(mfs_rmlq_complete(self.queue, handle, size)))

    def cancel(self, uint64_t handle):
        check(mfs_rmlq_cancel(self.queue, handle))

    def batch(self, uint64_t now_ns, uint64_t batch, *, uint32_t layer_current=0, uint32_t layers=0, rank=None,
              bint pruned=False, uint64_t deadline_ns=0, uint64_t compute_left_ns=0):
        cdef mfs_batch_context context
        memset(&context, 0, sizeof(context))
        context.layer_current = layer_current
        context.layers = layers
        context.rank = MFS_RANK_NONE if rank is None else rank
        context.pruned = pruned
        context.deadline_ns = deadline_ns
        context.compute_left_ns = compute_left_ns
        check(mfs_rmlq_batch(self.queue, batch, &context, now_ns))

    def batch_end(self, uint64_t batch):
        check(mfs_rmlq_batch_end(self.queue, batch))

    def request(self, uint64_t now_ns, uint64_t request, *, uint64_t deadline_ns=0, uint64_t budget_ns=0,
                uint64_t bytes_ahead=0, uint64_t bytes_tail=0):
        cdef mfs_request_context context
        memset(&context, 0, sizeof(context))
        context.deadline_ns = deadline_ns
        context.budget_ns = budget_ns
        context.bytes_ahead = bytes_ahead
        context.bytes_tail = bytes_tail
        check(mfs_rmlq_request(self.queue, request, &context, now_ns))

    def request_end(self, uint64_t request):
        check(mfs_rmlq_request_end(self.queue, request))

    def prune(self, uint64_t request):
        check(mfs_rmlq_prune(self.queue, request))

    def unprune(self, uint64_t request):
        check(mfs_rmlq_unprune(self.queue, request))

    def set_load(self, double rho):
        check(mfs_rmlq_set_load(self.queue, rho))

    def set_rate(self, uint64_t rate_bytes_per_s):
        check(mfs_rmlq_set_rate(self.queue, rate_bytes_per_s))

    def advance(self, uint64_t now_ns):
        cdef uint64_t at_ns = mfs_rmlq_advance(self.queue, now_ns)
        return None if at_ns == MFS_TIME_NEVER else at_ns

    def waiting(self):
        return mfs_rmlq_waiting(self.queue)

    def waiting_at(self, uint16_t destination):
        return mfs_rmlq_waiting_at(self.queue, destination_checked(destination))

    def stats(self):
        cdef mfs_rmlq_stats_t s
        mfs_rmlq_stats(self.queue, &s)
        return {
            "waiting_bytes": numbers_u64(s.waiting_bytes, MFS_CLASSES_MAX),
            "waiting_tasks": numbers_u64(s.waiting_tasks, MFS_CLASSES_MAX),
            "in_flight_bytes": s.in_flight_bytes,
            "in_flight_tasks": s.in_flight_tasks,
            "promotions": s.promotions,
            "evaluations": s.evaluations,
            "requests": s.requests,
            "batches": s.batches,
        }
