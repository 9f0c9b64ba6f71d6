// The two models as the graph draws them. Places are those of a model's own operators; layers are those of the page.

/** The quantized model: its operators are the layers. */
class QuantizedSide {
  name = "quantized";
  title = "Quantized model";
  first = null;
  data = section("graph");
  count = layers.count;
  edges = this.data.edges;
  twins = this.data.float && new Set(this.data.float.twins);

  label(at) {
    return layers.label(at);
  }

  operator(at) {
    return layers.value("op_type", at) ?? "?";
  }

  isFlagged(at) {
    return layers.isDegraded(at);
  }

  layerOf(at) {
    return at;
  }

  placesOf(layer) {
    return layer === null ? [] : [layer];
  }

  /** Whether the other model has nothing that does the same. */
  isAlone(at) {
    return Boolean(this.twins && !this.twins.has(at));
  }
}

/**
 * The float model as it was before anything was folded: several of its operators may be one layer. Its graph is first
 * seen at the layer `first`.
 */
class FloatSide {
  constructor(first) {
    this.first = first;
  }

  name = "float";
  title = "Float model";
  data = section("graph").float;
  count = this.data.twins.length;
  edges = this.data.edges;

  label(at) {
    return this.data.names[at] || layers.label(this.data.twins[at]);
  }

  operator(at) {
    return this.data.types[at] || (layers.value("op_type", this.data.twins[at]) ?? "?");
  }

  isFlagged() {
    return false;
  }

  layerOf(at) {
    return this.data.twins[at];
  }

  placesOf(layer) {
    if (layer === null) return [];
    return this.data.twins.flatMap((twin, at) => (twin === layer ? [at] : []));
  }

  isAlone(at) {
    return this.data.twins[at] === null;
  }
}
