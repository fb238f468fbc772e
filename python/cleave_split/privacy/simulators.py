"""Attacks that train a simulator of the client's layers against a discriminator: SDAR, by a passive server, and FSHA, by a malicious one."""

from __future__ import annotations

from typing import Callable, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from .images import seeded

Make = Callable[[], nn.Module]


class _Decoder(nn.Module):
    """From activations to inputs: convolutions if both are images, else two linear layers."""

    def __init__(self, activation: Sequence[int], inputs: Sequence[int], width: int = 16):
        super().__init__()
        self.inputs = tuple(inputs)
        self.is_image = len(activation) == 3 and len(inputs) == 3
        if self.is_image:
            self.first = nn.Conv2d(activation[0], width, 3, padding=1)
            self.middle = nn.Conv2d(width, width, 3, padding=1)
            self.last = nn.Conv2d(width, inputs[0], 3, padding=1)
        else:
            self.first = nn.Linear(torch.Size(activation).numel(), 16 * width)
            self.last = nn.Linear(16 * width, torch.Size(inputs).numel())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_image:
            return self.last(F.gelu(self.first(x.flatten(1)))).reshape(len(x), *self.inputs)
        x = F.interpolate(F.gelu(self.first(x)), self.inputs[1:])
        return self.last(F.gelu(self.middle(x)))


def _discriminator(shape: Sequence[int], width: int = 16) -> nn.Module:
    """Whether tensors of this shape per sample are real: a logit."""
    if len(shape) != 3:
        return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8 * width), nn.LeakyReLU(0.2), nn.Linear(8 * width, 1))
    size = [(each + 3) // 4 for each in shape[1:]]
    return nn.Sequential(nn.Conv2d(shape[0], width, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, width, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
                         nn.Linear(width * size[0] * size[1], 1))  # fmt: skip


def _judged(discriminator: nn.Module, values: torch.Tensor, real: bool) -> torch.Tensor:
    logits = discriminator(values)
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _adam(rate: float, *modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for module in modules for each in module.parameters()], lr=rate, betas=(0.5, 0.999))


def sdar(activation: torch.Tensor, body: Callable[[torch.Tensor], torch.Tensor], make_head: Make, make_tail: Make, inputs: torch.Tensor,
         labels: torch.Tensor, generator: torch.Generator, steps: int = 300, batch: int = 32, rate: float = 5e-3,
         judge_rate: float = 1e-3, adversarial: float = 0.04, moments: float = 10) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Needs the architecture of head and tail, and inputs with labels of the same kind as the client's, but none of the client's. Trains copies of
    head and tail around the server's body on them, while a discriminator makes the copy's activations look like those received; a decoder
    learns to invert the copy, while another discriminator makes its images of the received activations look like inputs (Zhu et al., SDAR,
    NDSS 2025, for the U shape). Besides, the copy's activations get the mean of those received, and in the first third of the steps labels do not
    matter: otherwise the copy may settle on activations of the opposite sign. Returns the inputs and labels of `activation`."""
    head, tail = seeded(make_head, generator).train(), seeded(make_tail, generator).train()
    decoder = seeded(lambda: _Decoder(activation.shape[1:], inputs.shape[1:]), generator)
    of_activation = seeded(lambda: _discriminator(activation.shape[1:]), generator)
    of_input = seeded(lambda: _discriminator(inputs.shape[1:]), generator)
    by_copy, by_decoder = _adam(rate, head, tail), _adam(rate, decoder)
    by_activation, by_input = _adam(judge_rate, of_activation), _adam(judge_rate, of_input)
    mean = activation.float().mean(0)
    scale = activation.std().clamp_min(1e-6)  # discriminators and decoder see activations of this standard deviation
    for step in range(steps):
        own = torch.randint(len(inputs), (batch,), generator=generator)
        received = activation[torch.randint(len(activation), (batch,), generator=generator)].float() / scale
        simulated = head(inputs[own])
        loss = moments * ((simulated.mean(0) - mean) / scale).square().mean() + adversarial * _judged(of_activation, simulated / scale, True)
        if step >= steps // 3:
            loss = loss + F.cross_entropy(tail(body(simulated)), labels[own])
        _step(by_copy, loss)
        simulated = simulated.detach() / scale
        _step(by_activation, _judged(of_activation, received, True) + _judged(of_activation, simulated, False))
        guess = decoder(received)
        _step(by_decoder, F.mse_loss(decoder(simulated), inputs[own]) + adversarial * 0.1 * _judged(of_input, guess, True))
        _step(by_input, _judged(of_input, inputs[own], True) + _judged(of_input, guess.detach(), False))
    with torch.no_grad():
        parts = activation.float().split(256)
        return torch.cat([decoder(each / scale) for each in parts]), torch.cat([tail.eval()(body(each)).argmax(1) for each in parts])


class Fsha:
    """A malicious server: needs the head's architecture and inputs of the same kind as the client's, and sends gradients of its own. It trains an
    encoder of that architecture and its inverse on its inputs, and sends the client the gradient that makes the client's activations look like
    the encoder's; then the inverse also inverts the client's head (Pasquini et al., Unleashing the Tiger, CCS 2021)."""

    def __init__(self, make_head: Make, inputs: torch.Tensor, generator: torch.Generator, rate: float = 1e-3):
        self.inputs, self.generator = inputs, generator
        self.encoder = seeded(make_head, generator).train()
        shape = self.encoder(inputs[:2]).shape[1:]
        self.decoder = seeded(lambda: _Decoder(shape, inputs.shape[1:]), generator)
        self.discriminator = seeded(lambda: _discriminator(shape), generator)
        self.by_pilot, self.by_judge = _adam(rate, self.encoder, self.decoder), _adam(rate / 2, self.discriminator)

    def gradient(self, activation: torch.Tensor) -> torch.Tensor:
        """Learns from the client's activations of a batch. Returns the gradient that the client gets."""
        received = activation.detach().clone().requires_grad_()
        _judged(self.discriminator, received, True).backward()
        own = self.inputs[torch.randint(len(self.inputs), (len(activation),), generator=self.generator)]
        encoded = self.encoder(own)
        _step(self.by_pilot, F.mse_loss(self.decoder(encoded), own))
        _step(self.by_judge, _judged(self.discriminator, encoded.detach(), True) + _judged(self.discriminator, activation.detach(), False))
        return received.grad

    def reconstruction(self, activation: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([self.decoder(each) for each in activation.split(256)])


def fsha(make_head: Make, private: torch.Tensor, inputs: torch.Tensor, generator: torch.Generator, steps: int = 300, batch: int = 32,
         client_rate: float = 1e-3) -> torch.Tensor:  # fmt: skip
    """Simulates a client, whose head of make_head() trains on the inputs `private`, and its server, which attacks with Fsha. Returns the
    server's reconstruction of these inputs."""
    head = seeded(make_head, generator).train()
    server = Fsha(make_head, inputs, generator)
    by_client = _adam(client_rate, head)
    for _ in range(steps):
        activation = head(private[torch.randint(len(private), (batch,), generator=generator)])
        gradient = server.gradient(activation)
        if activation.requires_grad:
            by_client.zero_grad()
            activation.backward(gradient)
            by_client.step()
    with torch.no_grad():
        return torch.cat([server.reconstruction(head(each)) for each in private.split(256)])
