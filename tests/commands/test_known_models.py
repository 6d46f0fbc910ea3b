"""Models that nobody here wrote, by call and by command, against figures from elsewhere.

Parameters are those of the papers or of Keras's own count, FLOPs are worked out by hand below from the sizes of the layers alone.
"""

import json
import math
from dataclasses import dataclass
from importlib.metadata import distribution

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras_hub")

from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app
from tests.report.page_parser import data_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
BATCH, TOKENS, WIDTH, HIDDEN, BLOCKS, CLASSES, WORDS = 16, 16, 64, 128, 2, 3, 1000
PRODUCTS = ("Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "Einsum")
MODULE = f"""
import keras
import keras_hub

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TEXT = dict(
    num_layers={BLOCKS}, num_heads=4, hidden_dim={WIDTH}, intermediate_dim={HIDDEN}, vocabulary_size={WORDS}, max_sequence_length=32
)


def compiled(model):
    model.compile("sgd", LOSS)
    return model


def bert():
    return compiled(keras_hub.models.BertTextClassifier(keras_hub.models.BertBackbone(**TEXT), num_classes={CLASSES}))


def gpt2():
    return compiled(keras_hub.models.GPT2CausalLM(keras_hub.models.GPT2Backbone(**TEXT)))


def vit():
    sizes = dict(image_shape=(32, 32, 3), patch_size=8, num_layers={BLOCKS}, num_heads=4, hidden_dim={WIDTH}, mlp_dim={HIDDEN})
    return compiled(keras_hub.models.ViTImageClassifier(keras_hub.models.ViTBackbone(**sizes), num_classes={CLASSES}))


def mobile_net():
    return compiled(keras.applications.MobileNetV3Small(weights=None, input_shape=(64, 64, 3), classifier_activation=None))
"""


def transformer(tokens, head):
    """FLOPs of the products of an encoder: four projections, scores, weighted values, and two layers behind them, per example."""
    block = 2 * tokens * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * 2 * tokens * tokens * WIDTH
    return BATCH * (BLOCKS * block + head)


@dataclass(frozen=True)
class Known:
    """What is known of a model: its parameters, FLOPs of its products where worked out by hand, and a layer of it by its name."""

    parameters: int
    layer: str
    flops: int = 0
    feeds: tuple[str, ...] = ()


# Parameters by hand: four projections and two layers with biases, two normalizations.
BLOCK = 4 * (WIDTH * WIDTH + WIDTH) + 2 * WIDTH * HIDDEN + HIDDEN + WIDTH + 4 * WIDTH
PATCHES = 16
MODELS = {
    "bert": Known(
        (WORDS + 32 + 2) * WIDTH + 2 * WIDTH + BLOCKS * BLOCK + WIDTH * WIDTH + WIDTH + (WIDTH + 1) * CLASSES,
        "bert_backbone/transformer_layer_0/self_attention_layer",
        transformer(TOKENS, 2 * WIDTH * WIDTH + 2 * WIDTH * CLASSES),
        ("token_ids", "padding_mask", "segment_ids"),
    ),
    "gpt2": Known(
        (WORDS + 32) * WIDTH + BLOCKS * BLOCK + 2 * WIDTH,
        "gpt2_backbone/transformer_layer_1",
        transformer(TOKENS, 2 * TOKENS * WIDTH * WORDS),
        ("token_ids", "padding_mask"),
    ),
    "vit": Known(
        (8 * 8 * 3 + 1) * WIDTH + WIDTH + (PATCHES + 1) * WIDTH + BLOCKS * BLOCK + 2 * WIDTH + (WIDTH + 1) * CLASSES,
        "vi_t_backbone/vit_encoder/transformer_block_1/mlp/dense_1",
        transformer(PATCHES + 1, 2 * PATCHES * 8 * 8 * 3 * WIDTH + 2 * WIDTH * CLASSES),
    ),
    "mobile_net": Known(2_554_968, "expanded_conv_3_project"),
}


def products_of(model):
    """FLOPs of convolutions and dense layers, from the shapes that Keras tells."""
    total = 0
    for layer in model._flatten_layers(include_self=False):
        if type(layer).__name__ in ("Conv2D", "DepthwiseConv2D", "Dense"):
            shape, kernel = layer.output.shape, layer.kernel.shape
            per_place = kernel[0] * kernel[1] * kernel[2] if type(layer).__name__ == "DepthwiseConv2D" else math.prod(kernel)
            total += 2 * BATCH * math.prod(shape[1:-1]) * per_place
    return total


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setenv("COLUMNS", "80")
        patch.setenv("GRAPHWRIGHT_CACHE_DIR", str(folder / "plans"))
        (folder / "known_models.py").write_text(MODULE, encoding="utf-8")
        yield folder


def asked(command, *arguments):
    """The JSON that a command prints."""
    done = CliRunner().invoke(app, [command, *arguments, "--json"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MODELS)
def test_a_known_model(name, place):
    known = MODELS[name]
    model = getattr(__import__("known_models"), name)()
    model.save(f"{name}.keras")
    feeds = dict.fromkeys(known.feeds, (BATCH, TOKENS))
    shapes = {"feeds": feeds} if feeds else {"batch": BATCH}
    words = [f"--feed={key}={BATCH},{TOKENS}" for key in feeds] or [f"--batch={BATCH}"]

    counted = gw.count_parameters(model).to_json()
    assert sum(p["elements"] for p in counted["parameters"] if p["kind"] in ("trainable", "non-trainable")) == known.parameters
    target = f"known_models:{name}" if feeds or name == "vit" else f"{name}.keras"  # keras-hub's models come back uncompiled
    read = asked("params", f"{name}.keras")["parameters"]
    # Keras builds some layers of a model that it reads outside of the models they are in, out of their paths, and numbers weights.
    layers = [
        [(p["name"].split("/")[-2], p["shape"]) for p in given if p["kind"] == "trainable"] for given in (read, counted["parameters"])
    ]
    assert layers[0] == layers[1] != []

    flops = gw.count_flops(model, mode="infer", **shapes)
    assert sum(flops.per_op_type[op].forward for op in PRODUCTS if op in flops.per_op_type) == (known.flops or products_of(model))
    assert not flops.unknown
    assert known.layer in flops.per_layer
    assert asked("flops", f"{name}.keras", "--mode=infer", *words)["total_flops"] == flops.total

    found = gw.inspect(model, **shapes)
    assert found.forward_flops >= flops.total
    assert 1.5 * found.forward_flops < found.backward_flops < 2.5 * found.forward_flops
    assert found.parameters.trainable == sum(p["elements"] for p in counted["parameters"] if p["kind"] == "trainable")
    assert known.layer in {row.layer for row in found.layers}
    traced = gw.predict_peak(model, order="traced", **shapes).peak_bytes
    assert traced == asked("peak", target, "--order=traced", *words)["peak_bytes"]

    plan = gw.optimize_memory(model, 0.7, **shapes).memory_plan()
    assert plan.peak_bytes <= plan.budget_bytes == int(0.7 * plan.original_peak_bytes)
    assert plan.verification.startswith("equal")
    followed = asked("optimize", target, "--budget=70%", *words)
    # The share is one of a peak that is partly chance, drawn anew by the command.
    assert followed["peak_bytes"] <= followed["budget_bytes"] == pytest.approx(plan.budget_bytes, rel=0.05)
    assert followed["verification"].startswith("equal")

    drawn = data_of(gw.draw(model, f"{name}.html").read_text(encoding="utf-8"))
    assert known.layer.rpartition("/")[2] in json.dumps(drawn["views"][0])
    assert CliRunner().invoke(app, ["draw", f"{name}.keras", f"{name}_too.html"]).exit_code == 0


def test_a_saved_model_that_a_package_ships(place):
    """Basic Pitch, a TF2 SavedModel of Keras 2; its paper says 16,782 parameters."""
    folder = str(distribution("basic-pitch").locate_file("basic_pitch/saved_models/icassp_2022/nmp"))
    counted = gw.count_parameters(folder).to_json()["parameters"]
    assert sum(p["elements"] for p in counted if p["kind"] == "trainable") == 16_782
    flops = gw.count_flops(folder, batch=1)
    assert asked("flops", folder, "--batch=1")["total_flops"] == flops.total > 1e9
    assert not flops.unknown
    assert len(gw.fold_batch_norms(folder, out="folded").folded) == 2
    assert gw.count_flops("folded", batch=1).total < flops.total
