"""Weights that are changed while an engine runs: what a rank and the scheduler's half agree on, and the hooks that tell a rank. It imports nothing of vLLM.

vLLM calls a connector's reset_cache when its own caches are empty and what is outside of it is to be forgotten, too: a pause or a sleep that clears the caches, or
/reset_prefix_cache with reset_external. What it computes from then on may be another model's, so the scheduler's half registers anew, under a name that nobody else has. A
rank sees by hooks that its weights are changed, and trusts no step from then on but those after such a reset.
"""

import functools
import sys

# Methods of a rank that change its weights: module, class, name, and whether a version without it is not to be trusted. A module that is not there is not used by this rank.
HOOKS = (
    ("vllm.v1.worker.gpu_worker", "Worker", "reload_weights", True),
    ("vllm.v1.worker.gpu_worker", "Worker", "start_weight_update", True),
    ("vllm.v1.worker.gpu_worker", "Worker", "update_weights", True),
    ("vllm.v1.worker.gpu_worker", "Worker", "load_model", True),
    ("vllm.v1.worker.worker_base", "WorkerBase", "apply_model", False),  # a function of somebody's that is given the model
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "reload_weights", True),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "reload_weights", False),
)

_told = []  # whoever wants to know


def install(changed):
    """Has changed() called before weights are changed, in the thread that does it. Returns methods that are not there and should be."""
    _told.append(changed)
    missing = []
    for module, kind, name, needed in HOOKS:
        owner = getattr(sys.modules.get(module), kind, None)
        method = getattr(owner, name, None)
        if method is None and needed:
            missing.append(f"{module}.{kind}.{name}")
        elif method is not None and not hasattr(method, "_perigee"):
            setattr(owner, name, _telling(method))
    return missing


def remove(changed):
    if changed in _told:
        _told.remove(changed)


def _telling(method):
    @functools.wraps(method)
    def told(*args, **kwargs):
        for f in list(_told):
            f()
        return method(*args, **kwargs)

    told._perigee = True
    return told


class Trust:
    """A rank's: whether a step's session stands for the weights that the rank has."""

    def __init__(self):
        self._changed, self._number = False, 0

    def change(self):
        """The weights are about to be changed."""
        self._changed = True

    def step(self, step):
        """A step begins. Whether it may save and load."""
        if step.fresh:  # all that was changed was changed before anything was computed under its name
            self._changed = False
        self._number = step.weights
        return not self._changed

    @property
    def spoiled(self):
        """The number of the reset whose name does not stand for the weights any more; None if all is well."""
        return self._number if self._changed else None
