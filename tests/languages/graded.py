"""Grades the conformance worker of one SDK: `python -m tests.languages.graded ruby`.

The report is written to build/conform/ruby.json, where `tests.languages.features` reads it. The cases that did not pass
are printed. The exit code is that of `stepwire handler conform`.
"""

import json
import subprocess
import sys
from typing import Any, Final

from .sdks import REPORTS, ROOT, SDKS

BOUND_S: Final = 600.0


def main() -> None:
    sdk = SDKS[sys.argv[1]]
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{sdk.name}.json"
    report.unlink(missing_ok=True)  # an old report must not stand for this run
    kit = (sys.executable, "-m", "stepwire", "-o", "json", "handler", "conform", "--level", "hardened")
    done = subprocess.run([*kit, "--", *sdk.conform], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=BOUND_S)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"the kit printed no report, and ended with {done.returncode}: {done.stdout[:2000]}")
    report.write_text(json.dumps(result, indent=1) + "\n")
    print(_text(result))
    sys.exit(done.returncode)


def _text(result: dict[str, Any]) -> str:
    lines = [str(result["problem"])] if result["problem"] else []
    for case in result["cases"]:
        if case["verdict"] != "pass":
            lines.append(f"{case['verdict']}  {case['case']}: {case['what']}")
            lines += [f"    rule: {case['rule']} (§{case['section']})"]
            lines += [f"    {text}" for text in (*case["causes"], *case["frames"])]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in result["counts"].items())
    return "\n".join([*lines, f"{counts}; level: {result['level'] or 'none'}"])


if __name__ == "__main__":
    main()
