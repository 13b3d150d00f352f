"""A daemon for the Python client's tests, and stubs made from the protocol definition."""

import atexit
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import grpc
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY_LIMIT_SECONDS = 60
STOP_LIMIT_SECONDS = 60
MESSAGE_LENGTH_MAX = 8 << 20


def generate_stubs():
    """Generates the stubs into a temporary folder and puts that on the import path."""
    proto = ROOT / "proto"
    sources = sorted(str(path) for path in proto.glob("lodestore/v1/*.proto"))
    folder = tempfile.mkdtemp(prefix="lodestore-stubs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    arguments = ["protoc", f"-I{proto}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    if protoc.main(arguments + sources) != 0:
        raise RuntimeError("the protocol definition does not compile for Python")
    sys.path.insert(0, folder)


generate_stubs()


def module(name):
    """A generated module, such as `block_service_pb2`."""
    return importlib.import_module(f"lodestore.v1.{name}")


class Daemon:
    """A running daemon in a folder of its own."""

    def __init__(self):
        programs = pathlib.Path(os.environ["LODESTORE_PROGRAMS"])
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lodestore-python-"))
        ready = self.folder / "ready.json"
        configuration = self.folder / "lodestored.toml"
        configuration.write_text(
            '[server]\ngrpc = ["127.0.0.1:0"]\nhttp = "127.0.0.1:0"\n'
            '[[pool]]\nname = "tank"\ncreate = true\n'
            f'devices = ["file:{self.folder}/disk0.img?size=256MiB&create"]\n'
        )
        self.log = open(self.folder / "daemon.log", "w+b")
        self.process = subprocess.Popen(
            [programs / "lodestored", "--config", configuration, "--ready-file", ready],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        try:
            addresses = self._wait(ready)["grpc"]
        except BaseException:
            self.close()
            raise
        self.address = addresses if isinstance(addresses, str) else addresses[0]

    def _wait(self, ready):
        deadline = time.monotonic() + READY_LIMIT_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                return json.loads(ready.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                time.sleep(0.01)
        self.log.seek(0)
        raise RuntimeError(f"the daemon did not become ready: {self.log.read().decode()}")

    def channel(self):
        """A new connection."""
        return grpc.insecure_channel(
            self.address,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_LENGTH_MAX),
                ("grpc.max_send_message_length", MESSAGE_LENGTH_MAX),
            ],
        )

    def close(self):
        """Ends the daemon and removes its folder; True when it ended well."""
        self.process.terminate()
        try:
            status = self.process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return status == 0
