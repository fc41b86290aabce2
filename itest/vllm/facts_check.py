"""What is in an engine's namespace, and what is refused, by vLLM's own reading of its flags: without an engine. Run with the Python of .cache/vllm/venv by
scripts/vllm/qualify.sh."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))

from vllm.config import KVTransferConfig  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

from perigee.vllm import facts  # noqa: E402

MODEL = ROOT / ".cache/vllm/model"
TRANSFER = {"kv_connector": "PerigeeConnector", "kv_connector_module_path": "perigee.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def config(self, **more):
        return EngineArgs(**({"model": str(MODEL), "dtype": "float32", "block_size": 32, "max_model_len": 1024, "enforce_eager": True, "enable_prefix_caching": True,
                              "kv_transfer_config": KVTransferConfig(**TRANSFER)} | more)).create_engine_config()


class Identity(Case):
    def options(self, **more):
        return facts._options(self.config(**more))

    def test_settings(self):
        """What may decide a byte is in, and what decides none is not."""
        base = self.options()
        self.assertEqual(self.options(), base, "the same over a restart")
        other = self.folder / "config"
        other.mkdir()
        page = json.loads((MODEL / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(page | {"rms_norm_eps": 0.5}))
        same = self.folder / "same"
        same.mkdir()
        shutil.copy(MODEL / "config.json", same)
        for more, apart in (
            ({"hf_config_path": str(other)}, True), ({"hf_config_path": str(same)}, False), ({"load_format": "safetensors"}, True),
            ({"model_loader_extra_config": {"enable_multithread_load": True}}, True), ({"max_model_len": 512}, True), ({"model_impl": "transformers"}, True),
            ({"served_model_name": ["x"]}, False), ({"max_logprobs": 3}, False), ({"download_dir": "/x"}, False), ({"hf_token": "secret"}, False), ({"seed": 9}, False),
            ({"load_format": "dummy", "seed": 9}, True),
        ):
            with self.subTest(more):
                self.assertEqual(self.options(**more) != base, apart)
        self.assertNotEqual(self.options(load_format="dummy", seed=1), self.options(load_format="dummy", seed=2))


class Refused(Case):
    def reasons(self, extra=None, change=None, **more):
        c = self.config(**more)
        if change is not None:
            change(c)
        return facts.unsupported(c, None, extra or {})

    def test_a_usual_engine(self):
        self.assertEqual(self.reasons(), [])

    def test_weights_from_elsewhere(self):
        def hub(c):
            c.model_config.model, c.model_config.hf_config_path = "some/model", "other/config"

        def streamed(c):
            c.model_config.model_weights = "s3://bucket/model"

        def tensorized(c):
            c.load_config.load_format, c.load_config.model_loader_extra_config = "tensorizer", {"tensorizer_uri": "s3://others/weights"}

        for change, word in ((hub, "hf_config_path"), (streamed, "s3://bucket/model"), (tensorized, "tensorizer")):
            with self.subTest(word):
                found = self.reasons(change=change)
                self.assertEqual([word in r for r in found], [True], found)
                self.assertEqual(self.reasons({"model_content": "ab" * 32}, change), [], "declared")

    def test_executors(self):
        for backend in ("mp", "ray", "uni", "external_launcher", object):
            def change(c):
                c.parallel_config.distributed_executor_backend = backend
            found = self.reasons(change=change)
            self.assertEqual(["executor" in r for r in found], [True] * (backend not in ("mp", "ray", "uni")), found)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else vLLM makes mp of uni on a CPU
        self.addCleanup(os.environ.pop, "VLLM_ENABLE_V1_MULTIPROCESSING")
        self.assertEqual((self.config().parallel_config.distributed_executor_backend, self.reasons()), ("uni", []))


if __name__ == "__main__":
    unittest.main()
