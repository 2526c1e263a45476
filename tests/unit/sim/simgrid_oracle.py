"""Runs flows through SimGrid and prints their completion times as JSON. Needs Debian's python3-simgrid; run
by its python3.

Input (stdin): {"capacity": [bytes/s per link], "flows": [[start_s, bytes, [link, ...]], ...]}. Each flow
gets two hosts of its
own and a route over its links; latency 0, weights 1, no TCP model: plain max-min sharing."""

import json
import sys
import tempfile

from simgrid import Actor, Engine, Mailbox, this_actor

problem = json.load(sys.stdin)
finish = [0.0] * len(problem["flows"])
xml = ['<?xml version="1.0"?>', '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">']
xml += ['<platform version="4.1">', '<zone id="z" routing="Full">']
xml += [f'<host id="{end}{i}" speed="1Gf"/>' for i in range(len(finish)) for end in "sd"]
xml += [f'<link id="l{k}" bandwidth="{capacity!r}Bps" latency="0s"/>' for k, capacity in enumerate(problem["capacity"])]
for number, (_, _, links) in enumerate(problem["flows"]):
    ids = "".join(f'<link_ctn id="l{k}"/>' for k in links)
    xml.append(f'<route src="s{number}" dst="d{number}" symmetrical="NO">{ids}</route>')
xml.append("</zone></platform>")


def send(number):
    start, size, _ = problem["flows"][number]
    this_actor.sleep_until(start)
    Mailbox.by_name(str(number)).put("x", round(size))


def receive(number):
    Mailbox.by_name(str(number)).get()
    finish[number] = Engine.clock


PLAIN_SHARING = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/weight-S:0",
    "surf/precision:1e-9",
)
engine = Engine(["oracle", "--log=root.thresh:critical", *(f"--cfg={setting}" for setting in PLAIN_SHARING)])
with tempfile.NamedTemporaryFile("w", suffix=".xml") as platform:
    platform.write("\n".join(xml))
    platform.flush()
    engine.load_platform(platform.name)
for number in range(len(finish)):
    Actor.create("send", engine.host_by_name(f"s{number}"), send, number)
    Actor.create("receive", engine.host_by_name(f"d{number}"), receive, number)
engine.run()
print(json.dumps(finish))
