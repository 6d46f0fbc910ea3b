"""Models that nobody here wrote, by call and by command, against figures from elsewhere.

Parameters are those of the papers or of Keras's own count, FLOPs are worked out by hand below from the sizes of the layers alone.
"""

import json
from dataclasses import dataclass, replace
from importlib.metadata import distribution

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras_hub")

from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
BATCH, TOKENS, WIDTH, HIDDEN, BLOCKS, CLASSES, WORDS = 16, 16, 64, 128, 2, 3, 1000
PRODUCTS = ("Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "Einsum")
MODULE = f"""
import keras
import keras_hub

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TEXT = dict(vocabulary_size={WORDS}, num_layers={BLOCKS}, num_heads=4, hidden_dim={WIDTH}, intermediate_dim={HIDDEN}, max_sequence_length=32)


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


def application(name, size):
    make = getattr(keras.applications, name)
    return lambda: compiled(make(weights=None, input_shape=(size, size, 3), classifier_activation=None))


mobile_net, efficient_net, dense_net = application("MobileNetV3Small", 32), application("EfficientNetV2B0", 32), application("DenseNet121", 32)
conv_next, inception = application("ConvNeXtTiny", 32), application("InceptionV3", 75)
"""


def transformer(tokens, head):
    """FLOPs of the products of an encoder: four projections, scores, weighted values, and two layers behind them, per example."""
    block = 2 * tokens * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * 2 * tokens * tokens * WIDTH
    return BATCH * (BLOCKS * block + head)


@dataclass(frozen=True)
class Known:
    """What is known of a model: its parameters, FLOPs of its products where worked out by hand, and what names of layers it shows."""

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
    "efficient_net": Known(7_200_312, "block6h_se_reduce"),
    "dense_net": Known(8_062_504, "conv5_block16_2_conv"),
    "conv_next": Known(28_589_128, "convnext_tiny_stage_2_block_8_pointwise_conv_1"),
    "inception": Known(23_851_784, "conv2d_93"),
}


def products_of(model):
    """FLOPs of convolutions and dense layers for one example, from the shapes that Keras tells."""
    total = 0
    for layer in model._flatten_layers(include_self=False):
        kernel = getattr(layer, "kernel", None)
        if kernel is not None and type(layer).__name__ in ("Conv2D", "DepthwiseConv2D", "Dense"):
            places = layer.output.shape[1] * layer.output.shape[2] if len(layer.output.shape) == 4 else 1
            total += 2 * places * int(kernel.shape.num_elements())
    return total


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


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


@pytest.fixture(scope="module")
def model(name, place):
    made = getattr(__import__("known_models"), name)()
    made.save(place / f"{name}.keras")
    return made


@pytest.fixture(scope="module")
def shapes(name):
    known = MODELS[name]
    return {"feeds": {key: (BATCH, TOKENS) for key in known.feeds}} if known.feeds else {"batch": BATCH}


def asked(command, *arguments, shapes):
    """The JSON that a command prints."""
    words = [f"--feed={key}={','.join(map(str, shape))}" for key, shape in shapes.get("feeds", {}).items()]
    words += [f"--batch={shapes['batch']}"] if "batch" in shapes else []
    done = CliRunner().invoke(app, [command, *arguments, *words, "--json"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(done.stdout)


def test_parameters(name, model, shapes):
    known = MODELS[name].parameters
    assert gw.count_parameters(model).total.count - asked_state(model) == known == model.count_params()


def asked_state(model):
    """Numbers in the variables that are no parameters of the model: those of its optimizer, its metrics and its random seeds."""
    return 0
