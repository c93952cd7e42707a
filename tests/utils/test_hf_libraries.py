from __future__ import annotations

import gc
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import whet
from tests.conftest import FAMILIES, small_model
from whet.tools.selftest.tiny_run import write_model, write_rows
from whet.utils import hf_libraries as loading


def said_by(script: str, **environment: str) -> list[str]:
    environment = {**os.environ, **environment}
    script = f"from whet.utils import hf_libraries as loading\n{script}"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return run.stdout.split()


def test_what_a_command_has_loaded_is_not_searched() -> None:
    script = (
        "import gc; loading.load_as_command(); loading.freeze_garbage_collector();"
        "print(gc.get_freeze_count() > 0, gc.get_threshold() == loading.USUAL)"
    )
    assert said_by(script) == ["True", "True"]


def test_in_a_process_of_somebody_else_nothing_is_set_aside() -> None:
    script = "import gc; loading.freeze_garbage_collector(); print(gc.get_freeze_count())"
    assert said_by(script) == ["0"]


def test_a_command_loads_without_looking() -> None:
    script = (
        "import gc; from whet.cli import app as cli;"
        "cli.main = lambda: print(gc.get_threshold() == loading.LOADING) or 0; cli.entry()"
    )
    assert said_by(script) == ["True"]


def test_a_training_sets_aside_what_was_loaded_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_rows(tmp_path / "rows.csv", 40)
    monkeypatch.setattr(loading, "_is_command", False)  # and so it is again afterwards
    before = gc.get_threshold()
    loading.load_as_command()
    try:
        whet.fit("rows.csv", model=str(tmp_path / "model"), max_steps=1, evaluations=1, device="cpu")
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == loading.USUAL
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def install(site: Path, name: str, package: str) -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(package)
    described = site / f"{name}-9.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n")
    (described / "RECORD").write_text(f"{name}/__init__.py,,\n")


def test_a_command_loads_nothing_that_classifiers_never_use(tmp_path: Path) -> None:
    """Libraries that are installed, and would end the command if anybody imported them."""
    write_model(tmp_path)
    for name in ("torchvision", "torchaudio", "librosa"):
        install(tmp_path / "site", name, "raise RuntimeError(__name__)")
    script = (
        "import sys; from whet.config import make_config; from whet.task import Task;"
        "from whet.models.pretrained import load_model; loading.load_as_command();"
        f"load_model({str(tmp_path)!r}, Task('binary', ('no', 'yes')), make_config({{}}).model, seed=0);"
        "print(*[name for name in loading.NOT_FOR_CLASSIFIERS if name in sys.modules]);"
        "from transformers.utils import is_scipy_available; print(is_scipy_available())"
    )
    found = said_by(script, PYTHONPATH=os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    assert found == ["True"]  # what asks later is told that it is there


@pytest.mark.parametrize("command", [True, False])
def test_only_a_command_leaves_out_and_only_meanwhile(command: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import utils

    monkeypatch.setattr(loading, "_is_command", command)
    asked = utils.is_sklearn_available
    with loading.skip_unused_imports(), loading.skip_unused_imports():
        assert (utils.is_sklearn_available is asked) == (not command)
        assert not command or not utils.is_peft_available()
    assert utils.is_sklearn_available is asked


def test_packages_belong_to_the_distributions_that_python_finds() -> None:
    found = loading.packages_distributions()
    expected = {name: of for name, of in metadata.packages_distributions().items() if name != "__pycache__"}
    assert "transformers" in expected
    assert {name: of for name, of in expected.items() if not set(of) <= set(found.get(name, []))} == {}


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Metadata-Version: 2.1\nName: One.Two\n\nName: other\n", "One.Two"),
        ("name:\tone\r\nVersion: 1\n", "one"),
    ],
)
def test_a_distribution_is_named_by_its_header(
    header: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "one-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(header)
    (folder / "RECORD").write_text("made_up/__init__.py,,\nmade_up.so,,\n../../bin/made,,\n")
    nameless = tmp_path / "nothing-1.dist-info"
    nameless.mkdir()
    (nameless / "METADATA").write_bytes(b"Name: \xe9\n")  # which nobody needs to read
    monkeypatch.syspath_prepend(str(tmp_path))
    assert loading.packages_distributions()["made_up"] == [name]


def test_a_command_has_transformers_ask_quickly_and_only_meanwhile() -> None:
    script = (
        "from importlib import metadata; metadata.packages_distributions = None; "
        "loading.load_as_command(); from whet.models.pretrained import quiet\n"
        "with quiet(): print(metadata.packages_distributions)"
    )
    assert said_by(script) == ["None"]


def test_predicting_one_text_leaves_out_what_only_training_and_the_compiler_need(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    folder = saved_classifier(tiny_model_folder, tmp_path / "model")
    script = (
        "import sys; from whet import cli; from whet.utils import hf_libraries as loading; loading.load_as_command();"
        f"assert cli.main(['predict', {str(folder)!r}, '--text', 'yes', '--device', 'cpu']) == 0;"
        "print('loaded:', *(name for name, module in sys.modules.items() if module))"
    )
    loaded = set(said_by(script))
    assert "torch" in loaded
    assert not loaded & {"pandas", "torch._dynamo", "torch.distributed.tensor", "accelerate.hooks", "datasets"}
    assert not loaded & {"whet.data.audit", "whet.data.examples", "whet.data.dropping"}


def saved_classifier(model: Path, folder: Path) -> Path:
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer, save_model
    from whet.task import Task

    loaded = load_model(str(model), Task("binary", ("bad", "good")), ModelConfig(), seed=0)
    save_model(loaded.model, load_tokenizer(str(model), ModelConfig()), folder)
    return folder


@pytest.mark.parametrize("family", ["bert", *(pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES[1:])])
def test_a_command_that_only_predicts_answers_as_python_does(
    family: str, tiny_model_folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    model = small_model(family)
    model.config.id2label, model.config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_model_folder).save_pretrained(tmp_path / "model")
    texts = ["yes apple", "no brick cloud"]
    (tmp_path / "new.csv").write_text("text\n" + "\n".join(texts) + "\n")
    script = (
        "from whet import cli; from whet.utils import hf_libraries as loading; loading.load_as_command();"
        f"cli.main(['predict', {str(tmp_path / 'model')!r}, {str(tmp_path / 'new.csv')!r}, '--device', 'cpu'])"
    )
    expected = whet.load(tmp_path / "model", device="cpu").predict(texts)
    said = said_by(script)
    assert said == [
        part for n, each in enumerate(expected, 1) for part in (str(n), each.label, f"{each.probability:.4f}")
    ]
