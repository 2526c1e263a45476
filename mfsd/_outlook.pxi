# ---- the outlook page ------------------------------------------------------------------------------------------------

OutlookPort = namedtuple(
    "OutlookPort",
    "rate_bytes_per_s waiting_bytes in_flight_bytes achieved_bytes_per_s unscheduled_bytes_per_s",
)
OutlookFar = namedtuple("OutlookFar", "peer direction rate_bytes_per_s owed_ns achieved_bytes_per_s")
OutlookPage = namedtuple("OutlookPage", "epoch written_ns valid_until_ns far_valid_until_ns ports fars pruned")


cdef port_outlook_write(const mfs_port_outlook *port):
    return OutlookPort(
        port.rate_bytes_per_s, tuple([port.waiting_bytes[t] for t in range(MFS_OUTLOOK_TIERS)]), port.in_flight_bytes,
        port.achieved_bytes_per_s, port.unscheduled_bytes_per_s,
    )


cdef owed_write(uint64_t owed_ns):
    return None if owed_ns == mfs_outlook_unknown else owed_ns


cdef page_write(const mfs_outlook *page):
    cdef const mfs_outlook_port *p
    cdef const mfs_outlook_far *f
    ports, fars = [], []
    first = mfs_load_u32(&page.ports)
    for i in range(first + mfs_load_u32(&page.ports_more)):
        p = mfs_outlook_port_of(page, i)
        ports.append(OutlookPort(
            mfs_load_u64(&p.rate_bytes_per_s), tuple([mfs_load_u64(&p.waiting_bytes[t]) for t in range(MFS_OUTLOOK_TIERS)]),
            mfs_load_u64(&p.in_flight_bytes), mfs_load_u64(&p.achieved_bytes_per_s),
            mfs_load_u64(&p.unscheduled_bytes_per_s),
        ))
    for i in range(mfs_load_u32(&page.fars)):
        f = &page.far[i]
        fars.append(OutlookFar(
            (<const char *>f.peer)[:16], mfs_load_u64(&f.direction), mfs_load_u64(&f.rate_bytes_per_s),
            owed_write(mfs_load_u64(&f.owed_ns)) if mfs_load_u64(&page.far_valid_until_ns) else None,
            mfs_load_u64(&f.achieved_bytes_per_s),
        ))
    return OutlookPage(
        page.epoch, mfs_load_u64(&page.written_ns), mfs_load_u64(&page.valid_until_ns),
        mfs_load_u64(&page.far_valid_until_ns), tuple(ports), tuple(fars),
        tuple([mfs_load_u64(&page.pruned_request[i]) for i in range(mfs_load_u32(&page.pruned))]),
    )


cdef const uint8_t *peer_of(bytes peer) except? NULL:
    if not peer:
        return NULL
    if len(peer) != 16:
        raise ValueError(f"peer: {len(peer)} bytes, a GID has 16")
    return <const uint8_t *><const char *>peer


cdef mfs_fetch fetch_of(uint64_t size_bytes, far_bytes, uint64_t announced_bytes):
    cdef mfs_fetch fetch
    fetch.bytes = size_bytes
    fetch.far_bytes = size_bytes if far_bytes is None else far_bytes
    fetch.announced_bytes = announced_bytes
    return fetch


def fetch_forecast_ns(uint64_t size_bytes, own, far, unsigned tier, uint64_t announced_bytes=0, far_bytes=None):
    cdef mfs_port_outlook port
    cdef mfs_far_outlook there
    cdef mfs_fetch fetch
    port.rate_bytes_per_s, waiting, port.in_flight_bytes, port.achieved_bytes_per_s, port.unscheduled_bytes_per_s = own
    for i in range(MFS_OUTLOOK_TIERS):
        port.waiting_bytes[i] = waiting[i]
    if not port.rate_bytes_per_s:
        raise ValueError("own.rate_bytes_per_s: 0, a port has a rate")
    if far is not None:
        there.rate_bytes_per_s, owed, there.achieved_bytes_per_s = far
        there.owed_ns = mfs_outlook_unknown if owed is None else owed
    fetch = fetch_of(size_bytes, far_bytes, announced_bytes)
    return mfs_fetch_forecast(&fetch, &port, NULL if far is None else &there, <mfs_tier>tier)
