"""The connector between vLLM and Perigee's Cache Manager.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "PerigeeConnector", "kv_connector_module_path": "perigee.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"socket": "/run/perigee/cache.sock"}}'

It promises:

  - What is restored is what was computed: pages are named by everything that decides their bytes, are whole, and are checked by the Manager
    before they are read. What cannot be restored is computed by the engine, and so is everything while there is no Manager.
  - The engine's scheduler never waits for the Manager, and "not known yet" has one budget for each request.
  - A step waits for its own saves, up to a budget: what is not saved by then is dropped. So the engine's blocks are its own again when the
    step ends, and neither a preemption nor an end of a request has to wait.

How the halves meet: the scheduler's half alone registers with the Manager, for all ranks, and asks. Each rank's half joins that session with credentials that
come with each step's metadata, and copies. Where both are one process they have one goodbye, see keeper.py. See connector.py for the hooks and docs/engines-vllm.md for what is proven.
"""


def __getattr__(name):  # vLLM asks for the class by name; the rest of the package is usable where there is no vLLM
    if name == "PerigeeConnector":
        from .connector import PerigeeConnector
        return PerigeeConnector
    raise AttributeError(name)
