# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""gpuhost-verify, the verdict on a host where jobs start: by the last recorded result, or by asking every check."""

# pylint: disable=ansible-bad-function  # a program, which prints and exits, and no module
from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import time
from typing import Any, Optional, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import judgement, present, recorded, slurm, texts

NAME = "gpuhost-verify"
USAGE_ERROR = 64  # 2 is a failed host
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": judgement.DAY}
EPILOG = """\
Exit status: 0 the host is verified, or damaged and no check fails; 1 it is not known whether it works: something could
not be read, a change is not verified yet, or the evidence is too old; 2 a failure, or another module, a missing GPU or
a fatal Xid since the checks; 64 bad usage. With --prolog 2 after a failure, else 0."""


class Parser(argparse.ArgumentParser):
    """A parser that ends with USAGE_ERROR."""

    def error(self, message: str) -> Any:
        """Print the usage and the message, and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, "%s: %s\n" % (self.prog, message))


def seconds(text: str) -> float:
    """Return a duration such as 30d, 12h, 90m or 45s in seconds."""
    match = re.match(r"^(\d+(?:\.\d+)?)([smhd])$", text)
    if not match:
        raise argparse.ArgumentTypeError("found %r, expected a number with a unit: 45s, 90m, 12h or 30d" % text)
    return float(match.group(1)) * _UNITS[match.group(2)]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; exit with USAGE_ERROR where they are wrong."""
    parser = Parser(
        prog=NAME,
        description="Say whether this host's GPU stack is verified: by the last result that gpuhost recorded here,\n"
        "compared with the loaded kernel module, the GPUs on the bus, the boot and the kernel log. Changes nothing of\n"
        "the stack.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--json", action="store_true", help="print one JSON document")
    modes.add_argument(
        "--prolog", action="store_true", help="for a prolog of Slurm: end non-zero after a failure alone"
    )
    modes.add_argument(
        "--health-check",
        action="store_true",
        help="for Slurm's HealthCheckProgram: drain this node after a failure, with the reason %r, and resume a node "
        "that was drained with such a reason" % (slurm.PREFIX + " ..."),
    )
    parser.add_argument("--fresh", action="store_true", help="ask every check again, which takes minutes; as root")
    parser.add_argument(
        "--max-age", type=seconds, metavar="DURATION", help="the age from which evidence is too old, such as 12h or 30d"
    )
    parser.add_argument("--strict", action="store_true", help="with --prolog: end as without it")
    parser.add_argument("--prometheus", metavar="FILE", help="also write metrics to FILE, for node_exporter")
    options = parser.parse_args(arguments)
    if options.strict and not options.prolog:
        parser.error("--strict has a meaning with --prolog alone")
    if options.fresh and (options.prolog or options.health_check):
        parser.error("--fresh takes minutes: run it before, without --prolog and --health-check")
    if options.prometheus and not options.prometheus.endswith(".prom"):
        parser.error("--prometheus %s: expected a name that ends in .prom, as node_exporter does" % options.prometheus)
    return options


def verdict_on(root: str, run: Run, max_age: float | None = None) -> judgement.Verdict:
    """Return the verdict by what is recorded below a root directory and by the host as it is."""
    record = recorded.read(root)
    result = record.result or {}
    now = present.read(
        root, run, judgement.reads_log(record) and bool(result), result.get("kernel_log"), result.get("boot_id")
    )
    return judgement.judge(record, now, max_age)


class FreshError(Exception):
    """The checks could not be asked, or damage not looked for; the message says why and what to do."""


def check_again(root: str, run: Run) -> Optional[str]:
    """Ask every check as the last verification did, look for damage, and record both.

    Raise FreshError if the checks cannot be asked or recorded; return why damage could not be looked for.
    """
    # Not at the top: a verdict from the record must take no time for them. The module `program` packs them.
    from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
    from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied

    directory = files.under(root, store.DIRECTORY)
    try:
        kept = store.read(directory, store.OPTIONS)
        if kept is None:
            raise FreshError(
                "%s has no options of the checks: %s" % (store.DIRECTORY, judgement.AGAIN.partition(",")[0])
            )
        options = verify.Options.from_json(kept, time.strftime("%Y-%m-%d"))
        context = verify.context(options, root, run)
    except PermissionError:
        raise FreshError("only root may read %s: run `sudo %s --fresh`" % (store.DIRECTORY, NAME)) from None
    except (OSError, ValueError, TypeError) as error:
        raise FreshError("the options of the checks cannot be read: %s" % error) from error
    record = last_result.compose(root, context.smi, verify.verify(context))
    problem = last_result.write(directory, record)
    if problem:
        raise FreshError(problem)
    try:
        watches = applied.watches(directory)
        parts = applied.differences(store.DIRECTORY, root, run, managed=watches, accepted=options.accept_damage)
    except (OSError, ValueError) as error:
        return "the host cannot be compared with what the last run left: %s" % error
    damage = {thing: text for part in parts.values() for thing, text in part.damage.items()}
    return last_result.write(directory, record, dict(kept, damage=damage))


def main(arguments: Sequence[str] | None = None, root: str = "/", run: Run = command.run) -> int:
    """Run the command; return its exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    problem = None
    if options.fresh:
        try:
            problem = check_again(root, run)
        except FreshError as error:
            sys.stderr.write("%s: %s\n" % (NAME, error))
            return 1
        if problem:
            sys.stderr.write("%s: %s\n" % (NAME, problem))
    verdict = verdict_on(root, run, options.max_age)
    host = socket.gethostname()
    unwritten = _metrics_unwritten(options.prometheus, verdict) if options.prometheus else False
    if options.health_check:
        return max(int(unwritten), _health_check(verdict, run))
    if options.prolog:  # which drains a node, so that a full disk is no reason to fail
        print(texts.one_line(host, verdict))
        return max(
            int(unwritten and options.strict), verdict.prolog_status(options.strict, options.max_age is not None)
        )
    if options.json:
        print(json.dumps(dict(verdict.to_json(), host=host), indent=2, sort_keys=True))
    else:
        print("\n".join(texts.plain(host, verdict)))
    return max(int(unwritten or problem is not None), verdict.exit_status)


def _metrics_unwritten(path: str, verdict: judgement.Verdict) -> bool:
    """Write the metrics; return whether that failed, and say why."""
    try:
        files.write(path, texts.metrics(verdict, time.time()).encode(), 0o644)
    except OSError as error:
        sys.stderr.write("%s: %s was not written: %s\n" % (NAME, path, error))
        return True
    return False


def _health_check(verdict: judgement.Verdict, run: Run) -> int:
    try:
        print(slurm.keep(verdict, os.environ, run))
    except slurm.SlurmError as error:
        sys.stderr.write("%s: %s\n%s\n" % (NAME, error, texts.one_line(socket.gethostname(), verdict)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
