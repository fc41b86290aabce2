"""Where a sequence can be resumed, by which pages of which pool are there: SGLang's rules of batch_exists_v2. Pure."""

ALL_PAGES, TRAILING_PAGES = "all_pages", "trailing_pages"


def leading(positions, count):
    """How many of 0 … count-1 are there from the beginning on; positions are those that are, rising."""
    n = 0
    for p in positions:
        if p != n:
            break
        n += 1
    return min(n, count)


def prefixes(kv, pools):
    """(lengths, hits): every length in pages, rising, at which all pools have what their rule needs; and for each pool the longest that it alone allows,
    without those that allow none.

    kv is how many pages of KV lead. pools is {name: (rule, trailing, positions)}: positions of the pages that are there, and for TRAILING_PAGES how many
    must lie before the end (a sequence that is shorter needs all of its own)."""
    lengths, hits = list(range(1, kv + 1)), {}
    for name, (rule, trailing, positions) in pools.items():
        if rule == ALL_PAGES:
            own = set(range(1, leading(positions, kv) + 1))
        elif rule == TRAILING_PAGES:
            own = _trailing(max(1, trailing), positions, kv)
        else:
            raise ValueError(f"the rule {rule!r} of the pool {name} is not known")
        if own:
            hits[name] = max(own)
        lengths = [n for n in lengths if n in own]
    return lengths, hits


def _trailing(need, positions, kv):
    own, run, last = set(), 0, -1
    for p in positions:
        run = run + 1 if p == last + 1 else 1
        last = p
        if p < kv and run >= min(need, p + 1):
            own.add(p + 1)
    return own
