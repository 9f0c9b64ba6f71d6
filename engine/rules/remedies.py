"""Remedies: what to change, what it costs, when it is useless or unsafe, and how a toolchain applies it."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from quantmedic.engine.rules.conditions import Condition, Data, Node, leaves
from quantmedic.engine.rules.remedy_kinds import Simulation
from quantmedic.engine.rules.rule import Rule, message_fields, names_layers
from quantmedic.engine.rules.toolchain import UNKNOWN, Toolchain
from quantmedic.engine.rules.toolchain_options import FIELD, Form, Options, asked_fields

#: How far a snippet was checked.
Mark = Literal["run", "source", "documentation"]
#: Scopes whose facts can decide about a remedy.
RemedyScope = Literal["model", "dataset", "layer", "tensor"]
#: Fields of a snippet that become lists of names, of the float model unless said otherwise, and what they hold.
NAME_FIELDS: dict[str, str] = {
    "layers": "the layers concerned",
    "nodes": "their nodes: each layer with the activation that was fused into it",
    "around": "their nodes and those that read their outputs: a tensor stays quantized while a reader quantizes it",
    "group": "their nodes, those that feed them, up to three steps upstream, and both halves of what cancels",
    "tensors": "the activations concerned",
    "weights": "the weights of the layers concerned",
    "typed": "all nodes of their operator types",
    "quantized_layers": "the layers concerned that have weights, by their names in the quantized model",
    "quantized_tensors": "the quantized activations concerned, by their names in the quantized model",
}
#: The same of the model, which no layer has to be named for.
MODEL_FIELDS: dict[str, str] = {
    "smaller_group": "half as many weights per scale as now, 32 or more",
    "finer_groups": "config_groups of compressed-tensors with half as many weights per scale, 16 or more",
    "zero_point_groups": "the same with zero points of the weights where there are none",
    "token_groups": "the same with inputs of 8 bits that have a scale per token",
    "open_groups": "the same with the inputs of those layers in float which lose most by theirs",
    "input_layers": "a pattern of compressed-tensors for these layers",
    "input_quantizers": "a pattern of ModelOpt for the quantizers of their inputs",
}
#: Fields of a snippet with values that no remedy has to name.
VALUE_FIELDS: dict[str, str] = {
    "pixel_mean": "mean per channel that the application subtracts from a pixel of 0 … 255, read off the data",
    "pixel_scale": "factor per channel that it multiplies the rest by",
    "pixel_kept": "both, where the settings of the toolchain have them already: then they stay as they are",
    "repair": "Python function `repaired` that undoes a mistake in the representative inputs, where that can be undone",
    "weight_axes": "the weights of the layers concerned, each with the axis of its scales, None for one scale, and its "
    "type of codes",
    **MODEL_FIELDS,
    "wider_groups": "config_groups of compressed-tensors with 8 bits for the weights of the layers concerned",
    "channel_axes": "those with one scale where other weights have one per channel, each with its axis of outputs",
}
#: Fields whose line of the snippet stands once for each name of a list.
EACH_FIELDS = {"layer": "layers", "node": "nodes", "tensor": "tensors", "quantized_layer": "quantized_layers"}


#: Frameworks of models that are files of weights alone: toolchains have to say that they write them.
WEIGHT_FILES = ("safetensors", "gguf")


class Snippet(Data):
    """How one toolchain applies a remedy: text with names and values of this model filled in by the report."""

    toolchain: str
    mark: Mark = Field(
        default="documentation",
        description="run: executed; source: checked in that version's source; documentation: read only",
    )
    code: str = Field(default="", description="text, with fields for names and values")
    options: Mapping[str, Options] = Field(
        default={}, exclude=True, description="options by the form of the toolchain that takes them, behind the code"
    )
    within: str = Field(default="", exclude=True, description="Python statement that the options' call stands in")
    after: str = Field(
        default="",
        exclude=True,
        description="Python text behind the options' call and that statement; {0} is the first argument of the call",
    )
    tool: Toolchain = Field(default=UNKNOWN, exclude=True, description="the toolchain; the loader fills it in")
    note: str | None = None
    reads: Literal["representative", "application"] = Field(
        default="representative",
        description="what the user's reader or loader yields when this runs: the representative inputs as they are, or "
        "others that are as the application's, because these cannot be repaired",
    )
    whole: bool = Field(default=False, description="only for causes that name neither layer nor tensor")
    formats: tuple[str, ...] = Field(default=(), description="only for models of these formats, as model.format")
    frameworks: tuple[str, ...] = Field(
        default=(),
        exclude=True,
        description="only for models of these frameworks; the loader fills in those of the toolchain",
    )
    types: tuple[str, ...] = Field(default=(), description="only for layers of these types, and then before others")
    written_by: tuple[str, ...] = Field(
        default=(),
        exclude=True,
        description="only where each activation that it names is written by an operator of these types",
    )
    read_by: tuple[str, ...] = Field(
        default=(),
        exclude=True,
        description="only where each activation that it names is read by operators of these types alone",
    )

    @model_validator(mode="after")
    def _says_something(self) -> "Snippet":
        if not (self.code or self.options):
            raise ValueError("a snippet needs code or options")
        return self

    def takes(self, framework: str | None) -> bool:
        """The toolchain quantizes models of this framework."""
        return framework in self.frameworks if self.frameworks else framework not in WEIGHT_FILES

    @property
    def forms(self) -> dict[str, Form]:
        """The forms that take its options."""
        return {name: self.tool.forms[name] for name in self.options}

    @property
    def fields(self) -> frozenset[str]:
        """Lists of names and values that it asks for."""
        return frozenset((*(name for name in FIELD.findall(self.code) if name), *asked_fields(self.options)))

    @property
    def names_something(self) -> bool:
        """The code holds names of layers or tensors."""
        return bool(self.fields & (NAME_FIELDS.keys() | EACH_FIELDS.keys()))


class Cost(Data):
    """What a remedy costs, each from 0 (none) to 3 (high); None where it is not stated."""

    latency: Annotated[int, Field(ge=0, le=3)] | None = None
    memory: Annotated[int, Field(ge=0, le=3)] | None = None
    effort: Annotated[int, Field(ge=0, le=3)] | None = None
    says: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, raw: object) -> object:
        return {"says": raw} if isinstance(raw, str) else raw


class Withhold(Data):
    """When a remedy is not advised for a subject, and the reason given; its fields are facts, as in a message."""

    when: Node
    because: str


class Remedy(Data):
    """What to change, what it costs, when it is useless or unsafe, and how it is predicted and proved.

    Conditions, ``now`` and ``values`` name facts of ``scope``. A value is the largest of one fact over the
    subjects, or, given as a list of facts, those facts of every subject under its name.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)+$")
    title: str
    changes: str
    cost: Cost
    unsafe: str
    scope: RemedyScope = "model"
    now: tuple[str, ...] = Field(
        default=(), description="facts that hold the present setting; of several with | between them, the first known"
    )
    in_force: Node | None = Field(default=None, description="true on every subject: already done, never advised")
    withheld: tuple[Withhold, ...] = ()
    values: Mapping[str, str | tuple[str, ...]] = Field(default={}, description="fields of snippets from facts")
    simulate: Simulation | None = Field(
        default=None, description="kind of its change; None: its effect cannot be predicted"
    )
    snippets: tuple[Snippet, ...] = ()

    @property
    def present_facts(self) -> list[str]:
        """All facts that may hold the present setting."""
        return [each for path in self.now for each in path.split("|")]

    def conditions(self) -> list[Condition]:
        """All comparisons that decide whether it is advised."""
        parts = [*([self.in_force] if self.in_force is not None else ()), *(reason.when for reason in self.withheld)]
        return [condition for part in parts for condition in leaves(part)]

    def facts(self) -> list[str]:
        """All facts that it reads."""
        texts = [field for reason in self.withheld for field in message_fields(reason.because)]
        values = [path for given in self.values.values() for path in ([given] if isinstance(given, str) else given)]
        return [*self.present_facts, *(condition.fact for condition in self.conditions()), *texts, *values]


def can_be_shown(remedy: Remedy, rule: Rule) -> bool:
    """One of the remedy's snippets can be filled from findings of the rule, or it has none."""
    named = names_layers(rule)
    # Facts of the model name no layer.
    told = {*MODEL_FIELDS, *(remedy.values if remedy.scope == "model" else ())}
    fits = [s for s in remedy.snippets if (named and not s.whole) or not (named or s.fields - told)]
    return bool(fits) or not remedy.snippets
