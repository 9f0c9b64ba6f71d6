"""Sets of operator types, by ONNX's names, that several rooms ask for."""

#: The numbers stay in their order, under another shape.
RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: The numbers stay as they are, under another shape or in another order.
LAYOUTS = RESHAPES | {"Transpose", "Identity"}
#: A part of the numbers is handed on, some of them more than once.
SELECTIONS = frozenset({"Slice", "Split", "Gather", "GatherElements", "GatherND", "Expand", "Tile"})
#: Whole numbers come out as they went in, or the largest or the nearest of them, or nothing where there was none.
RESAMPLING = frozenset({"Pad", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth", "MaxPool", "GlobalMaxPool"})
#: Two tensors become one, number by number.
ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
#: Functions of one tensor that runtimes compute in the kernel of the layer before them.
FUSED_FUNCTIONS = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu"}
)
