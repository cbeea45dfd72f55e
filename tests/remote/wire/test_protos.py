"""The messages that are checked in are those of the `.proto` files."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from penstock.meta.proto import meta_pb2
from penstock.remote import shards_pb2, storage_pb2

SOURCE = Path(__file__).parents[3] / "src"
MODULES: dict[str, ModuleType] = {
    "penstock/meta/proto/meta.proto": meta_pb2,
    "penstock/remote/shards.proto": shards_pb2,
    "penstock/remote/storage.proto": storage_pb2,
}


def test_the_messages_are_compiled_from_the_files(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.glob("penstock/**/*.proto")}
    assert found == set(MODULES)
    written = tmp_path / "set"
    assert protoc.main(["protoc", f"-I{SOURCE}", f"-o{written}", *sorted(found)]) == 0
    for file in FileDescriptorSet.FromString(written.read_bytes()).file:
        known = FileDescriptorProto()
        MODULES[file.name].DESCRIPTOR.CopyToProto(known)
        for message in file.message_type:
            for one in (message, *message.nested_type):
                for field in one.field:
                    field.ClearField("json_name")  # the compiler adds them
        assert known == file, f"{file.name} has changed: `make protos`"
