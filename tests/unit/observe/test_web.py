"""The coordinator's page, in a real browser: what is asked first is shown first, of three ports and of two thousand,
wide and narrow, light and dark; nothing foreign is executed or fetched.

`make screenshots` takes the pictures of the documents anew.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mfsd.observe.web import GZIP_LEAST, PAGE, Answer, serve
from mfsd.proto import mfs_pb2 as pb
from tests.support.browser import Browser
from tests.support.shown_cluster import Shown, large, leader, lives, served, small

SHOWN = "document.querySelector('#nodes tbody tr td') && document.querySelector('#attainment line')"
WIDE, NARROW, HEIGHT = 1280, 400, 900
PICTURES = {(2048, WIDE, True): "page-2048-ports", (3, NARROW, False): "page-narrow"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def few() -> Iterator[str]:
    with served(Shown(small(), lives(4242))) as url:
        yield url


@pytest.fixture(scope="module")
def many() -> Iterator[str]:
    with served(Shown(large(), lives(4242))) as url:
        yield url


def rows(browser: Browser, table: str) -> list[str]:
    return list(
        browser.evaluate(
            f"[...document.querySelectorAll('#{table} tbody tr')]"
            ".map(tr => [...tr.cells].map(td => td.textContent).join(' | '))"
        )
    )


def numbers(browser: Browser) -> dict[str, str]:
    pairs = browser.evaluate(
        "[...document.querySelectorAll('#numbers div')].map(d => [...d.children].map(e => e.textContent))"
    )
    return dict(pairs)


def place(browser: Browser, selector: str) -> list[float]:
    """Left, top, width and height."""
    box = f"document.querySelector('{selector}').getBoundingClientRect()"
    return list(browser.evaluate(f"(r => [r.x, r.y, r.width, r.height])({box})"))


def picture(browser: Browser, name: str) -> None:
    folder = os.environ.get("MFS_SCREENSHOTS")
    if folder:
        browser.picture(Path(folder) / f"{name}.png")


def test_what_is_asked_first_is_said_first(browser: Browser, few: str) -> None:
    browser.open(few, WIDE, HEIGHT)
    browser.until(SHOWN)
    assert browser.text("#title") == "Some requests are late"
    assert re.fullmatch(r"\d+ of \d+ missed their deadline in the last 5 minutes", browser.text("#summary"))
    points = browser.text("#points")
    assert "will be late whatever is done" in points and "in batch 7" in points
    assert "served last" in points and "for lack of room at 10.0.0.1/in" in points
    assert "the latest late request is 9223372036854775809 at gpu-1" in points
    assert "10.0.0.1/in is full: 99 % of it is used, most of it class 6" in points
    assert browser.evaluate("document.querySelector('#ports').getBoundingClientRect().bottom") < HEIGHT, "one screen"
    picture(browser, "page")


def test_tables_have_whole_numbers_and_do_not_contradict(browser: Browser, few: str) -> None:
    browser.open(few, WIDE, HEIGHT)
    browser.until(SHOWN)
    first, second = rows(browser, "batches")
    assert first == "1 | 18446744073709551615 | prefill-a | 4 | in 250 ms | none"
    assert second.startswith("2 | 7 | ") and second.endswith(" | 5 | 20 ms ago | 1 will be late, 1 pruned")
    assert rows(browser, "given") == [
        "98 | 7 | will be late with every port to itself",
        "99 | 7 | pruned: its own batch would be late at 10.0.0.1/in",
    ]
    assert [row.split(" | ")[0] for row in rows(browser, "missed")] == ["9223372036854775809", "4242"]
    assert [row.split(" | ")[:4] for row in rows(browser, "ports")] == [
        ["10.0.0.1/in", "gpu-1", "99 %", "12 %"],
        ["10.0.0.1/out", "gpu-1", "52 %", "34 %"],
        ["10.0.0.2/in", "gpu-2", "0 %", "10 %"],
    ]
    shown = numbers(browser)
    assert (shown["given up"], shown["nodes"], shown["ports"]) == ("2", "2", "3")


def test_what_programs_say_is_text(browser: Browser) -> None:
    with served(Shown(small("<img src=x onerror=\"document.title='owned'\">"))) as url:
        browser.open(url, WIDE, HEIGHT)
        browser.until(SHOWN)
        assert browser.evaluate("document.images.length") == 0
        assert browser.evaluate("document.title").startswith("MFS: ")
        assert "<img src=x" in browser.text("#batches") and "<img src=x" in browser.text("#points")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("ports", [3, 2048])
def test_it_fits_every_width_and_can_be_read(
    browser: Browser, few: str, many: str, ports: int, width: int, dark: bool
) -> None:
    browser.open(many if ports > 3 else few, width, HEIGHT, dark=dark)
    browser.until(SHOWN)
    assert browser.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out"
    assert browser.evaluate("document.querySelector('#verdict').getBoundingClientRect().bottom") < HEIGHT
    ink, paper = (
        sum(map(int, re.findall(r"\d+", browser.evaluate(f"getComputedStyle(document.body).{name}"))[:3]))
        for name in ("color", "backgroundColor")
    )
    assert (ink > 600 and paper < 120) if dark else (ink < 120 and paper > 600)
    if (ports, width, dark) in PICTURES:
        picture(browser, PICTURES[ports, width, dark])
    assert not browser.problems


def test_two_thousand_ports_are_a_map(browser: Browser, many: str) -> None:
    browser.open(many, WIDE, HEIGHT)
    browser.until(SHOWN)
    box = browser.evaluate(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#heat').getBoundingClientRect())"
    )
    assert box[3] <= 300 and box[1] + box[3] < HEIGHT
    colours = browser.evaluate("""(d => {
        const seen = new Set()
        for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 3).join())
        return seen.size
    })(document.querySelector('#heat').getContext('2d').getImageData(0, 0, 500, 250).data)""")
    assert colours >= 5, "every step of the scale"
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 4, y=box[1] + 4)
    assert browser.until("document.querySelector('#under').textContent.includes('10.0.0.0/in of gpu-000')")
    assert len(rows(browser, "ports")) == 8, "the busiest"
    browser.press(box[0] + 4, box[1] + 4)
    assert browser.until("document.querySelector('#detail h2').textContent.includes('Port 10.0.0.0/in')")
    browser.evaluate(
        "(i => { i.value = 'gpu-063'; i.dispatchEvent(new Event('input')) })(document.querySelector('#port-filter'))"
    )
    browser.until("document.querySelector('#ports-count').textContent.startsWith('32 of 2048')")


def test_a_click_on_a_request_shows_its_life(browser: Browser, few: str) -> None:
    browser.open(few, WIDE, HEIGHT)
    browser.until(SHOWN)
    browser.click('a[href="#request=4242"]')
    browser.until("document.querySelector('#detail svg.life')")
    output = browser.text("#detail")
    assert "gpu-1: engine-0, store late in batch 7" in output
    assert browser.evaluate("document.querySelectorAll('#detail svg.life rect').length") == 36, (
        "three stages, 12 layers"
    )
    assert "p2d waited 213 ms, behind p2d of engine-1, request 4240 and 3 more (240 MB): it is due earlier" in output
    assert "It had 650 ms to its deadline and was 135 ms late." in output
    titles = browser.evaluate("[...document.querySelectorAll('svg.life title')].map(t => t.textContent)")
    assert "p2d, layer 11: 60 MB, asked for after 430 ms, complete after 785 ms" in titles
    assert "deadline after 650 ms" in titles
    browser.evaluate("scrollTo(0, 0)")
    picture(browser, "page-request")
    browser.click("#detail h2 a")
    browser.until("document.querySelector('#detail').hidden")


def test_a_life_is_found_by_number_and_fits_a_telephone(browser: Browser, few: str) -> None:
    browser.open(few, NARROW, HEIGHT)
    browser.until(SHOWN)
    browser.click("#request")
    browser.call("Input.insertText", text="4242")
    browser.click("#find button")
    browser.until("document.querySelector('#detail svg.life')")
    assert browser.evaluate("document.documentElement.scrollWidth") == NARROW


def test_an_unknown_request_is_reported(browser: Browser, tmp_path: Path) -> None:
    with served(Shown(small(), {"gpu-2": lives(1)["gpu-2"]})) as url:
        browser.open(url + "#request=5", WIDE, HEIGHT)
        browser.until("document.querySelector('#detail p.none')?.textContent.includes('none of 1 nodes knows it')")


def test_a_batch_shows_its_requests(browser: Browser, few: str) -> None:
    browser.open(few + "#batch=7", WIDE, HEIGHT)
    browser.until("document.querySelector('#detail table')")
    output = browser.text("#detail").replace("\t", " ")
    assert re.search(r"98 20 ms ago 1 GB 10\.0\.0\.1/in 20 ms will be late", output)
    assert re.search(r"100 no deadline 4\.1 kB - - can be in time", output)


def test_a_port_is_shown_by_class(browser: Browser, few: str) -> None:
    browser.open(few + "#port=10.0.0.1%2Fout", WIDE, HEIGHT)
    browser.until("document.querySelector('#detail .bar')")
    output = browser.text("#detail")
    assert "of gpu-1, 400 Gbit/s: 52 % used of late, 34 % goes first (load)" in output
    assert "class 0 2 %class 3 13 %collectives and control 34 %without a permit 3 %" in output


def test_pointing_at_the_history_says_what_was(browser: Browser, few: str) -> None:
    browser.open(few, WIDE, HEIGHT)
    browser.until(SHOWN)
    box = place(browser, "#load")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * 0.62, y=box[1] + 40)
    browser.until("/min ago: .*class 6/.test(document.querySelector('#load-at').textContent)")
    assert "late" in browser.text("#attainment-at")


def test_an_idle_cluster_says_what_to_do(browser: Browser) -> None:
    with served(Shown(leader())) as url:
        browser.open(url, WIDE, HEIGHT)
        browser.until(SHOWN)
        assert browser.text("#title") == "No daemon is connected"
        assert "add this coordinator to [cluster] coordinators of each daemon" in browser.text("#points")
        assert rows(browser, "batches") == ["no batch is under way"]
        assert numbers(browser)["in time, last 20 s"] == numbers(browser)["last 5 min"] == "-"


def test_a_coordinator_that_is_gone_is_reported(browser: Browser) -> None:
    with served(Shown(small())) as url:
        browser.open(url, WIDE, HEIGHT)
        browser.until(SHOWN)
    browser.until("!document.querySelector('#lost').hidden")
    assert "What is below is old" in browser.text("#lost")
    browser.problems.clear()  # that it cannot be loaded


def fetch(url: str, packed: bool = False) -> tuple[bytes, Any]:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"} if packed else {})
    with urllib.request.urlopen(request, timeout=100) as answer:
        return answer.read(), answer.headers


def test_what_is_sent_each_second_is_small(many: str) -> None:
    key = json.loads(fetch(f"{many}view.json")[0])["ports"]["key"]
    body, headers = fetch(f"{many}view.json?ports={key}", packed=True)
    assert headers["Content-Encoding"] == "gzip" and len(body) < 10_000
    fields = json.loads(gzip.decompress(body))
    assert "names" not in fields["ports"] and "history" not in fields and len(fields["ports"]["used"]) == 2048
    assert len(fields["batches"]) == 50 and len(fields["given_up"]) == 50
    again = json.loads(fetch(f"{many}view.json?ports=other&history=1")[0])
    assert len(again["ports"]["names"]) == 2048 and len(again["history"]["rows"]) == 360


def test_nothing_is_fetched_from_elsewhere() -> None:
    for file in PAGE.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.findall(r"https?://|url\(|@import|innerHTML|eval\(", text), file.name
        assert set(re.findall(r'(?:src|href)="([^"#]+)', text)) <= {"main.js", "page.css", "data:,"}
        assert all(name.startswith("./") for name in re.findall(r'from "([^"]+)"', text))


def test_only_reading_is_served() -> None:
    async def ask() -> dict[str, int]:
        found = {}
        with serve(
            "127.0.0.1", 0, {"/a.json": lambda query: Answer("200 OK", "text/plain", b"x" * GZIP_LEAST)}
        ) as port:
            for method, path in (
                ("GET", "/"), ("GET", "/main.js"), ("GET", "/a.json?b=1"), ("GET", "/etc/passwd"),
                ("GET", "/../web.py"), ("POST", "/"),
            ):  # fmt: skip
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
                try:
                    answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=100)
                    found[f"{method} {path}"] = answer.status
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                except urllib.error.HTTPError as error:
                    found[f"{method} {path}"] = error.code
        return found

    assert asyncio.run(ask()) == {
        "GET /": 200, "GET /main.js": 200, "GET /a.json?b=1": 200, "GET /etc/passwd": 404, "GET /../web.py": 404,
        "POST /": 405,
    }  # fmt: skip


def tiers(nodes: int) -> pb.StatusReply:
    """One tier with so many late requests at each node as its number."""
    reply = small()
    del reply.nodes[:]
    for number in range(nodes):
        node = reply.nodes.add(node=f"gpu-{number}", connected=True)
        node.tiers.tiers.add(name="chat", met=100 - number, late=number, engines=8, policies={"fit": 8})
    reply.nodes[0].tiers.unreadable = 1
    late = nodes * (nodes - 1) // 2
    total = reply.tiers.add(nodes=nodes).tier
    total.MergeFrom(pb.RequestTier(name="chat", met=100 * nodes - late, late=late, relegated=4, engines=8 * nodes))
    total.policies.update({"fit": 8 * nodes - 1, "<b>": 1})
    return reply


def test_tiers_of_requests_are_a_table_of_all_nodes_and_one_by_node(browser: Browser) -> None:
    with served(Shown(tiers(60))) as url:
        browser.open(url, WIDE, HEIGHT)
        browser.until("document.querySelector('#tiers tbody tr td')")
        assert rows(browser, "tiers") == ["chat | 70.5 % | 4230 | 1770 | 0 | 0 | 0 | 4 | 0 | 60 | 480 | <b> 1, fit 479"]
        by_node = rows(browser, "tiers-by-node")
        assert by_node[0] == "gpu-59 | chat | 41 % | 41 | 59 | 0 | 0 | 0 | 0 | 0 | 8 | fit"
        assert len(by_node) == 50 and browser.text("#tiers-count") == "50 of 60, most late first"
        assert "gpu-0: 1 status file of its engines cannot be read" in browser.text("#points")
        assert not browser.problems


def test_without_engines_that_publish_there_is_no_table_of_tiers(browser: Browser, few: str) -> None:
    browser.open(few, WIDE, HEIGHT)
    browser.until(SHOWN)
    assert browser.evaluate("document.querySelector('#tiers-of-requests').hidden")
