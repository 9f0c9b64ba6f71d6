"""Sony's Model Compression Toolkit where it is installed; each module here skips itself where it is not.

The toolkit imports torchvision, whose wheel holds C++ operators linked against a CUDA build of torch. Its Python part
asks for the names of two of them only, so they are named here; no test calls them.
"""

from importlib.util import find_spec

if find_spec("model_compression_toolkit") is not None:
    import torch

    if not hasattr(torch.ops.torchvision, "nms"):
        OPERATORS = torch.library.Library("torchvision", "DEF")  # the registration lives as long as this object
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
