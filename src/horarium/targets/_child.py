"""What runs a `python: module:function` in the child process of the `local` target.

Called as `python -m horarium.targets._child module:function`, with the keyword arguments as JSON in
`HORARIUM_PARAMETERS`. Exit code 0 when the function returns, 1 when it raises (the traceback is printed),
2 when it can't be found; a `SystemExit` keeps its own. An async function is run to its end.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import sys
import traceback


def main(reference: str) -> int:
    for stream in (sys.stdout, sys.stderr):
        # Line by line into the pipe, so that `logs --follow` shows what happens while it happens.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    parameters = json.loads(os.environ.get("HORARIUM_PARAMETERS", "{}"))
    module_name, _, path = reference.partition(":")
    try:
        found = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a module raises while it is imported
        traceback.print_exc()
        print(f"{reference} can't be loaded: {error}", file=sys.stderr)
        return 2
    try:
        result = found(**parameters)  # type: ignore[operator]  # a module's attribute; that it can be called shows here
        if inspect.isawaitable(result):
            # Half of this child's start-up is asyncio; only who needs it waits for it.
            import asyncio

            asyncio.run(_finish(result))
    except Exception:  # the function's own errors, whichever they are
        traceback.print_exc()
        return 1
    return 0


async def _finish(result: object) -> None:
    assert inspect.isawaitable(result)
    await result


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
