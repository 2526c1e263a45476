"""A process's connection to the daemon of its node: made, kept up and made again; no caller waits for it."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

from mfsd._native import ABI_MINOR, Client, Mode, Settled
from mfsd.client.shim import Shim

log = logging.getLogger("mfsd.client")

RETRY_S = 0.5
"""Between two attempts to reach a daemon that is not there, and two checks of one that does not answer."""


class Attachment:
    """Holds the native client. A client that is replaced stays mapped for as long as something refers to it, so no call
    is ever cut off. `settled.client` is the one that `client()` would answer while its daemon lives, or None: one load.
    """

    def __init__(
        self,
        socket_path: str | None,
        process: str | None,
        mode: Mode,
        settled: Settled,
        prepare: Callable[[Client], None],
        attached: Callable[[Client], None],
        shim: Shim | None,
    ) -> None:
        """`prepare` gets every new client before any other thread sees it, `attached` right after."""
        self._socket_path, self._process, self._mode = socket_path, process, mode
        self._prepare, self._attached = prepare, attached
        self._shim = shim
        self._client: Client | None = None
        self.settled = settled
        self._attempt_lock = threading.Lock()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self._said: str | None = None

    def client(self) -> Client | None:
        """The client while its daemon lives; two loads. None: none does, and it is being searched for."""
        client = self._client
        if client is None or not client.alive():
            self._want()
            return None
        if self._shim is not None and not client.borrowed and self._shim.client() is not None:
            self._want()  # the shim has a session now: this process needs no second one
        return client

    def try_now(self) -> None:
        """One attempt, at most the native timeout (200 ms) long."""
        with self._attempt_lock:
            self._attempt()
        if self._client is None:
            self._want()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout=2 * RETRY_S)
        self._client = self.settled.client = None

    def forked(self) -> None:
        """In a child: the parent's client is the parent's; this process finds one of its own when it needs it."""
        if self._client is not None:
            self._client.forget()
        self._client = self.settled.client = None
        self._attempt_lock = threading.Lock()
        self._wanted = threading.Event()
        if not self._closed.is_set():
            self._closed = threading.Event()
        self._keeper = None

    # ---- searching for a daemon ------------------------------------------------------------------

    def _want(self) -> None:
        if self._wanted.is_set() or self._closed.is_set():
            return
        self._wanted.set()
        with self._attempt_lock:
            if self._keeper is None and not self._closed.is_set():
                self._keeper = threading.Thread(target=self._keep, name="mfs-attach", daemon=True)
                self._keeper.start()

    def _keep(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()
            if self._closed.is_set():
                return
            with self._attempt_lock:
                self._attempt()
            if self._client is not None and self._client.alive():
                self._wanted.clear()
            else:
                self._closed.wait(RETRY_S)

    def _attempt(self) -> None:
        client, shared = self._client, self._shim.client() if self._shim is not None else None
        if client is not None and not client.hung_up() and not client.detached():
            if client.borrowed or shared is None:
                return  # it beats again, or its daemon is stopped: the session outlives that
        else:
            self._client = self.settled.client = None
        try:
            client = self._new_client(shared)
        except OSError as error:
            self._say(f"no daemon: {error.strerror}; transfers go unscheduled until there is one")
            return
        self._prepare(client)
        self._client = client
        self.settled.client = client if self._shim is None or client.borrowed else None
        self._attached(client)
        older = f" to a daemon of ABI minor {client.minor}, older than {ABI_MINOR}: used as far as it goes"
        self._say("attached" + (older if client.minor < ABI_MINOR else ""))

    def _new_client(self, shared: int | None) -> Client:
        """The shim's, once it has one: it attaches when the program opens its first RDMA device."""
        if shared is None:
            return Client.attach(self._socket_path, process=self._process, mode=self._mode)
        client = Client.borrow(shared)
        if not client.alive():
            raise OSError(errno.ENOTCONN, "the preloaded shim's does not answer")
        return client

    def _say(self, what: str) -> None:
        """What repeats is logged once."""
        if what != self._said:
            log.info("%s", what)
        self._said = what


class Unattached(Attachment):
    """Of a process that asks no daemon: none is looked for, no socket is opened, no thread is started."""

    def __init__(self) -> None: ...  # there is nothing to keep

    def client(self) -> Client | None:
        return None

    def try_now(self) -> None: ...

    def close(self) -> None: ...

    def forked(self) -> None: ...
