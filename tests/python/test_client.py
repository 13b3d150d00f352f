"""Lodestore seen by a client that shares no code with it."""

import os
import unittest

import grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

import daemon

block = daemon.module("block_service_pb2")
block_grpc = daemon.module("block_service_pb2_grpc")
durability = daemon.module("durability_pb2")
error = daemon.module("error_pb2")
info = daemon.module("info_service_pb2")
info_grpc = daemon.module("info_service_pb2_grpc")
volume = daemon.module("volume_service_pb2")
volume_grpc = daemon.module("volume_service_pb2_grpc")

SIZE = 16 << 20
LIMIT_SECONDS = 60


class ClientTest(unittest.TestCase):
    """All tests share a daemon; each has a volume of its own."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemon.Daemon()
        cls.channel = cls.daemon.channel()
        cls.volumes = volume_grpc.VolumeServiceStub(cls.channel)
        cls.blocks = block_grpc.BlockServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        if not cls.daemon.close():
            raise AssertionError("the daemon did not end well")

    def setUp(self):
        self.name = self.id().rsplit(".", 1)[1]
        request = volume.CreateVolumeRequest(name=self.name, size_bytes=SIZE)
        self.volumes.CreateVolume(request, timeout=LIMIT_SECONDS)

    def write(self, offset, data, level=durability.DURABILITY_NONE):
        request = block.WriteRequest(
            volume=self.name, offset_bytes=offset, data=data, durability=level
        )
        return self.blocks.Write(request, timeout=LIMIT_SECONDS)

    def read(self, offset, length):
        request = block.ReadRequest(volume=self.name, offset_bytes=offset, length_bytes=length)
        return self.blocks.Read(request, timeout=LIMIT_SECONDS).data

    def assert_refused(self, code, reason, call, request):
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=LIMIT_SECONDS)
        self.assertEqual(caught.exception.code(), code)
        status = rpc_status.from_call(caught.exception)
        self.assertIsNotNone(status, "the error carries a google.rpc.Status")
        detail = error.ErrorDetail()
        self.assertTrue(status.details[0].Unpack(detail))
        self.assertEqual(detail.reason, reason)
        return detail

    def test_what_is_written_and_flushed_is_read_back(self):
        data = os.urandom(1 << 20)
        self.write(4096, data)
        request = block.FlushRequest(volume=self.name)
        answer = self.blocks.Flush(request, timeout=LIMIT_SECONDS)
        self.assertGreaterEqual(answer.durability, durability.DURABILITY_DATA)
        self.assertEqual(self.read(4096, len(data)), data)
        self.assertEqual(self.read(0, 4096), bytes(4096))

    def test_a_durable_write_says_so(self):
        answer = self.write(0, bytes(4096), durability.DURABILITY_FULL)
        self.assertEqual(answer.durability, durability.DURABILITY_FULL)

    def test_a_stream_answers_every_tag(self):
        data = {tag: os.urandom(4096) for tag in range(1, 101)}

        def writes():
            yield block.IoRequest(tag=0, open=block.IoOpen(volume=self.name))
            for tag, content in data.items():
                write = block.IoWrite(offset_bytes=tag * 4096, data=content)
                yield block.IoRequest(tag=tag, write=write)

        def reads():
            yield block.IoRequest(tag=0, open=block.IoOpen(volume=self.name))
            for tag in data:
                read = block.IoRead(offset_bytes=tag * 4096, length_bytes=4096)
                yield block.IoRequest(tag=tag, read=read)

        answers = {answer.tag: answer for answer in self.blocks.Io(writes(), timeout=60)}
        self.assertEqual(answers[0].WhichOneof("result"), "opened")
        for tag in data:
            self.assertEqual(answers[tag].WhichOneof("result"), "durability")
        answers = {answer.tag: answer for answer in self.blocks.Io(reads(), timeout=60)}
        for tag, content in data.items():
            self.assertEqual(answers[tag].data, content)

    def test_a_streamed_image_comes_back(self):
        head = os.urandom(1 << 20)

        def chunks():
            opening = block.WriteStreamOpen(
                volume=self.name, durability=durability.DURABILITY_DATA
            )
            yield block.WriteStreamRequest(open=opening)
            yield block.WriteStreamRequest(data=head)
            yield block.WriteStreamRequest(zeroes_bytes=SIZE - len(head))

        summary = self.blocks.WriteStream(chunks(), timeout=LIMIT_SECONDS)
        self.assertEqual(summary.data_bytes, len(head))
        self.assertGreaterEqual(summary.durability, durability.DURABILITY_DATA)
        content = bytearray()
        request = block.ReadStreamRequest(volume=self.name)
        for chunk in self.blocks.ReadStream(request, timeout=LIMIT_SECONDS):
            if chunk.WhichOneof("content") == "data":
                content += chunk.data
            else:
                content += bytes(chunk.zeroes_bytes)
        self.assertEqual(bytes(content), head + bytes(SIZE - len(head)))

    def test_errors_are_the_documented_ones(self):
        def read(offset, length):
            return block.ReadRequest(volume=self.name, offset_bytes=offset, length_bytes=length)

        invalid = grpc.StatusCode.INVALID_ARGUMENT
        call = self.blocks.Read
        self.assert_refused(invalid, error.ERROR_REASON_ZERO_LENGTH, call, read(0, 0))
        self.assert_refused(invalid, error.ERROR_REASON_UNALIGNED, call, read(1, 4096))
        beyond = grpc.StatusCode.OUT_OF_RANGE
        detail = self.assert_refused(
            beyond, error.ERROR_REASON_BEYOND_END, call, read(SIZE, 4096)
        )
        self.assertEqual(detail.limit, SIZE)
        missing = block.ReadRequest(volume="no such volume", length_bytes=4096)
        not_found = grpc.StatusCode.NOT_FOUND
        self.assert_refused(not_found, error.ERROR_REASON_VOLUME_NOT_FOUND, call, missing)
        again = volume.CreateVolumeRequest(name=self.name, size_bytes=SIZE)
        exists = grpc.StatusCode.ALREADY_EXISTS
        create = self.volumes.CreateVolume
        self.assert_refused(exists, error.ERROR_REASON_VOLUME_EXISTS, create, again)

    def test_the_limits_are_what_they_are_said_to_be(self):
        stub = info_grpc.InfoServiceStub(self.channel)
        limits = stub.GetInfo(info.GetInfoRequest(), timeout=LIMIT_SECONDS).limits
        longest = limits.io_length_max_bytes
        self.assertEqual(len(self.read(0, longest)), longest)
        request = block.ReadRequest(volume=self.name, length_bytes=longest + 4096)
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        reason = error.ERROR_REASON_LENGTH_TOO_LONG
        detail = self.assert_refused(invalid, reason, self.blocks.Read, request)
        self.assertEqual(detail.limit, longest)


class ReflectionTest(unittest.TestCase):
    """The daemon describes itself to tools that know no schema."""

    def test_the_services_are_listed(self):
        running = daemon.Daemon()
        try:
            with running.channel() as channel:
                services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        finally:
            running.close()
        for name in ("BlockService", "VolumeService", "PoolService", "InfoService"):
            self.assertIn(f"lodestore.v1.{name}", services)
        self.assertIn("grpc.health.v1.Health", services)


if __name__ == "__main__":
    unittest.main()
