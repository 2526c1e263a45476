"""docs/results/classes.md, from the rows beside it. Nothing on it is written by hand."""

from __future__ import annotations

from bench.sim.classes_findings import findings
from bench.sim.classes_rows import AGAINST, FIRST_SEED, SECTIONS, Carried, Data, Section, Variant
from bench.sim.settings import load_of
from bench.sim.study import cell, plain

HEAD = """# With eight classes, as it ships

What the daemon adds to marks by size where the wire has eight classes, not an exact order: the production queue at
every sending NIC, with [the classes that ship](../internals/policy.md). `dscp-size` marks each transfer once, by stage
and size, with no daemon at all, and is what an order has to beat: four classes of loads and three of last stages, edges
at quantiles of the run's own sizes ([`mfs-run --mode mark`](../guide.md#marking-without-a-daemon) has three and three
and one for background, with edges that an operator gives, and one class for each stage without `--sizes`; that was not
simulated). `static` is the order by stage in the production queue, `dscp` classes by stage without a daemon; `nocont`
has no contention. *Exact*: in exact order on every link, which no fabric has; `mh-renewed` is
[Moore-Hodgson per port](studies.md#moore-hodgson-per-port), the others are
[what the simulator compares with](../simulation-model.md#what-is-modelled). *Reads*: loads wait in the queue of the NIC
that they reach, since the reader starts a one-sided read; elsewhere in that of the NIC that sends them.

**Generated** from [classes-results.json](classes-results.json) by
`python -m bench sim classes --page docs/results/classes.md`; do not edit. Simulated, not measured; rules of commit
{revisions}; seeds {first} and up chose nothing. To run it again, the points in a file of your own:

    python -m bench sim classes out/classes.jsonl --page docs/results/classes.md
    python -m bench sim classes out/classes-reads.jsonl --reads --page docs/results/classes.md  # the reads alone
"""
CELLS = """
Cells of the tables: points of requests in time against `dscp-size` with half of the 95 % interval over paired seeds,
mean TTFT and p99 TTFT relative to it. *cap*: the load up to which 90 % are met, relative to the knee for `dscp-size`
and to `dscp-size` for the others. A dash was not run.
"""
LEADS = {
    "served": """
## Models and caches as they are served

The settings in which contention costs anything ([how often](contention.md)), at the load, relative to the knee, at
which `choose` examined them.
""",
    "stress": """
## Stress

DBRX, QwenA, 384 GPUs ([the settings](../simulation-model.md#settings)).
""",
    "stress-4": """
**With four classes** on the wire, of which `dscp-size` has four, too:
""",
    "node": """
## A model in a node

Llama3-8B on one server whose eight GPUs share 100 or 200 Gbit/s (12.5 or 25 a GPU), with caches that keep nothing they
fetch. Most budgets of QwenA at 12.5 are below 0.2 s. Under the rules of commit 2cf2f9f6 an exact order by stage
(`static-exact`) was 25.7 ± 10.8 points below marks by size there.
""",
}
OTHERS = """
**The other 76 settings as served**, in which contention costs less than three points, are not in the rows: run before
with 33 + 100 requests, seeds 741 and 742, the window of commit 23c081ed, `mfs` was level with `dscp-size` in 57, above
it by 0.5 to 7.0 points in fifteen, with two seeds too few for an interval, and one request of 200 below it in two,
which 200 requests and five seeds did not show again. Mean TTFT was x0.94 to x1.03. The last two, DeepSeek-V3 with
bursts of QwenA and of conversations, have no rate: compute alone misses their deadlines.

"""
OTHERS_COMMAND = (
    "    python -m bench sim study out/served-others.jsonl --setting served --policy dscp-size,mfs --against dscp-size "
    "--fabric-classes 8 --requests 100 --first-seed 741 --seeds 2\n"
)


def text(data: Data) -> str:
    revisions = ", ".join(data.what.revisions)
    parts = [HEAD.format(revisions=revisions, first=FIRST_SEED), "\n", *(f"- {one}\n" for one in findings(data)), CELLS]
    for name, section in SECTIONS.items():
        if data.settings(name):
            parts += [LEADS[name], f"{_how(data, name, section)}\n\n", table(data, name, section), "\n"]
            if exact := exact_table(data, name, section):
                parts += ["\nIn exact order, against the same `dscp-size` with classes:\n\n", exact, "\n"]
        if name == "served":
            parts += [OTHERS, OTHERS_COMMAND]
    return "".join(parts)


def _how(data: Data, name: str, section: Section) -> str:
    line = f"{section.requests // 3} + {section.requests} requests, seeds {FIRST_SEED}-{FIRST_SEED + section.seeds - 1}"
    if section.load:
        line += f", load {section.load:g} of the knee"
    if carried := [one for one in data.carried if one.section == name]:
        seeds = len(carried[0].loads)
        line += f"; cap: seeds {FIRST_SEED}-{FIRST_SEED + seeds - 1}, of {', '.join(f'`{p}`' for p in _who(carried))}"
    return f"{line} (`--section {name}`)."


def _who(carried: list[Carried]) -> list[str]:
    return list(dict.fromkeys(one.policy for one in carried))


def table(data: Data, name: str, section: Section) -> str:
    """Formats a row for each setting: with classes and, for `mfs`, with reads and in exact order as the reference."""
    columns: list[tuple[str, bool, Variant]] = []
    for policy in section.policies:
        if policy != AGAINST and data.has(name, policy):
            columns.append((policy, False, ""))
        if data.has(name, policy, variant="reads"):
            columns.append((policy, False, "reads"))
        if policy == "mfs" and data.has(name, policy, exact=True):
            columns.append((policy, True, ""))
    heads = [
        f"`{policy}`{', exact' if exact else ''}{variant and f', {variant}'}" for policy, exact, variant in columns
    ]
    lines = [_line([f"setting | `{AGAINST}`: % met, mean and p99 TTFT", *heads]), "|---" * (len(heads) + 2) + "|"]
    for setting in data.settings(name):
        cells = [_cell(data, name, setting, *column) for column in columns]
        lines.append(_line([_named(name, setting), _plain(data, name, setting), *cells]))
    return "\n".join(lines)


def exact_table(data: Data, name: str, section: Section) -> str:
    """Formats policies in exact order; empty if there is none but `mfs`."""
    policies = [policy for policy in section.exact if data.has(name, policy, exact=True)]
    if policies in ([], ["mfs"]):
        return ""
    heads = [f"`{policy}`, exact" for policy in policies]
    lines = [_line([f"setting | `{AGAINST}`: % met", *heads]), "|---" * (len(heads) + 2) + "|"]
    for setting in data.settings(name):
        cells = [_cell(data, name, setting, policy, exact=True) for policy in policies]
        met = data.against(name, setting, AGAINST)
        lines.append(_line([_named(name, setting), f"{met.attainment:.1f}" if met else "-", *cells]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _named(name: str, setting: str) -> str:
    load = SECTIONS[name].load or load_of(setting)
    return setting if SECTIONS[name].load or load == 1 else f"{setting} ({load:g})"


def _plain(data: Data, name: str, setting: str) -> str:
    figure, carried = data.against(name, setting, AGAINST), data.capacity(name, setting, AGAINST)
    return plain(figure, carried) if figure else "-"


def _cell(data: Data, name: str, setting: str, policy: str, exact: bool, variant: Variant = "") -> str:
    figure = data.against(name, setting, policy, exact, variant)
    carried = None if exact or variant else data.capacity(name, setting, policy)
    return cell(figure, carried) if figure else "-"
