#!/usr/bin/env python3
"""Renders testdata of internal/gateway/tokens/template with jinja2, as Hugging Face's apply_chat_template does.

Writes golden.json.gz beside it. For a template of the repository it holds the text; for one that scripts/chat-templates.sh
fetched, the SHA-256 of the text. Run it with the packages of itest/template-requirements.txt:

    python3 -m venv .cache/jinja && .cache/jinja/bin/pip install -r itest/template-requirements.txt
    scripts/chat-templates.sh && .cache/jinja/bin/python scripts/template-golden.py
"""

import copy
import gzip
import hashlib
import json
import pathlib
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "internal/gateway/tokens/template/testdata"
FETCHED = ROOT / ".cache/chat-templates"
NOW = datetime(2026, 7, 4, 15, 6, 7, 89000)
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Raised(Exception):
    """What raise_exception of a template raises."""


class Generation(jinja2.ext.Extension):
    """The generation tag of Hugging Face: its body passes, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def raise_exception(message):
    raise Raised(str(message))


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def mark(chat):
    """Marks the end of the message to be continued, and returns the chat and its text."""
    chat = copy.deepcopy(chat)
    last = chat[-1]["content"]
    if isinstance(last, list):
        for part in reversed(last):
            if "text" in part:
                last, part["text"] = part["text"], part["text"] + TAG
                return chat, last
        raise ValueError("no text to continue")
    chat[-1]["content"] = last + TAG
    return chat, last


def cut(text, last):
    """Ends the text where the message to be continued ends."""
    if last.strip() not in text or TAG.strip() not in text:
        raise ValueError("the final message does not appear in the text")
    at = text.rindex(TAG.strip())
    if text[at : at + len(TAG)] == TAG:
        return text[:at]
    return text[:at].rstrip()


def render(env, source, case):
    try:
        chat = case["messages"]
        if case.get("continue_final_message"):
            chat, last = mark(chat)
        variables = dict(
            messages=chat,
            tools=case.get("tools"),
            documents=case.get("documents"),
            add_generation_prompt=case.get("add_generation_prompt", False),
        )
        variables.update(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
        variables.update(case.get("kwargs", {}))
        text = env.from_string(source).render(**variables)
        if case.get("continue_final_message"):
            text = cut(text, last)
        text.encode()
        return {"text": text}
    except Raised as e:
        return {"raised": str(e)}
    except Exception as e:  # whatever Python raises is an answer here
        return {"error": type(e).__name__}


def main():
    env = environment()
    conversations = json.loads((DATA / "conversations.json").read_text(encoding="utf-8"))
    golden = {}
    own = {p.stem: p for p in sorted((DATA / "templates").glob("*.jinja"))}
    fetched = {p.stem: p for p in sorted(FETCHED.glob("*.jinja")) if p.stem not in own}
    for name, path in {**own, **fetched}.items():
        source = path.read_bytes().decode("utf-8")
        for case in conversations:
            got = render(env, source, case)
            if name in fetched and "text" in got:
                got = {"sha256": hashlib.sha256(got["text"].encode()).hexdigest()}
            golden[name + "/" + case["name"]] = got
    for line in json.loads((DATA / "lines.json").read_text(encoding="utf-8")):
        golden["line/" + line] = render(env, line, conversations[0])
    raw = json.dumps(golden, ensure_ascii=False, indent=0, sort_keys=True).encode()
    (DATA / "golden.json.gz").write_bytes(gzip.compress(raw, 9, mtime=0))
    kinds = [next(iter(v)) for v in golden.values()]
    print(len(golden), "cases,", len(own), "templates of the repository,", len(fetched), "fetched,", {k: kinds.count(k) for k in set(kinds)})


if __name__ == "__main__":
    main()
