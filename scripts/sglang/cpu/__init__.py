"""What the wheel of SGLang 0.5.23 lacks to run where there is no GPU. install.sh puts it into site-packages as sglang_on_cpu; a .pth file calls
begin() as an interpreter starts, the engine's child processes included, if SGLANG_ON_CPU=1.

  - sgl_kernel and triton have stand-ins: what is imported from them exists, what is launched raises NotImplementedError.
  - Host pools are not registered with CUDA, and pages go between the "device" pool (tensors of the CPU here) and the host pool by torch.
  - LoRA adapters lie in ordinary memory, and not in page-locked.
  - Host pools leave 1 GiB of memory to the rest of the machine, and not 10: they are small here, and so may the machine be.

With SGLANG_ON_CPU_ROWS=1, which is for measuring alone, attention is computed of the new tokens of a prompt only (rows.py).

All else is SGLang's own: radix tree, page hashes, threads, storage calls, the host pool's layout and allocator.
"""

import importlib.machinery
import importlib.util
import os
import sys
import types


class Name:
    """Stands for whatever a module has: a decorator, an annotation, a base class, a constant. Only launching it, name[grid](...), raises."""

    def __init__(self, path):
        self.__dict__["_path"] = path
        self.__name__ = path.rpartition(".")[2]

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self._path == "triton.runtime.driver":  # as triton says it, and SGLang expects it
            raise RuntimeError("0 active drivers")
        return Name(f"{self._path}.{name}")

    def __call__(self, *args, **kwargs):
        return Name(self._path)

    def __getitem__(self, item):
        return missing(self._path)

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __iter__(self):
        return iter(())

    def __contains__(self, item):
        return False

    def __mro_entries__(self, bases):
        return (object,)

    def __instancecheck__(self, instance):
        return False

    def __subclasscheck__(self, cls):
        return False


def missing(path):
    """A function that can be imported and not be called."""

    def function(*args, **kwargs):
        raise NotImplementedError(f"{path} needs a GPU")

    function.__name__ = function.__qualname__ = path.rpartition(".")[2]
    return function


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        return missing(path) if self.__name__ == "sgl_kernel" else Name(path)


class StandIns:
    """Finds the packages of roots, and all below triton. sgl_kernel has no modules below it: SGLang has other ways where one is missing."""

    def __init__(self, roots):
        self.roots = roots

    def find_spec(self, name, path=None, target=None):
        root, _, below = name.partition(".")
        if root not in self.roots or (below and root == "sgl_kernel"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=root != "sgl_kernel")

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        if module.__name__ == "triton":
            module.__version__ = "3.0.0"
            module.cdiv = lambda a, b: -(-a // b)
            module.next_power_of_2 = lambda n: 1 << max(0, n - 1).bit_length()


class Wrapped:
    """Runs a generator around the code of some modules: up to its yield before, the rest after."""

    def __init__(self, around):
        self.around = around

    def find_spec(self, name, path=None, target=None):
        if name not in self.around:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            steps = self.around[name](module)
            next(steps)
            try:
                execute(module)
            finally:
                next(steps, None)

        spec.loader.exec_module = exec_module
        return spec


def _pools(module):
    yield
    module._cuda_host_register = module._cuda_host_unregister = lambda *args, **kwargs: None


def _reserve(module):
    yield
    module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 30


def _copies(module):
    yield
    from . import copies
    for name in copies.__all__:
        setattr(module, name, getattr(copies, name))


class Unpinned:
    """torch, for modules that want page-locked memory of it, which a GPU is needed for."""

    def __init__(self, torch):
        self._torch = torch

    def __getattr__(self, name):
        found = getattr(self._torch, name)
        if name not in ("tensor", "empty", "zeros"):
            return found
        return lambda *args, pin_memory=False, **kwargs: found(*args, **kwargs)


def _adapters(module):
    yield
    import torch
    torch.Tensor.pin_memory = lambda tensor, *args: tensor
    module.torch = Unpinned(torch)


def _rows(module):
    yield
    from . import rows
    backend = module.TorchNativeAttnBackend
    backend._run_sdpa_forward_extend = rows.only_new(backend._run_sdpa_forward_extend)


def _without_triton(module):
    """torch takes a stand-in for the real thing: for it there is none."""
    kept, sys.modules["triton"] = sys.modules.get("triton"), None
    yield
    del sys.modules["triton"]
    if kept is not None:
        sys.modules["triton"] = kept
    if hasattr(module, "has_triton_package"):
        module.has_triton_package = lambda: False


def begin():
    roots = {"sgl_kernel"}
    pools = "sglang.srt.mem_cache.pool_host."
    around = {pools + "common": _pools, pools + "base": _reserve, pools + "mha": _copies}
    around |= dict.fromkeys(("sglang.srt.lora.layers", "sglang.srt.lora.lora", "sglang.srt.lora.backend.torch_backend"), _adapters)
    if os.environ.get("SGLANG_ON_CPU_ROWS") == "1":
        around["sglang.srt.layers.attention.torch_native_backend"] = _rows
    if importlib.util.find_spec("triton") is None:
        roots.add("triton")
        around |= {"torch.utils._triton": _without_triton, "torch._inductor.runtime.triton_compat": _without_triton}
    sys.meta_path[:0] = [Wrapped(around), StandIns(roots)]
