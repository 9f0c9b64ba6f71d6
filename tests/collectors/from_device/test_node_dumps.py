"""Tensors as debug builds of onnxruntime write them, byte for byte: files of one TensorProto, and their database.

No released package of onnxruntime has this switched on; names, schema and content are those of its source
(``debug_node_inputs_outputs_utils.cc``).
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders.device_dumps import DUMP, collected
from builders.dump_files import file_name, write_database, write_files
from onnx import numpy_helper

from quantmedic.engine.case.records import DeviceTensorRecord
from quantmedic.engine.errors import DataError


@pytest.mark.thorough
def test_what_nodes_read_beside_samples_is_left_out(
    paths: tuple[Path, Path], wanted: tuple[DeviceTensorRecord, ...], tmp_path: Path
) -> None:
    """With inputs of nodes dumped, weights and scales are there, too."""
    constants = {"w": np.zeros((6, 3, 3, 3), np.float32), "b": np.zeros(6, np.int32), "s": np.array(0.5, np.float32)}
    more = {f"{name}{k}": values for name, values in constants.items() for k in range(20)}
    case = collected(paths, write_files(tmp_path / "d", DUMP | more))
    assert case.record.device.tensors == wanted
    assert len([notice for notice in case.record.notices if "s0" in notice or "w0" in notice]) <= 2


@pytest.mark.thorough
def test_one_tensor_of_two_providers(
    paths: tuple[Path, Path], wanted: tuple[DeviceTensorRecord, ...], tmp_path: Path
) -> None:
    """Read by a node of one and written by one of the other it is the same; of two runs it is not."""
    folder = write_files(write_files(tmp_path / "d", DUMP, "QNN_"), DUMP, "CPU_")
    assert collected(paths, folder).record.device.tensors == wanted
    write_files(folder, {"mix1_dq": DUMP["mix1_dq"] + 1}, "CPU_")
    case = collected(paths, folder)
    assert len(case.record.device.tensors) == len(DUMP) - 1
    assert any("CPU_mix1_dq.tensorproto, QNN_mix1_dq.tensorproto hold it and differ" in n for n in case.record.notices)


@pytest.mark.thorough
def test_a_step_that_lacks_a_tensor(paths: tuple[Path, Path], tmp_path: Path) -> None:
    case = collected(paths, write_database(tmp_path / "d", DUMP, lacking=("sum1_dq", 5)))
    assert any("sum1_dq: step 5 lacks it" in notice for notice in case.record.notices)
    assert len(case.record.device.tensors) == len(DUMP) - 1


def test_no_other_file_is_read(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = write_files(tmp_path / "d", {"sum1_dq": DUMP["sum1_dq"]})
    tensor = numpy_helper.from_array(DUMP["mix1_dq"], "mix1_dq")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    tensor.ClearField("raw_data")
    (folder / file_name("mix1_dq")).write_bytes(tensor.SerializeToString())
    with pytest.raises(DataError, match="cannot be read") as error:
        collected(paths, folder)
    assert "stand in another file" in str(error.value) and "mix1_dq.tensorproto" in str(error.value)


def test_databases_that_are_none(paths: tuple[Path, Path], tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, statement in enumerate(
        (
            "Alter table Tensors rename to Others",
            "Update Tensors set Value = 'text' where Step = 3",
            "Drop table Tensors; Create view Tensors as with recursive n(i) as "
            "(select 1 union all select i + 1 from n) select i as Step, 'a' as Name, x'00' as Value from n",
        )
    ):
        path = write_database(tmp_path / str(number), {"mix1_dq": DUMP["mix1_dq"]})
        with closing(sqlite3.connect(path)) as database:
            database.executescript(statement)
        with subtests.test(statement), pytest.raises(DataError, match="cannot be read"):
            collected(paths, path)
