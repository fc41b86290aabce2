"""Pages by strides: whatever the order in memory, a page holds a block's bytes in the order of addresses, and goes back to where it came from. Needs torch."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))

import torch  # noqa: E402

from perigee.vllm.pages import Pages  # noqa: E402

BLOCKS, HEADS, TOKENS, WIDE = 5, 2, 8, 6


def plain(dtype):
    return torch.randn(BLOCKS, HEADS, TOKENS, WIDE).to(dtype)


def tokens_first(dtype):
    return torch.randn(BLOCKS, TOKENS, HEADS, WIDE).to(dtype).permute(0, 2, 1, 3)


def padded(dtype):
    return torch.randn(BLOCKS, HEADS, TOKENS + 3, WIDE).to(dtype)[:, :, :TOKENS]


def between_layers(dtype):
    return torch.randn(BLOCKS, 3, HEADS, TOKENS, WIDE).to(dtype)[:, 1]


class Layouts(unittest.TestCase):
    def test_there_and_back(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
            for make in (plain, tokens_first, padded, between_layers):
                with self.subTest(dtype=dtype, layout=make.__name__):
                    here = {"a": make(dtype), "b": make(dtype)}
                    there = {"a": make(dtype), "b": make(dtype)}
                    untouched = {k: t.clone() for k, t in there.items()}
                    pages, others = Pages(here, BLOCKS), Pages(there, BLOCKS)
                    self.assertEqual(pages.segments, others.segments)
                    n = HEADS * TOKENS * WIDE * here["a"].element_size()
                    self.assertEqual((pages.bytes, [s["bytes"] for s in pages.segments]), (2 * n, [n, n]))
                    page = bytearray(pages.bytes)
                    pages.read(3, memoryview(page))
                    others.write(1, memoryview(page).toreadonly())
                    for k in here:
                        same = there[k].view(torch.uint8) == untouched[k].view(torch.uint8)
                        self.assertTrue(torch.equal(there[k][1].view(torch.uint8), here[k][3].view(torch.uint8)))
                        self.assertTrue(same[[0, 2, 3, 4]].all())

    def test_the_order_is_in_the_namespace(self):
        a, b = (Pages({"a": make(torch.float32)}, BLOCKS).segments for make in (plain, tokens_first))
        self.assertNotEqual(a, b)
        self.assertEqual(a[0]["strides"], [TOKENS * WIDE * 4, WIDE * 4, 4])
        self.assertEqual(b[0]["strides"], [WIDE * 4, HEADS * WIDE * 4, 4])

    def test_shared_layers_are_one(self):
        t = plain(torch.float32)
        self.assertEqual(len(Pages({"a": t, "b": t}, BLOCKS).segments), 1)

    def test_another_first_axis(self):
        with self.assertRaises(ValueError):
            Pages({"a": torch.randn(2, BLOCKS, TOKENS, HEADS, WIDE)}, BLOCKS)


if __name__ == "__main__":
    unittest.main()
