"""A storage backend for SGLang's hierarchical cache that keeps its pages in Perigee's Cache Manager.

    PYTHONPATH=python python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache --hicache-storage-backend dynamic
        --hicache-storage-backend-extra-config '{"backend_name": "perigee", "module_path": "perigee.sglang", "class_name": "PerigeeStorage",
        "interface_v1": 1, "socket": "/run/perigee/cache.sock"}'

It promises:

  - What is restored is what was computed: a page's name is SGLang's hash of the tokens up to its end, seeded with salt and adapter, in a
    namespace of everything else that decides its bytes; the Manager checks a page before it is read.
  - A page that is missing, spoiled or late ends the prefix there. SGLang computes the rest. Nothing is reported as stored that is not.
  - No call waits for a Manager that is not there, nor longer than its budget for an answer to a question. A call during which the Manager copies from or to the engine's memory
    ends with the Manager's word or its end, since the memory is not the engine's before; the linker, which has memory of its own for that, keeps nobody waiting.

storage.py is what SGLang calls; facts.py and hooks.py are the only others that know SGLang, and linker.py, which is SGLang's other way to a
storage, without its host pool. The rest is decided without it. See docs/engines-sglang.md for what is proven.
"""


def __getattr__(name):  # SGLang asks for the classes by name; the rest of the package is usable where there is no SGLang
    if name == "PerigeeStorage":
        from .storage import PerigeeStorage
        return PerigeeStorage
    raise AttributeError(name)
