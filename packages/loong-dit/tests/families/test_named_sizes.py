"""Every named size has the tensors of diffusers' transformer of that config, name by name and shape by shape."""

import pytest
import torch

from loong_dit.families.registry import find_family, named_config, named_configs

diffusers = pytest.importorskip("diffusers")


@pytest.mark.parametrize("name", sorted(named_configs()))
def test_a_named_size_has_the_tensors_of_diffusers(name):
    hf = named_config(name)
    family = find_family(hf["_class_name"])
    config = family.config(hf)
    with torch.device("meta"):
        reference = getattr(diffusers, family.class_name)(**{key: value for key, value in hf.items() if key[0] != "_"})
    expected = {key: tuple(value.shape) for key, value in reference.state_dict().items()}
    assert family.weight_map(config).tensors(config.num_layers) == expected
    assert family.named_sizes()[name] == sum(value.numel() for value in reference.parameters())
