"""The backend with SGLang's own host pools and configuration, and a real Manager, in one process without an engine: what the engine's controller would
ask is asked here. pools_check.py PERIGEE; run with the Python of .cache/sglang/venv by scripts/sglang/qualify.sh.

SGLANG_ON_CPU stands in for the kernels, so nothing here copies between a device and a host pool: that is the engine's.
"""

import array
import collections
import ctypes
import logging
import mmap
import os
import pathlib
import queue
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import urllib.request
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
os.environ |= {"SGLANG_USE_CPU_ENGINE": "1"}
if os.environ.get("SGLANG_ON_CPU") != "1":
    os.execve(sys.executable, [sys.executable, "-P", "-W", "ignore", *sys.argv], os.environ | {"SGLANG_ON_CPU": "1"})
sys.path.insert(0, str(ROOT / "python"))

import torch  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.arg_groups.lora_hook import check_lora_server_args  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.utils import get_storage_hash_str  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.server_args import prepare_server_args  # noqa: E402

from perigee.client import fingerprint  # noqa: E402
from perigee.sglang import admission, facts, hooks, linker, pools, staging  # noqa: E402
from perigee.sglang.lore import Space  # noqa: E402
from perigee.sglang.storage import PerigeeStorage  # noqa: E402

PAGE, LAYERS, HEADS, DIM = 16, 4, 2, 64
SOON_S = 120
allocator = "shm"  # of all host pools that are made; with another the backend copies itself


def configure(*more):
    args = prepare_server_args(["--model-path", str(ROOT / ".cache/sglang/model"), "--served-model-name", "tiny", "--device", "cpu", "--attention-backend", "torch_native",
                                "--disable-cuda-graph", "--grammar-backend", "none", "--dtype", "float32", "--page-size", str(PAGE), "--mem-fraction-static", "0.1",
                                "--enable-hierarchical-cache", "--hicache-mem-layout", "page_first_direct", "--hicache-io-backend", "direct",
                                "--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config",
                                '{"backend_name":"perigee","module_path":"perigee.sglang","class_name":"PerigeeStorage","allocator":"shm"}', *more])
    check_lora_server_args(args)  # an engine's launcher checks all of them
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    return args




def device(count, *shape):
    return tuple(torch.zeros(shape) for _ in range(count))


def mha(pages=64, layout="page_first_direct", heads=HEADS):
    """The host pool of a model with ordinary attention."""
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    k, v = device(LAYERS, PAGE, heads, DIM), device(LAYERS, PAGE, heads, DIM)
    pointers = [torch.tensor([t.data_ptr() for t in side], dtype=torch.uint64) for side in (k, v)]
    info = MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=pointers[0], v_data_ptrs=pointers[1], layout=KVBufferLayout.NHD), page_size=PAGE, head_num=heads, head_dim=DIM,
        v_head_dim=DIM, dtype=torch.float32, device=torch.device("cpu"))
    return MHATokenToKVPoolHost(
        info, 1, 0, PAGE, layout, pin_memory=False, allocator_type=allocator, device_capacity_tokens=PAGE, start_layer=0, end_layer=LAYERS,
        host_token_capacity=pages * PAGE)


def mla(pages=64, layout="page_first_direct", rank=64, rope=16):
    """The host pool of a model with latent attention."""
    from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    rows = device(LAYERS, PAGE, 1, rank + rope)
    info = MLABufferInfo(
        buffers=rows, data_ptrs=torch.tensor([t.data_ptr() for t in rows], dtype=torch.uint64), layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS,
        page_size=PAGE, kv_lora_rank=rank, qk_rope_head_dim=rope, kv_cache_dim=rank + rope, dtype=torch.float32, device=torch.device("cpu"))
    return MLATokenToKVPoolHost(
        info, 1, 0, PAGE, layout, pin_memory=False, allocator_type=allocator, device_capacity_tokens=PAGE, start_layer=0, end_layer=LAYERS,
        target_layer_num=LAYERS, host_token_capacity=pages * PAGE)


def indexer(anchor):
    """The host pool of its sparse attention's index keys: it has the anchor's slots."""
    from types import SimpleNamespace
    from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
    from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolDecl, HostPoolStorageInfo
    pool = SimpleNamespace(
        store_dtype=torch.uint8, start_layer=0, end_layer=LAYERS, layer_num=LAYERS, device="cpu", layer_shard_enabled=False,
        index_k_with_scale_buffer=[torch.zeros(4, PAGE * 132, dtype=torch.uint8) for _ in range(LAYERS)])
    decl = HostPoolDecl(
        pool_name=PoolName.INDEXER, device_pool=pool, indices_from_pool=PoolName.KV, layout_source=PoolName.KV,
        storage_info=HostPoolStorageInfo(bytes_per_token_per_layer=132, dtype=torch.uint8), host_pool_builder=None)
    return DSAIndexerPoolHost(decl, anchor, pin_memory=False, allocator_type=allocator)


def mamba(slots=32):
    """The host pool of recurrent state: a slot a state."""
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    info = MambaStateBufferInfo(temporal=torch.zeros(3, 8, 4, 8, 8), conv=(torch.zeros(3, 8, 24, 3),))
    return MambaPoolHost(info, slots / 8, 0, device_capacity=8, pin_memory=False, allocator_type=allocator, layout="page_first_direct")


def config(**more):
    return HiCacheStorageConfig(**({
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False, "enable_storage_metrics": False,
        "is_page_first_layout": False, "model_name": "tiny"} | more))


class Manager:
    def __init__(self, folder):
        self.socket = os.path.join(folder, "cache.sock")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{s.getsockname()[1]}"

    def start(self, *more):
        self.child = subprocess.Popen([sys.argv[1], "cache", "--socket", self.socket, "--pool-bytes", "512MiB", "--instances", "4", "--admin", self.url[7:], *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.child.stdout.readline()

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()

    def ask(self, path, body=None):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body), timeout=60) as r:
            return r.read().decode()

    def number(self, name, labels=""):
        return sum(float(v) for n, v in re.findall(r"^perigee_cache_(\S+) (\S+)$", self.ask("/metrics"), re.M) if n.partition("{")[0] == name and labels in n)


def keys_of(ids, prior=None, **space):
    return get_storage_hash_str(RadixKey(array.array("q", ids), **space), prior, PAGE)


def tokens(seed, pages):
    r = random.Random(seed)
    return [r.randrange(150000) for _ in range(pages * PAGE)]


def slots(pool, *pages):
    return torch.cat([torch.arange(p * pool.page_size, (p + 1) * pool.page_size) for p in pages])


class Case(unittest.TestCase):
    shm = True

    def setUp(self):
        global allocator
        allocator = "shm" if self.shm else "default"
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.m = Manager(folder.name)
        self.m.start()
        self.addCleanup(lambda: self.m.child.poll() is None and self.m.kill())

    def soon(self, condition, what):
        for _ in range(SOON_S * 50):
            if condition():
                return
            threading.Event().wait(0.02)
        self.fail(what)

    def backend(self, anchor, side=None, extra=None, **more):
        x = {"interface_v1": 1, "socket": self.m.socket, "model_content": "ab" * 32, "lookup_ms": 30000, "answer_ms": 60000, "instance": "pools"} | (extra or {})
        b = PerigeeStorage(config(extra_config=x, **more), {})
        self.addCleanup(b.close)
        b.register_mem_pool_host(anchor)
        for name, pool in {PoolName.KV: anchor, **(side or {})}.items():
            b.register_mem_host_pool_v2(pool, name)
        b.on_host_pools_registered()
        self.soon(lambda: b._keeper.up, "it has registered")
        self.assertEqual(b._keeper.offered, self.shm)
        return b


def fill(pool, seed):
    r = random.Random(seed)
    for b in (pool.kv_buffer if isinstance(pool.kv_buffer, (list, tuple)) else [pool.kv_buffer]):
        flat = b.view(torch.uint8).reshape(-1)
        flat.copy_(torch.frombuffer(bytearray(r.randbytes(flat.numel())), dtype=torch.uint8))


def page(pool, p):
    return bytes(pool.get_data_page(p * pool.page_size, flat=True).contiguous().view(torch.uint8).reshape(-1).numpy())


class Kv(Case):
    def test_there_and_back(self):
        """In each layout, as SGLang's own functions see the pages; 128 at once."""
        for layout in ("page_first_direct", "page_first", "layer_first", "page_head"):
            with self.subTest(layout=layout):
                pool = mha(256, layout)
                b = self.backend(pool, extra={"instance": layout})
                fill(pool, layout)
                ids = tokens(layout, 128)
                keys = keys_of(ids)
                want = [page(pool, p) for p in range(128)]
                b.note(keys, array.array("q", ids), [], Space())
                self.assertEqual(b.batch_exists(keys), 0)
                self.assertEqual(b.batch_set_v1(keys, slots(pool, *range(128))), [True] * 128)
                self.assertEqual(b.batch_exists(keys), 128)
                self.assertEqual(b.batch_get_v1(keys, slots(pool, *range(255, 127, -1))), [True] * 128)
                self.assertEqual([page(pool, p) for p in range(255, 127, -1)], want)
                b.close()
                self.assertEqual(b.counts()["unnamed"], 0)

    def test_layouts_are_apart(self):
        ids = tokens(1, 4)
        one = self.backend(mha(8, "page_first_direct"))
        self.assertEqual(one.batch_set_v1(keys_of(ids), slots(one.mem_pool_host, 0, 1, 2, 3)), [True] * 4)
        for other in (mha(8, "page_first"), mha(8, heads=HEADS * 2)):
            b = self.backend(other, extra={"instance": f"other {id(other)}"})
            self.assertEqual(b.batch_exists(keys_of(ids)), 0)
            b.close()
        same = self.backend(mha(8, "page_first_direct"), extra={"instance": "same"})
        self.assertEqual(same.batch_exists(keys_of(ids)), 4)

    def test_salts_and_adapters_are_in_the_key(self):
        ids = tokens(1, 2)
        spaces = [keys_of(ids), keys_of(ids, cache_salt="a"), keys_of(ids, cache_salt="b"), keys_of(ids, extra_key="x"), keys_of(ids, extra_key="x", cache_salt="a")]
        self.assertEqual(len({k for keys in spaces for k in keys}), 10)

    def test_three_threads(self):
        """As the controller: one asks, one restores, one stores, all the time; the Manager is killed under them and comes back."""
        pool = mha(192)
        fill(pool, 3)
        b = self.backend(pool)
        chains = [keys_of(tokens(i, 8)) for i in range(6)]
        want, wrong, stop, rounds = {}, [], threading.Event(), collections.Counter()
        lock = threading.Lock()

        def run(name, once):
            r = random.Random(name)
            while not stop.is_set():
                try:
                    once(r)
                except Exception as e:
                    wrong.append(repr(e))
                    return
                rounds[name] += 1

        def ask(r):
            keys = r.choice(chains)
            n = b.batch_exists(keys)
            if not 0 <= n <= 8:
                wrong.append(n)

        def put(r):
            c = r.randrange(6)  # chain c is of the bytes of pages 8*c...
            b.batch_set_v1(chains[c], slots(pool, *range(8 * c, 8 * c + 8)))

        def get(r):
            c = r.randrange(6)
            for i, ok in enumerate(b.batch_get_v1(chains[c], slots(pool, *range(64 + 8 * c, 72 + 8 * c)))):
                if ok and page(pool, 64 + 8 * c + i) != page(pool, 8 * c + i):
                    wrong.append((c, i))

        threads = [threading.Thread(target=run, args=x) for x in (("ask", ask), ("put", put), ("get", get))]
        for t in threads:
            t.start()
        try:
            for _ in range(2):
                before = b.counts()["restored"]
                self.soon(lambda: b.counts()["restored"] > before + 200, "pages are restored")
                self.m.kill()
                self.soon(lambda: not b._keeper.up, "it is seen")
                before = dict(rounds)
                self.soon(lambda: all(rounds[k] > before[k] for k in before), "calls go on")
                self.m.start()
                self.soon(lambda: b._keeper.up, "it is back")
        finally:
            stop.set()
            for t in threads:
                t.join()
        self.assertEqual(wrong, [])
        self.soon(lambda: self.m.number("pinned_bytes") + self.m.number("granted_bytes") == 0, "nothing is held")

    def test_closed_and_made_again(self):
        """As by DELETE and PUT of the engine's storage backend."""
        pool, keys = mha(8), keys_of(tokens(1, 4))
        for i in range(3):
            b = self.backend(pool)
            self.assertEqual(b.batch_exists(keys), 4 if i else 0)
            b.batch_set_v1(keys, slots(pool, 0, 1, 2, 3))
            b.close()
            self.soon(lambda: self.m.number("sessions") == 0, "the session has ended")
            self.assertEqual(self.m.number("quarantined_bytes"), 0)
            self.assertEqual((b.batch_exists(keys), b.batch_get_v1(keys, slots(pool, 4, 5, 6, 7)), b.batch_set_v1(keys, slots(pool, 0, 1, 2, 3))), (0, [False] * 4, [False] * 4))

    def test_a_bit_that_flips(self):
        pool, keys = mha(16), keys_of(tokens(1, 8))
        fill(pool, 1)
        b = self.backend(pool)
        b.batch_set_v1(keys, slots(pool, *range(8)))
        held = page(pool, 3)
        n = 0
        for fd in os.listdir(f"/proc/{self.m.child.pid}/fd"):
            path = f"/proc/{self.m.child.pid}/fd/{fd}"
            if "/memfd:" in os.readlink(path) and os.stat(path).st_size >= len(held):
                with open(path, "r+b", buffering=0) as f, mmap.mmap(f.fileno(), 0) as memory:
                    at = memory.find(held)
                    if at >= 0:
                        memory[at + 100] ^= 4
                        n += 1
                break
        self.assertEqual(n, 1)
        self.assertEqual(b.batch_get_v1(keys, slots(pool, *range(8, 16))), [True] * 3 + [False] * 5)
        self.assertEqual([page(pool, 8 + i) for i in range(3)], [page(pool, i) for i in range(3)])
        self.assertEqual(b.batch_exists(keys), 3)
        self.assertEqual(b.batch_set_v1(keys, slots(pool, *range(8))), [True] * 8, "stored anew")
        self.assertEqual(b.batch_exists(keys), 8)

    def test_new_weights_stop_it(self):
        from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
        pool, keys = mha(8), keys_of(tokens(1, 4))
        b = self.backend(pool)
        b.batch_set_v1(keys, slots(pool, 0, 1, 2, 3))

        class Worker:
            def weight_update_runners(self):
                return []

        manager = object.__new__(SchedulerWeightUpdaterManager)
        object.__setattr__(manager, "tp_worker", Worker())
        object.__setattr__(manager, "draft_worker", None)
        self.addCleanup(hooks._changed.clear)
        manager._select_runners()
        self.assertEqual((b.batch_exists(keys), b.batch_set_v1(keys, slots(pool, 0, 1, 2, 3))), (0, [False] * 4))
        b.close()
        # As by DELETE and PUT: the namespace would be that of the files again, and its pages are not this engine's.
        with self.assertRaisesRegex(ValueError, "changed in place"):
            self.backend(mha(8))

    def test_weights_that_are_let_go_of(self):
        from sglang.srt.managers.scheduler_components import weight_updater
        self.addCleanup(hooks._changed.clear)
        self.addCleanup(configure)
        model = SimpleNamespace(named_buffers=list)
        for flags, ends in (((), False), (("--enable-memory-saver", "--enable-weights-cpu-backup"), False), (("--enable-memory-saver",), True)):
            configure(*flags)
            b = self.backend(mha(8))
            weight_updater._export_static_state(model)
            self.assertEqual(bool(b._store.stopped), ends, flags)
            b.close()

    def test_an_engine_that_has_run_without_it(self):
        """Its weights may have been changed: by PUT of a storage backend it gets one only if somebody says what they are."""
        x = {"interface_v1": 1, "socket": self.m.socket}
        with unittest.mock.patch.object(hooks, "_done", []), unittest.mock.patch.object(runtime_context, "get_memory", lambda: SimpleNamespace(hicache_storage_backend=None)):
            with self.assertRaisesRegex(ValueError, "may have been changed"):
                PerigeeStorage(config(extra_config=x), {})
            PerigeeStorage(config(extra_config=x | {"model_content": "ab" * 32}), {}).close()

    def test_refused_settings(self):
        for more, extra, word in (({}, {"interface_v1": 0}, "interface_v1"), ({"attn_cp_size": 2}, {}, "such ranks"), ({"pp_size": 2}, {}, "such ranks")):
            with self.assertRaisesRegex(ValueError, word):
                PerigeeStorage(config(extra_config={"interface_v1": 1, "socket": self.m.socket} | extra, **more))

    def test_a_flush_while_the_manager_hangs(self):
        """A restore whose request has given up may still be written to: SGLang's flush would join its thread for ten seconds, and end the engine."""
        from sglang.srt.managers.scheduler import Scheduler
        pool = mha(64)
        fill(pool, 1)
        b = self.backend(pool)
        keys = keys_of(tokens(1, 8))
        self.assertEqual(b.batch_set_v1(keys, slots(pool, *range(8))), [True] * 8)
        idle = unittest.mock.Mock(return_value=False)
        scheduler = SimpleNamespace(tree_cache=None, enable_hierarchical_cache=True, _engine_paused=False, is_fully_idle=idle, waiting_queue=[], running_batch=SimpleNamespace(reqs=[]))
        self.assertFalse(Scheduler.flush_cache(scheduler))
        self.assertEqual(idle.call_count, 1, "SGLang's own flush_cache decides")
        got = []
        os.kill(self.m.child.pid, signal.SIGSTOP)
        os.waitpid(self.m.child.pid, os.WUNTRACED)  # it has stopped
        get = threading.Thread(target=lambda: got.append(b.batch_get_v1(keys, slots(pool, *range(20, 28)))), daemon=True)
        get.start()
        self.soon(lambda: b._store.busy, "the restore has begun")
        self.assertFalse(Scheduler.flush_cache(scheduler))
        refused = Scheduler.detach_hicache_storage_wrapped(scheduler, None)
        self.assertEqual((refused.success, "being restored" in refused.message), (False, True))
        self.assertEqual(idle.call_count, 1, "it is refused before")
        os.kill(self.m.child.pid, signal.SIGCONT)
        get.join(SOON_S)
        self.assertEqual(got, [[True] * 8])
        self.assertFalse(Scheduler.flush_cache(scheduler))
        self.assertIn("not idle", Scheduler.detach_hicache_storage_wrapped(scheduler, None).message)
        self.assertEqual(idle.call_count, 3, "the restore has ended")


class Identity(unittest.TestCase):
    """What is in an engine's namespace besides the model, by SGLang's own reading of its flags."""

    def setUp(self):
        self.addCleanup(configure)

    def namespace(self, *flags, **ranks):
        configure(*flags)
        pool = mha(4)
        return facts.namespace(config(**ranks), {}, [pools.Pool("kv", 0, pool, torch.arange(PAGE))], bytes(32))

    def options(self, *flags, **ranks):
        return {o["name"]: o["value"] for o in self.namespace(*flags, **ranks)["compute"]["options"]}

    def adapter(self, folder, name, weights):
        path = pathlib.Path(folder, name)
        path.mkdir(exist_ok=True)
        (path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}')
        (path / "adapter_model.safetensors").write_bytes(weights)
        return f"{name}={path}"

    def test_adapters(self):
        """Their names, paths and files: SGLang's key has no weights in it."""
        lora = ("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8", "--lora-target-modules", "q_proj")
        with tempfile.TemporaryDirectory() as folder:
            self.assertNotIn("adapters", self.options(*lora))
            young = self.adapter(folder, "young", b"1")
            with self.assertRaisesRegex(fingerprint.Changed, "younger", msg="the engine may have loaded what was there before"):
                self.options(*lora, "--lora-paths", young)
            self.enterContext(unittest.mock.patch.object(fingerprint, "began", lambda: time.time() + 60))  # an engine that is started later
            one, two = self.adapter(folder, "one", b"1"), self.adapter(folder, "two", b"2")
            seen = [self.options(*lora, "--lora-paths", *paths)["adapters"] for paths in ((one,), (two,), (one, two), (one, two.replace("two=", "other=")))]
            self.assertEqual(len(set(seen)), 4)
            self.assertEqual(self.options(*lora, "--lora-paths", two, one)["adapters"], seen[2], "in any order")
            before = self.namespace(*lora, "--lora-paths", one, two)
            self.assertEqual(self.namespace(*lora, "--lora-paths", one, two), before, "the same over a restart")
            self.adapter(folder, "two", b"3")
            self.assertNotEqual(self.options(*lora, "--lora-paths", one, two)["adapters"], seen[2], "other weights at the same path")
            pathlib.Path(folder, "two/adapter_model.safetensors").unlink()
            pathlib.Path(folder, "two/adapter_config.json").unlink()
            with self.assertRaises(ValueError, msg="an adapter of which nothing is known: nothing is kept"):
                self.namespace(*lora, "--lora-paths", one, two)

    def test_what_else_decides(self):
        """What is none of the model's settings."""
        before = self.options()
        with unittest.mock.patch.dict(os.environ, {"SGLANG_RUN_ID": "1", "SGLANG_TORCH_PROFILER_DIR": "/x", "HOME": "/y"}):
            self.assertEqual(self.options(), before)
        for name, value in (("SGLANG_MAMBA_CONV_DTYPE", "float16"), ("SGLANG_ROPE_CACHE_FP32", "1"), ("USE_TRITON_W8A8_FP8_KERNEL", "1")):
            with unittest.mock.patch.dict(os.environ, {name: value}):
                changed = self.options()
            self.assertEqual({k for k in before if before[k] != changed[k]}, {"environment"}, name)
        hook = '[{"target_modules": ["model.layers.0"], "hook_factory": "there:make"}]'
        self.assertNotEqual(self.options("--forward-hooks", hook)["settings"], before["settings"])

    def test_weights_from_elsewhere(self):
        extra = {"interface_v1": 1}
        for flags in (("--load-format", "remote"), ("--load-format", "npcache"), ("--load-format", "presharded"), ("--decrypted-config-file", "config.json"),
                      ("--modelopt-checkpoint-restore-path", "/dev/null"), ("--kt-weight-path", "/dev/null"), ("--load-format", "remote_instance", "--remote-instance-weight-loader-seed-instance-ip", "10.0.0.1",
                       "--remote-instance-weight-loader-seed-instance-service-port", "1", "--remote-instance-weight-loader-send-weights-group-ports", "[1]"),
                      ("--weight-cache-mode", "client")):
            configure(*flags)
            self.assertEqual(["declare model_content" in r for r in facts.unsupported(config(), extra)], [True], flags)
            self.assertEqual(facts.unsupported(config(), extra | {"model_content": "ab" * 32}), [], flags)
        configure()
        self.assertEqual(facts.unsupported(config(), extra), [])

    def test_data_parallel_ranks(self):
        for flags in (("--dp-size", "2"), ("--tp-size", "2", "--attn-dp-size", "2")):
            configure(*flags)
            self.assertEqual(["data-parallel" in r for r in facts.unsupported(config(), {"interface_v1": 1})], [True], flags)

    def test_ranks(self):
        each = [self.options(tp_rank=i, tp_size=2) for i in range(2)]
        self.assertEqual([o["rank tensor"] for o in each], ["0/2", "1/2"])
        self.assertNotIn("rank tensor", self.options())

    def test_latent_ranks(self):
        """Latent KV and its index keys are the same in all ranks, and a recurrent state is each rank's own."""
        configure()
        kv = mla(4)
        first = pools.Pool("kv", 0, kv, torch.arange(PAGE))
        keys, state, window = (pools.Pool(n, 1, p, torch.arange(getattr(p, "logical_page_size", p.page_size))) for n, p in (("indexer", indexer(kv)), ("mamba", mamba(8)), ("swa", mla(4))))
        for more, apart in (([], False), ([keys], False), ([state], True), ([window], True), ([keys, state], True)):
            of = [facts.namespace(config(is_mla_model=True, tp_rank=i, tp_size=2), {}, [first, *more], bytes(32)) for i in range(2)]
            self.assertEqual(of[0] != of[1], apart, [p.name for p in more])


class Sides(Case):
    """Side pools, by the calls of version 2, against SGLang's own host pools. What they are for has not been run: that takes a GPU."""

    def transfer(self, name, pool, keys, pages, policy=PoolHitPolicy.ALL_PAGES):
        return PoolTransfer(name=name, host_indices=slots(pool, *pages), keys=keys, hit_policy=policy)

    def test_indexer(self):
        kv = mla(64)
        side = indexer(kv)
        fill(kv, 1)
        side.index_k_with_scale_buffer.copy_(torch.frombuffer(bytearray(random.Random(2).randbytes(side.index_k_with_scale_buffer.numel())), dtype=torch.uint8).reshape(side.index_k_with_scale_buffer.shape))
        b = self.backend(kv, {PoolName.INDEXER: side}, is_mla_model=True)
        keys = keys_of(tokens(1, 6))
        rows = lambda p: bytes(side.get_data_page(p * PAGE, flat=True).contiguous().view(torch.uint8).reshape(-1).numpy())
        want = [(page(kv, p), rows(p)) for p in range(6)]
        self.assertEqual(b.batch_set_v1(keys, slots(kv, *range(6))), [True] * 6)
        ask = [PoolTransfer(name=PoolName.INDEXER)]
        self.assertEqual(b.batch_exists_v2(keys, ask).kv_hit_pages, 0, "KV alone is no prefix")
        self.assertEqual(b.batch_set_v2([self.transfer(PoolName.INDEXER, side, keys[:4], range(4))]), {PoolName.INDEXER: [True] * 4})
        r = b.batch_exists_v2(keys, ask)
        self.assertEqual((r.kv_hit_pages, r.restorable_prefix_pages, r.extra_pool_hit_pages.get(PoolName.KV), r.extra_pool_hit_pages.get(PoolName.INDEXER)), (4, [1, 2, 3, 4], 6, 4))
        self.assertEqual(b.batch_get_v1(keys[:4], slots(kv, 20, 21, 22, 23)), [True] * 4)
        self.assertEqual(b.batch_get_v2([self.transfer(PoolName.INDEXER, side, keys, range(20, 26))]), {PoolName.INDEXER: [True] * 4 + [False] * 2})
        self.assertEqual([(page(kv, 20 + i), rows(20 + i)) for i in range(4)], want[:4])

    def test_window(self):
        kv, side = mha(64), mha(16)
        fill(side, 4)
        b = self.backend(kv, {PoolName.SWA: side})
        keys = keys_of(tokens(1, 8))
        b.batch_set_v1(keys, slots(kv, *range(8)))
        put = lambda which, at: b.batch_set_v2([self.transfer(PoolName.SWA, side, [keys[i] for i in which], at, PoolHitPolicy.TRAILING_PAGES)])
        self.assertEqual(put((2, 3), (0, 1)), {PoolName.SWA: [True] * 2})
        self.assertEqual(put((6, 7), (2, 3)), {PoolName.SWA: [True] * 2})
        ask = [PoolTransfer(name=PoolName.SWA, keys=keys[6:], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
        r = b.batch_exists_v2(keys, ask)
        self.assertEqual((r.kv_hit_pages, r.restorable_prefix_pages), (8, [4, 8]))
        get = lambda which, at: b.batch_get_v2([self.transfer(PoolName.SWA, side, [keys[i] for i in which], at, PoolHitPolicy.TRAILING_PAGES)])
        self.assertEqual(get((2, 3), (10, 11)), {PoolName.SWA: [True] * 2})
        self.assertEqual([page(side, p) for p in (10, 11)], [page(side, 0), page(side, 1)])
        self.assertEqual(get((3, 4), (12, 13)), {PoolName.SWA: [False] * 2}, "half a window is none")
        self.soon(lambda: self.m.number("pinned_bytes") == 0, "nothing is held")

    def test_state(self):
        kv, side = mha(64), mamba()
        fill(side, 5)
        b = self.backend(kv, {PoolName.MAMBA: side})
        keys = keys_of(tokens(1, 6))
        b.batch_set_v1(keys, slots(kv, *range(6)))
        one = lambda i, slot: [self.transfer(PoolName.MAMBA, side, [keys[i]], [slot], PoolHitPolicy.TRAILING_PAGES)]
        self.assertEqual(b.batch_set_v2(one(2, 1)), {PoolName.MAMBA: [True]})
        r = b.batch_exists_v2(keys, [PoolTransfer(name=PoolName.MAMBA, hit_policy=PoolHitPolicy.TRAILING_PAGES)])
        self.assertEqual((r.kv_hit_pages, r.restorable_prefix_pages), (3, [3]), "a state is where it was taken, and nowhere before")
        whole = lambda slot: [bytes(t.contiguous().view(torch.uint8).reshape(-1).numpy()) for t in side._iter_page_tensors(slot)]
        self.assertEqual(b.batch_get_v2(one(2, 9)), {PoolName.MAMBA: [True]})
        self.assertEqual(whole(9), whole(1))
        self.assertEqual(b.batch_get_v2(one(4, 9)), {PoolName.MAMBA: [False]})

    def test_against_sglangs_own_files(self):
        """The same pages are there: the same prefixes can be resumed, as SGLang's file backend has them."""
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile
        kv, swa, state = mha(32), mha(32), mamba()
        seed = random.randrange(1 << 30)
        r = random.Random(seed)
        for round in range(12):
            with self.subTest(seed=seed, round=round), tempfile.TemporaryDirectory() as folder:
                b = self.backend(kv, {PoolName.SWA: swa, PoolName.MAMBA: state}, extra={"scope": f"{round}"})
                os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = folder
                f = HiCacheFile(config(extra_config={}))
                for name, pool in ((PoolName.KV, kv), (PoolName.SWA, swa), (PoolName.MAMBA, state)):
                    f.register_mem_host_pool_v2(pool, name)
                n = r.randrange(1, 9)
                keys = keys_of(tokens((seed, round).__repr__(), n))
                for name, pool in ((PoolName.KV, kv), (PoolName.SWA, swa), (PoolName.MAMBA, state)):
                    for i in range(n):
                        if r.random() < (0.9 if name == PoolName.KV else 0.6):
                            t = [self.transfer(name, pool, [keys[i]], [i])]
                            f.batch_set_v2(t)
                            b.batch_set_v1([keys[i]], slots(kv, i)) if name == PoolName.KV else b.batch_set_v2(t)
                asks = [
                    [PoolTransfer(name=PoolName.SWA, keys=keys[-2:], hit_policy=PoolHitPolicy.TRAILING_PAGES)],
                    [PoolTransfer(name=PoolName.MAMBA, keys=keys[-1:], hit_policy=PoolHitPolicy.TRAILING_PAGES)],
                    [PoolTransfer(name=PoolName.SWA, hit_policy=PoolHitPolicy.ALL_PAGES)],
                    [PoolTransfer(name=PoolName.SWA, keys=keys[-3:], hit_policy=PoolHitPolicy.TRAILING_PAGES), PoolTransfer(name=PoolName.MAMBA, hit_policy=PoolHitPolicy.TRAILING_PAGES)]]
                for ask in asks:
                    x, y = f.batch_exists_v2(keys, ask), b.batch_exists_v2(keys, ask)
                    self.assertEqual((y.kv_hit_pages, y.restorable_prefix_pages), (x.kv_hit_pages, x.restorable_prefix_pages))
                b.close()
                self.soon(lambda: self.m.number("sessions") == 0, "the session has ended")

    def test_a_pool_that_is_not_known(self):
        with self.assertRaisesRegex(ValueError, "not built"):
            self.backend(mha(4), {PoolName.DRAFT: mha(4)})


class KvCopiedHere(Kv):
    """By the first route: this process copies."""

    shm = False


class SidesCopiedHere(Sides):
    shm = False


class LinkerAlone(unittest.TestCase):
    """What the linker does with its worker and a Manager that hangs, without an engine: its device is some bytes."""

    PAGES = 8

    def setUp(self):
        self.device = bytearray(self.PAGES * 64)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.device))
        self.go, self.began, self.stored = threading.Event(), threading.Semaphore(0), []
        self.up, self.stopped = True, None
        x = self.x = object.__new__(linker.PerigeeLinker)
        x._lock = threading.RLock()
        x._idle = threading.Condition(x._lock)
        x._flushes, x._reading, x._lookups, x._loads = 0, False, 0, {}
        x._jobs, x._done = queue.SimpleQueue(), collections.deque()
        x._staging, x._keeper, x._store, x._pool = staging.Staging(self.PAGES, 64), self, self, self
        x._turn = admission.Turn(2.0)
        x._admission = admission.Admission(x._ask, x._drop, 1.0, x._turn)
        x.layer_done_counter = unittest.mock.Mock()
        x._worker = threading.Thread(target=x._run, daemon=True)
        x._worker.start()
        self.addCleanup(self.end)

    def end(self):
        self.go.set()
        self.x._jobs.put(None)
        self.x._worker.join(SOON_S)
        self.assertEqual((self.x._worker.is_alive(), self.x._staging.free), (False, self.PAGES), "slots are not given back")

    # The pool, and the store.

    def places(self, slots, n):
        return [[(self.base + 64 * s, 64)] for s in slots]

    def there(self, wants):
        self.began.release()
        self.go.wait()
        return [[]]

    def set(self, group, names, pages, places):
        self.began.release()
        self.go.wait()
        self.stored.append([bytes(pools.memory(address, size)) for runs in places for address, size in runs])
        return [True] * len(names)

    def offload(self, *slots):
        keys = [f"{s:064x}" for s in slots]
        with unittest.mock.patch.object(linker.hooks, "pages", lambda keys: keys):
            return self.x.offload([unittest.mock.Mock(keys=keys, device_indices=slots)])

    def flushed(self):
        t = threading.Thread(target=self.x.reset, daemon=True)
        t.start()
        t.join(SOON_S)
        self.assertFalse(t.is_alive(), "a flush waits for the Manager")

    def test_a_flush_does_not_wait_for_a_manager_that_hangs(self):
        self.device[:64] = b"a" * 64
        self.assertTrue(self.offload(0))
        self.assertTrue(self.began.acquire(timeout=SOON_S))  # it is being stored
        self.assertTrue(self.offload(1))  # and this waits for its turn
        self.flushed()
        self.device[:] = b"z" * len(self.device)  # another's by now
        self.go.set()
        self.assertTrue(self.offload(2))
        for _ in range(1):
            self.assertTrue(self.began.acquire(timeout=SOON_S))
        self.x._jobs.put(None)
        self.x._worker.join(SOON_S)
        self.assertEqual(self.stored, [[b"a" * 64], [b"z" * 64]], "what was read before is stored, what was not is not read any more")
        self.assertEqual(list(self.x._done), [True], "the engine hears of what it has asked for since the flush")

    def test_lookups_are_bounded(self):
        keys = [f"{1:064x}"]
        now = time.monotonic()
        for i in range(linker.MOST_LOOKUPS + 5):
            self.x.lookup(f"r{i}", [unittest.mock.Mock(keys=keys)])
        verdicts = [self.x._admission.verdict(f"r{i}", now) for i in range(linker.MOST_LOOKUPS + 5)]
        self.assertEqual(verdicts, [admission.WAIT] * linker.MOST_LOOKUPS + [admission.GO] * 5)
        self.go.set()
        self.x._jobs.put(None)
        self.x._worker.join(SOON_S)
        self.assertEqual(self.x._lookups, 0)

    def test_a_manager_that_hangs_costs_one_limit(self):
        """The first request waits until the worker has been stuck for long enough; then nobody waits, nothing is looked up, and nothing more is kept on the device for it."""
        keys = [f"{1:064x}"]
        look = lambda rid: self.x.lookup(rid, [unittest.mock.Mock(keys=keys)])
        look("first")
        self.assertTrue(self.began.acquire(timeout=SOON_S))  # the worker asks
        self.assertTrue(self.offload(0))
        clock = time.monotonic() + 3
        with unittest.mock.patch.object(linker.time, "monotonic", lambda: clock):
            self.assertEqual(self.x.verdict("first"), admission.EXPIRE)
            self.x.agreed("first", admission.EXPIRE)
            for i in range(2 * linker.MOST_LOOKUPS):
                look(f"r{i}")
                self.assertEqual(self.x.verdict(f"r{i}"), admission.GO)
            self.assertFalse(self.offload(1))
        self.assertEqual(self.x._lookups, 1)
        self.go.set()
        self.assertTrue(self.began.acquire(timeout=SOON_S))  # it stores, and looks up again
        look("afterwards")
        self.assertTrue(self.began.acquire(timeout=SOON_S))

    def test_without_a_manager_nothing_waits(self):
        self.up = False
        self.x.lookup("r", [unittest.mock.Mock(keys=[f"{1:064x}"])])
        self.assertEqual(self.x._admission.verdict("r", time.monotonic()), admission.GO)
        self.assertFalse(self.offload(0))


class Speed(Case):
    """Ratios within one run, the two routes and one page at a time in turns. No bounds: the machine is anybody's."""

    def test_pages_at_once(self):
        global allocator
        pools, backends, rounds = {}, {}, 9
        for route in ("shm", "default"):
            allocator, self.shm = route, route == "shm"
            pools[route] = mha(256)
            backends[route] = self.backend(pools[route], extra={"instance": route, "scope": route})
            fill(pools[route], route)
        keys = keys_of(tokens(1, 128))
        for route, b in backends.items():
            self.assertEqual(b.batch_set_v1(keys, slots(pools[route], *range(128))), [True] * 128)
        whole = slots(pools["shm"], *range(128, 256))
        each = [slots(pools["shm"], p) for p in range(128, 256)]
        took = collections.defaultdict(list)
        for _ in range(rounds):
            for route, b in backends.items():
                began = time.perf_counter()
                self.assertEqual(b.batch_get_v1(keys, whole), [True] * 128)
                took[route, "at once"].append(time.perf_counter() - began)
                began = time.perf_counter()
                for key, slot in zip(keys, each):
                    self.assertEqual(b.batch_get_v1([key], slot), [True])
                took[route, "one by one"].append(time.perf_counter() - began)
        copied = 128 * 2 * rounds * backends["shm"]._pools["kv"].bytes
        print(f"\n    128 pages of {backends['shm']._pools['kv'].bytes >> 10} KiB, {rounds} rounds, milliseconds (least, median):")
        for (route, how), t in took.items():
            print(f"    {'the Manager copies' if route == 'shm' else 'the backend copies'}, {how}: {1000 * min(t):.1f}, {1000 * statistics.median(t):.1f}")
        print("    bytes that the Manager copied for each byte restored:", self.m.number("copied_bytes_total", "restore") / copied)


if __name__ == "__main__":
    configure()
    logging.disable(logging.INFO)
    sys.exit(not unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result.wasSuccessful())
