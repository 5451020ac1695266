"""Random weights that every form of a checkpoint holds exactly."""

import torch


def on_grid(values):
    """Values that bf16 and f16 both hold exactly, so every form of a case has the same weights."""
    values = values.to(torch.bfloat16).float()
    return torch.where(values.abs() < 2.0**-12, torch.zeros_like(values), values)


def fill(model, seed, choose):
    """Fills all parameters with what `choose(name, shape, normal)` gives, where `normal(shape, std,
    mean=0.0)` draws numbers; the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape, std, mean=0.0):
        return torch.randn(shape, generator=generator) * std + mean

    for name, p in sorted(model.named_parameters()):
        p.data.copy_(on_grid(choose(name, p.shape, normal)))
