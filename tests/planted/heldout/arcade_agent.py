"""Advantage actor-critic on recorded arcade rollouts (16 cabinets x 96 frames each update)."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

FOLDER = Path("data_arcade_agent")
CABINETS, FRAMES, OBS, ACTIONS = 16, 96, 96, 8
GAMMA, LAMBDA = 0.99, 0.95


def recordings(updates=110):
    path = FOLDER / "rollouts.npz"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        shape = (updates, CABINETS, FRAMES)
        np.savez(
            path,
            obs=rng.normal(size=(*shape, OBS)).astype(np.float32),
            action=rng.integers(0, ACTIONS, shape),
            reward=rng.normal(size=shape).astype(np.float32),
            over=rng.random(shape) < 0.02,
        )
    with np.load(path) as z:
        return {k: torch.from_numpy(z[k]) for k in z.files}


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.policy, self.value = nn.Linear(128, ACTIONS), nn.Linear(128, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value(h).squeeze(-1)


class Learner:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.RMSprop(net.parameters(), lr=7e-4)

    @torch.no_grad()
    def advantages(self, reward, value, over):
        out = torch.zeros_like(reward)
        for c in range(CABINETS):
            carry = torch.zeros(())
            for t in range(FRAMES - 1, -1, -1):
                ahead = value[c, t + 1] if t + 1 < FRAMES else torch.zeros(())
                if over[c, t]:
                    ahead, carry = torch.zeros(()), torch.zeros(())
                delta = reward[c, t] + GAMMA * ahead - value[c, t]
                carry = delta + GAMMA * LAMBDA * carry
                out[c, t] = carry
        return out

    def update(self, obs, action, reward, over):
        logits, value = self.net(obs)
        adv = self.advantages(reward, value.detach(), over)
        logp = logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        loss = -(logp * adv).mean() + 0.5 * (value - (adv + value.detach())).square().mean() - 0.01 * entropy
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.opt.step()
        return loss.detach()

    def fit(self, data, epochs):
        for epoch in range(epochs):
            t0 = time.perf_counter()
            losses = [
                self.update(data["obs"][k], data["action"][k], data["reward"][k], data["over"][k])
                for k in torch.randperm(len(data["obs"])).tolist()
            ]
            print(f"epoch {epoch} loss {torch.stack(losses).mean().item():.4f}")
            print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    Learner(ActorCritic()).fit(recordings(), epochs=3)
