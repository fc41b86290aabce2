"""The Cache Manager as a process, for the checks with real engines."""

import json
import os
import pathlib
import signal

from servers import BIN, Server, ask, free_port, series, wait_until


class Manager:
    """perigee cache. It keeps its socket and its ports over restarts."""

    def __init__(self, name, folder, logs, pool, instances=1, events=False):
        """pool is in bytes. With events it tells gateways what it has."""
        self.name, self.folder, self.logs, self.pool, self.instances = name, pathlib.Path(folder), logs, pool, instances
        self.socket, self.port = str(self.folder / "cache.sock"), free_port()
        self.events = [free_port() for _ in range(3)] if events else None
        self.url, self.server = f"http://127.0.0.1:{self.port}", None

    def start(self, pool=None):
        self.folder.mkdir(exist_ok=True)
        settings = {"socket": self.socket, "pool_bytes": pool or self.pool, "instances": self.instances, "admin": f"127.0.0.1:{self.port}"}
        if self.events:
            settings["events"] = dict(zip(("listen", "replay", "snapshot"), (f"127.0.0.1:{p}" for p in self.events)))
        file = self.folder / "cache.yaml"
        file.write_text(json.dumps(settings))  # JSON is YAML too

        def begin():
            self.server = Server(self.name, self.logs, [BIN, "cache", "--config", file])
            try:
                return self.server.ready()
            except AssertionError:  # somebody else's connection has one of the ports, for a moment
                self.gone()

        wait_until(begin, "the Manager has its ports")

    def gone(self):
        self.server.child.wait()
        self.server.child.stdout.close()

    def kill(self):
        self.server.child.kill()
        self.gone()

    def signal(self, number):
        """Of SIGSTOP it returns when no thread runs any more: the one that has to see it may have to wait for a processor, and the others serve on."""
        self.server.child.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.server.child.pid, os.WSTOPPED)

    def stand_still(self):
        """SIGSTOP, and until each thread has stopped: the signal alone says nothing of when."""
        self.signal(signal.SIGSTOP)
        states = lambda: [s.read_text().rpartition(")")[2].split()[0] for s in pathlib.Path(f"/proc/{self.server.child.pid}/task").glob("*/stat")]
        wait_until(lambda: set(states()) == {"T"}, "it stands still")

    def stop(self):
        return self.server.stop()

    def number(self, name, labels=""):
        return sum(v for k, v in series(self.url)["perigee_cache_" + name].items() if labels in k)  # a name that is not there is a mistake, and no zero

    def registered(self, n=1):
        return self.number("sessions") == n

    def published(self):
        """Pages that it was given so far, or had."""
        return sum(self.number("published_blocks_total", f'disposition="{d}"') for d in ("write", "present"))

    def leased(self):
        """Bytes that queries hold for restores."""
        return self.number("query_reserved_bytes", 'phase="leased"')

    def quiet(self):
        """Nothing is being stored, restored or held."""
        return all(self.number(n) == 0 for n in ("granted_bytes", "pinned_bytes", "copies"))

    def flush(self):
        return ask(self.url + "/flush", {})["dropped"]

    def arenas(self, least):
        """Its pool, by descriptors that the kernel tells of: a file each, open for writing, of at least so many bytes."""
        folder, seen = f"/proc/{self.server.child.pid}/fd", {}
        for fd in os.listdir(folder):
            try:
                if "/memfd:perigee-arena" in os.readlink(f"{folder}/{fd}") and (s := os.stat(f"{folder}/{fd}")).st_size >= least:
                    seen[s.st_ino] = f"{folder}/{fd}"
            except FileNotFoundError:
                pass
        return list(seen.values())

    def slots(self, size):
        """What lies in its pool: {(file, place): hash}, of pages of size bytes."""
        out = {}
        for path in self.arenas(size):
            with open(path, "rb", buffering=0) as f:
                out |= {(path, at): hash(os.pread(f.fileno(), size, at)) for at in range(0, os.fstat(f.fileno()).st_size, size)}
        return out


def flip(slots):
    """Changes a bit in each of some slots of a Manager's pool."""
    for path, at in slots:
        with open(path, "r+b", buffering=0) as f:
            os.pwrite(f.fileno(), bytes([os.pread(f.fileno(), 1, at + 12345)[0] ^ 4]), at + 12345)
