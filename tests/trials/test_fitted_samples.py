"""What a remedy is fitted to: the float tensors that it names, on some of the samples, and nothing else."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from builders.onnx_models import conv_net, images, save_pair, static

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.engine.formulas.change import Targets, sixteen_bit
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.stored_bins import extremes, tensor_bins
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.engine.rules.load import load_rules
from quantmedic.trials.trial import FittedSamples


@pytest.mark.thorough
def test_tensors_are_measured_as_a_collection_of_these_samples_measures_them(tmp_path: Path) -> None:
    model, data = conv_net(), images(24)
    name = model.graph.input[0].name
    paths = save_pair(tmp_path, model, static(model, {name: data}, tmp_path))
    whole = quantmedic.collect(*paths, validation=data, attribution=False)
    alone = quantmedic.collect(*paths, validation=data[:8], attribution=False)
    facts = derive(whole, load_rules([Path(str(files("quantmedic.rules")))]))
    fitted = FittedSamples(open_models(*paths), whole, facts, [Batch({name: data[:8]})], 1, 1)
    last = len(whole.record.tensors) - 1
    found = fitted.with_tensors([1])
    assert found.record is whole.record
    assert found.statistics["validation"].tensor(last).count.sum() == 0
    fitted.with_tensors([1, last])  # only what is missing is measured, and nothing twice
    for i in (1, last):
        bins, wanted = (tensor_bins(case, "validation", i) for case in (found, alone))
        assert bins is not None and wanted is not None
        np.testing.assert_array_equal(bins.count, wanted.count)
    for ends, wanted_ends in zip(
        extremes(found.statistics["validation"]), extremes(alone.statistics["validation"]), strict=True
    ):
        np.testing.assert_array_equal(ends[[1, last]], wanted_ends[[1, last]])


def test_the_float_model_alone_shows_what_both_models_show_together(tmp_path: Path) -> None:
    model, data = conv_net(), images(8)
    name = model.graph.input[0].name
    models = open_models(*save_pair(tmp_path, model, static(model, {name: data}, tmp_path)))
    batch, pairs = Batch({name: data}), dict(enumerate(models.pairs))
    read = models.float_reader([pair.twin for pair in pairs.values()], 1)
    alone, beside = read(batch), models.view(pairs, batch, 1).read_tensors(batch).floats
    assert alone.keys() >= {pair.twin for pair in pairs.values()}
    for pair in pairs.values():
        np.testing.assert_array_equal(alone[pair.twin], beside[pair.twin])


@pytest.mark.thorough
def test_sixteen_bits_keep_a_range_that_the_fitted_samples_do_not_show(tmp_path: Path) -> None:
    model, data = conv_net(), images(16)
    data[:8] *= 0.01
    name = model.graph.input[0].name
    paths = save_pair(tmp_path, model, static(model, {name: data}, tmp_path))
    whole = quantmedic.collect(*paths, validation=data, attribution=False)
    facts = derive(whole, load_rules([Path(str(files("quantmedic.rules")))]))
    every = tuple(range(len(whole.record.tensors)))
    quiet = FittedSamples(open_models(*paths), whole, facts, [Batch({name: data[:8]})], 1, 1).with_tensors(every)
    change = sixteen_bit(quiet, facts, Targets(every))
    assert change.grids
    for i, grid in change.grids.items():
        deployed = grid_of(whole.record.tensors[i].quantizer)
        assert grid is not None and deployed is not None
        assert grid.step == pytest.approx(deployed.step / 257, rel=0.01)
        assert (grid.low, grid.high) == pytest.approx((deployed.low, deployed.high), abs=2 * grid.step)
