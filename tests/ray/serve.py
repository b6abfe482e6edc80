"""Runs in Ray's own environment: a cluster of one node on loopback, which says when it is there.

`serve.py FOLDER`: where it keeps its files; a short one, for the paths of its sockets. Its first line on
standard output is `ready URL PID`: where the jobs API is, and the process that answers there. It ends with
its standard input, so that it never outlives the tests that started it.
"""

from __future__ import annotations

import functools
import sys


def main(folder: str) -> None:
    import ray
    from ray._private import parameter, worker

    # All ports are the next that is free, but for the agent's; `init` has no word for it, as `ray start` has.
    parameter.RayParams = functools.partial(parameter.RayParams, dashboard_agent_listen_port=0)
    started = ray.init(
        num_cpus=1,
        object_store_memory=80_000_000,  # Ray takes no less
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        _temp_dir=folder,
    )
    (dashboard,) = worker._global_node.all_processes["dashboard"]
    print("ready", f"http://{started.dashboard_url}", dashboard.process.pid, flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
